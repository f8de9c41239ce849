"""Spare capacity: the replicas to which a line of a batch may go now without delaying first tokens of others. Pure.

While others use a replica, lines of batches leave a quarter of its slots and of its cache free, go where no prompt is
being computed, and add at most a tenth to what a step with a usual prompt takes: by all decodes together, and by long
prompts, which may come only so often that few first tokens meet a prompt. A line that would add more, as every line
does to small models, runs alone on an idle replica, as seldom. Where nobody has asked for a minute they may take what
an eighth leaves.
"""

from math import ceil, inf

from fairlead.routing.predictor import Work, step_seconds
from fairlead.routing.prompt import block_size_of
from fairlead.routing.replica_state import ReplicaState
from fairlead_common.wire.messages import StepCost

QUIET_SECONDS = 60.0
"""Without a request of others, after which lines of batches take nearly all."""
LEFT_FREE, LEFT_FREE_QUIET = 0.25, 0.125
"""Shares of slots and of blocks that lines of batches leave free."""
DELAY = 0.1
"""Share of a step with a usual prompt that lines of batches may add to it."""
DELAYING_SHARE = 0.03
"""Share of the time in which a prompt of a batch that takes longer, or a line that runs alone, is computed."""
UNKNOWN_SLOTS = 4
_NEW_WEIGHT = 0.1
"""Of a new prompt in the mean."""


class SpareBook:
    """Of one model in one gateway."""

    def __init__(self) -> None:
        self.urgent_at = -inf
        """When a request that is no line of a batch last came or was sent."""
        self._mean_tokens = 0.0
        """Uncached prompt tokens of those requests."""
        self._paid_until = dict[str, float]()
        """By uid: until when the share of a replica's time in which lines may delay others is used up."""
        self._alone_since = dict[str, float]()
        """By uid of a replica with a line that runs alone."""

    def came(self, now: float) -> None:
        """A request that is no line of a batch came."""
        self.urgent_at = now

    def dispatched(self, work: Work, now: float) -> None:
        """Such a request was sent to a replica."""
        self.urgent_at = now
        self._mean_tokens += _NEW_WEIGHT * (work.tokens - self._mean_tokens)

    def took(self, state: ReplicaState, work: Work, now: float) -> None:
        """A replica in this state was sent a line of a batch."""
        if not state.num_seqs and not self._leaves_room(state, 0, work, now):
            self._alone_since[state.replica.uid] = now
        if state.load is not None:
            self._pay(state.replica.uid, prefill_seconds(state.load.step_cost, work), now)

    def ended(self, uid: str, now: float) -> None:
        """A line of a batch ended on a replica."""
        self._pay(uid, now - self._alone_since.pop(uid, now), now)

    def _pay(self, uid: str, seconds: float, now: float) -> None:
        self._paid_until[uid] = max(now, self._paid_until.get(uid, now)) + seconds / DELAYING_SHARE

    def keep_only(self, uids: frozenset[str]) -> None:
        """Forgets replicas that left."""
        self._paid_until = {uid: until for uid, until in self._paid_until.items() if uid in uids}

    def next_change(self, now: float) -> float | None:
        """When time alone may let a replica take lines of batches; None = it cannot."""
        times = (self.urgent_at + QUIET_SECONDS, *self._paid_until.values())
        return min((time for time in times if time > now), default=None)

    def may_take(self, state: ReplicaState, num_spare: int, work: Work, now: float) -> bool:
        """Whether the replica may take one more. `num_spare`: lines of batches of this gateway there; `work`: of the
        prompt. Lines of other gateways count as others' requests."""
        load = state.load
        if load is not None and (load.waiting or load.draining or state.hangs()):
            return False
        is_alone = not state.num_seqs and self._has_share(state.replica.uid, now)
        return is_alone or self._leaves_room(state, num_spare, work, now)

    def _has_share(self, uid: str, now: float) -> bool:
        return now >= self._paid_until.get(uid, -inf)

    def _leaves_room(self, state: ReplicaState, num_spare: int, work: Work, now: float) -> bool:
        load, limits = state.load, state.replica.limits
        slots = load.max_num_seqs if load else limits.max_num_seqs if limits else UNKNOWN_SLOTS
        num_urgent = max(0, state.num_seqs - num_spare)
        is_quiet = not num_urgent and now >= self.urgent_at + QUIET_SECONDS
        share = LEFT_FREE_QUIET if is_quiet else LEFT_FREE
        left = ceil(slots * share)
        if state.num_seqs >= slots - (min(slots - 1, left) if is_quiet else left):
            return False
        if load is None:
            return True
        queued = load.queued_prefill_tokens + sum(sent.work.tokens for sent in state.unseen)
        num_blocks = ceil((work.tokens + queued) / block_size_of(state.replica))
        if state.num_seqs and load.kv_blocks_free - num_blocks < share * load.kv_blocks_total:
            return False
        if is_quiet:
            return queued < load.token_budget
        return not queued and self._adds_little(state, num_spare, num_urgent, work, now)

    def _adds_little(self, state: ReplicaState, num_spare: int, num_urgent: int, work: Work, now: float) -> bool:
        load = state.load
        assert load is not None
        cost = load.step_cost
        if not cost.is_known:
            return num_spare < max(1, load.max_num_seqs // 8)
        running = min(float(load.running), float(num_urgent))
        usual = step_seconds(cost, running=running, kv_tokens=0.0, prefill_tokens=self._mean_tokens)
        context = load.kv_tokens / load.running if load.running else work.tokens
        decodes = (num_spare + 1) * (cost.decode_seq + cost.kv_token * max(context, work.tokens))
        if decodes > DELAY * usual:
            return False
        return prefill_seconds(cost, work) <= DELAY * usual or self._has_share(state.replica.uid, now)


def prefill_seconds(cost: StepCost, work: Work) -> float:
    """What a prompt adds to steps."""
    return cost.prefill_step + cost.prefill_token * work.tokens + cost.prefill_context * work.context
