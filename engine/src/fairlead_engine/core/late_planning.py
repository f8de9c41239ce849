"""When to plan the next step while the device computes one: as late as it can be without the device waiting for it.

Who comes before that is in the next step, and not in the one after it.
"""

from fairlead_engine.core.clock import Clock

_MARGIN_SECONDS = 0.0005
"""Of the lead, beside what planning takes."""
_MOST_LEAD_SECONDS = 0.1
"""A host that is always late does not count further."""
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.0001, 0.005
"""Of what planning waits at a time: the device may end sooner than it was expected to."""
_FADING = 0.99
"""Of the lead, from step to step."""


class LatePlanning:
    """Learns how long before a step's end the next one has to be planned: what planning took lately, and twice as long
    whenever the step was over before its successor was launched."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lead = _MOST_LEAD_SECONDS
        self._end = 0.0  # of the step that the device computes, as predicted

    @property
    def spare_seconds(self) -> float:
        """How long planning can wait now, after which it is to be asked again; of use while a step is under way."""
        spare = self._end - self._lead - self._clock.monotonic()
        return min(spare, _LONGEST_SECONDS) if spare > _SHORTEST_SECONDS else 0.0

    def planned(self, began: float, *, is_late: bool) -> None:
        """A step was launched that has been planned since `began` (`Clock.monotonic`). `is_late`: the device had ended
        the one before."""
        least = self._clock.monotonic() - began + _MARGIN_SECONDS
        lead = 2 * self._lead if is_late else _FADING * self._lead
        self._lead = min(_MOST_LEAD_SECONDS, max(least, lead))

    def begins(self, seconds: float) -> None:
        """The device begins with a step now that takes at least so long."""
        self._end = self._clock.monotonic() + seconds
