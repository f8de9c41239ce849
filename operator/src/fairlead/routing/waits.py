"""How long a waiting line takes, given how fast slots come free. Pure arithmetic, for routers and the autoscaler.

While all slots are taken, each is held for D seconds, so slots / D come free per second, and a request that needs k
slots more than are free waits

    W = k · D / slots

D is the measured time for which requests hold a slot, and at least the cost of the steps: output tokens per request · a
step of full slots + the prefill of one request per slot (in D seconds every slot is filled anew once). Measured times
are right where steps take longer than modelled; the steps' cost is right where slots have just filled, and measured
steps were short.

An example (a test computes it): base 10 ms, prefill_token 0.1 ms, decode_seq 1 ms; 10 slots, requests of 50 uncached
and 20 output tokens. D = 20 · (10 + 10) + 10 · 5 = 450 ms, so a slot comes free every 45 ms; the third in line waits
135 ms.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from fairlead.routing.predictor import NO_WORK, Work, step_seconds
from fairlead_common.wire.messages import StepCost

WINDOW = 64
"""Requests that are remembered: what a request is like changes over the day, and many are needed for a mean."""


def slot_seconds(
    cost: StepCost, *, slots: float, kv_tokens: float, output_tokens: float, prefill_seconds: float
) -> float:
    """D by what steps cost. `kv_tokens`: in the cache while so many slots are taken. `prefill_seconds`: of one
    request."""
    num_steps = output_tokens / cost.tokens_per_decode
    return num_steps * step_seconds(cost, running=slots, kv_tokens=kv_tokens) + slots * prefill_seconds


def seconds_to_slot(num_short: float, per_second: float) -> float:
    """W: seconds until so many more slots have come free; 0 = enough are free, infinite = none ever comes free."""
    if num_short <= 0.0:
        return 0.0
    return num_short / per_second if per_second > 0.0 else inf


@dataclass(frozen=True, slots=True)
class SlotUse:
    """What one request took, or requests on average."""

    seconds: float
    """For how long it held its slot."""
    work: Work = NO_WORK
    """Its prompt, as far as it was to be computed."""
    num_generated: float | None = None
    """None = not known, or of several sequences at once."""


class HeldBook:
    """Slot times of one model's last requests, on any replica."""

    def __init__(self) -> None:
        self._held: deque[SlotUse] = deque(maxlen=WINDOW)
        self._mean: SlotUse | None = None

    def observe(self, held: SlotUse) -> None:
        """One more request gave its slot back."""
        self._held.append(held)
        self._mean = None

    def seconds(self, cost: StepCost, *, slots: float, kv_tokens: float) -> float | None:
        """D on a replica with so many slots taken; None until a request has ended."""
        if not self._held:
            return None
        mean = self._mean = self._mean or _mean(self._held)
        if mean.num_generated is None:
            return mean.seconds
        prefill = cost.prefill_step + cost.prefill_token * mean.work.tokens + cost.prefill_context * mean.work.context
        by_steps = slot_seconds(
            cost, slots=slots, kv_tokens=kv_tokens, output_tokens=mean.num_generated, prefill_seconds=prefill
        )
        return max(mean.seconds, by_steps)


def _mean(held: Iterable[SlotUse]) -> SlotUse:
    each = list(held)
    generated = [one.num_generated for one in each if one.num_generated is not None]
    work = Work(sum(one.work.tokens for one in each) / len(each), sum(one.work.context for one in each) / len(each))
    return SlotUse(
        sum(one.seconds for one in each) / len(each), work, sum(generated) / len(generated) if generated else None
    )
