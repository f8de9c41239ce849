"""`truncate_prompt_tokens`: which tokens of a prompt are kept. Pure, and the same in gateways and engines."""

from array import array
from typing import NamedTuple, TypeVar

from fairlead_common.openai.prompts import AnswerLimit, PromptError, PromptFields
from fairlead_common.tokens.tokenizing import PromptTokenizer

FIELD = "truncate_prompt_tokens"
ALL_THAT_FIT = -1
"""A value: as many tokens as leave room for the answer."""
MAX_CHARACTERS = 2**20
"""Of a text that is cut: all of it is tokenised."""
_NO_FRAME = 0, 0

Ids = TypeVar("Ids", list[int], "array[int]")


class Truncation(NamedTuple):
    """How many tokens a prompt may have, and where others are left out."""

    num_tokens: int
    keeps_end: bool
    """Else the beginning."""

    def cut(self, ids: Ids, frame: tuple[int, int] = _NO_FRAME) -> Ids:
        """The tokens that are kept. `frame`: special tokens before and behind the text, kept wherever room for another
        token is left."""
        excess = len(ids) - self.num_tokens
        if excess <= 0:
            return ids
        before, behind = frame if sum(frame) < self.num_tokens else _NO_FRAME
        start = before if self.keeps_end else len(ids) - behind - excess
        return ids[:start] + ids[start + excess :]


def truncation_of(fields: PromptFields, max_model_len: int, limit: AnswerLimit) -> Truncation | None:
    """None = prompts are taken whole. `limit`: of the answer, which `ALL_THAT_FIT` leaves room for. Raises
    `PromptError`."""
    given: int | None = getattr(fields, FIELD, None)
    if given is None:
        return None
    if given == 0:
        raise PromptError(FIELD, f"{FIELD} must be at least 1, or -1 for as many tokens as fit")
    if given == ALL_THAT_FIT:
        room = limit.max_tokens if limit.has_room and limit.max_tokens is not None else 1
        given = max(1, max_model_len - max(1, room))
    return Truncation(given, getattr(fields, "truncation_side", None) != "right")


def frame_of(fields: PromptFields, is_text: bool, tokenizer: PromptTokenizer) -> tuple[int, int]:
    """Special tokens that the tokenizer puts before and behind a prompt. `is_text`: ids are taken as they are."""
    return tokenizer.frame if is_text and fields.adds_special_tokens else _NO_FRAME
