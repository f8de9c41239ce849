"""An engine profile: measurements of one model on one machine by `fairlead-engine characterise`.

An engine started with a profile predicts by its costs before the first request, and admits by its batch weight; models
of engines in virtual time take limits and costs from profiles.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from fairlead_common.wire.messages import NonNegative, StepCost

PROFILE_VERSION = 1

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
"""Floats hold these exactly."""


class ProfileUnreadable(ValueError):
    """A file is no profile; the text says why."""


class Measured(msgspec.Struct, kw_only=True, frozen=True):
    """Simultaneous requests of one shape with different prompts, measured: times in seconds, medians."""

    batch: Positive
    """Requests."""
    prompt_tokens: Positive
    output_tokens: Positive
    """Of each."""
    ttft_seconds: NonNegative
    tpot_seconds: NonNegative
    """Per output token after the first."""
    tokens_per_second: NonNegative
    """Output tokens of all."""


class BatchWeight(msgspec.Struct, kw_only=True, frozen=True):
    """The greatest batch weight: the sum over the requests of a batch of their prompt and output tokens.

    Source: Łazuka et al., LLM-Pilot (SC 2024), which tunes it per model and accelerator, after TGI's
    `max-batch-total-tokens`.
    """

    most: Positive
    """Bound of admission: the minimum of `by_memory` and `by_tpot`."""
    by_memory: Positive
    """Tokens that the KV cache holds."""
    by_tpot: Positive | None = None
    """Weight above which a decode step exceeds the target; None = no target."""
    tpot_target_seconds: NonNegative | None = None
    request_weight: Positive
    """Mean tokens of a measured request, to convert a weight to a number of sequences."""


class FitError(msgspec.Struct, kw_only=True, frozen=True):
    """Relative errors of the step cost on steps outside of the fit."""

    median: NonNegative
    p90: NonNegative
    num_steps: int


class EngineProfile(msgspec.Struct, kw_only=True, frozen=True):
    """The whole profile. `architecture`, `num_parameters`, `vocab_size` and the bytes of weights and cache identify a
    model as far as costs can differ."""

    profile_version: int = PROFILE_VERSION
    model: str
    """Its name, for people."""
    architecture: str
    num_parameters: Positive
    vocab_size: Positive
    weight_bytes: Positive
    kv_bytes_per_token: Positive
    dtype: str
    quantization: str | None = None
    """Format that weights are quantised in; None = they are floats."""
    kv_cache_dtype: str = "auto"
    """Format of keys and values in the cache: fp8 or int8, or auto = as `dtype`."""
    device: str
    """cpu or cuda."""
    device_name: str
    """Of the processor or accelerator."""
    num_threads: Positive
    attention_backend: str
    machine: dict[str, str]
    versions: dict[str, str]
    measured_at: str
    """Time of day, UTC."""
    seed: int
    block_size: Positive
    num_kv_blocks: Positive
    max_num_seqs: Positive
    max_num_batched_tokens: Positive
    max_model_len: Positive
    start_seconds: dict[str, float]
    """Stage of starting → how long it took."""
    step_cost: StepCost
    error: FitError
    max_batch_weight: BatchWeight
    measured: list[Measured]


def read_profile(path: Path) -> EngineProfile:
    """The profile in a JSON file. Raises ProfileUnreadable, naming what is wrong."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ProfileUnreadable(f"{path} cannot be read: {error.strerror}") from error
    return decode_profile(content, str(path))


def decode_profile(content: bytes, name: str) -> EngineProfile:
    """The profile in JSON; `name`: for messages. Raises ProfileUnreadable, naming the problem."""
    try:
        profile = msgspec.json.decode(content, type=EngineProfile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProfileUnreadable(f"{name} is no engine profile: {error}") from error
    if profile.profile_version != PROFILE_VERSION:
        raise ProfileUnreadable(f"{name} has profile_version {profile.profile_version}, not {PROFILE_VERSION}")
    return profile


def write_profile(profile: EngineProfile, path: Path) -> None:
    """As JSON that people can read. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")
