"""What all tests share: in CI random examples are the same each time, elsewhere they are not."""

from __future__ import annotations

import os

from hypothesis import settings

# A change must not be blocked by an example that it did not bring; people's runs look further.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
