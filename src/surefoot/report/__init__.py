"""What a run did, told to people: words, figures, a page, a summary; built from its events."""

from surefoot.report.story import Story
from surefoot.report.summary import figures, write_report

__all__ = ["Story", "figures", "write_report"]
