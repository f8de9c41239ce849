"""The images of a chat: fetched, unpacked, resized for the model. Errors name the part of the request.

A client's URL must not lead this process to addresses beyond the client's own reach: images are fetched only from
hosts listed by an operator, by default none, and redirects are not followed. The owner of a listed host decides where
the name resolves to. Image headers are read by `images.image`, hostile bytes are unpacked by `image_workers`.
"""

import asyncio
import binascii
import ssl
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import NamedTuple

from fairlead_common.http.client import HttpClient, TimeLimits
from fairlead_common.http.client_connection import AnswerTooLarge, TransportError, cause_of
from fairlead_common.http.origin import PORTS, Origin, parse
from fairlead_common.models.image_settings import ImageSettings
from fairlead_common.openai.chat import Message
from fairlead_common.openai.image_parts import ImagePart, image_parts
from fairlead_common.openai.prompts import PromptTooLong
from fairlead_common.workers.root import WorkerRoot
from fairlead_engine.api.image_workers import ImageLane, ImageWorkers, NotQuick, place_of, work_of
from fairlead_engine.config import ServerConfig
from fairlead_engine.errors import RequestError
from fairlead_engine.host.workers import Turns
from fairlead_engine.images.image import DecodedImage, ImageError, ImageHeader, read_header
from fairlead_engine.types import EngineInfo, PromptImage

MAX_BYTES = 16 * 2**20
LIMITS = TimeLimits(connect=5.0, first_byte=10.0, silence=5.0, whole=10.0)
_MAX_REQUESTS = 16
_LONGEST_SHOWN = 80
_LONGEST_URL = 8192
"""Python caches recently parsed URLs."""


class MediaFetcher:
    """Not shared between event loops. Close when done."""

    def __init__(self, hosts: Collection[str]) -> None:
        """`hosts`: as HOST, for the usual ports, or HOST:PORT."""
        self._hosts = frozenset(hosts)
        self._tls: ssl.SSLContext | None = None
        self._client = HttpClient(max_idle=0, max_requests=_MAX_REQUESTS)

    async def fetch(self, url: str, most_bytes: int = MAX_BYTES) -> bytes:
        """Raises ImageError; its text continues a sentence about the image."""
        origin, target = self._allowed(url)
        try:
            async with self._client.request(origin, "GET", target or "/", LIMITS) as response:
                if response.status != 200:
                    followed = ", and redirects are not followed" if 300 <= response.status < 400 else ""
                    raise ImageError(f"cannot be fetched: its host answers {response.status}{followed}")
                return await response.read(most_bytes)
        except AnswerTooLarge as error:
            told = f"has more than the {most_bytes:,} bytes that are fetched"
            told += "" if most_bytes == MAX_BYTES else " besides the other images of a chat"
            raise ImageError(f"{told}; send a smaller one") from error
        except (TransportError, TimeoutError) as error:
            raise ImageError(f"cannot be fetched: {cause_of(error)}") from error

    def _allowed(self, url: str) -> tuple[Origin, str]:
        if len(url) > _LONGEST_URL:
            raise ImageError(f"is a URL of {len(url):,} characters, and at most {_LONGEST_URL:,} are followed")
        try:
            if url[:6].lower() == "https:" and self._tls is None:
                self._tls = ssl.create_default_context()
            origin, target = parse(url, self._tls)
        except ValueError as error:
            raise ImageError("is neither a data: URL nor one of http or https") from error
        host = origin.host.lower()
        host = f"[{host}]" if ":" in host else host
        is_usual = origin.port == PORTS["https" if origin.tls else "http"]
        if f"{host}:{origin.port}" not in self._hosts and not (is_usual and host in self._hosts):
            shown = host if len(host) <= _LONGEST_SHOWN else host[: _LONGEST_SHOWN - 1] + "…"
            shown += "" if is_usual else f":{origin.port}"
            raise ImageError(
                f"is at {shown}, from where this engine fetches nothing: send the image itself as a data: URL, or have "
                "the host listed in allowed-media-domains"
            )
        return origin, target

    def close(self) -> None:
        self._client.close()


