"""KV events as vLLM and SGLang publish them over ZMQ: numbered, in each of the encodings they have had, with replay of
the past."""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from fairlead.simulator.counted_blocks import CountedBlocks
from fairlead_common.wire.blocks import NO_EXTRA, BlockHash, hash_blocks

_TOPIC = b"kv-events"
END = (-1).to_bytes(8, "big", signed=True)


class Encoding(Enum):
    """How they are written: whether a batch is a map, whether an event is one, whether it has all fields, and whether a
    salt is one of them."""

    ARRAYS = (False, False, False, False)
    """vLLM until June 2026, with the last fields left out."""
    LONG_ARRAYS = (False, False, True, False)
    """The same, with all of them."""
    MAPS_IN_ARRAY = (False, True, True, False)
    """Since then."""
    MAPS = (True, True, True, False)
    SALTED_MAPS = (False, True, True, True)
    """SGLang's, which also leaves out what is not so."""


class BlockPublisher:
    """Publishes what happens in a cache, in the place of a fake core's stream. Its attributes let it misbehave."""

    def __init__(
        self,
        cache: CountedBlocks,
        endpoint: str | None,
        replay_endpoint: str | None,
        *,
        encoding: Encoding = Encoding.MAPS_IN_ARRAY,
        hashes_are_bytes: bool = False,
        num_kept: int = 10_000,
    ) -> None:
        """`endpoint`: None = it does not publish."""
        self.cache = cache
        self.endpoint = endpoint
        self.replay_endpoint = replay_endpoint
        self.encoding = encoding
        self.hashes_are_bytes = hashes_are_bytes
        self.num_to_drop = 0
        """So many of the next messages are kept, but not sent."""
        self.seq = -1
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=num_kept)
        self._tokens: dict[BlockHash, tuple[int, ...]] = {}
        self._salts: dict[BlockHash, str] = {}
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._replaying: asyncio.Task[None] | None = None

    def knows(self, token_ids: Sequence[int], extra: bytes = NO_EXTRA, salt: str | None = None) -> None:
        """Remembers which tokens are in the blocks of a prompt."""
        size = self.cache.block_size
        for index, each in enumerate(hash_blocks(token_ids, size, extra=extra)):
            self._tokens[each] = tuple(token_ids[index * size : (index + 1) * size])
            if salt is not None:
                self._salts[each] = salt

    def open(self) -> None:
        """Begins to publish, or does so again."""
        if self.endpoint is None or self._context is not None:
            return
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.bind(self.endpoint)
        if self.replay_endpoint is not None:
            router = self._context.socket(zmq.ROUTER)
            router.bind(self.replay_endpoint)
            self._replaying = asyncio.create_task(self._replay(router))

    def close(self) -> None:
        """Cuts whoever follows. Events go on to be counted and kept."""
        if self._replaying is not None:
            self._replaying.cancel()
        if self._context is not None:
            self._context.destroy(linger=0)
        self._context = self._socket = self._replaying = None

    def flush(self) -> None:
        """Publishes what changed in the cache, as one message. Called after every step."""
        changes = self.cache.take_changes()
        if changes is None:
            return
        stored, removed = changes
        events = []
        if removed:
            names = [self._name(bytes.fromhex(each)) for each in removed]
            events.append(self._event("BlockRemoved", {"block_hashes": names, "medium": "GPU"}, {"group_idx": 0}))
        for chain in stored:
            hashes = [bytes.fromhex(each) for each in chain.hashes]
            salt = self._salts.get(hashes[0])
            fields = {
                "block_hashes": [self._name(each) for each in hashes],
                "parent_block_hash": None if chain.parent is None else self._name(bytes.fromhex(chain.parent)),
                "token_ids": [token for each in hashes for token in self._tokens[each]],
                "block_size": self.cache.block_size,
                "lora_id": None,
                "medium": "GPU",
            }
            begins = salt is not None and chain.parent is None
            vllms = {
                "lora_name": None,
                "extra_keys": [[salt], *([None] * (len(hashes) - 1))] if begins else None,
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
            events.append(self._event("BlockStored", fields, vllms, {"cache_salt": salt} if salt else {}))
        self.publish(events)

    def clear(self) -> None:
        """As when the cache is reset."""
        self.cache.forget_all()
        self.cache.take_changes()
        self.publish([self._event("AllBlocksCleared", {}, {})])

    def restart(self, cache: CountedBlocks) -> None:
        """The server was restarted: another cache, and numbers begin anew."""
        self.close()
        self.cache, self.seq = cache, -1
        self._kept.clear()

    def publish(self, events: list[Any]) -> None:
        """One message, whatever is in it."""
        is_map, _, _, _ = self.encoding.value
        batch: Any = {"ts": time.time(), "events": events} if is_map else [time.time(), events, 0]
        self.seq += 1
        payload = msgspec.msgpack.encode(batch)
        self._kept.append((self.seq, payload))
        if self.num_to_drop:
            self.num_to_drop -= 1
        elif self._socket is not None:
            self._socket.send_multipart([_TOPIC, self.seq.to_bytes(8, "big"), payload], flags=zmq.NOBLOCK)

    async def _replay(self, router: zmq.asyncio.Socket) -> None:
        while True:
            client, _, start = await router.recv_multipart()
            for seq, payload in [each for each in self._kept if each[0] >= int.from_bytes(start, "big")]:
                await router.send_multipart([client, b"", *self._topics(_TOPIC), seq.to_bytes(8, "big"), payload])
            await router.send_multipart([client, b"", *self._topics(b""), END, b""])

    def _topics(self, topic: bytes) -> list[bytes]:
        """What is told again has had a topic, as what is published, since events have all fields."""
        _, _, has_extra, _ = self.encoding.value
        return [topic] if has_extra else []

    def _event(
        self, kind: str, fields: dict[str, Any], vllms: dict[str, Any], sglangs: Mapping[str, Any] | None = None
    ) -> Any:
        """`vllms`, `sglangs`: what only events of the one or the other have."""
        _, is_map, has_extra, has_salt = self.encoding.value
        fields = {**fields, **((sglangs or {}) if has_salt else vllms)}
        if is_map:
            return {"type": kind, **fields}
        values = list(fields.values())
        if not has_extra:
            values = values[: {"BlockStored": 6, "BlockRemoved": 2}.get(kind, 0)]
            while values and values[-1] is None:
                values.pop()
        return [kind, *values]

    def _name(self, block: BlockHash) -> int | bytes:
        """The server's own hash, which nobody else can compute."""
        name = hashlib.sha256(b"vllm" + block).digest()
        return name if self.hashes_are_bytes else int.from_bytes(name[-8:], "big")
