"""One line in the gateway's log when a replica begins to hang, one when that ends, however often it is told."""

import logging

import pytest

from fairlead.gateway.dispatch.replica_watch import Hangs
from fairlead.routing.replica import Load
from fairlead_common.wire.messages import StepCost
from fairlead_testing.model_pools import load, replica

COST = StepCost(base=0.01)


def stuck(seconds: float, cost: StepCost = COST) -> Load:
    return load(0.0, running=1, step_age_seconds=seconds, step_cost=cost)


@pytest.fixture
def hangs(caplog: pytest.LogCaptureFixture) -> Hangs:
    caplog.set_level(logging.INFO, "fairlead.gateway.dispatch.replica_watch")
    made = Hangs("default/dinghy")
    made.keep([replica("a"), replica("b")])
    return made


def test_beginning_and_end_are_one_line_each(hangs: Hangs, caplog: pytest.LogCaptureFixture) -> None:
    for seconds in (0.0, 4.9, 5.1, 5.2, 60.0):
        hangs.told("a", stuck(seconds))
    hangs.told("b", stuck(0.1))
    [begin] = caplog.records
    assert (begin.levelname, begin.replica, begin.model, begin.step_seconds) == ("WARNING", "a", "default/dinghy", 5.1)
    for _ in range(3):
        hangs.told("a", stuck(0.0))
    [_, end] = caplog.records
    assert (end.levelname, end.replica, end.step_seconds) == ("INFO", "a", 60.0)
    assert end.message == "a replica hangs no longer: it went on"


def test_long_steps_of_a_slow_engine_are_no_hang(hangs: Hangs, caplog: pytest.LogCaptureFixture) -> None:
    for seconds in (6.0, 0.0, 19.9, 0.0):
        hangs.told("a", stuck(seconds, StepCost(base=1.0)))
    assert not caplog.records


@pytest.mark.parametrize("leaves", [True, False])
def test_one_that_is_not_heard_of_any_more_hangs_no_longer(
    hangs: Hangs, caplog: pytest.LogCaptureFixture, leaves: bool
) -> None:
    hangs.told("a", stuck(9.0))
    if leaves:
        hangs.keep([replica("b")])
    hangs.told("a", None)
    [_, end] = caplog.records
    assert (end.replica, end.message.startswith("a replica hangs no longer")) == ("a", True)
    hangs.told("a", stuck(9.0))
    assert len(caplog.records) == 3, "and if it is back and hangs, that is told again"
