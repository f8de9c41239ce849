"""What a grammar allows behind each draft of a sequence, whether these are a chain or a tree."""

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from fairlead_engine.sequences import ScheduledSequence

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Behind(NamedTuple):
    """A grammar behind some tokens."""

    matcher: "LLMatcher | None"
    """None = it does not allow these tokens, so that nothing behind them matters,"""
    is_over: bool = False
    """or its end was among them, and what follows is free."""


def behind_drafts(matcher: "LLMatcher", item: ScheduledSequence, eos_token_ids: Collection[int]) -> list[Behind]:
    """Behind the last known token, where it is `matcher`, and behind each draft, whose tokens are known."""
    found = [Behind(matcher)]
    parents = item.parents or range(len(item.drafts))
    for parent, token_id in zip(parents, item.drafts, strict=True):
        found.append(_behind(found[parent], token_id, eos_token_ids))
    return found


def _behind(before: Behind, token_id: int, eos_token_ids: Collection[int]) -> Behind:
    matcher = before.matcher
    if matcher is None:
        return before
    if token_id in eos_token_ids and matcher.is_accepting():
        return Behind(None, is_over=True)
    if matcher.is_stopped() or matcher.validate_tokens([token_id]) != 1:
        return Behind(None)
    copy = matcher.deep_copy()
    copy.consume_token(token_id)
    return Behind(copy)