_NUM_THREADS = 2
_MAX_SENT_BYTES = 512 * 2**20
"""Bytes of pixels from one request to the core, with a copy for each answer."""
_CHANNELS = 3
MOST_AT_ONCE = 8
"""Requests with several images unpacked at once, since few bytes may be many pixels. More requests wait, and count as
bodies. Requests with more work have as many turns."""
_FETCHING_AT_ONCE = 4
"""Requests with images being fetched, which do not count as bodies."""
_MAX_FETCHED_BYTES = 24 * 2**20
"""Bytes fetched for one request."""
_DATA = "data:"
_LONGEST_HEAD = 256
"""Characters of a `data:` URL before the content."""


class ImageLoader:
    """Image loader of one server. Close when done."""

    def __init__(self, root: WorkerRoot, config: ServerConfig) -> None:
        """`root`: of the processes in which images are unpacked."""
        self._most = config.max_images
        self._fetcher = MediaFetcher(config.media_hosts)
        self._fetching = asyncio.Semaphore(_FETCHING_AT_ONCE)
        self._quick_turns, self._long_turns = Turns(range(MOST_AT_ONCE)), Turns(range(MOST_AT_ONCE))
        self._workers = ImageWorkers(root, config.image_timeout, config.image_memory, config.api_servers)
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="images")

    def start(self) -> None:
        """Called where the model sees."""
        self._starting = asyncio.get_running_loop().create_task(self._workers.start())
        # The first image reports a failure.
        self._starting.add_done_callback(lambda task: None if task.cancelled() else task.exception())

    async def load(self, messages: Sequence[Message], info: EngineInfo, num_each: int = 1) -> list[DecodedImage]:
        """All images of these messages, in order; none for a text model, whose template refuses images. `num_each`:
        number of answers. Removes the images from the messages, which live as long as the answer. Raises RequestError,
        before unpacking if the headers show too many pixels."""
        settings = info.task.images
        parts = image_parts(messages)
        if settings is None or not parts:
            return []
        if len(parts) > self._most:
            text = f"messages has {len(parts)} images, and at most {self._most} are taken (max-images); send fewer"
            raise RequestError("messages", text, "too_many_images")
        is_fetched = any(map(_is_fetched, parts))
        async with self._fetching if is_fetched else nullcontext():
            sent = await self._all_taken(parts, settings, info, num_each)
            found = list[DecodedImage]()
            place = place_of(sum(each.work for each in sent))
            if place.is_quick:
                with suppress(NotQuick):
                    await self._unpack(sent, found, settings, place)
            if sent:
                await self._unpack(sent, found, settings, place._replace(is_quick=False))
            return found

    def close(self) -> None:
        """Ends unpacking at once, and the threads after their current work."""
        self._workers.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._fetcher.close()

    async def _all_taken(
        self, parts: Sequence[ImagePart], settings: ImageSettings, info: EngineInfo, num_each: int
    ) -> "list[_Sent]":
        """Raises RequestError."""
        sent, num_tokens, num_left = list[_Sent](), 0, _MAX_FETCHED_BYTES
        for part in parts:
            is_fetched = _is_fetched(part)
            sent.append(await self._taken(part, settings, num_left))
            num_left -= len(sent[-1].content) if is_fetched else 0
            num_tokens += sent[-1].num_tokens
            if num_tokens >= info.max_model_len:
                why = PromptTooLong("messages", num_tokens, info.max_model_len, or_more=True)
                raise RequestError(why.field, why.message, why.code)
            if num_each * num_tokens * settings.factor**2 * _CHANNELS > _MAX_SENT_BYTES:
                text = f"messages has images of too many pixels for {num_each} answers; send fewer, or lower n"
                raise RequestError("messages", text, "too_many_images")
        return sent

    async def _taken(self, part: ImagePart, settings: ImageSettings, most_fetched: int) -> "_Sent":
        """The part's content and header. Raises RequestError."""
        run = asyncio.get_running_loop().run_in_executor
        try:
            url = part.url
            part.forget()
            if _is_data(url):
                return await run(self._threads, _sent, part.place, url, settings)
            content = await self._fetcher.fetch(url, min(MAX_BYTES, most_fetched))
            return await run(self._threads, _measured, part.place, content, settings)
        except ValueError as error:  # as an ImageError is
            raise _refusal(part.place, error) from error

    async def _unpack(
        self, sent: "list[_Sent]", found: list[DecodedImage], settings: ImageSettings, place: ImageLane
    ) -> None:
        """Moves images from `sent` to `found`, unpacked one by one. Raises RequestError, or NotQuick."""
        turns = self._quick_turns if place.is_quick else self._long_turns
        async with turns.turn(place.rank) if len(sent) + len(found) > 1 else nullcontext():
            while sent:
                name, content, header, _ = sent[0]
                try:
                    found.append(await self._workers.decoded(content, header, settings, place))
                except ImageError as error:
                    raise _refusal(name, error) from error
                del sent[0]


