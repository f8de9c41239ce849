"""vLLM's `/metrics` → the few figures that count here. Pure; finds lines instead of parsing all of Prometheus' text,
which has a thousand of them and is read several times a second."""

import math
import re

from fairlead_engine.front.foreign_engine import Gauges, NotServing

_LINE = r"^vllm:{name}(?:\{{(?P<labels>[^\n]*)\}})? (?P<value>\S+)"
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_WAITING, _USAGE, _OLD_USAGE = "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc"
_TOKENS = ("prompt_tokens_total", "generation_tokens_total")
_CACHE = "cache_config_info"
_FOUND = {
    name: re.compile(_LINE.format(name=name), re.MULTILINE) for name in (_WAITING, _USAGE, _OLD_USAGE, *_TOKENS, _CACHE)
}


def read_gauges(text: str) -> Gauges:
    """Raises NotServing where they are not there, as before the model is loaded."""
    waiting = _values(text, _WAITING)
    usage = _values(text, _USAGE) or _values(text, _OLD_USAGE)
    if not waiting or not usage:
        raise NotServing(f"its metrics have no vllm:{_WAITING} or no vllm:{_USAGE}")
    return Gauges(
        waiting=round(sum(waiting)),
        kv_usage_ratio=min(1.0, max(0.0, max(usage))),
        num_tokens=sum(sum(_values(text, name)) for name in _TOKENS),
    )


def read_cache(text: str) -> tuple[int, int]:
    """Tokens per block, and blocks. Raises NotServing."""
    found = _FOUND[_CACHE].search(text)
    labels = dict(_LABEL.findall(found["labels"] or "")) if found else {}
    try:
        block_size, num_blocks = int(labels["block_size"]), int(labels["num_gpu_blocks"])
    except (KeyError, ValueError) as error:
        raise NotServing(f"its metrics do not say block_size and num_gpu_blocks in vllm:{_CACHE}") from error
    if block_size < 1 or num_blocks < 1:
        raise NotServing(f"its metrics say {num_blocks} blocks of {block_size} tokens")
    return block_size, num_blocks


def _values(text: str, name: str) -> list[float]:
    """Of every series of this name that has a finite value."""
    values = []
    for found in _FOUND[name].finditer(text):
        try:
            value = float(found["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            values.append(value)
    return values
