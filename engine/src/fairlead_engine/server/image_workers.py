"""Unpacks images in processes that are ended when one takes too long or nobody waits for it.

Small ones never wait for large ones, nor for those that take longer than their size tells, which are told to begin anew
among the large ones. What an image may take of memory the processes see to.
"""

import asyncio
import os
from typing import Any

from fairlead_engine.images.decoded_image import DecodedImage, ImageError
from fairlead_engine.images.image_header import ImageHeader
from fairlead_engine.server.child_lane import ChildFailure, ChildLane, TookTooLong
from fairlead_protocol.models.image_settings import ImageSettings

_QUICK_WORK = 24 * 2**20
"""Of an image that is unpacked in some 50 milliseconds: a JPEG of four million pixels, or a progressive one of one."""
_BYTE_WORK = 4
"""Of a byte of it, which may be one of a million parts."""
_SLICE_SECONDS = 0.3
"""Of processor time that a small one is given before it counts as a large one."""
_PATIENCE = 20
"""So many times as long as its processor time an image may take on a machine that has other things to do."""
_CORES_EACH = 2
_MOST_LANES = 4


class NotQuick(Exception):
    """An image took longer than its size tells."""


def is_quick(content: bytes, header: ImageHeader) -> bool:
    """Whether it is a small one."""
    return header.work + _BYTE_WORK * len(content) <= _QUICK_WORK


class ImageWorkers:
    """Of one HTTP process, of so many of an engine. Close it when done."""

    def __init__(self, timeout_seconds: float, most_bytes: int, num_servers: int = 1) -> None:
        """`timeout_seconds`: of processor time, and `most_bytes`: of memory, of one image."""
        self._timeout = timeout_seconds
        self._most_bytes = most_bytes
        num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        num_lanes = max(1, min(_MOST_LANES, num_cores // num_servers // _CORES_EACH))
        self.quick, self.long = _Lanes(num_lanes), _Lanes(num_lanes)

    def start(self) -> None:
        """Before the first small image comes, which would wait for it."""
        self.quick.all[0].start()

    async def decoded(
        self, content: bytes, header: ImageHeader, settings: ImageSettings, *, among_small: bool
    ) -> DecodedImage:
        """Raises ImageError, or NotQuick."""
        lanes, cpu_seconds = self.long, self._timeout
        if among_small:
            lanes, cpu_seconds = self.quick, min(_SLICE_SECONDS, self._timeout)
        try:
            answer, pixels = await lanes.done((header, settings, self._most_bytes), content, cpu_seconds)
        except TookTooLong:
            if among_small:
                raise NotQuick from None
            told = f"takes more than {self._timeout:g} s of processor time, which is this server's image-timeout"
            raise ImageError(f"cannot be unpacked: it {told}; send it smaller, or as a plain JPEG") from None
        except ChildFailure as error:
            raise ImageError(f"cannot be unpacked: its process did not survive it ({error}); send it smaller") from None
        if isinstance(answer, str):
            raise ImageError(answer)
        rows, columns, digest = answer
        return DecodedImage(rows, columns, pixels, digest)

    def close(self) -> None:
        self.quick.close()
        self.long.close()


class _Lanes:
    """Some that do the same."""

    def __init__(self, number: int) -> None:
        self.all = [ChildLane("fairlead_engine.server.image_worker") for _ in range(number)]
        self._idle: asyncio.LifoQueue[ChildLane] = asyncio.LifoQueue()
        for lane in reversed(self.all):
            self._idle.put_nowait(lane)

    async def done(self, job: Any, content: bytes, cpu_seconds: float) -> tuple[Any, bytes]:
        """Raises ChildFailure."""
        lane = await self._idle.get()
        try:
            return await lane.done(job, content, timeout_seconds=_PATIENCE * cpu_seconds, cpu_seconds=cpu_seconds)
        finally:
            self._idle.put_nowait(lane)

    def close(self) -> None:
        for lane in self.all:
            lane.close()