class _Sent(NamedTuple):
    place: str
    content: bytes
    header: ImageHeader
    num_tokens: int

    @property
    def work(self) -> int:
        return work_of(self.content, self.header)


def _is_fetched(part: ImagePart) -> bool:
    with suppress(ValueError):  # raised again in `_taken`
        return not _is_data(part.url)
    return False


def _is_data(url: str) -> bool:
    return url[: len(_DATA)].lower() == _DATA


def _refusal(place: str, error: ValueError) -> RequestError:
    return RequestError(place, f"{place} {error}", "invalid_image")


def placed(images: Sequence[DecodedImage], token_ids: list[int], image_token_id: int) -> tuple[PromptImage, ...]:
    """The images at their places in a prompt (`with_image_tokens`)."""
    found, position = [], 0
    for image in images:
        found.append(image.placed(token_ids.index(image_token_id, position)))
        position = found[-1].end
    return tuple(found)


def with_image_tokens(token_ids: list[int], images: Sequence[DecodedImage], image_token_id: int) -> list[int]:
    """The ids of a rendered chat, with each image's token repeated to its number of patches. Raises RequestError if the
    number of places differs from the number of images."""
    num_places = token_ids.count(image_token_id)
    if num_places != len(images):
        problem = f"the rendered chat has {num_places} places for images, and messages {len(images)}"
        raise RequestError("messages", f"{problem}; send no text that has the image token of this model in it")
    found: list[int] = []
    position = 0
    for image in images:
        place = token_ids.index(image_token_id, position)
        found += token_ids[position:place]
        found += [image_token_id] * (image.rows * image.columns)
        position = place + 1
    return found + token_ids[position:]


def _sent(place: str, url: str, settings: ImageSettings) -> _Sent:
    """Of a `data:` URL; what it says of its type is passed over, as clients call a PNG a JPEG. Raises ImageError."""
    head, comma, content = url[len(_DATA) :].partition(",")
    words = [each.strip().lower() for each in head[:_LONGEST_HEAD].split(";")]
    if not comma or len(head) > _LONGEST_HEAD or "base64" not in words[1:]:
        raise ImageError("must be written as data:image/png;base64,…")
    if len(content) > MAX_BYTES * 4 // 3 + 4:
        raise ImageError(f"has more than the {MAX_BYTES:,} bytes that an image may have; send a smaller one")
    try:
        raw = binascii.a2b_base64("".join(content.split()), strict_mode=True)  # encoders break long lines
    except ValueError as error:
        raise ImageError(f"is not written in base64: {error}") from error
    return _measured(place, raw, settings)


def _measured(place: str, content: bytes, settings: ImageSettings) -> _Sent:
    """Raises ValueError."""
    header = read_header(content)
    rows, columns = settings.grid(header.height, header.width)  # as many where it is turned
    return _Sent(place, content, header, rows * columns)
