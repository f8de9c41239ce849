"""Unpacks images in processes, which end when an image takes too long, or the client of a long image leaves.

Requests with little work go first, and never wait for images that exceed the time suggested by the size: a slow image
starts again among the large images. Memory is bounded by the processes.
"""

import asyncio
import os
import pickle
from functools import cached_property
from typing import NamedTuple

import msgspec

from fairlead_common.models.image_settings import ImageSettings
from fairlead_common.workers.branch import WorkerError, WorkerExceeded, WorkerTooSlow
from fairlead_common.workers.limits import WorkerLimits
from fairlead_common.workers.pool import GivenUp, Workers
from fairlead_common.workers.root import WorkerRoot
from fairlead_engine.host.workers import Turns, tried
from fairlead_engine.images.image import DecodedImage, ImageError, ImageHeader, Unpacked

_QUICK_WORK = 14 * 2**20
"""Work of a request that takes some 50 milliseconds: a JPEG of four million pixels, or a progressive JPEG of one
million."""
_BYTE_WORK = 4
_CHUNK_WORK = 300
"""Work per chunk of a PNG read by the decoder: encoders write a chunk per 8 KiB or more, attackers a million."""
_PNG_CHUNKS = (b"IDAT", b"eXIf")
_WORK_SECONDS = 10e-9
"""Processor time per unit of a small image's work, twice the usual time."""
_SLICE_SECONDS = 0.02
"""Further processor time, after which a small image counts as large."""
_RANK_SECONDS = 1000 * _WORK_SECONDS
"""A later request with less work goes first only within this time per unit of work."""
_CORES_EACH = 2
_MOST_LANES = 4
_SLACK_BYTES = 128 * 2**20
"""For the image as received, as the model sees it, and the rows between the two."""
_PROGRAM = "fairlead_engine.images.image_decoding:make"


class NotQuick(Exception):
    """An image took longer than the size suggests."""


def work_of(content: bytes, header: ImageHeader) -> int:
    num_chunks = sum(map(content.count, _PNG_CHUNKS)) if header.mime_type == "image/png" else 0
    return header.work + _BYTE_WORK * len(content) + _CHUNK_WORK * num_chunks


class ImageLane(NamedTuple):
    """Where a request's images are unpacked."""

    is_quick: bool
    """Whether the lane is for images that take a moment."""
    rank: float
    """The lowest rank goes first."""


def place_of(work: int) -> ImageLane:
    """Lane for an arriving request with this much work."""
    return ImageLane(work <= _QUICK_WORK, asyncio.get_running_loop().time() + work * _RANK_SECONDS)


class ImageWorkers:
    """Image workers of one HTTP process; `num_servers` is the engine's number of HTTP processes. Close when done."""

    def __init__(self, root: WorkerRoot, timeout_seconds: float, most_bytes: int, num_servers: int = 1) -> None:
        """`timeout_seconds`: of processor time, and `most_bytes`: of memory, of one image."""
        self._root = root
        self._timeout = timeout_seconds
        self._most_bytes = most_bytes
        num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._num_lanes = max(1, min(_MOST_LANES, num_cores // num_servers // _CORES_EACH))

    @cached_property
    def all(self) -> list[Workers]:
        """Pools; each unpacks a small and a large image at a time."""
        limits = WorkerLimits(
            job_seconds=self._timeout, memory_bytes=self._most_bytes + _SLACK_BYTES, memory_per_byte=0
        )
        payload = b"%d" % self._most_bytes
        return [
            Workers(self._root, "image decoding", _PROGRAM, payload, limits, gives_up=False)
            for _ in range(self._num_lanes)
        ]

    @cached_property
    def _quick(self) -> Turns[Workers]:
        return Turns(reversed(self.all))

    @cached_property
    def _long(self) -> Turns[Workers]:
        return Turns(reversed(self.all))

    async def start(self) -> None:
        """Loads a worker before the first small image, which would wait for loading."""
        await self.all[0].loaded()

    async def decoded(
        self, content: bytes, header: ImageHeader, settings: ImageSettings, place: ImageLane
    ) -> DecodedImage:
        """Raises ImageError, or NotQuick."""
        job = pickle.dumps((content, header, settings))
        try:
            if place.is_quick:
                answer = await self._unpacked_soon(job, work_of(content, header), place.rank)
            else:
                async with self._long.turn(place.rank) as workers:
                    answer = await tried(workers, lambda: workers.ask_beside(job, seconds=self._timeout))
        except WorkerTooSlow:
            told = f"takes more than {self._timeout:g} s of processor time, which is this server's image-timeout"
            raise ImageError(f"cannot be unpacked: it {told}; send it smaller, or as a plain JPEG") from None
        except (WorkerError, WorkerExceeded, GivenUp) as error:
            raise ImageError(f"cannot be unpacked: its process did not survive it ({error}); send it smaller") from None
        found: Unpacked = msgspec.msgpack.decode(answer, type=Unpacked)
        problem, image = found
        if image is None:
            raise ImageError(problem)
        return image

    async def _unpacked_soon(self, job: bytes, work: int, rank: float) -> bytes:
        """Finishes even after the client has left: ending the process would cost more."""
        workers = await self._quick.take(rank)
        seconds = min(_SLICE_SECONDS + work * _WORK_SECONDS, self._timeout)
        asked = asyncio.ensure_future(tried(workers, lambda: workers.ask_briefly(job, seconds)))

        def give_back(asked: "asyncio.Future[bytes]") -> None:
            self._quick.give_back(workers)
            if not asked.cancelled():
                asked.exception()  # for which perhaps nobody waits

        asked.add_done_callback(give_back)
        try:
            return await asyncio.shield(asked)
        except WorkerExceeded:
            raise NotQuick from None

    def close(self) -> None:
        for workers in self.__dict__.get("all", ()):
            workers.close()
