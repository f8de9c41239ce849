"""One model's router: replicas, books and policy, joined into `route`. Pure.

Joins what engines tell (`Datastore`) with this gateway's books into a `ReplicaState` per replica, predicts the prompt's
TTFT on each with `predictor`, and lets the policy pick. Knows neither queue nor clock.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from fairlead.routing.books import CapacityBook, Failure, HealthBook, OverheadBook
from fairlead.routing.datastore import Datastore, stale_at
from fairlead.routing.in_flight import InFlightBook, InFlightRequest
from fairlead.routing.policies import Policy
from fairlead.routing.predictor import prefill_work
from fairlead.routing.prompt import Prompt, block_size_of, keeps_states
from fairlead.routing.replica import Candidate, Decision, Load, Replica
from fairlead.routing.replica_state import ReplicaState
from fairlead.routing.sessions import SessionBook
from fairlead.routing.spare import SpareBook
from fairlead.routing.suspects import Suspects, Suspicion
from fairlead.routing.waits import HeldBook, SlotUse, seconds_to_slot
from fairlead_common.openai.prompts import PromptError
from fairlead_common.wire.adapters import UnknownAdapter
from fairlead_common.wire.blocks import state_hash


class _Cached(NamedTuple):
    """The part of a prompt that a replica has cached or is computing."""

    num_tokens: int
    ready_at: float
    """When the last of these tokens should be computed."""


_NOTHING_CACHED = _Cached(0, -inf)
_SHORTEST_HELD_SECONDS = 0.0001
"""No request holds its slot for less: a rate is finite."""


class Router:
    """Decides among replicas and keeps the books."""

    def __init__(self, policy: Policy, datastore: Datastore | None = None, gateway_id: str = "") -> None:
        """`datastore`: shared by all routers of a process. `gateway_id`: names this gateway in dispatch headers and
        `Load.seen`."""
        self.policy = policy
        self.datastore = Datastore() if datastore is None else datastore
        self.gateway_id = gateway_id
        self.in_flight = InFlightBook()
        self.suspects = Suspects(self.in_flight)
        self.health = HealthBook()
        self.capacity = CapacityBook()
        self.overhead = OverheadBook()
        self.held = HeldBook()
        self.sessions = SessionBook()
        self.spare = SpareBook()
        self.replicas: tuple[Replica, ...] = ()
        self._kinds: dict[tuple[str, int, bool], list[Replica]] = {}
        """Replicas by digest, block size and whether they keep states, for one walk of the index per kind."""
        self._holders: dict[str | None, frozenset[str]] = {}
        """By requested adapter; a look at a line asks for each of its tickets."""

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        """Replaces the ready replicas. Books about others are closed; what they have in flight stays counted."""
        self.replicas = tuple(replicas)
        self._kinds, self._holders = {}, {}
        for replica in replicas:
            kind = replica.digest, block_size_of(replica), keeps_states(replica)
            self._kinds.setdefault(kind, []).append(replica)
        uids = frozenset(replica.uid for replica in replicas)
        for book in (
            self.in_flight,
            self.health,
            self.suspects,
            self.capacity,
            self.overhead,
            self.sessions,
            self.spare,
        ):
            book.keep_only(uids)

    def route(
        self,
        prompt: Prompt,
        now: float,
        *,
        is_suspect: bool = False,
        patient: bool = False,
        is_spare: bool = False,
        claimed: Collection[str] = (),
    ) -> InFlightRequest | None:
        """Sends the prompt to a replica, until the caller releases it; None = no room.

        `is_suspect`: to be isolated (`suspects`), as a replica may have died of the request; `patient`: may wait for a
        replica without other prompts under computation. `is_spare`: goes only where there is spare capacity. `claimed`:
        uids of replicas with earlier requests waiting.
        """
        if is_spare:
            claimed = {*claimed, *self._without_spare(prompt, now)}
        candidates = self._unclaimed(prompt, now, claimed, is_spare=is_spare)
        well = self._well(now, is_spare=is_spare)
        if is_suspect:
            candidates = self.suspects.for_suspect(candidates, well, now, patient=patient)
        else:
            candidates = self.suspects.for_others(candidates, well, now)
        if not candidates:
            return None
        in_flight = {replica.uid: self.in_flight.count(replica.uid) for replica in self.replicas}
        decision = self.policy.pick(candidates, prompt, in_flight)
        chosen = next(each for each in candidates if each.replica.uid == decision.replica.uid)
        return self._dispatch(decision, chosen, candidates, prompt, now, is_suspect=is_suspect, is_spare=is_spare)

    def holds_back(self, prompt: Prompt, now: float, *, patient: bool, claimed: Collection[str] = ()) -> bool:
        """Whether only isolation keeps a suspect waiting."""
        found = self._unclaimed(prompt, now, claimed)
        return bool(found) and not self.suspects.for_suspect(found, self._well(now), now, patient=patient)

    def holders(self, adapter: str | None) -> frozenset[str]:
        """Uids of the replicas with this adapter."""
        found = self._holders.get(adapter)
        if found is None:
            found = frozenset(each.uid for each in self.replicas if adapter is None or adapter in each.adapters)
            if found:  # names that nobody has would be without end
                self._holders[adapter] = found
        return found

    def lacks(self, adapter: str) -> bool:
        """Whether all replicas have told their adapters, and none has this adapter."""
        if not self.replicas or self.holders(adapter):
            return False
        return all(each.limits is not None for each in self.replicas)

    def usable(self, prompt: Prompt, now: float) -> frozenset[str]:
        """Uids of the replicas that may serve the prompt, full or not."""
        return frozenset(
            each.uid
            for each in self.replicas
            if prompt.may_go_to(each) and not prompt.misfit(each, self.datastore.load(each.uid, now))
        )

    def _unclaimed(
        self, prompt: Prompt, now: float, claimed: Collection[str], *, is_spare: bool = False
    ) -> Sequence[Candidate]:
        """Candidates without claimed ones. Claimed replicas still decide whether a hanging or silent one is a
        candidate."""
        return [each for each in self.candidates(prompt, now, is_spare=is_spare) if each.replica.uid not in claimed]

    def _without_spare(self, prompt: Prompt, now: float) -> Collection[str]:
        """Uids of the replicas that may not take this line of a batch now."""
        cached, full = self._cached(prompt), []
        for replica in self.replicas:
            num_cached, _ = cached.get(replica.uid, _NOTHING_CACHED)
            work = prefill_work(num_cached, max(0, prompt.num_tokens_on(replica) - num_cached))
            state, num_spare = self._state(replica, now), self.in_flight.num_spare(replica.uid)
            if not self.spare.may_take(state, num_spare, work, now):
                full.append(replica.uid)
        return full

    def _well(self, now: float, *, is_spare: bool = False) -> list[str]:
        """Replicas that take requests, full ones too."""
        uids = (replica.uid for replica in self.replicas if not self.datastore.drains(replica.uid))
        return [uid for uid in uids if self.health.available(uid, now, is_spare=is_spare)]

    def candidates(self, prompt: Prompt, now: float, *, is_spare: bool = False) -> Sequence[Candidate]:
        """Replicas with the prompt's adapter and present room, with predictions. `is_spare`: for a line of a batch.

        Hanging replicas are left out while another is well, even a full one; silent ones while another has room.
        """
        holders = [replica for replica in self.replicas if prompt.may_go_to(replica)]
        states = [self._state(replica, now) for replica in holders if self._may_send(replica.uid, now, is_spare)]
        well = [state for state in states if not state.hangs()] or states
        cached = self._cached(prompt)
        judged = (self._candidate(each, prompt, cached.get(each.replica.uid, _NOTHING_CACHED), now) for each in well)
        found = [candidate for candidate in judged if candidate is not None]
        heard = [each for each in found if not self.datastore.fell_silent(each.replica.uid, now)]
        return heard or found

    def foreseen_ttft(self, prompt: Prompt, num_ahead: int, now: float) -> float | None:
        """Seconds from now to the first token of a prompt behind `num_ahead` waiting prompts, when no replica has room.

        The wait for a slot, then the way through the best replica, or through the present queue if that is longer. None
        = step costs are unknown, or no request has ended yet to tell how long slots are held.
        """
        well = self._well(now)
        holders = (replica for replica in self.replicas if replica.uid in well and prompt.may_go_to(replica))
        states = [self._state(replica, now) for replica in holders]
        states = [each for each in states if not each.hangs() and not prompt.misfit(each.replica, each.load)]
        wait = self._seconds_to_slot(states, num_ahead + 1)
        if wait is None:
            return None
        cached = self._cached(prompt)
        foreseen = []
        for each in states:
            num_cached, ready_at = cached.get(each.replica.uid, _NOTHING_CACHED)
            work = prefill_work(num_cached, prompt.num_tokens_on(each.replica) - num_cached)
            ttft = each.predicted_ttft(work, now, not_before=max(ready_at, now + wait), adapter=prompt.adapter)
            if ttft is not None:
                foreseen.append(ttft + self.overhead.seconds(each.replica.uid, now))
        return min(foreseen, default=None)

    def misfit(self, prompt: Prompt, now: float) -> PromptError | None:
        """Why no ready replica could ever serve the prompt; None = one may, or none is ready."""
        errors = [prompt.misfit(replica, self.datastore.load(replica.uid, now)) for replica in self.replicas]
        found = [error for error in errors if error is not None]
        if not found or len(found) < len(errors):
            return None
        others = [error for error in found if not isinstance(error, UnknownAdapter)]
        if prompt.adapter is None or others:
            return others[0]
        return UnknownAdapter(prompt.adapter, {adapter for replica in self.replicas for adapter in replica.adapters})

    def expected_uncached(self, prompt: Prompt) -> int:
        """Prompt tokens that the best replica would compute; all of them when none is ready."""
        cached = self._cached(prompt)
        uncached = (
            prompt.num_tokens_on(replica) - cached.get(replica.uid, _NOTHING_CACHED).num_tokens
            for replica in self.replicas
            if prompt.may_go_to(replica)
        )
        return min(uncached, default=prompt.num_tokens)

    def accepted(self, sent: InFlightRequest) -> None:
        """The replica has begun to answer the request."""
        sent.accepted = True
        self.sessions.served(sent.session, sent.uid)
        self.health.succeeded(sent.uid)
        self.capacity.accepted(sent.uid)

    def first_token(self, sent: InFlightRequest, now: float, *, learn: bool = True) -> None:
        """The first token came, so the prefill is over. Counts once. `learn`: whether `now` is the first token's time
        rather than a whole answer's; then the prediction is compared."""
        if not self.in_flight.first_token(sent, now):
            return
        for expectation in sent.expectations:
            self.datastore.computed(expectation)
        sent.expectations = ()
        if learn and sent.modelled_ttft_seconds is not None:
            actual = now - sent.dispatched_at
            self.overhead.observe(sent.uid, actual, sent.modelled_ttft_seconds, now)

    def generated(self, sent: InFlightRequest, num_tokens: int) -> None:
        """So many tokens came for the request."""
        if sent.num_seqs == 1:  # else they came side by side
            sent.num_generated = num_tokens

    def failed(self, sent: InFlightRequest, failure: Failure, now: float) -> Suspicion:
        """The replica failed the request; whether that may have been the request's doing."""
        self.health.failed(sent.uid, failure, now)
        return self.suspects.died(sent, now) if failure is Failure.DIED else Suspicion.NONE

    def told(self, uid: str, load: Load) -> None:
        """A replica has told its load. With nothing left to compute, all prompts are past."""
        own = load.seen.get(self.gateway_id, 0)
        is_computed = not load.waiting and not load.queued_prefill_tokens
        if is_computed:
            self.in_flight.computed(uid, own)
        self.suspects.told(uid, sum(load.seen.values()) - own, load.time, are_computed=is_computed)

    def full(self, sent: InFlightRequest, now: float) -> None:
        """The replica's queue was full: it answered, so it is healthy."""
        self.health.succeeded(sent.uid)
        self.capacity.refused(sent.uid, self.in_flight.count(sent.uid) - (not sent.released), now)

    def release(self, sent: InFlightRequest, now: float) -> None:
        """The attempt is over, however it ended. Counts once."""
        if self.in_flight.release(sent, now):
            for expectation in sent.expectations:
                self.datastore.index.settle(expectation)
            sent.expectations = ()
            self.health.ended(sent.uid)
            if sent.is_spare:
                self.spare.ended(sent.uid, now)
            if sent.accepted:
                self.held.observe(SlotUse(now - sent.dispatched_at, sent.work, sent.num_generated))

    def all_failing(self) -> bool:
        """Whether there are replicas, and each failed last."""
        return bool(self.replicas) and all(self.health.failing(replica.uid) for replica in self.replicas)

    def next_change(self, now: float, *, with_spare: bool = False) -> float | None:
        """When time alone may give a replica room; None = only an event can. `with_spare`: also for lines of
        batches."""
        loads = (self.datastore.load(replica.uid, now) for replica in self.replicas)
        times = [stale_at(load) for load in loads if load is not None]
        books = [self.health, self.capacity, self.suspects, *([self.spare] if with_spare else ())]
        times += [time for book in books if (time := book.next_change(now)) is not None]
        return min(times, default=None)

    def _may_send(self, uid: str, now: float, is_spare: bool) -> bool:
        """A newer load may overrule failures and refusals."""
        if self.datastore.drains(uid):
            return False
        if (load := self.datastore.load(uid, now)) is not None:
            num_seen = load.seen.get(self.gateway_id, 0)
            self.health.heard(uid, num_seen)
            if not load.waiting and not self.in_flight.unseen(uid, num_seen):
                self.capacity.queue_was_empty(uid, load.time)
        is_well = self.health.available(uid, now, is_spare=is_spare)
        return is_well and self.capacity.has_room(uid, self.in_flight.count(uid), now)

    def _state(self, replica: Replica, now: float) -> ReplicaState:
        uid, book = replica.uid, self.in_flight
        load = self.datastore.load(uid, now)
        if load is None:
            return ReplicaState(replica, book.count(uid))
        num_seen = load.seen.get(self.gateway_id, 0)
        return ReplicaState(
            replica,
            book.count(uid),
            load,
            book.unseen(uid, num_seen),
            book.num_ended(uid, num_seen, load.time),
            book.context_per_token(uid),
        )

    def _seconds_to_slot(self, states: Sequence[ReplicaState], num_short: int) -> float | None:
        """Until so many slots come free for this gateway; None = unknown. Other gateways refill their own slots; a
        gateway without requests counts on all slots."""
        has_own = any(each.num_in_flight for each in states)
        per_second = 0.0
        for each in states:
            if (load := each.load) is None or not load.step_cost.is_known:
                continue
            held = self.held.seconds(load.step_cost, slots=each.num_seqs, kv_tokens=load.kv_tokens)
            if held is None:
                return None
            per_second += (each.num_in_flight if has_own else each.num_seqs) / max(held, _SHORTEST_HELD_SECONDS)
        return seconds_to_slot(num_short, per_second) if per_second else None

    def _cached(self, prompt: Prompt) -> dict[str, _Cached]:
        """By uid, the part of the prompt cached or under computation; no zeros."""
        cached: dict[str, _Cached] = {}
        index = self.datastore.index
        for (_, block_size, keep_states), replicas in self._kinds.items():
            for tokens in prompt.tokens(replicas[0]) or ():
                hashes = tokens.hashes(block_size)
                matched = index.match(hashes)
                if keep_states:
                    matched = index.match_states(hashes, matched)
                for uid in (replica.uid for replica in replicas if replica.uid in matched) if matched else ():
                    dues = (each.due for each in index.computing(uid, hashes[matched[uid] - 1]) if each.due is not None)
                    before = cached.get(uid, _NOTHING_CACHED)
                    cached[uid] = _Cached(
                        before.num_tokens + matched[uid] * block_size, max(before.ready_at, min(dues, default=-inf))
                    )
        return cached

    def _candidate(self, state: ReplicaState, prompt: Prompt, cached: _Cached, now: float) -> Candidate | None:
        """The replica as a candidate; None = no room, or never any. The longest of several prompts needs room, since
        the engine takes one after another. Estimates hold no prompt up."""
        replica = state.replica
        num_uncached = prompt.num_tokens_on(replica) - cached.num_tokens
        num_at_once = min(num_uncached, prompt.longest_on(replica))
        if prompt.misfit(replica, state.load) or not state.has_room(num_at_once):
            return None
        work = prefill_work(cached.num_tokens, num_uncached)
        ttft = state.predicted_ttft(work, now, not_before=cached.ready_at, adapter=prompt.adapter)
        overhead = self.overhead.seconds(replica.uid, now)
        return Candidate(
            replica,
            state.num_in_flight,
            cached.num_tokens,
            num_uncached,
            predicted_ttft_seconds=None if ttft is None else ttft + overhead,
            overhead_seconds=overhead,
            loading_seconds=state.loading_seconds(prompt.adapter, now),
            is_tokenized=prompt.tokens(replica) is not None,
            served_session=self.sessions.last(prompt.session) == replica.uid,
            load=state.load,
        )

    def _dispatch(
        self,
        decision: Decision,
        chosen: Candidate,
        candidates: Sequence[Candidate],
        prompt: Prompt,
        now: float,
        *,
        is_suspect: bool,
        is_spare: bool,
    ) -> InFlightRequest:
        """Numbers the request and enters it into the books."""
        replica, uid = chosen.replica, chosen.replica.uid
        num_seen = 0 if chosen.load is None else chosen.load.seen.get(self.gateway_id, 0)
        prompts = prompt.tokens(replica) or ()
        sent = InFlightRequest(
            replace(
                decision,
                dispatch=self.in_flight.next_dispatch(uid, num_seen),
                candidates=candidates,
                session=self.sessions.place(prompt.session, uid),
            ),
            now,
            prefill_work(chosen.cached_tokens, chosen.uncached_tokens),
            num_seqs=max(1, len(prompts)),
            is_suspect=is_suspect,
            adapter=prompt.adapter,
            adapter_ready_at=now + chosen.loading_seconds,
            session=prompt.session,
            is_spare=is_spare,
            num_prompt_tokens=chosen.cached_tokens + chosen.uncached_tokens,
        )
        if is_spare:
            self.spare.took(self._state(replica, now), sent.work, now)
        else:
            self.spare.dispatched(sent.work, now)
        due = None
        if chosen.predicted_ttft_seconds is not None:
            sent.modelled_ttft_seconds = chosen.predicted_ttft_seconds - chosen.overhead_seconds
            due = now + sent.modelled_ttft_seconds
        index, block_size = self.datastore.index, block_size_of(replica)
        if index.seq(uid) is not None:
            chains = [tokens.hashes(block_size) for tokens in prompts]
            coming = [chain[index.num_held(uid, chain) :] for chain in chains]
            if keeps_states(replica):
                coming = [[*each, state_hash(chain[-1])] for each, chain in zip(coming, chains, strict=True) if chain]
            sent.expectations = tuple(index.expect(uid, hashes, due) for hashes in coming)
        self.capacity.sent(uid, self.in_flight.count(uid), now)
        self.health.sent(uid, sent.dispatch, is_spare=is_spare)
        self.in_flight.take(sent)
        return sent
