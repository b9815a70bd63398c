"""Passes that let agents in: each good for one VM and until an instant, signed by the run's secret.

The run's secret itself never leaves the controller. A VM boots with a pass; while its agent is
connected it is given newer ones.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

LIFE_MS = 3_600_000
"""Long enough for a boot, and to come back after any silence that a lease allows."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Issues and checks passes. `life_ms`: how long one is good; renewed at half of it.

    A pass is `EXPIRY.SIGNATURE`: epoch ms in hex, and HMAC-SHA256 over VM token and expiry.
    """

    secret: str = field(repr=False)
    life_ms: int = LIFE_MS

    def issue(self, token: str, now_ms: int) -> str:
        """Return a pass for the VM with our token, good for `life_ms`; same input, same pass."""
        expiry = f"{now_ms + self.life_ms:x}"
        return f"{expiry}.{self._sign(token, expiry)}"

    def admits(self, token: str, word: str, now_ms: int) -> bool:
        """Return whether a pass is ours, this VM's, and still good."""
        expiry, _, signature = word.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(token, expiry).encode()):
            return False
        return int(expiry, 16) > now_ms  # it is ours, so it is a number

    def _sign(self, token: str, expiry: str) -> str:
        text = f"{len(token)}:{token}:{expiry}"
        return hmac.new(self.secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def life_for(lease_s: float) -> int:
    """Return a life with which an agent can come back whenever its lease still runs."""
    return max(LIFE_MS, round(4 * lease_s * 1_000))
