"""The router: room, health and capacity decide who is a candidate at all."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from fairlead.routing.health import Failure
from fairlead.routing.in_flight import Slot
from fairlead.routing.policies import LeastLoaded
from fairlead.routing.replica import Limits, Replica
from fairlead.routing.router import Router

LIMITS = Limits(max_num_seqs=2, max_num_waiting=1)


def replica(uid: str, limits: Limits | None = LIMITS) -> Replica:
    return Replica(uid=uid, name=uid, host="127.0.0.1", port=8000, limits=limits)


def make_router(*replicas: Replica) -> Router:
    router = Router(LeastLoaded())
    router.set_replicas(replicas)
    return router


def route(router: Router, now: float = 0.0) -> Slot:
    routed = router.route(now)
    assert routed is not None
    return routed[1]


class RouterMachine(RuleBasedStateMachine):
    """Requests that end in every way there is, while replicas come and go: nobody is overfilled and nothing leaks."""

    slots = Bundle("slots")

    def __init__(self) -> None:
        super().__init__()
        self.router = make_router(replica("a"), replica("b"))
        self.now = 0.0
        self.open: list[Slot] = []

    @rule(target=slots)
    def send(self):
        routed = self.router.route(self.now)
        if routed is None:
            return multiple()
        decision, slot = routed
        assert decision.replica in self.router.replicas
        assert self.router.in_flight.count(slot.uid) <= LIMITS.capacity
        self.open.append(slot)
        return slot

    @rule(slot=consumes(slots), how=st.sampled_from(["ok", "full", "gone", *Failure]))
    def end(self, slot: Slot, how: str | Failure) -> None:
        if how == "ok":
            self.router.accepted(slot)
        elif how == "full":
            self.router.full(slot, self.now)
        elif isinstance(how, Failure):
            self.router.failed(slot, how, self.now)
        self.router.release(slot)
        self.router.release(slot)
        self.open.remove(slot)

    @rule(uids=st.sets(st.sampled_from("abc")))
    def replicas_change(self, uids: set[str]) -> None:
        self.router.set_replicas([replica(uid) for uid in sorted(uids)])

    @rule(seconds=st.floats(0, 40))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_leaks(self) -> None:
        self.router.in_flight.check()
        assert self.router.in_flight.total == len(self.open)

    @invariant()
    def an_idle_router_recovers_by_waiting(self) -> None:
        if not self.open and self.router.replicas and not self.router.candidates(self.now):
            assert self.router.next_change(self.now) is not None
            assert self.router.candidates(self.now + 60.0)


TestRouter = RouterMachine.TestCase
TestRouter.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_a_replica_at_its_published_capacity_is_no_candidate() -> None:
    router = make_router(replica("a"))
    slots = [route(router) for _ in range(LIMITS.capacity)]
    assert router.route(0.0) is None
    router.release(slots[0])
    assert router.route(0.0) is not None


def test_a_replica_whose_limits_are_unknown_is_bounded_by_its_refusals_only() -> None:
    router = make_router(replica("a", None))
    slots = [route(router) for _ in range(50)]
    router.full(slots[-1], 0.0)
    router.release(slots[-1])
    assert router.route(0.0) is None
    router.release(slots[0])
    assert router.route(0.0) is not None


def test_after_a_refusal_one_more_is_tried_per_pause_and_success_opens_up() -> None:
    router = make_router(replica("a", None))
    router.full(first := route(router), 0.0)
    router.release(first)
    assert router.route(0.01) is None
    assert router.next_change(0.01) == 0.05
    trial = route(router, 0.05)
    assert router.route(0.06) is None
    router.accepted(trial)
    assert router.route(0.06) is not None


def test_being_full_is_forgotten_after_a_while_without_refusals() -> None:
    router = make_router(replica("a", None))
    router.full(first := route(router), 0.0)
    router.release(first)
    assert [router.route(6.0) is not None for _ in range(3)] == [True, True, True]


def test_a_replica_that_fails_attracts_nothing_and_is_probed_by_one_request_after_its_pause() -> None:
    router = make_router(replica("a"), replica("b"))
    bad = route(router)
    router.failed(bad, Failure.UNREACHABLE, 0.0)
    router.release(bad)
    assert {route(router).uid for _ in range(3)} == {"b"}
    assert router.route(0.1) is None, "b is at its capacity and a is paused"
    probe = route(router, 0.6)
    assert probe.uid == bad.uid
    assert router.route(0.6) is None, "one probe at a time"
    router.accepted(probe)
    assert route(router, 0.6).uid == bad.uid


def test_pauses_double_and_failures_within_a_pause_count_once() -> None:
    router = make_router(replica("a"))
    first, second = route(router), route(router)
    for slot in (first, second):
        router.failed(slot, Failure.DIED, 0.0)
        router.release(slot)
    assert router.next_change(0.0) == 0.5
    probe = route(router, 0.5)
    router.failed(probe, Failure.DIED, 0.5)
    router.release(probe)
    assert router.next_change(0.5) == 1.5


def test_a_probe_that_ends_without_a_verdict_may_be_repeated() -> None:
    router = make_router(replica("a"))
    slot = route(router)
    router.failed(slot, Failure.DIED, 0.0)
    router.release(slot)
    router.release(route(router, 1.0))
    assert router.route(1.0) is not None


def test_all_failing_tells_a_broken_pool_from_a_full_one() -> None:
    router = make_router(replica("a"), replica("b"))
    assert not router.all_failing()
    for _ in range(2):
        slot = route(router)
        assert not router.all_failing()
        router.failed(slot, Failure.DIED, 0.0)
        router.release(slot)
    assert router.all_failing()
    router.set_replicas([])
    assert not router.all_failing()


def test_a_pod_that_comes_back_under_another_uid_starts_with_clean_books() -> None:
    router = make_router(replica("a"))
    slot = route(router)
    router.failed(slot, Failure.TIMED_OUT, 0.0)
    router.set_replicas([replica("a2")])
    assert route(router).uid == "a2"
    assert router.in_flight.total == 2
