"""The controller's durable record: an SQL journal of events, and the lease on a run."""

from surefoot.controller.store.engine import may_be_there
from surefoot.controller.store.journal import Journal, Store

__all__ = ["Journal", "Store", "may_be_there"]
