"""Recommendation: a number of replicas and a sentence with its reason, with rounded figures."""

import math
from dataclasses import dataclass, replace

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


def are(number: int) -> str:
    """`1 is`, `2 are`."""
    return f"{number} {'is' if number == 1 else 'are'}"


def counted(number: int, noun: str) -> str:
    """`1 replica`, `2 replicas`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rounded(number: float, digits: int = 2) -> float:
    """To so many significant digits: 347 → 350, 0.0347 → 0.035."""
    return 0.0 if not number else round(number, digits - 1 - math.floor(math.log10(abs(number))))


def seconds_in_words(seconds: float) -> str:
    """Two significant digits and a unit, in the notation of durations in a spec: `35ms`, `3.2s`, `120s`."""
    milliseconds = rounded(seconds * 1000.0)
    return f"{milliseconds:g}ms" if milliseconds < 1000.0 else f"{milliseconds / 1000.0:g}s"


def per_second(rate: float) -> str:
    """`4.1 requests/s`."""
    return f"{rounded(rate):g} requests/s"
