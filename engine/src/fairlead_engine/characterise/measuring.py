"""Runs requests of one shape at a time through an engine, and records each step's time.

Shapes vary one dimension at a time: number of requests at once, prompt length, context of decodes, output length. The
cheapest come first, so that little time still measures every kind of work.
"""

import random
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from fairlead_common.wire.profiles import Measured
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.profile import Steps
from fairlead_engine.core.step_cost import StepCostModel, StepWork
from fairlead_engine.types import EngineInfo, EngineRequest, SamplingParams
from fairlead_engine.types.batch import Batch

_PROMPT_TOKENS = 128
_OUTPUT_TOKENS = 32
"""Lengths while another dimension varies."""
_SHORT_OUTPUT_TOKENS = 8
_PROMPTS = (16, 32, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_OUTPUTS = (16, 64, 128, 256)


class Shape(NamedTuple):
    """Requests that come at once."""

    batch: int
    prompt_tokens: int
    output_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.batch * (self.prompt_tokens + self.output_tokens)


class StepRecorder(StepCostModel):
    """A step cost that also records every observed step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: Steps = []

    def observe(self, batch: Batch, seconds: float, *, learns: bool = True) -> None:
        super().observe(batch, seconds, learns=learns)
        if batch and seconds > 0.0:
            self.steps.append((StepWork.of(batch), seconds))


def shapes(info: EngineInfo) -> list[Shape]:
    """Shapes within this engine's slots, context and cache, cheapest first."""
    room = info.num_kv_blocks * info.block_size
    longest = min(info.max_model_len - 1, room)
    prompt, output = min(_PROMPT_TOKENS, max(1, longest // 2)), min(_OUTPUT_TOKENS, max(2, longest // 4))
    batches = sorted({2**power for power in range(info.max_num_seqs.bit_length())} | {info.max_num_seqs})
    found = {Shape(batch, prompt, output) for batch in batches}
    found |= {Shape(1, length, min(output, _SHORT_OUTPUT_TOKENS)) for length in (*_PROMPTS, longest - output)}
    found |= {Shape(min(4, info.max_num_seqs), prompt, length) for length in _OUTPUTS}
    found |= {Shape(min(8, info.max_num_seqs), length, output) for length in (512, 2048)}
    fits = [
        shape
        for shape in found
        # Each sequence ends in a block of its own, which it may fill by half.
        if shape.prompt_tokens > 0 and shape.prompt_tokens + shape.output_tokens <= longest
        and shape.num_tokens + shape.batch * info.block_size <= room
    ]  # fmt: skip
    return sorted(fits, key=lambda shape: (shape.batch * (shape.prompt_tokens + 8 * shape.output_tokens), shape))


def measure(engine: Engine, shape: Shape, draw: random.Random) -> Measured:
    """Runs the requests to their end, greedily, ignoring end-of-sequence tokens. No two prompts share a block. Raises
    RuntimeError if the engine refuses a request or cannot choose a token."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    began = engine.clock.now()
    for request in _requests(engine, shape, draw):
        if (refused := engine.add(request)) is not None:
            raise RuntimeError(f"{shape}: {refused.message}")
    num_tokens = 0
    while engine.has_work():
        for output in engine.step():
            if output.message is not None:
                raise RuntimeError(f"{shape}: {output.message}")
            num_tokens += len(output.new_token_ids)
            now = engine.clock.now()
            first.setdefault(output.request_id, now)
            last[output.request_id] = now
    gaps = max(1, shape.output_tokens - 1)
    return Measured(
        **shape._asdict(),
        ttft_seconds=median(first.values()) - began,
        tpot_seconds=median(last[request_id] - at for request_id, at in first.items()) / gaps,
        tokens_per_second=num_tokens / max(engine.clock.now() - began, 1e-9),
    )


def _requests(engine: Engine, shape: Shape, draw: random.Random) -> Iterator[EngineRequest]:
    sampling = SamplingParams(temperature=0.0, max_tokens=shape.output_tokens, ignore_eos=True)
    for number in range(shape.batch):
        yield EngineRequest(
            request_id=f"{shape}-{number}",
            prompt_token_ids=[draw.randrange(engine.info.vocab_size) for _ in range(shape.prompt_tokens)],
            sampling=sampling,
            arrival_time=engine.clock.now(),
        )
