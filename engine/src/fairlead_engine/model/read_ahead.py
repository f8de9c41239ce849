"""Reads a checkpoint's files ahead of the weights' use, with as many readers at once as pay.

Weights are taken from mapped files, page by page: a remote disk, or a disk that serves many at once, then waits most of
the time. Pages read here stay in the machine's page cache.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fairlead_engine.machine.memory import format_bytes, free_memory

_CHUNK_BYTES = 8 << 20
_WORTH_BYTES = 64 << 20
"""Smaller checkpoints are read before a second reader starts."""
_MOST_READERS = 32
_LOOK_SECONDS = 0.2
_GAIN = 1.2
"""Factor of the rate that further readers must bring."""

_log = logging.getLogger(__name__)


class Readers:
    """Number of readers that pay: doubled as long as they bring more. Pure."""

    def __init__(self) -> None:
        self.number = 1
        self._best = 0.0

    def saw(self, bytes_per_second: float) -> bool:
        """Takes the rate of the present readers; whether more should read. After the first False, always False."""
        if self.number >= _MOST_READERS or bytes_per_second < _GAIN * self._best:
            return False
        self._best = bytes_per_second
        self.number *= 2
        return True


class ReadAhead:
    """Reads while it is open. It never fails: errors appear where weights are taken."""

    def __init__(self, files: Sequence[Path]) -> None:
        sizes = {path: path.stat().st_size for path in files if path.is_file()}
        self._size = sum(sizes.values())
        self._chunks = _chunks(sizes)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._num_at_work = 0
        self.num_bytes = 0
        """Bytes read, without pages that were cached before."""

    def __enter__(self) -> "ReadAhead":
        self._began = time.monotonic()
        if _WORTH_BYTES <= self._size <= free_memory():  # or the first pages would be gone before they are wanted
            self._start(self._lead)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:  # none is added any more once the first of them, which adds them, has ended
            thread.join()

    def _start(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work, name="read ahead", daemon=True))
        self._threads[-1].start()

    def _lead(self) -> None:
        """Runs readers, and adds further ones as long as they pay."""
        readers, is_growing, num_started = Readers(), True, 0
        while not self._ended.is_set():
            for _ in range(num_started, readers.number):
                with self._lock:
                    self._num_at_work += 1
                self._start(self._read)
            num_started = readers.number
            before, since = self.num_bytes, time.monotonic()
            if self._ended.wait(_LOOK_SECONDS) or not self._num_at_work:
                break
            is_growing = is_growing and readers.saw((self.num_bytes - before) / (time.monotonic() - since))
        for thread in self._threads[1:]:
            thread.join()
        if self.num_bytes:
            seconds = time.monotonic() - self._began
            rate = format_bytes(int(self.num_bytes / seconds))
            facts = {"bytes": self.num_bytes, "readers": num_started, "seconds": round(seconds, 3)}
            _log.info("read %s ahead, %s a second", format_bytes(self.num_bytes), rate, extra=facts)

    def _read(self) -> None:
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        try:
            while not self._ended.is_set():
                with self._lock:
                    path, start, size = next(self._chunks, (None, 0, 0))
                if path is None:
                    break
                with path.open("rb", buffering=0) as file:
                    if not _is_cached(file.fileno(), start, size):
                        number = os.preadv(file.fileno(), [buffer[:size]], start)
                        with self._lock:
                            self.num_bytes += number
        except OSError as error:
            _log.debug("a file cannot be read ahead", extra={"error": str(error)})
        finally:
            with self._lock:
                self._num_at_work -= 1


def _chunks(sizes: Mapping[Path, int]) -> Iterator[tuple[Path | None, int, int]]:
    for path, size in sizes.items():
        for start in range(0, size, _CHUNK_BYTES):
            yield path, start, min(_CHUNK_BYTES, size - start)


def _is_cached(descriptor: int, start: int, size: int) -> bool:
    """Whether the first, middle and last byte are in the page cache."""
    try:
        for offset in (start, start + size // 2, start + size - 1):
            os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
    except OSError:  # it cannot, or nobody can say
        return False
    return True
