"""Recommendation: a number of replicas and the sentence that explains it."""

from dataclasses import dataclass, replace

from fairlead.autoscaler.signals import Signals
from fairlead.autoscaler.words import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """How many replicas there should be, and why."""

    replicas: int
    reason: str
    """One sentence with the numbers it rests on, without a full stop."""
    wanted: int
    """What the demand asks for by itself: what History is to remember."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A recommendation in the making: what the demand asks for, and what has been made of it so far."""

    replicas: int
    wanted: int
    because: str
    """Why not fewer than wanted, with numbers."""
    buts: tuple[str, ...] = ()
    """What has changed the number since."""

    def but(self, replicas: int, why: str) -> "Draft":
        """Another number, for a reason that follows "but"."""
        return replace(self, replicas=replicas, buts=(*self.buts, why))

    def explained(self, signals: Signals) -> Recommendation:
        """With its sentence. A tick that did not see everything is not remembered as one of little demand."""
        text = f"{counted(self.replicas, 'replica')}: "
        if not signals.demand.num_gateways:  # nobody can say what would be enough
            text += self.because
        elif self.wanted < self.replicas:
            text += f"{self.wanted or 'none'} would be enough ({self.because})"
        elif self.wanted > self.replicas:
            text += f"{self.wanted} are needed because {self.because}"
        else:
            text += self.because
        text += "".join(f", but {why}" for why in self.buts)
        if signals.starting:
            text += f"; {are(signals.starting)} starting"
        wanted = self.wanted if signals.is_complete else max(self.wanted, signals.desired)
        return Recommendation(replicas=self.replicas, reason=text, wanted=wanted)


def are(number: int) -> str:
    """`1 is`, `2 are`."""
    return f"{number} {'is' if number == 1 else 'are'}"
