"""Replicas, loads and prompts for tests of routing, with defaults for what a test does not care about."""

from collections.abc import Collection, Sequence
from typing import Any

from fairlead.routing.prompt import Prompt, Tokens
from fairlead.routing.replica import Limits, Load, Replica

DIGEST = "digest"
"""The tokenizer of replicas and prompts made here."""
BLOCK_SIZE = 16


def make_replica(
    uid: str,
    max_num_seqs: int = 8,
    *,
    digest: str = DIGEST,
    block_size: int = BLOCK_SIZE,
    adapters: Collection[str] = (),
) -> Replica:
    """A ready replica with known limits."""
    limits = Limits(max_num_seqs=max_num_seqs, max_num_queued_tokens=10_000, block_size=block_size)
    return Replica(
        uid=uid,
        name=f"pod-{uid}",
        host="127.0.0.1",
        port=8000,
        limits=limits,
        digest=digest,
        adapters=frozenset(adapters),
    )


def make_load(**changed: Any) -> Load:
    """The load of a replica that does nothing, but for what is given."""
    idle = {
        "time": 0.0,
        "running": 0,
        "waiting": 0,
        "queued_prefill_tokens": 0,
        "kv_blocks_free": 10_000,
        "kv_blocks_total": 10_000,
        "kv_tokens": 0,
        "token_budget": 256,
        "max_num_seqs": 8,
    }
    return Load(**{**idle, **changed})


def make_prompt(
    *prompts: Sequence[int], digest: str = DIGEST, affinity: str = "", adapter: str | None = None
) -> Prompt:
    """A request's prompts, tokenised."""
    num_tokens = sum(len(each) for each in prompts)
    return Prompt(num_tokens, {digest: tuple(Tokens(each) for each in prompts)}, affinity, adapter)
