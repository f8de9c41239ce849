"""Programs in processes of their own: bounded by their own clock and memory, and nobody waits for long ones."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from fairlead_common.workers import pool
from fairlead_common.workers.branch import WorkerError, WorkerExceeded, WorkerInterrupted
from fairlead_common.workers.limits import WorkerLimits, cpu_seconds
from fairlead_common.workers.pool import MOST_EXCESSES, GivenUp, Workers
from fairlead_common.workers.root import WorkerRoot

PROGRAM = "fairlead_testing.stranger_program:make"
LIMITS = WorkerLimits(slice_seconds=0.1, job_seconds=0.5, load_seconds=0.5, memory_bytes=64 * 2**20)


@pytest.fixture
async def root() -> AsyncIterator[WorkerRoot]:
    root = WorkerRoot(["fairlead_testing.stranger_program"])
    yield root
    root.close()


@pytest.fixture
async def make(root: WorkerRoot) -> AsyncIterator[Callable[..., Workers]]:
    made: list[Workers] = []

    def make(payload: bytes = b"hello", limits: WorkerLimits = LIMITS) -> Workers:
        made.append(Workers(root, "a stranger", PROGRAM, payload, limits))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
async def workers(make: Callable[..., Workers]) -> Workers:
    workers = make()
    assert await workers.load() == b"hello"
    return workers


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


async def test_jobs_are_answered_each_with_its_own(workers: Workers) -> None:
    jobs = [b"echo %d " % number + b"x" * (number * 1000) for number in range(300)]
    assert await asyncio.gather(*map(workers.ask, jobs)) == jobs


async def test_what_a_program_raises_is_told_and_it_goes_on(workers: Workers) -> None:
    with pytest.raises(WorkerError, match="no such word"):
        await workers.ask(b"raise no such word")
    with pytest.raises(WorkerError, match="called `unwrap`"):
        await workers.ask(b"panic called `unwrap`")
    assert await workers.ask(b"count") == b"4", "by the same process, that of the first job"


async def test_loading_gets_memory_by_the_size_of_what_is_loaded(make: Callable[..., Workers]) -> None:
    """Public tokenizers take 24 times the bytes of their files; there is an end to it."""
    limits = msgspec.structs.replace(LIMITS, load_seconds=60.0, most_load_memory=256 * 2**20)
    size = 5 * 2**20
    assert await make(b"take %d " % (20 * size) + b" " * size, limits).load()
    with pytest.raises(WorkerExceeded, match="memory"):
        await make(b"take %d " % (100 * size) + b" " * size, limits).load()


@pytest.mark.parametrize("payload", [b"die", b"burn 60", b"take 999999999"])
async def test_where_a_program_takes_too_much_to_load_its_plain_one_is_loaded(root: WorkerRoot, payload: bytes) -> None:
    workers = Workers(root, "a stranger", PROGRAM, payload, LIMITS, plain_program=f"{PROGRAM}_plain")
    assert await workers.load() == b"plain"
    assert await workers.ask(b"echo") == b"echo"
    workers.close()


async def test_no_backtrace_is_made_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rust would wait for ever for the lock of the backtrace that it is making."""
    monkeypatch.setenv("RUST_BACKTRACE", "1")
    root = WorkerRoot(["fairlead_testing.stranger_program"])
    branch = await root.fork(LIMITS)
    assert psutil.Process(branch.pid).environ()["RUST_BACKTRACE"] == "0"
    branch.end()
    root.close()


async def test_nobody_waits_behind_what_takes_long(workers: Workers) -> None:
    done: list[str] = []

    async def ask(name: str, job: bytes) -> None:
        await workers.ask(job)
        done.append(name)

    await workers.ask(b"echo")
    await asyncio.gather(ask("long", b"burn 0.4"), *(ask("short", b"burn 0.001") for _ in range(30)))
    assert done == [*["short"] * 30, "long"]


async def test_what_was_interrupted_is_done_again(workers: Workers) -> None:
    """Behind a job that ends the process which they are in, too."""
    first = asyncio.create_task(workers.ask(b"die"))
    others = await asyncio.gather(*(workers.ask(b"echo %d" % number) for number in range(30)))
    assert others == [b"echo %d" % number for number in range(30)]
    with pytest.raises(WorkerExceeded, match="died"):
        await first


@pytest.mark.parametrize(
    ("job", "says"), [(b"burn 60", "0.5 s of a processor"), (b"take 999999999", "memory"), (b"die", "died")]
)
async def test_what_exceeds_its_limits_is_ended_and_the_program_given_up_for_a_while(
    workers: Workers, caplog: pytest.LogCaptureFixture, job: bytes, says: str
) -> None:
    with caplog.at_level(logging.ERROR):
        for _ in range(MOST_EXCESSES):
            assert workers.problem is None
            with pytest.raises(WorkerExceeded, match=says):
                await workers.ask(job)
        assert says in str(workers.problem)
        with pytest.raises(GivenUp, match=says):
            await workers.ask(b"echo")
    assert "a stranger is given up" in caplog.text and says in caplog.text
    workers._paused_until = 0.0  # as if the minute had passed
    assert workers.problem is None
    assert await workers.ask(b"echo") == b"echo"


@pytest.mark.parametrize(("job", "says"), [(b"burn 60", "0.5 s"), (b"take 999999999", "memory"), (b"die", "died")])
async def test_a_program_that_exceeds_its_limits_when_it_is_loaded(
    make: Callable[..., Workers], job: bytes, says: str
) -> None:
    with pytest.raises(WorkerExceeded, match=says):
        await make(job).load()
    other = make()
    assert await other.load() == b"hello", "and others are"


