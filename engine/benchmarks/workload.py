"""The work that all engines of a benchmark get: the same prompts and output lengths, drawn from a seed."""

import random
from dataclasses import dataclass

TEMPERATURE = 0.8
TOP_P = 0.95
"""How a sampled run chooses tokens, in every engine; a greedy one takes the likeliest."""


@dataclass(frozen=True)
class Request:
    """A prompt, and how many tokens to generate for it."""

    prompt: list[int]
    num_outputs: int


@dataclass(frozen=True)
class Workload:
    """Requests that all arrive at once and are generated to a fixed length, ignoring end-of-sequence tokens."""

    name: str
    about: str
    """The model, in words."""
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

    @property
    def vocab_size(self) -> int:
        return int(str(self.model["vocab_size"]))

    def requests(self) -> list[Request]:
        draw = random.Random(self.seed)
        return [
            Request(
                [draw.randrange(4, self.vocab_size) for _ in range(draw.randint(*self.prompt_tokens))],
                draw.randint(*self.output_tokens),
            )
            for _ in range(self.num_requests)
        ]


_COMMON: dict[str, object] = {
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "max_position_embeddings": 4096,
    "dtype": "bfloat16",
}

SMALL = Workload(
    name="small",
    about="a Llama of 33.6 million parameters (hidden 512, 8 layers, vocabulary 8,192)",
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
        "rope_theta": 10000.0,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        **_COMMON,
    },
)

Q06 = Workload(
    name="q06",
    about="the shape of Qwen3-0.6B (596 million parameters, hidden 1,024, 28 layers, vocabulary 151,936)",
    num_requests=8,
    prompt_tokens=(128, 256),
    output_tokens=(32, 64),
    max_batch_tokens=256,
    seed=0,
    model={
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        **_COMMON,
    },
)

WORKLOADS = {workload.name: workload for workload in (SMALL, Q06)}
