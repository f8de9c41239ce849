"""One run of one container: a process in a new group, the log file, the termination message, and the end."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.times import timestamp
from fairlead_local.kubelet.process_table import ProcessRecords, signal_group

_MESSAGE_BYTES = 4_096
_FALLBACK_BYTES = 2_048
_FALLBACK_LINES = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLaunch:
    """The command to start, and its files."""

    name: str
    """For people: `namespace/pod/container`."""
    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    """Working directory."""
    log: Path
    termination_log: Path
    message_from_log: bool
    """Whether the end of the log stands in for an empty termination message when the container fails."""


class ContainerProcess:
    """A running process, on record until the end."""

    def __init__(self, process: asyncio.subprocess.Process, launch: ContainerLaunch, records: ProcessRecords) -> None:
        self._process = process
        self._launch = launch
        self._records = records
        self.pid = process.pid
        self.started_at = timestamp()

    @classmethod
    async def start(cls, launch: ContainerLaunch, records: ProcessRecords) -> Self:
        """Raises OSError when the program, or its files, cannot be made."""
        for path in (launch.log, launch.termination_log):
            path.parent.mkdir(parents=True, exist_ok=True)
        launch.termination_log.write_bytes(b"")
        with launch.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *launch.arguments,
                env={**launch.environment, **records.marker},
                cwd=launch.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            records.add(process.pid, launch.name)
        except OSError:  # a full disk: a process without a record must not run
            signal_group(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        return cls(process, launch, records)

    async def ended(self) -> Json:
        """Waits for the end and kills the rest of the process group. Returns a `terminated` state."""
        code = await self._process.wait()
        # A container ends with its first process: the rest of the group is killed.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._records.remove(self._process.pid)
        state: Json = {
            "exitCode": code if code >= 0 else 128 - code,
            "reason": "Completed" if code == 0 else "Error",
            "startedAt": self.started_at,
            "finishedAt": timestamp(),
            "signal": max(0, -code),
            "message": self._message(failed=code != 0),
        }
        return {name: value for name, value in state.items() if value or name == "exitCode"}

    def ask_to_end(self) -> None:
        """SIGTERM to the first process of the container."""
        if self._process.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        if self._process.returncode is None:
            signal_group(self._process.pid, signal.SIGKILL)

    def _message(self, *, failed: bool) -> str:
        written = b""
        with suppress(OSError):
            written = self._launch.termination_log.read_bytes()[:_MESSAGE_BYTES]
        if not written and failed and self._launch.message_from_log:
            with self._launch.log.open("rb") as file:
                file.seek(max(0, self._launch.log.stat().st_size - _FALLBACK_BYTES))
                written = b"\n".join(file.read().splitlines()[-_FALLBACK_LINES:])
        return written.decode(errors="replace")
