"""Recommendation: a number of replicas and a sentence with its reason, with rounded figures."""

from dataclasses import dataclass, replace

from fairlead.api.figures import are, counted
from fairlead.demand.signals import Signals


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The number of replicas to ask for, and why."""

    replicas: int
    reason: str
    """One sentence with its numbers, without a full stop."""
    wanted: int
    """The number for the demand alone, as kept in History."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A recommendation in the making: the number for the demand, and the changes made to it so far."""

    replicas: int
    wanted: int
    because: str
    """Why not fewer than wanted, with numbers."""
    buts: tuple[str, ...] = ()
    """Reasons for changes of the number."""

    def but(self, replicas: int, why: str) -> "Draft":
        """Another number, for a reason that follows "but"."""
        return replace(self, replicas=replicas, buts=(*self.buts, why))

    def explained(self, signals: Signals) -> Recommendation:
        """The recommendation with its sentence. An incomplete tick is not remembered as low demand."""
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
