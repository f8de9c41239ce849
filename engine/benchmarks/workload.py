"""The work that all engines of a benchmark get: the same prompts and output lengths, drawn from a seed."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """A prompt, and how many tokens to generate for it."""

    prompt: list[int]
    num_outputs: int


@dataclass(frozen=True)
class Workload:
    """Requests that all arrive at once and are decoded greedily to a fixed length, ignoring end-of-sequence tokens."""

    name: str
    num_requests: int
    prompt_tokens: tuple[int, int]
    """Shortest and longest prompt."""
    output_tokens: tuple[int, int]
    """Shortest and longest output."""
    max_batch_tokens: int
    """Tokens that one step may compute, in every engine."""
    seed: int
    model: dict[str, object]
    """The `config.json` of the checkpoint, whose weights are random."""

    def requests(self) -> list[Request]:
        draw = random.Random(self.seed)
        vocab_size = int(str(self.model["vocab_size"]))
        return [
            Request(
                [draw.randrange(4, vocab_size) for _ in range(draw.randint(*self.prompt_tokens))],
                draw.randint(*self.output_tokens),
            )
            for _ in range(self.num_requests)
        ]


SMALL = Workload(
    name="small",
    num_requests=32,
    prompt_tokens=(128, 512),
    output_tokens=(64, 128),
    max_batch_tokens=512,
    seed=0,
    model={
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 8192,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "dtype": "bfloat16",
    },
)

WORKLOADS = {workload.name: workload for workload in (SMALL,)}
