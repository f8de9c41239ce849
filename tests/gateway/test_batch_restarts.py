"""Batches whose gateway is killed, drained or late: every line is answered once, and none with an answer runs again."""

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.gateway.batches import batch_run, runner
from fairlead.gateway.batches.batch import ENDED, BatchRow, BatchStatus
from fairlead.gateway.batches.batch_run import BatchRun, ServedAnswer
from fairlead.gateway.batches.batch_table import BatchLeaseLost, BatchTable
from fairlead.gateway.files.blobs import Folder
from fairlead.gateway.files.file_table import FileTable
from fairlead.gateway.files.keeper import FileKeeper, FileLimits
from fairlead.gateway.stored.database import Database
from fairlead.gateway.stored.tables import batches
from fairlead_testing.gateways import make_pool
from fairlead_testing.real_servers import free_port

CHAT = "/v1/chat/completions"
PROGRAM = """
import asyncio, sys
from fairlead.gateway.batches import batch_table, runner
from fairlead.routing.replica import Replica
from fairlead_testing.gateways import make_pool, running_gateway

batch_table.LEASE_SECONDS, runner.POLL_SECONDS = 1.0, 0.1


async def main(database, files, port, *engines):
    replicas = [Replica(uid=each, name=each, host="127.0.0.1", port=int(each)) for each in engines]
    settings = {"response_store": database, "file_store": files, "port": int(port), "follow": len(engines) > 1}
    async with running_gateway(make_pool(replicas), **settings) as (_, _, url):
        print(url, flush=True)
        await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
"""


def lines(number: int) -> bytes:
    bodies = ({"model": "fake", "messages": [{"role": "user", "content": str(each)}]} for each in range(number))
    asked = ({"custom_id": str(each), "method": "POST", "url": CHAT, "body": body} for each, body in enumerate(bodies))
    return b"".join(json.dumps(each).encode() + b"\n" for each in asked)


