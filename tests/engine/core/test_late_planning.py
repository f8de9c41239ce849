"""A step is planned late enough for who comes while the device computes another, and early enough for the device."""

from itertools import pairwise
from typing import Any

import pytest

from fairlead_engine.core.clock import LatePlanning
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.loop import run_core
from fairlead_engine.core.messages import Add, Command, Reply, Stepped, Stop
from fairlead_engine.types import FinishReason
from fairlead_engine.types.batch import Batch
from fairlead_engine_testing import FakeClock, FakeModelConfig, FakeRunner, make_request
from fairlead_engine_testing.fake_engine import fake_config

PLANNING = 0.002
"""Seconds that the host takes to plan and launch a step."""


class Device(FakeRunner):
    """Computes one batch after another, each as long as `seconds` says."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        super().__init__(FakeModelConfig(max_position_embeddings=4096), block_size=4)
        self.clock, self.seconds, self.free_at = clock, seconds, 0.0
        self.begun: list[tuple[float, int]] = []
        """When each batch began to be computed, and of how many sequences."""

    def launch(self, batch: Batch) -> Any:
        self.clock.advance(PLANNING)
        begins = max(self.free_at, self.clock.monotonic())
        self.free_at = begins + self.seconds
        self.begun.append((begins, len(batch.items)))
        return self.free_at, super().launch(batch)

    def is_over(self, launched: Any) -> bool:
        return launched[0] <= self.clock.monotonic()

    def collect(self, launched: Any) -> Any:
        self.clock.advance(max(0.0, launched[0] - self.clock.monotonic()))
        return launched[1]


class TimedChannel:
    """Brings each command when the device has come so far, and `Stop` once the engine waits for more."""

    num_clients = 1

    def __init__(self, clock: FakeClock, commands: list[tuple[float, Command]]) -> None:
        self.clock, self.commands = clock, [(clock.monotonic() + seconds, command) for seconds, command in commands]
        self.replies: list[Reply] = []

    def receive(self, timeout: float | None) -> list[tuple[int, Command]]:
        wait = self.commands[0][0] - self.clock.monotonic() if self.commands else float("inf")
        if timeout is not None and wait > timeout:
            self.clock.advance(timeout)
            return []
        if not self.commands:
            return [(0, Stop())]
        self.clock.advance(max(0.0, wait))
        return [(0, self.commands.pop(0)[1])]

    def send(self, client: int, reply: Reply) -> None:
        self.replies.append(reply)


def serve(seconds: float, second_comes: float | None = None) -> tuple[Device, TimedChannel, float]:
    """A long request, and a second one so many seconds after the device began; returns when that came, too."""
    clock = FakeClock()
    device = Device(clock, seconds)
    config = fake_config(num_blocks=1000, async_scheduling=True)
    engine = Engine(config, device, clock)
    device.begun.clear()
    first, second = (make_request(name, [5], max_tokens=400, ignore_eos=True) for name in ("first", "second"))
    comes = PLANNING + (second_comes or 0.0)
    came = clock.monotonic() + comes
    channel = TimedChannel(clock, [(0.0, Add(first)), *([(comes, Add(second))] if second_comes else [])])
    assert run_core(lambda: engine, channel)
    return device, channel, came


@pytest.mark.parametrize(("share", "steps_later"), [(0.05, 1), (0.3, 1), (0.6, 1), (0.95, 2)])
def test_who_comes_while_a_step_is_computed_is_in_the_next_one(share: float, steps_later: int) -> None:
    """If there is time to plan it."""
    seconds = 0.03
    device, _, came = serve(seconds, second_comes=300.0 * seconds + share * seconds)
    of_both = next(begins for begins, num_sequences in device.begun if num_sequences == 2)
    assert of_both - came == pytest.approx((steps_later - share) * seconds)


def test_a_device_waits_for_no_plan_once_it_is_known_how_long_steps_take() -> None:
    device, channel, _ = serve(0.03)
    num_known = 320
    times = [begins for begins, _ in device.begun]
    assert len(times) >= 399
    gaps = [later - earlier - 0.03 for earlier, later in pairwise(times[num_known:])]
    assert max(gaps) < 1e-9
    (last,) = [o for r in channel.replies if isinstance(r, Stepped) for o in r.outputs if o.finish_reason is not None][
        :1
    ]
    assert last.finish_reason is FinishReason.LENGTH


def test_steps_shorter_than_planning_are_planned_at_once() -> None:
    device, _, _ = serve(PLANNING / 2)
    times = [begins for begins, _ in device.begun]
    assert max(later - earlier for earlier, later in pairwise(times)) < 1.001 * PLANNING


def test_nobody_waits_beside_a_device_that_has_ended_its_step() -> None:
    """As a CPU has when it was launched, however long steps are said to take."""
    clock = FakeClock()
    device = Device(clock, 1.0)
    engine = Engine(fake_config(num_blocks=1000, async_scheduling=True), device, clock)
    assert engine.add(make_request("r", [5], max_tokens=9)) is None
    engine.step()
    assert engine.spare_seconds > 0.0
    device.is_over = lambda launched: True  # type: ignore[method-assign]
    assert engine.spare_seconds == 0.0


def test_the_lead_follows_what_planning_takes_and_doubles_when_it_was_too_little() -> None:
    clock = FakeClock(0.0)
    planning = LatePlanning(clock)

    def spare(*, took: float = 0.0, is_late: bool = False, steps: int = 1) -> float:
        for _ in range(steps):
            began = clock.monotonic()
            clock.advance(took)
            planning.planned(began, is_late=is_late)
        planning.begins(1.0)
        return spare_of(planning, clock)

    assert spare() == pytest.approx(0.901, abs=2e-4)
    assert spare(took=0.004, steps=1000) == pytest.approx(1 - 0.0045, abs=2e-4)
    assert spare(took=0.004, is_late=True) == pytest.approx(1 - 0.009, abs=2e-4)
    assert spare(took=0.02) == pytest.approx(1 - 0.0205, abs=2e-4)
    assert spare(is_late=True, steps=20) == pytest.approx(0.9, abs=2e-4)


def spare_of(planning: LatePlanning, clock: FakeClock) -> float:
    """All that it waits, looking again and again."""
    began = clock.monotonic()
    while wait := planning.spare_seconds:
        assert 0.0 < wait <= 0.005
        clock.advance(wait)
    return clock.monotonic() - began


def test_a_step_that_ends_early_is_noticed_soon() -> None:
    """Long ones that suddenly take half as long: the device waits for milliseconds, not for what was expected."""
    clock = FakeClock()
    device = Device(clock, 2.0)
    engine = Engine(fake_config(num_blocks=1000, async_scheduling=True), device, clock)
    device.begun.clear()
    device.seconds = 1.0
    channel = TimedChannel(clock, [(0.0, Add(make_request("r", [5], max_tokens=20, ignore_eos=True)))])
    assert run_core(lambda: engine, channel)
    times = [begins for begins, _ in device.begun]
    assert len(times) >= 20
    assert max(later - earlier for earlier, later in pairwise(times)) < 1.0 + 0.005 + 1.001 * PLANNING
