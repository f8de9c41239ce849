"""pytest-xdist's groups, as the project's tests are given to workers: what its own controller does, and less kept."""

from collections import deque
from types import SimpleNamespace
from typing import Any

from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling

from fairlead_testing.scheduling import GroupScheduling

NAMES = [
    f"test_module.py::test_it[{number}]{f'@group {number % 5}' if number % 3 == 0 else ''}" for number in range(90)
]


class Worker:
    """Runs what it is given, in order."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given = list[int]()
        self.waiting = deque[int]()
        self.shutting_down = False

    def send_runtest_some(self, places: list[int]) -> None:
        self.given += places
        self.waiting += places

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduled(kind: type[LoadGroupScheduling], workers: list[Worker]) -> Any:
    config: Any = SimpleNamespace(
        getvalue=lambda name: ["popen"] * len(workers), option=SimpleNamespace(loadscopereorder=True)
    )
    scheduler: Any = kind(config, Producer("scheduler", enabled=False))
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, NAMES)
    scheduler.schedule()
    return scheduler


def run(scheduler: Any, workers: list[Worker], until: int = 0) -> None:
    """One test of each worker after the other, until so many are left."""
    left = len(NAMES) - until
    while left and any(worker.waiting for worker in workers):
        for worker in workers:
            if worker.waiting and left:
                scheduler.mark_test_complete(worker, worker.waiting.popleft())
                left -= 1


def test_each_worker_is_given_what_the_base_gives() -> None:
    given = []
    for kind in (LoadGroupScheduling, GroupScheduling):
        workers = [Worker("a"), Worker("b")]
        scheduler = scheduled(kind, workers)
        run(scheduler, workers)
        assert scheduler.tests_finished and not scheduler.has_pending
        given.append([worker.given for worker in workers])
    assert given[0] == given[1] and sorted(given[1][0] + given[1][1]) == [*range(len(NAMES))]


def test_of_a_worker_only_what_it_has_yet_to_run_is_kept() -> None:
    workers = [Worker("a"), Worker("b")]
    scheduler = scheduled(GroupScheduling, workers)
    run(scheduler, workers, until=30)
    for worker in workers:
        kept = scheduler.assigned_work[worker]
        assert len(kept) <= 3 and all(not all(tests.values()) for tests in kept.values())


def test_what_a_worker_that_died_had_not_run_is_run_by_the_others() -> None:
    workers = [Worker("a"), Worker("b")]
    scheduler = scheduled(GroupScheduling, workers)
    run(scheduler, workers, until=30)
    lost, other = workers
    assert scheduler.remove_node(lost) == NAMES[lost.waiting[0]]
    missing = set(lost.waiting)
    run(scheduler, [other])
    assert missing <= set(other.given) and not scheduler.has_pending
