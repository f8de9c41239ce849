"""Rank 0's side of tensor parallelism: the other ranks' processes, and the messages to them."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import torch

from fairlead_common.logs import configured_logging
from fairlead_engine.config import EngineConfig
from fairlead_engine.errors import StartError, start_error
from fairlead_engine.machine.child_process import described_end
from fairlead_engine.model.loading import is_foreign, read_config
from fairlead_engine.model.shard import Shard
from fairlead_engine.runner import rank_messages
from fairlead_engine.runner.foreign_trial import check_settings
from fairlead_engine.runner.model_part import check_divisible
from fairlead_engine.runner.placement import choose_device

logger = logging.getLogger(__name__)

_LAST_WORDS_SECONDS = 5.0
"""Time for a step to fail with its own reason after the loss of a rank."""
_LOOKS = 50
"""Looks for the reason of a failed step, within half of `_LAST_WORDS_SECONDS`."""


class RankLost(RuntimeError):
    """A rank's process has ended, or is in a step that was given up; no further step can be computed."""


class Ranks:
    """Ranks 1 to size - 1, each a process, which end with this one."""

    def __init__(self, settings: EngineConfig) -> None:
        """Starts the ranks and waits until all have met. Raises ModelLoadError, ConfigError and StartError."""
        size = settings.tensor_parallel_size
        self.lost: str | None = None
        """Why no step can be computed any more."""
        device = choose_device(settings.device, Shard(0, size))  # nobody is started where it cannot be
        if is_foreign(folder := Path(settings.model)):
            check_settings(settings, size)
        check_divisible(read_config(folder), size)
        store = rank_messages.open_store()
        self.port = store.port
        """Of the store in which ranks meet."""
        self._is_closing = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._writers: list[rank_messages.Writer] = []
        log_level, log_format = configured_logging()
        try:
            for rank in range(1, size):
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "fairlead_engine.runner.rank"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
                assert process.stdin is not None
                self._processes.append(process)
                self._writers.append(rank_messages.Writer(process.stdin))
                with suppress(OSError):  # it has ended, which is told below
                    self._writers[-1].send(rank_messages.Join(settings, rank, size, store.port, log_level, log_format))
            self._expect(rank_messages.HERE)  # who has ended is waited for in vain in the group
            rank_messages.join_group(Shard(0, size), store, device)
        except BaseException:
            self.close()
            raise

    def wait_ready(self) -> None:
        """Waits until all ranks have loaded their parts. Raises a StartError of a rank, or for its end."""
        self._expect(rank_messages.READY)
        for rank, process in enumerate(self._processes, start=1):
            threading.Thread(target=self._watch, args=(rank, process), name=f"rank-{rank}", daemon=True).start()

    def call(self, method: rank_messages.PartMethod, *arguments: Any) -> None:
        """Has every rank call a method of its part. Raises RankLost."""
        self._send(rank_messages.Call(method, arguments))

    @contextmanager
    def together(self, what: str, message: rank_messages.Message) -> Iterator[None]:
        """Has the ranks join in rank 0's work within the context; all meet in its sums. Raises RankLost where one
        cannot. A step that rank 0 gives up is the last: the other ranks are inside it, and would take the next step's
        sums for its own. `what` names the work in the error."""
        self._send(message)
        try:
            yield
        except BaseException as error:
            reason = self._explain(error) if isinstance(error, RuntimeError | StartError) else error
            self.lost = self.lost or f"{what} was given up while other ranks were at it ({error!r})"
            if reason is error:
                raise
            raise reason from error

    def close(self) -> None:
        self._is_closing = True
        for process in self._processes:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            assert process.stdout is not None
            process.wait()
            process.stdout.close()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def _expect(self, answer: bytes) -> None:
        for rank, process in enumerate(self._processes, start=1):
            assert process.stdout is not None
            if (line := process.stdout.readline()) != answer:
                if line.endswith(b"\n"):
                    said = msgspec.json.decode(line, type=dict[str, str])
                else:
                    said = StartError(described_end(process.wait())).to_dict()
                raise start_error(said["reason"], f"rank {rank} could not start: {said['message']}")

    def _send(self, message: rank_messages.Message) -> None:
        if self.lost is not None:
            raise RankLost(self.lost)
        try:
            for writer in self._writers:
                writer.send(message)
        except OSError as error:
            raise self._explain(RuntimeError(f"a rank does not listen any more: {error}")) from error

    def _explain(self, error: RuntimeError | StartError) -> RuntimeError | StartError:
        """The error of common work, or RankLost if a lost rank turns out to be the reason."""
        for _ in range(_LOOKS):
            if self.lost is not None:
                return RankLost(self.lost)
            time.sleep(_LAST_WORDS_SECONDS / 2 / _LOOKS)
        return error

    def _watch(self, rank: int, process: "subprocess.Popen[bytes]") -> None:
        """Ends this process with the reason when a rank is lost: a step may wait for its sum for ever."""
        assert process.stdout is not None
        words = b""
        with suppress(ValueError):  # it was closed, by `close`
            words = process.stdout.readline()
        if words.endswith(b"\n"):  # one that says why it ends takes a while to end
            reason = msgspec.json.decode(words, type=dict[str, str])["message"]
        else:
            reason = described_end(process.wait())
        if self._is_closing:
            return
        self.lost = self.lost or f"rank {rank} of {len(self._processes) + 1} was lost: {reason}"
        logger.error("%s", self.lost)
        time.sleep(_LAST_WORDS_SECONDS)
        if not self._is_closing:
            os._exit(1)
