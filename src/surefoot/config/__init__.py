"""Job files and settings: YAML in, checked values out, and every message about what is wrong."""

from surefoot.config.jobfile import Deadline, JobFile, LocalSettings, Place
from surefoot.config.load import load_job
from surefoot.config.quantities import duration_ms, money_micro_usd, say_ms

__all__ = [
    "Deadline",
    "JobFile",
    "LocalSettings",
    "Place",
    "duration_ms",
    "load_job",
    "money_micro_usd",
    "say_ms",
]
