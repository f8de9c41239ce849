"""Requests for adapters: loading one counts in seconds, as everything does."""

from statistics import mean, median

import pytest

from fairlead.api.llmdeployment import Routing
from fairlead.routing.in_flight import InFlightRequest
from fairlead.routing.policies import make_policy
from fairlead.routing.router import Router
from fairlead.simulator.routed_fleet import RoutedFleet, Served, Setup
from fairlead_common.wire.messages import StepCost
from fairlead_testing.arrivals import adapted
from fairlead_testing.routing import make_load, make_prompt, make_replica

COST = StepCost(base=0.01, prefill_token=0.001)
PIRATES = [f"pirate-{number}" for number in range(6)]


def router(**waits: dict[str, float]) -> Router:
    """Idle replicas, by what they say of their adapters."""
    made = Router(make_policy(Routing()))
    made.set_replicas([make_replica(uid, adapters=adapters) for uid, adapters in waits.items()])
    for uid, adapters in waits.items():
        tell(made, uid, adapters)
    return made


def tell(made: Router, uid: str, adapters: dict[str, float], **load: object) -> None:
    made.datastore.loaded(uid, make_load(step_cost=COST, adapters=adapters, **load))


def route(made: Router, adapter: str, now: float = 0.0) -> InFlightRequest:
    sent = made.route(make_prompt(range(10), adapter=adapter), now)
    assert sent is not None
    return sent


def ttfts(made: Router, adapter: str | None) -> dict[str, float | None]:
    found = made.candidates(make_prompt(range(10), adapter=adapter), 0.0)
    return {each.replica.uid: each.predicted_ttft_seconds for each in found}


def test_what_loading_takes_is_added_to_the_predicted_time_of_requests_for_it_alone() -> None:
    made = router(a={"pirate": 0.0, "poet": 0.4}, b={"pirate": 0.25, "poet": 0.0}, c={})
    assert ttfts(made, None) == pytest.approx({"a": 0.02, "b": 0.02, "c": 0.02})
    assert ttfts(made, "pirate") == pytest.approx({"a": 0.02, "b": 0.27}), "who does not serve it is no candidate"
    assert ttfts(made, "poet") == pytest.approx({"a": 0.42, "b": 0.02})


@pytest.mark.parametrize(("queued_tokens", "chosen"), [(200, "resident"), (300, "idle")])
def test_who_has_it_is_preferred_by_just_what_loading_takes(queued_tokens: int, chosen: str) -> None:
    made = router(resident={"pirate": 0.0}, idle={"pirate": 0.25})
    tell(made, "resident", {"pirate": 0.0}, waiting=1, queued_prefill_tokens=queued_tokens)
    assert route(made, "pirate").uid == chosen
    assert route(router(resident={"pirate": 0.0}, idle={"pirate": 0.25}), "pirate").uid == "resident"


def test_who_comes_while_it_is_being_loaded_waits_for_what_is_left() -> None:
    made = router(a={"pirate": 0.5}, b={"pirate": 0.5})
    first = route(made, "pirate")
    assert "500 ms of it to load the adapter" in first.decision.reason
    found = made.candidates(make_prompt(range(10), adapter="pirate"), 0.2)
    assert {each.replica.uid: round(each.loading_seconds, 6) for each in found} == {
        first.uid: 0.3, "b" if first.uid == "a" else "a": 0.5,
    }  # fmt: skip
    assert route(made, "pirate", now=0.2).uid == first.uid


def serve(policy: str, seed: int) -> tuple[list[Served], int]:
    """Six adapters on three engines with a place for two each: all served, and how often one was loaded."""
    setup = Setup(adapter_seconds=dict.fromkeys(PIRATES, 0.3), adapter_slots=2, noise=0.05)
    simulation = RoutedFleet(policy, setup, seed)
    served = simulation.run(adapted(seed, PIRATES, num=250, rate=6.0))
    for engine in simulation.engines.values():
        engine.model.check()
    return served, sum(engine.model.adapters.num_loaded for engine in simulation.engines.values())


def test_adapters_stay_where_they_are_loaded_and_first_tokens_come_sooner() -> None:
    served, num_loaded = serve("PredictedTTFT", 1)
    for other in ("LeastLoaded", "RoundRobin"):
        others, others_loaded = serve(other, 1)
        assert num_loaded < 0.5 * others_loaded
        assert mean(each.ttft for each in served) < 0.6 * mean(each.ttft for each in others)
    assert median(each.prediction_error for each in served) < 0.15
