"""Threads bound to cores: in processes of their own, since a bound thread stays so."""

import os
import subprocess
import sys

import pytest

from fairlead_engine.errors import ConfigError
from fairlead_engine.model.shard import Shard
from fairlead_engine.runner import placement

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads can be bound on Linux only")

BIND = """
import os, sys, torch
from fairlead_engine.model.shard import Shard
from fairlead_engine.runner.placement import pin_threads

for settings in sys.argv[1:]:
    if not (child := os.fork()):
        break
    os.waitpid(child, 0)
else:
    sys.exit()
pin, num_threads, cores, rank, size = eval(settings)
if cores:
    os.sched_setaffinity(0, cores)
torch.set_num_threads(num_threads)
before = set(os.listdir("/proc/self/task"))
for _ in range(2):
    pin_threads(pin, Shard(rank, size))
torch.ones(500_000).add_(1)
own = {str(os.getpid())} | set(os.listdir("/proc/self/task")) - before
print(sorted(sorted(os.sched_getaffinity(int(thread))) for thread in own), end=" ")
print(all(os.sched_getaffinity(int(thread)) == (cores or set(range(os.cpu_count()))) for thread in before - own))
"""


def bind(*settings: tuple[bool | None, int, set[int] | None, int, int]) -> list[str]:
    """What the threads are bound to that compute, and whether no other is, in a process for each of the settings:
    whether to bind, threads, cores, rank, and ranks."""
    run = subprocess.run([sys.executable, "-c", BIND, *map(repr, settings)], stdout=subprocess.PIPE, text=True)
    return run.stdout.splitlines()


ALL = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
two = pytest.mark.skipif(len(ALL) < 2 or len(ALL) != os.cpu_count(), reason="needs all cores of a machine with two")


@two
def test_each_thread_has_a_core_of_its_rank_and_other_threads_are_left_alone():
    bound = bind((True, 2, set(ALL[:2]), 0, 1), (True, 1, set(ALL[:2]), 1, 2))
    assert bound == [f"[[{ALL[0]}], [{ALL[1]}]] True", f"[[{ALL[1]}]] True"]


SECOND_MODEL = """
import torch
from fairlead_engine.model.shard import ALONE
from fairlead_engine.runner.placement import pin_threads
from fairlead_engine.runner.placement import set_num_threads

torch.set_num_threads(2)
for _ in range(2):
    set_num_threads(None)
    pin_threads(True, ALONE)
    print(torch.get_num_threads())
"""


@pytest.mark.slow
@two
def test_a_second_model_of_a_bound_thread_has_as_many_threads():
    run = subprocess.run([sys.executable, "-c", SECOND_MODEL], capture_output=True, text=True)
    assert run.stdout.split() == ["2", "2"], run.stderr


@pytest.mark.slow
@two
def test_of_itself_only_a_process_with_cores_of_its_own_binds():
    assert bind((None, 2, None, 0, 1), (None, 1, {ALL[1]}, 0, 1)) == [f"[{ALL}, {ALL}] True", f"[[{ALL[1]}]] True"]


def test_fewer_cores_than_threads_are_refused_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(placement, "_bound", {})
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    monkeypatch.setattr(placement.torch, "get_num_threads", lambda: 2)
    refused = "pin-threads: is set, and 2 threads of each of 4 ranks need more cores than the 1 that are here"
    with pytest.raises(ConfigError, match=refused):
        placement.pin_threads(True, Shard(0, 4))


def test_one_of_each_core_comes_first(tmp_path):
    for cpu, siblings in enumerate(("0,4", "1,5", "2,6", "3,7") * 2):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert placement.own_cores({0, 1, 4, 5, 6}, tmp_path) == [0, 1, 6, 4, 5]
    assert placement.own_cores({3, 9}, tmp_path) == [3, 9]
