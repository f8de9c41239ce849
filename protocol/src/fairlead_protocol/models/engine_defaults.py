"""The engine's defaults, and limits that it derives: what runs where no setting says otherwise."""

from fairlead_protocol.models.choices import DeviceKind

_NUM_SEQS = {DeviceKind.CPU: 32, DeviceKind.CUDA: 256}
_BATCHED_TOKENS = {DeviceKind.CPU: 512, DeviceKind.CUDA: 8192}
BLOCK_SIZE = 16
"""Tokens per block of the KV cache."""
NUM_ADAPTERS = 4
"""Adapters with room on the device, where any may be loaded."""
ADAPTER_RANK = 16
"""Largest rank of an adapter."""
UTILIZATION = 0.9
"""Share of a GPU's memory that weights, KV cache and work space may take together."""
LEAST_UTILIZATION = 0.01
"""Smallest such share that is accepted."""
CPU_CACHE_BYTES = 2**30
"""Largest KV cache on a CPU without `kv_cache_memory`."""
CPU_CACHE_SHARE = 0.4
"""Share of free memory that the KV cache may take on a CPU, which shares it with weights and page cache."""
LEAST_LOWERED = 2048
"""Tokens to which a context may be lowered where `max_model_len` is not set; in a shorter one chats find no room."""
LOWERED_MULTIPLE = 256
"""A lowered context is a multiple of this, so that replicas with nearly the same memory have the same."""


def step_limits(
    device: str, max_num_seqs: int | None, max_num_batched_tokens: int | None, whole_prompt: int = 0
) -> tuple[int, int]:
    """Sequences and tokens of one step; None = not set. `device`: a `DeviceKind`. `whole_prompt`: tokens of a prompt
    that one step must hold, of a model that sees prompts whole."""
    kind = DeviceKind(device)
    num_seqs = max_num_seqs or min(_NUM_SEQS[kind], max_num_batched_tokens or _NUM_SEQS[kind])
    return num_seqs, max_num_batched_tokens or max(_BATCHED_TOKENS[kind], num_seqs, whole_prompt)
