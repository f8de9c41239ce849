"""The router under everything at once: a state machine of requests, replicas, loads and streams."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from fairlead.api.llmdeployment import Routing
from fairlead.routing.books import Failure
from fairlead.routing.datastore import Datastore
from fairlead.routing.in_flight import InFlightRequest
from fairlead.routing.policies.predicted_ttft import PredictedTTFT
from fairlead.routing.replica import Replica
from fairlead.routing.router import Router
from fairlead.routing.sessions import session_hash
from fairlead_common.wire.blocks import hash_blocks
from fairlead_common.wire.messages import StepCost
from fairlead_testing.routing import make_load, make_prompt, make_replica

SLOTS = 3
COST = StepCost(base=0.01, prefill_token=0.001)
PROMPT = make_prompt(range(100))
HASHES = hash_blocks(range(100), 16)


def replica(uid: str) -> Replica:
    return make_replica(uid, SLOTS)


class RouterMachine(RuleBasedStateMachine):
    """Requests that end in every way there is, while replicas, loads and streams come and go: nobody is overfilled,
    nobody is sent to whom one must not send, and nothing leaks."""

    slots = Bundle("slots")

    def __init__(self) -> None:
        super().__init__()
        self.datastore = Datastore()
        self.router = Router(PredictedTTFT(Routing()), self.datastore, "gateway")
        self.router.set_replicas([replica("a"), replica("b")])
        self.now = 0.0
        self.open: list[InFlightRequest] = []
        self.seqs = dict.fromkeys("abc", 0)

    @rule(target=slots, num_tokens=st.integers(1, 200), session=st.sampled_from(["", "s", "t"]))
    def send(self, num_tokens: int, session: str):
        prompt = replace(make_prompt(range(num_tokens)), session=session_hash(session))
        self.router.candidates(prompt, self.now)  # a load may say that a probe has got there
        available = {each.uid for each in self.router.replicas if self.router.health.available(each.uid, self.now)}
        sent = self.router.route(prompt, self.now)
        if sent is None:
            return multiple()
        decision = sent.decision
        assert decision.replica in self.router.replicas
        assert decision.replica.uid in available
        load = self.datastore.load(sent.uid, self.now)
        assert load is None or not load.draining
        assert self.router.in_flight.count(sent.uid) <= SLOTS
        assert decision.cached_tokens + decision.uncached_tokens == num_tokens
        assert decision.uncached_tokens >= 1
        assert (decision.predicted_ttft_seconds is not None) == (load is not None and load.step_cost.is_known)
        self.open.append(sent)
        return sent

    @rule(sent=consumes(slots), how=st.sampled_from(["ok", "unstreamed", "full", "gone", *Failure]))
    def end(self, sent: InFlightRequest, how: str | Failure) -> None:
        if how in ("ok", "unstreamed"):
            self.router.accepted(sent)
            self.router.first_token(sent, self.now, learn=how == "ok")
            self.router.first_token(sent, self.now + 1)
            assert sent.first_token_at == self.now
        elif how == "full":
            self.router.full(sent, self.now)
        elif isinstance(how, Failure):
            self.router.failed(sent, how, self.now)
        self.router.release(sent, self.now)
        self.router.release(sent, self.now)
        self.open.remove(sent)

    @rule(uids=st.sets(st.sampled_from("abc")))
    def replicas_change(self, uids: set[str]) -> None:
        gone = {each.uid for each in self.router.replicas} - uids
        self.router.set_replicas([replica(uid) for uid in sorted(uids)])
        for uid in gone:
            self.datastore.forget(uid)
            self.seqs[uid] = 0

    @rule(
        uid=st.sampled_from("abc"),
        running=st.integers(0, SLOTS),
        waiting=st.integers(0, 2),
        free=st.sampled_from([5, 1000]),
        draining=st.booleans(),
        seen=st.integers(0, 5),
        cost=st.sampled_from([StepCost(), COST]),
        step_age=st.sampled_from([0.0, 0.01, 60.0]),
    )
    def load_line(self, uid, running, waiting, free, draining, seen, cost, step_age) -> None:
        load = make_load(
            time=self.now,
            running=running,
            waiting=waiting,
            kv_blocks_free=free,
            draining=draining,
            seen={"gateway": seen},
            step_cost=cost,
            step_age_seconds=step_age,
            max_num_seqs=SLOTS,
        )
        self.datastore.loaded(uid, load)

    @rule(uid=st.sampled_from("abc"), stored=st.integers(0, 6), listed=st.booleans())
    def blocks_change(self, uid: str, stored: int, listed: bool) -> None:
        self.seqs[uid] += 1
        if listed or self.datastore.index.seq(uid) is None:
            self.datastore.listed(uid, self.seqs[uid], HASHES[:stored])
        else:
            self.datastore.changed(uid, self.seqs[uid], HASHES[:stored], HASHES[stored:])

    @rule(uid=st.sampled_from("abc"))
    def stream_breaks(self, uid: str) -> None:
        self.datastore.lost(uid)

    @rule(seconds=st.floats(0, 40))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_leaks(self) -> None:
        self.router.in_flight.check()
        assert {self.router.sessions.last(session_hash(name)) for name in "st"} <= {
            None,
            *(each.uid for each in self.router.replicas),
        }
        self.datastore.index.check()
        assert self.router.in_flight.total == len(self.open)
        if not self.open:
            for uid in "abc":  # the next line of each settles what had been computed
                self.datastore.loaded(uid, make_load(time=self.now - 100))
            assert not self.datastore.index._open

    @invariant()
    def an_idle_router_recovers_by_waiting(self) -> None:
        """Unless all drain: that is final, until a load says otherwise."""
        well = [each for each in self.router.replicas if not self.datastore.drains(each.uid)]
        if not self.open and well and not self.router.candidates(PROMPT, self.now):
            assert self.router.next_change(self.now) is not None
            assert self.router.candidates(PROMPT, self.now + 60.0)


TestRouter = RouterMachine.TestCase
TestRouter.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
