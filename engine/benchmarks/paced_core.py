"""A core without a model, for `server_path.py`: every running request gets a token at each tick of a steady beat.

It is a process like the real one and speaks the same messages over the same channel. Its pace is the query of the
model: `paced://?step_seconds=0.025`.
"""

import random
import sys
import time
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import msgspec

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.process import serve_core
from fairlead_engine.types import NO_LOAD, EngineInfo, EngineLoad, EngineRequest, FinishReason, SequenceOutput

IDS = range(300, 1000)
"""That are drawn: words and pieces of them, in a byte-level vocabulary; before them come single bytes."""
MAX_MODEL_LEN = 1_000_000


class PacedEngine:
    """What the core's loop asks of an engine. Tokens are drawn by a seeded generator."""

    def __init__(self, config: EngineConfig) -> None:
        pace = dict(parse_qsl(urlsplit(config.model).query))
        self._step_seconds = float(pace["step_seconds"])
        self._random = random.Random(config.seed)
        self._left: dict[str, int] = {}
        self._new: set[str] = set()
        self._tick = time.monotonic()
        self._num_steps = self._num_tokens = 0
        self.blocks = SimpleNamespace(listener=None)
        self.info = EngineInfo(
            architecture="None", dtype="float32", device="cpu", attention_backend="none", kv_cache_dtype="auto",
            vocab_size=4096, max_model_len=MAX_MODEL_LEN, max_position_embeddings=MAX_MODEL_LEN, block_size=16,
            num_kv_blocks=1 << 20, max_num_seqs=4096, max_num_batched_tokens=8192, max_num_queued_tokens=1 << 30,
            eos_token_ids=(), num_parameters=1, weight_bytes=1, kv_cache_bytes=1, start_seconds={},
        )  # fmt: skip

    @property
    def load(self) -> EngineLoad:
        running, steps, tokens = len(self._left), self._num_steps, self._num_tokens
        return msgspec.structs.replace(
            NO_LOAD, running=running, num_steps=steps, generation_tokens=tokens, max_num_seqs=self.info.max_num_seqs
        )

    def has_work(self) -> bool:
        return bool(self._left)

    def recheck(self) -> bool:
        return True

    def add(self, request: EngineRequest) -> None:
        self._left[request.request_id] = request.sampling.max_tokens or MAX_MODEL_LEN
        self._new.add(request.request_id)

    def abort(self, request_id: str) -> None:
        self._left.pop(request_id, None)

    def step(self) -> list[SequenceOutput]:
        self._tick = max(self._tick + self._step_seconds, time.monotonic())
        time.sleep(self._tick - time.monotonic() if self._tick > time.monotonic() else 0.0)
        self._num_steps += 1
        self._num_tokens += len(self._left)
        now, draw, outputs = time.time(), self._random.choice, []
        for request_id in list(self._left):
            self._left[request_id] -= 1
            reason = None if self._left[request_id] else FinishReason.LENGTH
            begins = now if request_id in self._new else None
            outputs.append(SequenceOutput(
                request_id=request_id, new_token_ids=[draw(IDS)], finish_reason=reason, first_scheduled_time=begins,
            ))  # fmt: skip
            if reason is not None:
                del self._left[request_id]
        self._new.clear()
        return outputs


if __name__ == "__main__":
    sys.exit(serve_core(lambda config: cast(Engine, cast(Any, PacedEngine(config)))))