async def test_time_that_a_process_does_not_get_is_not_counted(workers: Workers) -> None:
    """A busy machine must not cause refusals."""
    assert await workers.ask_beside(b"sleep 0.7") == b"sleep 0.7"
    assert await workers.ask(b"sleep 0.3") == b"sleep 0.3"


async def test_large_jobs_may_take_more(workers: Workers) -> None:
    assert len(await workers.ask_beside(b"take 200000000 " + b" " * 2**20)) > 2**20


async def test_long_jobs_of_all_programs_together_are_few_at_a_time(make: Callable[..., Workers]) -> None:
    programs = [make(name.encode()) for name in "abcd"]
    for each in programs:
        await each.load()
    before = len(descendants())
    jobs = [asyncio.create_task(each.ask_beside(b"sleep 0.2")) for each in programs for _ in range(3)]
    most = 0
    while not all(job.done() for job in jobs):
        most = max(most, len(descendants()) - before)
        await asyncio.sleep(0.02)
    assert 0 < most <= 8, "four places; in each one job may begin while the process of the one before still ends"
    assert [await job for job in jobs] == [b"sleep 0.2"] * len(jobs)


async def test_slow_programs_leave_places_to_sound_ones(root: WorkerRoot, make: Callable[..., Workers]) -> None:
    slow = [make(b"hello %d" % number) for number in range(4)]
    sound = make()
    for each in (*slow, sound):
        await each.load()
    await asyncio.gather(*(each.ask_beside(b"burn 0.15") for each in slow))
    asked = [asyncio.create_task(each.ask_beside(b"sleep 60")) for each in slow for _ in range(2)]
    await asyncio.sleep(0)
    assert await sound.ask_beside(b"echo") == b"echo"
    for each in asked:
        each.cancel()


async def test_who_is_not_patient_does_not_wait_for_others(root: WorkerRoot, make: Callable[..., Workers]) -> None:
    others = [make(b"hello %d" % number) for number in range(2)]
    impatient = Workers(root, "a stranger", PROGRAM, b"hello", LIMITS, patience=0.01)
    for each in (*others, impatient):
        await each.load()
    asked = [asyncio.create_task(each.ask_beside(b"sleep 60")) for each in others for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(WorkerInterrupted):
        await impatient.ask_beside(b"echo")
    for each in asked:
        each.cancel()
    await asyncio.wait(asked)
    assert await impatient.ask_beside(b"echo") == b"echo"
    impatient.close()


async def test_whoever_leaves_ends_what_was_done_beside_others(workers: Workers) -> None:
    await workers.ask(b"echo")
    asked = asyncio.create_task(workers.ask_beside(b"burn 60"))
    await until(lambda: len(workers._alone) == 1 and next(iter(workers._alone)).num_asked == 1)
    [branch] = workers._alone
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await until(lambda: not psutil.pid_exists(branch.pid))


async def test_a_killed_stem_or_root_is_replaced_and_meanwhile_nobody_waits(root: WorkerRoot, workers: Workers) -> None:
    await workers.ask(b"echo")
    for victim in (lambda: workers._stem.pid, lambda: root._process.pid):  # type: ignore[union-attr]
        before = {each.pid for each in descendants()}
        os.kill(victim(), signal.SIGKILL)
        asked = 0
        while True:
            try:
                await workers.ask(b"echo")
                if workers._stem.pid not in before:  # type: ignore[union-attr]
                    break
            except (WorkerInterrupted, WorkerExceeded):
                asked += 1
            await asyncio.sleep(0.005)
        assert asked > 0


async def test_nothing_is_left_behind(root: WorkerRoot, make: Callable[..., Workers]) -> None:
    workers = make()
    await workers.load()
    await workers.ask(b"echo")
    asyncio.get_running_loop().call_later(0.05, workers.close)
    with pytest.raises(WorkerInterrupted):
        await workers.ask_beside(b"burn 60")
    started = psutil.Process(root._process.pid)  # type: ignore[union-attr]
    await until(lambda: not started.children(recursive=True))  # no zombies either
    root.close()
    assert not started.is_running()


OWNER = """
import asyncio, os
from fairlead_common.workers.pool import Workers
from fairlead_common.workers.root import WorkerRoot

async def main():
    workers = Workers(WorkerRoot([]), "x", "fairlead_testing.stranger_program:make", b"hello")
    await workers.load()
    await workers.ask(b"echo")
    asyncio.create_task(workers.ask_beside(b"sleep 600"))
    while not workers._alone or not next(iter(workers._alone)).num_asked:
        await asyncio.sleep(0.001)
    print("up", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process
    process.kill()
    process.communicate()


async def test_all_go_with_their_owner_however_it_goes(owner: subprocess.Popen[bytes]) -> None:
    family = psutil.Process(owner.pid).children(recursive=True)
    assert len(family) == 4
    owner.kill()
    await until(lambda: not any(each.is_running() and each.status() != "zombie" for each in family))


async def test_signals_to_the_group_are_the_owners(owner: subprocess.Popen[bytes]) -> None:
    family = psutil.Process(owner.pid).children(recursive=True)
    for each in family:
        each.send_signal(signal.SIGINT)
        each.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.2)
    assert all(each.is_running() and each.status() != "zombie" for each in family)


def test_a_processs_own_clock_is_read() -> None:
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert cpu_seconds(os.getpid()) == pytest.approx(time.process_time(), abs=0.05)
    with pytest.raises(OSError):
        cpu_seconds(2**22 + 1)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def test_no_module_of_workers_knows_a_tokenizer() -> None:
    for path in Path(pool.__file__).parent.glob("*.py"):
        assert "import tokenizers" not in path.read_text()
