"""What tests of Surefoot, ours and yours, are built from: a clock, a cloud and agents on paper."""

from surefoot.testing.agents import FakeAgents, Pace
from surefoot.testing.clock import FakeClock
from surefoot.testing.drive import drive
from surefoot.testing.provider import FakeProvider, Fault, Odds

__all__ = ["FakeAgents", "FakeClock", "FakeProvider", "Fault", "Odds", "Pace", "drive"]
