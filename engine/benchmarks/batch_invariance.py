"""Whether an answer depends on what is computed beside it: the same greedy requests alone, together, and in chunks.

    python engine/benchmarks/batch_invariance.py

A Llama of 16 million random weights, whose likeliest tokens are hardly likelier than others: so the least difference
shows. Told are the requests whose tokens differ from those they get alone, the requests with a log-probability that
differs in any bit, and the largest difference of one before their tokens part.
"""

import argparse
import random
import tempfile
from pathlib import Path
from typing import NamedTuple

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.types import EngineRequest, SamplingParams
from fairlead_engine_testing.checkpoints import llama_fields, write_random_checkpoint

MODEL = llama_fields(
    hidden_size=512,
    intermediate_size=1408,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
    vocab_size=4096,
    max_position_embeddings=2048,
)
PROMPT_TOKENS, NUM_REQUESTS, NUM_OUTPUTS = (3, 17, 60, 200, 333), 10, 24
WAYS = {"together": 1024, "together, in chunks of 64": 64}
"""Tokens per step; alone it is 1024."""
NUMBERS = (("float32", None), ("bfloat16", None), ("bfloat16", "int8"))


class Answer(NamedTuple):
    """Tokens with their log-probabilities."""

    token_ids: list[int]
    logprobs: list[float]


def requests(seed: int) -> list[EngineRequest]:
    """Greedy ones."""
    numbers = random.Random(seed)
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUTS, ignore_eos=True, logprobs=0)
    return [
        EngineRequest(
            request_id=str(index),
            prompt_token_ids=[numbers.randrange(5, 4000) for _ in range(numbers.choice(PROMPT_TOKENS))],
            sampling=sampling,
            arrival_time=index,
        )
        for index in range(NUM_REQUESTS)
    ]


def serve(config: EngineConfig, batch: list[EngineRequest]) -> dict[str, Answer]:
    """What each request is answered."""
    engine, answers = Engine(config), {request.request_id: Answer([], []) for request in batch}
    for request in batch:
        assert engine.add(request) is None
    while engine.has_work():
        for output in engine.step():
            answers[output.request_id].token_ids.extend(output.new_token_ids)
            answers[output.request_id].logprobs.extend(each.logprob for each in output.logprobs or ())
    return answers


def compared(one: Answer, other: Answer) -> float:
    """The largest difference of log-probabilities up to the first token that differs."""
    pairs = list(zip(one.token_ids, other.token_ids, strict=True))
    until = next((index for index, pair in enumerate(pairs) if pair[0] != pair[1]), len(pairs))
    differences = zip(one.logprobs[:until], other.logprobs[:until], strict=True)
    return max((abs(mine - theirs) for mine, theirs in differences), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--backend", default="auto", help="attention backend (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and prompts (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = write_random_checkpoint(Path(folder) / "model", MODEL, seed=args.seed)
        for dtype, quantization in NUMBERS:

            def config(budget: int, dtype: str = dtype, quantization: str | None = quantization) -> EngineConfig:
                return EngineConfig(
                    model=str(model),
                    dtype=dtype,
                    quantization=quantization,
                    num_threads=args.threads,
                    attention_backend=args.backend,
                    kv_cache_memory=2**26,
                    max_num_batched_tokens=budget,
                    max_num_seqs=NUM_REQUESTS,
                    max_num_queued_tokens=10**6,
                    enable_prefix_caching=False,
                )

            batch = requests(args.seed)
            alone: dict[str, Answer] = {}
            for request in batch:
                alone |= serve(config(1024), [request])
            for way, budget in WAYS.items():
                found = serve(config(budget), batch)
                tokens = sum(alone[name].token_ids != found[name].token_ids for name in alone)
                bits = sum(alone[name].logprobs != found[name].logprobs for name in alone)
                most = max(compared(alone[name], found[name]) for name in alone)
                print(
                    f"{dtype} {quantization or ''}, {way}: of {len(alone)} requests {tokens} got other tokens, "
                    f"{bits} any other bit; log-probabilities differ by at most {most:.1g}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
