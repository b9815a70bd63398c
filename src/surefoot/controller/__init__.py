"""The live side: one controller per run, its journal, and its line to the agents in the VMs."""

from surefoot.controller.agents import Agents
from surefoot.controller.clock import Clock, RealClock
from surefoot.controller.hub import Hub
from surefoot.controller.loop import Controller
from surefoot.controller.settings import Settings
from surefoot.controller.store import Journal, Store
from surefoot.controller.view import Phase, View

__all__ = [
    "Agents",
    "Clock",
    "Controller",
    "Hub",
    "Journal",
    "Phase",
    "RealClock",
    "Settings",
    "Store",
    "View",
]
