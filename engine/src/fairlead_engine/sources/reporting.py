"""A download's progress: a bar on a terminal, else a line every few seconds, and `GET /progress` over HTTP."""

import asyncio
import logging
import shutil
import sys
import textwrap
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from fairlead_common.wire.downloads import PROGRESS_PATH, DownloadProgress, DownloadStage
from fairlead_engine.errors import AddressUnavailable

_LOG_SECONDS = 5.0
_BAR_SECONDS = 0.2
_RATE_SECONDS = 5.0
_LEAST_RATE_SECONDS = 1.0
"""A rate of less would be that of a buffer."""
_BAR_WIDTH = 30
_LEAST_BAR_WIDTH = 6

_log = logging.getLogger("fairlead_engine.sources")


class Reporter:
    """Counts, and knows the rate of the last seconds."""

    def __init__(self, source: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._stage = DownloadStage.LISTING
        self._bytes = 0
        self._total: int | None = None
        self._fetching: dict[str, None] = {}
        self.fetched_bytes = 0
        """Fetched by this process from the source."""
        self._samples: deque[tuple[float, int]] = deque([(clock(), 0)])

    def stage(self, stage: DownloadStage) -> None:
        self._stage = stage
        if stage == DownloadStage.DOWNLOADING:  # what went before took its own time
            self._samples = deque([(self._clock(), self.fetched_bytes)])

    def expect(self, total: int | None) -> None:
        """How many bytes the model has; None = not known."""
        self._total = total

    def have(self, num_bytes: int) -> None:
        """Counts bytes present already; below 0 = thrown away."""
        self._bytes += num_bytes

    def fetched(self, num_bytes: int) -> None:
        self._bytes += num_bytes
        self.fetched_bytes += num_bytes
        now = self._clock()
        if now - self._samples[-1][0] > _RATE_SECONDS / 50:
            self._samples.append((now, self.fetched_bytes))

    def begin(self, path: str) -> None:
        self._fetching[path] = None

    def end(self, path: str) -> None:
        self._fetching.pop(path, None)

    def progress(self) -> DownloadProgress:
        now = self._clock()
        while len(self._samples) > 1 and now - self._samples[0][0] > _RATE_SECONDS:
            if now - self._samples[1][0] < _LEAST_RATE_SECONDS:
                break
            self._samples.popleft()
        since, before = self._samples[0]
        is_known = self.fetched_bytes > 0 and now - since >= _LEAST_RATE_SECONDS
        rate = (self.fetched_bytes - before) / (now - since) if is_known else None
        remaining = None
        if self._stage == DownloadStage.DONE:
            remaining = 0.0
        elif self._total is not None and rate:
            remaining = max(self._total - self._bytes, 0) / rate
        return DownloadProgress(
            source=self._source,
            stage=self._stage,
            bytes=self._bytes,
            total_bytes=self._total,
            bytes_per_second=rate,
            remaining_seconds=remaining,
            file=next(iter(self._fetching), None),
        )


@asynccontextmanager
async def told(reporter: Reporter, *, host: str, port: int | None, attended: bool = False) -> AsyncIterator[None]:
    """Reports the progress until the end of the block. `port`: None = not over HTTP. `attended`: for a person, by plain
    lines instead of a log's. Raises AddressUnavailable."""
    async with AsyncExitStack() as stack:
        if port is not None:

            def progress() -> bytes:
                return msgspec.json.encode(reporter.progress())

            await stack.enter_async_context(answering(host, port, PROGRESS_PATH, progress, flag="--progress-port"))
        is_terminal = sys.stderr.isatty()
        way = _bar if is_terminal else _plain_lines if attended else _lines
        telling = asyncio.create_task(way(reporter))
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            reached = reporter.progress()
            last = "" if not reached.bytes else bar(reached, _columns()) if is_terminal else line(reached)
            if reached.stage == DownloadStage.DONE and not reporter.fetched_bytes:
                last = f"{reached.source} is already there: {size_text(reached.bytes)}"
            if is_terminal:  # a bar at nothing would stand above an error
                print(f"\r\033[K{last}", end="\n" if last else "", file=sys.stderr, flush=True)
            elif attended and last:
                print(last, file=sys.stderr, flush=True)


@asynccontextmanager
async def answering(host: str, port: int, path: str, body: Callable[[], bytes], *, flag: str) -> AsyncIterator[None]:
    """Answers `GET path` with JSON until the end of the block. `flag`: chooses the port, for the error. Raises
    AddressUnavailable."""
    try:
        server = await asyncio.start_server(lambda *streams: _answer(path, body, *streams), host, port)
    except OSError as error:
        raise AddressUnavailable(f"{host}:{port}: {error.strerror}; choose another {flag}") from error
    try:
        yield
    finally:
        server.close()


def bar(progress: DownloadProgress, columns: int) -> str:
    """One line for a terminal so wide; in a narrow one without the bar, and cut."""
    plain, stage = line(progress), f"{progress.stage:<11} "
    width = min(_BAR_WIDTH, columns - len(plain) - 2)
    if width < _LEAST_BAR_WIDTH or not plain.startswith(stage):
        return plain[: columns - 1]
    filled = int(_share(progress) * width)
    drawn = "█" * filled + "·" * (width - filled)
    return f"{stage}{drawn} {plain.removeprefix(stage)}"


def line(progress: DownloadProgress) -> str:
    """One line for a pipe."""
    if not progress.bytes and progress.total_bytes is None:
        return f"{progress.stage} …"
    if progress.stage == DownloadStage.DONE:
        return f"{progress.stage:<11} {size_text(progress.bytes)}"
    left = "" if progress.remaining_seconds is None else f", {progress.remaining_seconds:.0f} s left"
    total = "" if progress.total_bytes is None else f" of {size_text(progress.total_bytes)}"
    rate = "" if progress.bytes_per_second is None else f", {size_text(progress.bytes_per_second)}/s"
    return f"{progress.stage:<11} {_share(progress):4.0%}  {size_text(progress.bytes)}{total}{rate}{left}"


def _share(progress: DownloadProgress) -> float:
    return min(progress.bytes / progress.total_bytes, 1.0) if progress.total_bytes else 0.0


def size_text(num_bytes: float) -> str:
    """With a unit, for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.2f} TB"


def complain(message: str) -> None:
    """An error, for a person: a terminal's lines are broken between words."""
    words = f"error: {message}"
    if sys.stderr.isatty():
        words = textwrap.fill(words, _columns(), break_long_words=False, break_on_hyphens=False)
    print(words, file=sys.stderr, flush=True)


def _columns() -> int:
    return shutil.get_terminal_size().columns


async def _bar(reporter: Reporter) -> None:
    while True:
        print(f"\r\033[K{bar(reporter.progress(), _columns())}", end="", file=sys.stderr, flush=True)
        await asyncio.sleep(_BAR_SECONDS)


async def _plain_lines(reporter: Reporter) -> None:
    while True:
        await asyncio.sleep(_LOG_SECONDS)
        print(line(reporter.progress()), file=sys.stderr, flush=True)


async def _lines(reporter: Reporter) -> None:
    while True:
        await asyncio.sleep(_LOG_SECONDS)
        facts = msgspec.structs.asdict(reporter.progress())
        for name, num_digits in (("bytes_per_second", None), ("remaining_seconds", 1)):
            if facts[name] is not None:
                facts[name] = round(facts[name], num_digits)
        _log.info("downloading", extra=facts)


async def _answer(
    served: str, content: Callable[[], bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """One answer per connection: clients poll every few seconds."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0)
        method, path, *_ = head.split(b" ", 2)
        known = method == b"GET" and path.partition(b"?")[0] == served.encode()
        body = content() if known else b'{"error":"GET %s is all there is"}' % served.encode()
        status = b"200 OK" if known else b"404 Not Found"
        writer.write(
            b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
            % (status, len(body), body)
        )
        await writer.drain()
    except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass
    finally:
        writer.close()
