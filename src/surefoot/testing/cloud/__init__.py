"""A pretended AWS on this machine: real boto3 against it, VMs that really boot their user data."""

from surefoot.testing.cloud.cloud import FakeCloud
from surefoot.testing.cloud.market import Refusal, Sale

__all__ = ["FakeCloud", "Refusal", "Sale"]
