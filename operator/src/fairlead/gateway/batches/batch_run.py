"""One batch, run by this gateway: its file checked, its lines sent, their answers stored and put into files.

Nothing here is remembered but in the database: a gateway that takes the batch over begins where the answers end. A line
whose answer is stored is not sent again; one that was under way when its gateway was killed has no answer, and is.
"""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from fairlead.gateway.batches.answer_forms import answer_form
from fairlead.gateway.batches.batch import BatchRow, BatchStatus
from fairlead.gateway.batches.blame import BLAMED, Blame, fault
from fairlead.gateway.batches.lines import BatchLine, Checked, RawLine, check, raw_lines, read_line
from fairlead.gateway.files.blobs import BlobError
from fairlead.gateway.files.keeper import FileKeeper
from fairlead.gateway.stored.errors import StoreError

if TYPE_CHECKING:
    from fairlead.gateway.batches.batch_table import BatchTable, LineAnswer

logger = logging.getLogger(__name__)

MAX_WAITING = 64
"""Lines of a batch that wait for spare capacity at once: enough to be passed on as soon as there is any."""
MAX_IN_FLIGHT = 1024
"""Lines of a batch without an answer at once."""
MAX_BYTES = 16 * 2**20
"""Of bodies of those lines; an idle batch takes any one line."""
MAX_FLUSHED = 500
LAST_FLUSHES = 5
"""Tries to store the last answers of a run, a second apart."""
FLUSH_SECONDS = 0.2
"""What is answered within this time is stored at once."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 60.0
_LATER = frozenset({0, 429, 503})
"""Answers for want of capacity: such lines are tried until the batch expires, unless replicas break down on them."""
_PAGE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    """Of a request that was served without a client."""

    status: int
    """0 = it was cut off."""
    body: bytes
    num_deaths: int = 0
    """Replicas that broke down while they had it."""


class ServeLine(Protocol):
    """Serves a request of a batch as if its client had sent it, in spare capacity."""

    async def __call__(
        self,
        path: str,
        body: bytes,
        owner: str,
        request_id: str,
        on_dispatched: Callable[[], object],
        *,
        is_suspect: bool,
    ) -> ServedAnswer:
        """`on_dispatched`: called when a replica gets it. `is_suspect`: replicas have broken down on it, so that it is
        to be kept apart."""
        ...


class BatchRun:
    """`run` it; `cancel` and `drain` it from outside."""

    def __init__(
        self,
        row: BatchRow,
        table: "BatchTable",
        files: FileKeeper,
        serve: ServeLine,
        runner: str,
        max_line_bytes: int,
        on_line: Callable[[str], object],
    ) -> None:
        """`runner`: of the lease. `on_line`: called with what became of a line: completed, failed or retried."""
        self.row = row
        self._form = answer_form(row)
        self._table, self._files, self._serve = table, files, serve
        self._runner, self._max_line_bytes, self._on_line = runner, max_line_bytes, on_line
        self._answers: list[LineAnswer] = []
        """Not stored yet."""
        self._tasks: dict[asyncio.Task[None], bool] = {}
        """Lines under way, and whether a replica has had each."""
        self._at_replicas: set[asyncio.Task[None]] = set()
        """Lines that a replica has now."""
        self._moved_at = math.inf
        """When a replica got or left a line last, in monotonic time; inf = no lines are run."""
        self._waiting = asyncio.Semaphore(MAX_WAITING)
        self._in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._num_bytes = 0
        """Of the bodies of lines under way."""
        self._answered = asyncio.Event()
        """Set when a line under way has ended."""
        self._blame = Blame()
        self._flushing = asyncio.Lock()
        self._stopping = asyncio.Event()
        self.is_draining = False
        """Whether it takes no more lines, and ends before the batch does."""

    def cancel(self) -> None:
        """The batch was cancelled: lines under way are given up."""
        self._stopping.set()

    @property
    def stuck_seconds(self) -> float:
        """For how long no replica has taken or answered a line; 0 while one has a line, and before and behind all
        lines."""
        return 0.0 if self._at_replicas else max(0.0, time.monotonic() - self._moved_at)

    def drain(self) -> None:
        """Takes no more lines; finishes those that replicas have, for whoever runs the batch next."""
        self.is_draining = True
        self._stopping.set()

    async def run(self) -> BatchRow:
        """To the batch's end, or to the drain's. Raises BatchLeaseLost, StoreError, BlobError and NotStored."""
        if self.row.status == BatchStatus.VALIDATING:
            await self._validate()
        if self.row.status == BatchStatus.IN_PROGRESS:
            await self._run_lines()
        if self.row.status in (BatchStatus.FINALIZING, BatchStatus.CANCELLING):
            await self._finalize()
        return self.row

    async def _change(self, *only_from: str, **changes: Any) -> None:
        self.row = await self._table.change(self.row.id, self._runner, only_from, **changes)

    # Its file.

    def _lines(self) -> AsyncGenerator[RawLine]:
        return raw_lines(self._files.blobs.read(self.row.input_file_id), self._max_line_bytes)

    async def _validate(self) -> None:
        async with aclosing(self._lines()) as lines:
            checked: Checked = await check(lines, self.row.endpoint, self._max_line_bytes)
        if checked.errors:
            errors = msgspec.json.encode([each.shown() for each in checked.errors]).decode()
            failed = {"status": BatchStatus.FAILED, "errors": errors, "failed_at": time.time()}
            await self._change(BatchStatus.VALIDATING, **failed)
        else:
            begun = {"status": BatchStatus.IN_PROGRESS, "total": checked.num_lines, "in_progress_at": time.time()}
            await self._change(BatchStatus.VALIDATING, **begun)

    # Its lines.

    async def _run_lines(self) -> None:
        flushing = asyncio.create_task(self._flush_often(), name=f"answers of {self.row.id}")
        self._moved_at = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, self.row.expires_at - time.time())):
                await self._unless_stopped(self._send_lines(await self._table.answered(self.row.id)), flushing)
                if self.is_draining:
                    await self._unless_failed(self._wait_for(self._at_replicas), flushing)
        except TimeoutError:
            pass  # expired
        finally:
            self._stopping.set()
            self._moved_at = math.inf
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            flushing.cancel()
        for num_left in range(LAST_FLUSHES, 0, -1):
            try:
                while self._answers:
                    await self._flush()
                break
            except StoreError:
                if num_left == 1:
                    raise
                await asyncio.sleep(1.0)
        if not self.is_draining:
            await self._change(BatchStatus.IN_PROGRESS, status=BatchStatus.FINALIZING, finalizing_at=time.time())

    async def _unless_stopped(self, work: Any, flushing: "asyncio.Task[None]") -> None:
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await self._unless_failed(work, flushing, stopped)
        finally:
            stopped.cancel()

    async def _unless_failed(self, work: Any, flushing: "asyncio.Task[None]", *others: "asyncio.Task[Any]") -> None:
        """Until the work is done, or one of the others; raises what ended the flushing."""
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait([working, flushing, *others], return_when=asyncio.FIRST_COMPLETED)
            for task in (flushing, working):
                if task.done():
                    task.result()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _send_lines(self, answered: set[int]) -> None:
        """Those without an answer, and waits for all."""
        async with aclosing(self._lines()) as lines:
            async for raw in lines:
                if raw.number in answered:
                    continue
                await self._in_flight.acquire()
                await self._waiting.acquire()
                line = read_line(raw, self.row.endpoint, self._max_line_bytes)
                while self._num_bytes and self._num_bytes + len(line.body) > MAX_BYTES:
                    self._answered.clear()
                    await self._answered.wait()
                self._num_bytes += len(line.body)
                task = asyncio.create_task(self._send(line), name=f"line {line.number} of {self.row.id}")
                self._tasks[task] = False
                task.add_done_callback(partial(self._sent, len(line.body)))
        await self._wait_for(self._tasks)

    def _sent(self, num_bytes: int, task: "asyncio.Task[None]") -> None:
        self._num_bytes -= num_bytes
        self._answered.set()
        if not self._tasks.pop(task):
            self._waiting.release()
        self._in_flight.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s was given up", task.get_name(), exc_info=error)

    async def _wait_for(self, tasks: Collection["asyncio.Task[None]"]) -> None:
        while tasks:
            await asyncio.wait(list(tasks))

    async def _send(self, line: BatchLine) -> None:
        """Until it is answered for good."""
        task = asyncio.current_task()
        assert task is not None

        def dispatched() -> None:
            self._moved_at = time.monotonic()
            self._at_replicas.add(task)
            if not self._tasks.get(task, True):
                self._tasks[task] = True
                self._waiting.release()

        faults, is_suspect, pause = 0.0, False, FIRST_PAUSE_SECONDS
        while True:
            request_id = f"batch_req_{secrets.token_hex(16)}"
            path, body = self.row.endpoint, _body(self.row.endpoint, line.body)
            try:
                answer = await self._serve(path, body, self.row.owner, request_id, dispatched, is_suspect=is_suspect)
            finally:
                if task in self._at_replicas:
                    self._at_replicas.remove(task)
                    self._moved_at = time.monotonic()
            if answer.status not in _LATER | BLAMED:
                self._blame.answered(faults)
                break
            faults += (new := fault(answer.status, answer.num_deaths))
            if new and self._blame.has(faults):
                break
            is_suspect |= answer.num_deaths > 0
            if answer.status in BLAMED:
                pause = min(4.0 * pause, LONGEST_PAUSE_SECONDS)  # what broke is gone or mended by then
            if self._stopping.is_set():
                return
            self._on_line("retried")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
                return
            pause = min(2.0 * pause, LONGEST_PAUSE_SECONDS)
        self._add(line, request_id, answer)

    def _add(self, line: BatchLine, request_id: str, answer: ServedAnswer) -> None:
        from fairlead.gateway.batches.batch_table import LineAnswer

        told = self._form.answered(line.custom_id, request_id, answer.status, answer.body)
        self._answers.append(LineAnswer(line.number, answer.status >= 400, told))

    # Their answers.

    async def _flush_often(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await self._flush()
            except StoreError as error:  # the runner ends this run before the lease ends
                logger.warning("answers of the batch %s wait for the database: %s", self.row.id, error)

    async def _flush(self) -> None:
        """Raises StoreError, and keeps the answers; BatchLeaseLost: whoever has the batch runs their lines again."""
        async with self._flushing:
            if answers := self._answers[:MAX_FLUSHED]:
                await self._table.add_answers(self.row.id, self._runner, answers)
                del self._answers[: len(answers)]
                for each in answers:
                    self._on_line("failed" if each.is_error else "completed")

    # Its end.

    async def _finalize(self) -> None:
        """Puts the answers into files, which clients see once all is over. Begun anew where a gateway was killed."""
        answered = await self._table.answered(self.row.id)
        await self._change()  # which tells the present counts
        ending = self.row.ends_as
        written = {}
        for kind, errors in self._form.FILES.items():
            tells_rest = True in errors and ending in self._form.TELLS_UNANSWERED and len(answered) < self.row.total
            if not tells_rest and not await self._has_answers(errors):
                continue
            pieces = self._written(errors, ending, answered if tells_rest else None)
            filename = f"{self.row.id}_{kind}.jsonl"
            async with aclosing(pieces):
                written[f"{kind}_file_id"] = await self._files.put(
                    self.row.owner, "batch_output", filename, pieces, seconds=self.row.output_seconds
                )
        names = {name: file.id for name, file in written.items()}
        changes = {"status": ending, f"{ending}_at": time.time(), **names}
        self.row = await self._table.end(self.row.id, self._runner, list(written.values()), changes)

    async def _has_answers(self, errors: Iterable[bool]) -> bool:
        found = [await self._table.answers(self.row.id, is_error=is_error, after=0) for is_error in errors]
        return any(found)

    async def _written(
        self, errors: Iterable[bool], ending: BatchStatus, answered: set[int] | None
    ) -> AsyncGenerator[bytes]:
        """Bytes of a file with answers. `answered`: the lines that have one, where the others are told."""
        for is_error in errors:
            after, page = 0, bytearray()
            while rows := await self._table.answers(self.row.id, is_error=is_error, after=after):
                after = rows[-1][0]
                for _, data in rows:
                    page += data + b"\n"
                    if len(page) >= _PAGE_BYTES:
                        yield bytes(page)
                        page.clear()
            yield bytes(page)
        if answered is None:
            return
        try:
            async with aclosing(self._lines()) as lines:
                async for raw in lines:
                    if raw.number not in answered:
                        custom_id = read_line(raw, self.row.endpoint, self._max_line_bytes).custom_id
                        yield self._form.unanswered(custom_id, ending) + b"\n"
        except BlobError as error:  # the batch has to end
            logger.warning("lines of the batch %s without an answer are not named: %s", self.row.id, error)


def _body(endpoint: str, body: bytes) -> bytes:
    """Responses of a batch are in its file, and stored besides only where a line says so."""
    if endpoint != "/v1/responses":
        return body
    return msgspec.json.encode({"store": False} | msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
