"""What a loop body reports of one step: its mean loss and its tokens, by weight of each part."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Figures:
    """One worker's figures of the step in progress; a step may be done in several parts."""

    loss: float = 0.0
    """Weighted loss: the sum over all workers is the global mean."""
    losses: float = 0.0
    """Weight behind `loss`."""
    tokens: float = 0.0
    weight: float = 1.0
    """Weight of the part in progress."""
    _told_loss: bool = False
    _told_tokens: bool = False

    def begin_step(self, samples: int) -> None:
        """Forget the step before; `samples` stand for tokens until those are told."""
        self.loss = self.losses = 0.0
        self.tokens, self._told_tokens = float(samples), False

    def begin_part(self, weight: float) -> None:
        """A part begins that has this weight in the global mean."""
        self.weight, self._told_loss = weight, False

    def tell_loss(self, value: float) -> None:
        """Take the part's mean loss; told twice in a part, the first counts."""
        if not self._told_loss:
            self._told_loss = True
            self.loss += value * self.weight
            self.losses += self.weight

    def tell_tokens(self, value: float) -> None:
        """Take the part's tokens."""
        self.tokens = value + (self.tokens if self._told_tokens else 0.0)
        self._told_tokens = True
