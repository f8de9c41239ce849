"""Sampling fields of a request, over the model's own defaults → `SamplingParams` per choice.

Pure. Values out of range become a `RequestError` that names the field as the client wrote it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fairlead_engine.errors import ModelLoadError, ModelLoadReason, RequestError
from fairlead_engine.server.schemas import ChatRequest, CompletionRequest, GenerationRequest
from fairlead_engine.types import MAX_LOGPROBS, MAX_SEED, SamplingParams

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
"""Characters of one stop string."""
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
_MAX_DIGITS = 10
"""Of a token id; no vocabulary is so large."""
COMPLETIONS_MAX_TOKENS = 16
"""OpenAI's default of `max_tokens` for text completions; chats go on to the end of the context."""

_FROM_MODEL = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_SAME_NAME = (*_FROM_MODEL, "presence_penalty", "frequency_penalty", "seed", "min_tokens", "ignore_eos")


def model_defaults(folder: Path) -> dict[str, Any]:
    """Sampling defaults that the model's makers recommend in `generation_config.json`; empty without that file."""
    path = folder / "generation_config.json"
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        defaults = {name: content[name] for name in _FROM_MODEL if content.get(name) is not None}
        SamplingParams(**defaults)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelLoadError(ModelLoadReason.MODEL_CONFIG_INVALID, f"{path} cannot be used: {error}") from error
    return defaults


def chat_sampling(request: ChatRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    """How to sample a chat's answer."""
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError("top_logprobs", "top_logprobs needs logprobs = true")
    num_logprobs = (request.top_logprobs or 0) if request.logprobs else None
    _check_logprobs("top_logprobs", num_logprobs)
    limit_name, limit = request.answer_limit
    return _sampling(request, defaults, limit_name, limit, num_logprobs)


def completion_sampling(request: CompletionRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    """How to sample a text completion."""
    _check_logprobs("logprobs", request.logprobs)
    limit_name, limit = request.answer_limit
    default = COMPLETIONS_MAX_TOKENS if limit is None else limit
    sampling = _sampling(request, defaults, limit_name, default, request.logprobs)
    return msgspec.structs.replace(sampling, prompt_logprobs=request.logprobs) if request.echo else sampling


def for_choice(sampling: SamplingParams, index: int) -> SamplingParams:
    """The same for the choice `index` of one prompt: choices of a seeded request differ, reproducibly."""
    if index == 0 or sampling.seed is None:
        return sampling
    seed = sampling.seed + index
    return msgspec.structs.replace(sampling, seed=seed if seed <= MAX_SEED else seed - 2 * (MAX_SEED + 1))


def _sampling(
    request: GenerationRequest,
    defaults: Mapping[str, Any],
    limit_name: str,
    max_tokens: int | None,
    num_logprobs: int | None,
) -> SamplingParams:
    given = {name: value for name in _SAME_NAME if (value := getattr(request, name)) is not None}
    try:
        return SamplingParams(
            **{
                **defaults,
                **given,
                "max_tokens": max_tokens,
                "stop": _stops(request),
                "stop_token_ids": _stop_token_ids(request),
                "include_stop": bool(request.include_stop_str_in_output),
                "logprobs": num_logprobs,
                "logit_bias": _logit_bias(request),
            }
        )
    except ValueError as error:
        name, _, rest = str(error).partition(" ")
        name = limit_name if name == "max_tokens" else name
        raise RequestError(name, f"{name} {rest}") from None


def _stops(request: GenerationRequest) -> tuple[str, ...]:
    stops = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    if len(stops) > MAX_STOPS:
        raise RequestError("stop", f"stop must hold at most {MAX_STOPS} texts, not {len(stops)}")
    if any(len(stop) > MAX_STOP_LENGTH for stop in stops):
        raise RequestError("stop", f"a text in stop must have at most {MAX_STOP_LENGTH} characters")
    return stops


def _stop_token_ids(request: GenerationRequest) -> tuple[int, ...]:
    ids = tuple(request.stop_token_ids or ())
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise RequestError("stop_token_ids", f"stop_token_ids must hold at most {MAX_STOP_TOKEN_IDS} ids")
    return ids


def _logit_bias(request: GenerationRequest) -> dict[int, float]:
    bias = request.logit_bias or {}
    if len(bias) > MAX_LOGIT_BIAS:
        raise RequestError("logit_bias", f"logit_bias must hold at most {MAX_LOGIT_BIAS} tokens, not {len(bias)}")
    for name in bias:
        # Only as they are written: of "9" and "09" one would be lost.
        if not (name.isascii() and name.isdigit()) or len(name) > _MAX_DIGITS or str(int(name)) != name:
            raise RequestError("logit_bias", f"logit_bias must map token ids to numbers; {name[:80]!r} is no token id")
    return {int(name): value for name, value in bias.items()}


def _check_logprobs(name: str, wanted: int | None) -> None:
    if wanted is not None and not 0 <= wanted <= MAX_LOGPROBS:
        raise RequestError(name, f"{name} must be in [0, {MAX_LOGPROBS}], not {wanted}")
