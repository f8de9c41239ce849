"""The demo's load: how much it has to be, worked out from what the engine's steps cost, and a load that can be turned
up and down while it runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairlead.client.arrival_times import Phase, arrival_times
from fairlead.client.load_generator import LoadGenerator, Sample
from fairlead.client.workload import Conversation
from fairlead.routing.predictor import prefill_context, step_seconds
from fairlead_protocol.messages import StepCost

OVERLOAD = 0.9
"""The high rate, of what one replica's slots could take if it had its core for itself. Beside clients, a gateway and a
second replica it takes up to a quarter less; where it does not, no backlog grows, and the rate is turned up."""
BURSTINESS = 8.0
"""Requests come rather evenly, so that what is seen is a rate that is too high and not a burst of chance."""
UNDERLOAD = 0.1
"""The low rate, of the same: one replica is plenty."""
LEAST_RATE = 0.4
"""Requests per second that are no silence: a slow machine's tenth would now and then leave a gap in which the last
replica goes, too."""
MAX_WAITING = 24
"""More requests than this need not wait to show that there is too little room."""
MAX_WAITING_SECONDS = 1.0
"""Of one replica's work need not wait beside others: they share the cores, and may be no faster."""
LOOKS_WITHOUT_GROWTH = 4
"""So many in a row, and the high rate is no high rate."""
_LOWERED = 0.75
_RAISED = 1.1
_PHASE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """How many requests per second make one replica's slots run out."""

    num_slots: int
    service_seconds: float
    """How long a request holds its slot while the others are taken as well."""
    step_seconds: float
    """Of a decode step with all slots taken."""

    @property
    def capacity(self) -> float:
        """Requests per second that keep every slot of one replica taken."""
        return self.num_slots / self.service_seconds

    @property
    def high_rate(self) -> float:
        """Requests per second that one replica cannot take beside all else."""
        return OVERLOAD * self.capacity

    @property
    def low_rate(self) -> float:
        """Requests per second that one replica takes easily."""
        return max(UNDERLOAD * self.capacity, min(LEAST_RATE, self.capacity / 3))

    def __str__(self) -> str:
        return (
            f"a decode step of {self.num_slots} takes {self.step_seconds * 1000:.2f} ms, so a request holds its slot "
            f"for {self.service_seconds:.2f} s and one replica takes {self.capacity:.1f} requests/s when alone: "
            f"{self.high_rate:.1f}/s are too many here, {self.low_rate:.1f}/s are few"
        )


def plan_load(
    cost: StepCost, *, num_slots: int, prompt_tokens: float, uncached_tokens: float, output_tokens: int
) -> LoadPlan:
    """From step costs in seconds and the mean sizes of a request.

    Every slot advances by one token per step. The prefill of the other slots' next requests is paid in the same steps:
    in the time a request holds its slot, each of the `num_slots` slots is filled anew once.
    """
    context = num_slots * (prompt_tokens + output_tokens / 2)
    step = step_seconds(cost, running=num_slots, kv_tokens=context)
    reread = prefill_context(prompt_tokens - uncached_tokens, uncached_tokens)
    with_prompt = step_seconds(
        cost, running=num_slots, kv_tokens=context, prefill_tokens=uncached_tokens, prefill_context=reread
    )
    service = output_tokens * step + num_slots * (with_prompt - step)
    if service <= 0:
        raise ValueError("the engine has not learnt what its steps cost")
    return LoadPlan(num_slots=num_slots, service_seconds=service, step_seconds=step)


def correction(waiting: Sequence[int], *, num_replicas: int, capacity: float) -> float:
    """What to multiply the high rate by, where the machine is not as fast as when its steps were measured.

    Down while the backlog is large and does not shrink: the cores may give less than the slots of several replicas
    would take. Up where one replica's backlog has not grown for a while. `waiting`: what waited at each look since the
    rate or the replicas changed, the newest last; `num_replicas` that are ready; `capacity`: requests per second that
    one was found to take.
    """
    most = MAX_WAITING if num_replicas == 1 else MAX_WAITING_SECONDS * capacity
    if len(waiting) > 1 and waiting[-1] > most and waiting[-1] >= waiting[-2]:
        return _LOWERED
    if num_replicas == 1 and len(waiting) >= LOOKS_WITHOUT_GROWTH and waiting[-1] <= waiting[-LOOKS_WITHOUT_GROWTH]:
        return _RAISED
    return 1.0


class AdjustableLoad:
    """An open loop whose `rate`, above 0, may be changed while it runs."""

    def __init__(self, generator: LoadGenerator, conversations: Iterator[Conversation], rate: float) -> None:
        """`rate`: arrivals per second to begin with."""
        self._generator = generator
        self._conversations = conversations
        self.rate = rate

    @property
    def samples(self) -> list[Sample]:
        """Of every request so far."""
        return self._generator.samples

    @property
    def seconds(self) -> float:
        """Since it began; to its end, once it has ended."""
        return self._generator.seconds

    def end(self) -> None:
        """Nothing more is sent."""
        self._generator.stop()

    async def run(self) -> None:
        """Until it was ended and every request has ended."""
        await self._generator.open_loop(self._conversations, arrival_times(self._phases(), burstiness=BURSTINESS))

    def _phases(self) -> Iterator[Phase]:
        while True:
            yield Phase(self.rate, _PHASE_SECONDS)