async def created(client: openai.AsyncOpenAI, number: int) -> Any:
    file = await client.files.create(file=("lines.jsonl", lines(number)), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


async def completed(client: openai.AsyncOpenAI, batch: Any) -> list[str]:
    """The custom ids in its output."""
    async with asyncio.timeout(120):
        while (now := await client.batches.retrieve(batch.id)).status != "completed":
            await asyncio.sleep(0.05)
    assert now.request_counts.completed == now.request_counts.total and now.error_file_id is None
    text = (await client.files.content(now.output_file_id)).text
    return [json.loads(each)["custom_id"] for each in text.splitlines()]


def sent(engine: Any) -> Counter[str]:
    """How often each line was sent to it."""
    return Counter(request.json()["messages"][0]["content"] for request in engine.requests)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of a bucket in what moto takes for S3; both gateways find it by their environment."""
    moto = pytest.importorskip("moto.server", reason="pip install 'moto[server]' boto3")
    boto3 = pytest.importorskip("boto3")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
        for name, value in (("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "key"), ("DEFAULT_REGION", "us-east-1")):
            monkeypatch.setenv(f"AWS_{name}", value)
        boto3.client("s3").create_bucket(Bucket="files")
        yield "s3://files/of/clients"
    finally:
        server.stop()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of files."""
    return f"{tmp_path}/files" if request.param == "folder" else request.getfixturevalue("bucket")


@pytest.mark.parametrize(
    ("url", "place"), [("sqlite", "folder"), ("postgresql", "folder"), ("sqlite", "bucket")], indirect=True
)
async def test_a_killed_gateways_batch_goes_on_at_another(
    with_files, tmp_path: Path, url: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.1)
    setup = await with_files(tmp_path, response_store=url, file_store=place)
    [engine], is_dead = setup.engines, asyncio.Event()
    engine.pace = lambda index: asyncio.sleep(0.002) if len(engine.requests) <= 30 else is_dead.wait()
    arguments = [sys.executable, "-c", PROGRAM, url, place, "0", str(engine.port)]
    killed = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE)
    try:
        assert killed.stdout is not None
        address = (await killed.stdout.readline()).decode().strip()
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none") as client:
            while True:  # until its tables are there
                try:
                    batch = await created(client, 60)
                    break
                except openai.InternalServerError:
                    await asyncio.sleep(0.1)
        table = setup.gateway.storage.batches.table
        async with asyncio.timeout(60):
            while not len(await table.answered(batch.id)) >= 10:
                await asyncio.sleep(0.01)
    finally:
        killed.kill()
        await killed.wait()
    is_dead.set()
    stored = await table.answered(batch.id)
    assert await completed(setup.openai, batch) == [str(each) for each in range(60)]
    counts = sent(engine)
    again = {number for number in range(60) if counts[str(number)] > 1}
    assert set(counts.values()) <= {1, 2} and not {number - 1 for number in stored} & again
    assert len(stored) < 60, "it was killed in the middle"


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_two_thousand_lines_survive_random_kills(postgres: str, tmp_path: Path) -> None:
    """Gateways and engines are killed every other second, and come again."""
    chance, ports = random.Random(5), [str(free_port()) for _ in range(4)]
    engine = [sys.executable, "-m", "fairlead_testing.fake_engine", "--num-tokens", "10", "--step-cost", "base=0.02"]
    gateway = [sys.executable, "-c", PROGRAM, postgres, str(tmp_path)]
    commands = [[*engine, "--port", port] for port in ports[:2]] + [[*gateway, port, *ports[:2]] for port in ports[2:]]
    programs = [await asyncio.create_subprocess_exec(*command) for command in commands]
    clients = [openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") for port in ports[2:]]

    async def asked(call: Callable[[openai.AsyncOpenAI], Awaitable[Any]]) -> Any:
        """At whichever gateway lives."""
        async with asyncio.timeout(120):
            while True:
                try:
                    return await call(chance.choice(clients))
                except openai.APIError:
                    await asyncio.sleep(0.2)

    num_kills = 0
    try:
        batch = await asked(lambda client: created(client, 2000))
        async with asyncio.timeout(900):
            while (now := await asked(lambda client: client.batches.retrieve(batch.id))).status != "completed":
                assert now.status in ("validating", "in_progress", "finalizing"), now
                await asyncio.sleep(chance.uniform(0.5, 3.0))
                which = chance.randrange(len(programs))
                programs[which].kill()
                await programs[which].wait()
                programs[which] = await asyncio.create_subprocess_exec(*commands[which])
                num_kills += 1
        files = [file_id for file_id in (now.output_file_id, now.error_file_id) if file_id is not None]
        texts = [(await asked(lambda client, each=each: client.files.content(each))).text for each in files]
    finally:
        for program in programs:
            program.kill()
            await program.wait()
        for client in clients:
            await client.close()
    told = [json.loads(line) for text in texts for line in text.splitlines()]
    assert Counter(each["custom_id"] for each in told) == Counter(map(str, range(2000)))
    failed = [each["response"]["status_code"] for each in told if each["response"]["status_code"] != 200]
    assert not failed, "no line breaks an engine"
    assert (now.request_counts.total, now.request_counts.completed) == (2000, 2000) and num_kills >= 10


async def test_a_drained_gateways_batch_goes_on_without_a_line_run_twice(
    with_files, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.05)
    one = await with_files(tmp_path)
    batch_runner = one.gateway.storage.batches
    one.engines[0].pace = lambda index: asyncio.sleep(0.002)
    batch = await created(one.openai, 40)
    await one.until(lambda: len(one.engines[0].requests) >= 10)
    pool = make_pool([one.engines[0].replica()])
    two = await with_files(tmp_path, num_engines=0, pools=lambda _: [pool])
    one.gateway.drain()
    assert await completed(two.openai, batch) == [str(each) for each in range(40)]
    assert set(sent(one.engines[0]).values()) == {1} and batch_runner.num_running == 0


@pytest.fixture(scope="module")
def shared_files() -> Iterator[FileKeeper]:
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/store.db")
        asyncio.run(database.start())
        limits = FileLimits(max_bytes=10**6, max_bytes_of_owner=10**9, retention=3600.0)
        yield FileKeeper(FileTable(database), Folder(Path(folder)), limits)
        database.close()


@settings(max_examples=15, deadline=None)
@given(
    statuses=st.lists(st.sampled_from([200, 200, 200, 400, 500, 429]), min_size=1, max_size=12),
    losses=st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["killed", "late"])), max_size=4),
    number=st.integers(0, 10**9),
)
def test_every_line_is_stored_once_whoever_runs_it(
    shared_files: FileKeeper, statuses: list[int], losses: list[tuple[int, str]], number: int
) -> None:
    """`statuses`: what each line is answered first. `losses`: after how many more requests a run is killed, or loses
    its lease without knowing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_run, "FLUSH_SECONDS", 0.0)
        patch.setattr(batch_run, "FIRST_PAUSE_SECONDS", 0.0)
        asyncio.run(_scenario(shared_files, statuses, losses, f"batch_{number}_{time.monotonic_ns()}"))


async def _scenario(files: FileKeeper, statuses: list[int], losses: list[tuple[int, str]], batch_id: str) -> None:
    table = BatchTable(files.table.database)
    now, endpoint = time.time(), CHAT
    file = await files.put("", "batch", "lines.jsonl", _pieces(lines(len(statuses))))
    await files.publish(file)
    row = BatchRow(
        id=batch_id, owner="", endpoint=endpoint, input_file_id=file.id, completion_window="24h", metadata=None,
        output_seconds=None, created_at=now, expires_at=now + 3600,
    )  # fmt: skip
    assert await table.create(row, 10**6)
    num_sent, tries, wrong = 0, Counter[int](), []
    changed = asyncio.Condition()

    async def serve(path: str, body: bytes, owner: str, request_id: str, on_dispatched: Any, **_: Any) -> ServedAnswer:
        nonlocal num_sent
        on_dispatched()
        index = int(json.loads(body)["messages"][0]["content"])
        if index + 1 in await table.answered(batch_id):
            holder = await table.database.run(lambda connection: connection.execute(lease).scalar_one())
            if holder == current:
                wrong.append(index)
        async with changed:
            num_sent += 1
            changed.notify_all()
        tries[index] += 1
        status = statuses[index] if tries[index] == 1 or statuses[index] == 400 else 200
        return ServedAnswer(status, b'{"status": %d}' % status)

    lease = batches.select().with_only_columns(batches.c.runner).where(batches.c.id == batch_id)
    runs: list[asyncio.Task[Any]] = []
    for turn, (more, how) in enumerate([*losses, (10**9, "ends")]):
        current = f"runner-{turn}"
        over = batches.update().where(batches.c.id == batch_id).values(lease_until=0.0)
        while True:
            await table.database.run(lambda connection, over=over: connection.execute(over))
            claimed = await table.claim(batch_id, current)
            if claimed is not None or (await table.get("", batch_id)).status in ENDED:
                break  # else a killed run's last statement, under way in a thread, has renewed its lease
        if claimed is None:
            break
        run = BatchRun(claimed, table, files, serve, current, 10**6, lambda _: None)
        task = asyncio.create_task(run.run())
        runs.append(task)
        if how == "ends":
            break
        until = num_sent + more
        waiting = asyncio.create_task(_until(changed, lambda until=until: num_sent >= until))
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if how == "killed":
            task.cancel()
    ended = await asyncio.gather(*runs, return_exceptions=True)
    assert all(isinstance(each, BatchRow | BatchLeaseLost | asyncio.CancelledError) for each in ended), ended
    row = await table.get("", batch_id)
    assert row.status == BatchStatus.COMPLETED and row.completed + row.failed == row.total == len(statuses)
    stored = []
    for file_id in (row.output_file_id, row.error_file_id):
        if file_id is not None:
            content = b"".join([piece async for piece in files.blobs.read(file_id)])
            stored.append([json.loads(each)["custom_id"] for each in content.splitlines()])
    assert sorted(int(each) for kind in stored for each in kind) == list(range(len(statuses)))
    assert row.failed == statuses.count(400) and not wrong
    assert await table.answered(batch_id) == set()


async def _until(changed: asyncio.Condition, condition: Any) -> None:
    async with changed:
        await changed.wait_for(condition)


async def _pieces(content: bytes) -> Any:
    yield content
