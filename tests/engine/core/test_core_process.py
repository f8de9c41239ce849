"""The core process: how it dies, and that it never outlives its parent."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from itertools import pairwise
from types import SimpleNamespace

import psutil
import pytest

from fairlead_engine.core.process_client import ProcessClient
from fairlead_engine.core.request_stream import RequestStream
from fairlead_engine.errors import EngineDead
from fairlead_engine_testing import make_request
from fairlead_engine_testing.fake_engine import FAKE_CORE, fake_config
from fairlead_engine_testing.outputs import outputs_of


async def test_a_core_killed_in_the_middle_of_a_stream_ends_it_with_an_error() -> None:
    client = ProcessClient(fake_config("step_seconds=0.01"), module=FAKE_CORE)
    await client.start()
    streams = [outputs_of(client, make_request(name, max_tokens=100, ignore_eos=True)) for name in "ab"]
    for stream in streams:
        await anext(stream)
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    for stream in streams:
        with pytest.raises(EngineDead, match=r"signal 9 .*short of memory"):
            while True:
                await anext(stream)
    assert not client.alive
    await client.close()


async def test_a_request_that_cannot_be_sent_leaves_no_trace() -> None:
    client = ProcessClient(fake_config(), module=FAKE_CORE)
    await client.start()
    with pytest.raises(OverflowError):
        await anext(outputs_of(client, make_request("a", [2**70])))
    outputs = [output async for output in outputs_of(client, make_request("a", max_tokens=2, ignore_eos=True))]
    assert sum(len(output.new_token_ids) for output in outputs) == 2  # a slow consumer gets steps merged
    while client.load.running:
        await asyncio.sleep(0.005)
    assert client.step_age_seconds == 0.0
    await client.close()


async def test_a_hung_step_shows_as_its_age_even_when_every_client_has_left() -> None:
    client = ProcessClient(fake_config("hang_at_step=2"), module=FAKE_CORE)
    await client.start()
    stream = outputs_of(client, make_request(max_tokens=9, ignore_eos=True))
    await anext(stream)
    await asyncio.sleep(0.05)
    first = client.step_age_seconds
    await stream.aclose()
    await asyncio.sleep(0.05)
    assert 0.0 < first < client.step_age_seconds
    assert client.alive
    pid = client.pid
    await client.close()
    assert pid is not None
    assert not psutil.pid_exists(pid), "a core that does not end is killed"


async def test_a_core_may_be_closed_from_two_sides_at_once() -> None:
    """As when a start is cancelled while the server that waits for it ends."""
    client = ProcessClient(fake_config(), module=FAKE_CORE)
    await client.start()
    pid = client.pid
    await asyncio.gather(client.close(), client.close())
    assert pid is not None
    assert not psutil.pid_exists(pid)


async def test_ctrl_c_and_sigterm_are_left_to_the_parent() -> None:
    client = ProcessClient(fake_config("step_seconds=0.005"), module=FAKE_CORE)
    await client.start()
    assert client.pid is not None
    stream = outputs_of(client, make_request(max_tokens=20, ignore_eos=True))
    await anext(stream)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(client.pid, number)
    assert [output async for output in stream][-1].finish_reason is not None
    await client.close()


async def test_a_core_that_ends_before_it_started_is_an_error() -> None:
    client = ProcessClient(fake_config(), module="fairlead_engine.no_such_module")
    with pytest.raises(EngineDead, match="ended with status 1"):
        await client.start()


@pytest.mark.parametrize("name", ["t", "a-folder-whose-name-leaves-no-room-for-a-socket" * 3], ids=["short", "long"])
async def test_nothing_stays_in_the_temporary_folder(
    name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp(name)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    client = ProcessClient(fake_config(), module=FAKE_CORE)
    await client.start()
    assert not list(folder.iterdir()), "a server that is killed leaves nothing behind"
    outputs = [output async for output in outputs_of(client, make_request(max_tokens=2, ignore_eos=True))]
    assert sum(len(output.new_token_ids) for output in outputs) == 2
    await client.close()


PARENT = """
    import asyncio
    from fairlead_engine.core.process_client import ProcessClient
    from fairlead_engine_testing import make_request
    from fairlead_engine_testing.fake_engine import FAKE_CORE, fake_config
    from fairlead_engine_testing.outputs import outputs_of

    async def main():
        client = ProcessClient(fake_config({misbehaviour!r}), module=FAKE_CORE)
        await client.start()
        stream = outputs_of(client, make_request(max_tokens=9, ignore_eos=True))
        await anext(stream)
        print(client.pid, flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
"""


@pytest.mark.parametrize("misbehaviour", ["", "hang_at_step=2"], ids=["idle", "in-a-step"])
def test_a_core_dies_with_its_parent(misbehaviour: str) -> None:
    program = textwrap.dedent(PARENT).format(misbehaviour=misbehaviour)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        core = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    psutil.wait_procs([core], timeout=30)
    assert not core.is_running() or core.status() == psutil.STATUS_ZOMBIE


def test_a_core_started_by_hand_says_what_to_run_instead() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "fairlead_engine.core"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "fairlead-engine serve" in result.stderr


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("fairlead_engine.core.process_client", ["torch", "numpy"]),
        ("fairlead_engine.core.client", ["torch", "zmq", "numpy"]),
        ("fairlead_engine_testing.in_process_client", ["torch", "zmq"]),
        ("fairlead_engine.core.engine", ["torch", "zmq", "fastapi", "uvicorn"]),
        ("fairlead_engine_testing", ["torch", "zmq", "fastapi"]),
    ],
)
def test_importing_a_client_pulls_in_nothing_heavy(module: str, unwanted: list[str]) -> None:
    program = f"import sys, {module}; print([name for name in {unwanted!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


async def test_commands_that_come_at_once_are_taken_between_several_steps() -> None:
    """A request of thousands of prompts does not keep others from their next step until all are queued."""
    client, num_taken = ProcessClient(fake_config("step_seconds=0.01"), module=FAKE_CORE), [0]
    await client.start()
    client.listen(SimpleNamespace(stepped=lambda _, num_commands: num_taken.append(num_commands)))
    for index in range(1000):
        client.add(make_request(f"r{index}", max_tokens=9, ignore_eos=True), RequestStream(lambda: None))
    while num_taken[-1] < 1000:
        await asyncio.sleep(0.005)
    assert max(after - before for before, after in pairwise(num_taken)) <= 256
    await client.close()
