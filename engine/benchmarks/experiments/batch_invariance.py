"""Whether an answer depends on what is computed beside it: the same greedy requests alone, together, and in chunks.

A Llama of 16 million random weights, whose likeliest tokens are hardly likelier than others: so the least difference
shows. Told are the requests whose tokens differ from those they get alone, the requests with a log-probability that
differs in any bit, and the largest difference of one before their tokens part.
"""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from answers import Answer, answers_of
from harness import Row

from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.greedy_answers import small_engine
from fairlead_engine_testing.requests import make_request
from fairlead_engine_testing.tiny_families.dense import llama_fields

MODEL = llama_fields(
    hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
    head_dim=64, vocab_size=4096, max_position_embeddings=2048,
)  # fmt: skip
PROMPT_TOKENS = (3, 17, 60, 200, 333)
WAYS = {"together": 1024, "together, in chunks of 64": 64}
"""Tokens per step; alone it is 1024."""
NUMBERS = (("float32", None), ("bfloat16", None), ("bfloat16", "int8"))


def run(requests: int = 10, outputs: int = 24, threads: int = 1, backend: str = "auto", seed: int = 0) -> Iterator[Row]:
    """`outputs`: tokens of each answer; `backend`: of attention; `seed`: of weights and prompts."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(5, 4000) for _ in range(draw.choice(PROMPT_TOKENS))] for _ in range(requests)]
    batch = [
        make_request(str(index), prompt, max_tokens=outputs, ignore_eos=True, logprobs=0, arrival_time=float(index))
        for index, prompt in enumerate(prompts)
    ]
    with tempfile.TemporaryDirectory() as folder:
        model = write_random_checkpoint(Path(folder), MODEL, seed=seed)
        for dtype, quantization in NUMBERS:
            settings = {
                "dtype": dtype, "quantization": quantization, "num_threads": threads, "attention_backend": backend,
                "block_size": 16, "kv_cache_memory": 2**26, "max_num_seqs": requests, "max_num_queued_tokens": 10**6,
                "enable_prefix_caching": False,
            }  # fmt: skip
            alone = [
                answer
                for request in batch
                for answer in answers_of(small_engine(model, **settings, max_num_batched_tokens=1024), [request])
            ]
            for way, budget in WAYS.items():
                found = answers_of(small_engine(model, **settings, max_num_batched_tokens=budget), batch)
                pairs = list(zip(alone, found, strict=True))
                yield {
                    "numbers": f"{dtype} {quantization or ''}".strip(),
                    "way": way,
                    "requests": requests,
                    "other tokens": sum(one.token_ids != other.token_ids for one, other in pairs),
                    "any other bit": sum(one.logprobs != other.logprobs for one, other in pairs),
                    "log-probabilities differ by at most": max(difference(*pair) for pair in pairs),
                }


def difference(one: Answer, other: Answer) -> float:
    """The largest of log-probabilities up to the first token that differs."""
    same = [mine == theirs for mine, theirs in zip(one.token_ids, other.token_ids, strict=True)]
    until = [*same, False].index(False)
    pairs = zip(one.logprobs[:until], other.logprobs[:until], strict=True)
    return max((abs(mine - theirs) for mine, theirs in pairs), default=0.0)
