"""Summaries of conversations inside of compaction items, which clients send back as they got them. Pure.

The encoding only marks a summary as written here and hides nothing: whoever sends an item could send the same text as
a message.
"""

from base64 import b64decode, b64encode
from typing import Any

from fairlead_common.openai.prompts import PromptError

_MARK = "fairlead.summary.1."
"""Beginning of `encrypted_content` of items that were made here; no other server's begins so."""
NO_SUMMARY = "The model wrote no summary of the conversation; try again."
_HEAD = "Summary of the conversation until here:\n\n"
ASKS_FOR_SUMMARY = (
    "This conversation is about to be replaced by a summary of it and the messages of the user. Write the summary for "
    "the assistant who goes on with the work and sees nothing else: what the user wants, what was decided, done and "
    "found out, with the names, paths, values and results that are still needed, what is left to do, and the next "
    "step. Include what earlier summaries say. Answer with the summary alone, and call no tools."
)
"""The last message of a chat whose answer is a summary."""


def sealed(summary: str) -> str:
    """The `encrypted_content` of an item with this summary."""
    return _MARK + b64encode(summary.encode(errors="replace")).decode()


def opened(content: Any, place: str) -> str | None:
    """The message with the summary in `content`, the `encrypted_content` of an item; None = another server's. Raises
    PromptError."""
    if not isinstance(content, str) or not content.startswith(_MARK):
        return None
    try:
        summary = b64decode(content.removeprefix(_MARK), validate=True).decode()
    except ValueError:
        summary = ""
    if not summary:
        raise PromptError(place, f"{place}: is broken; send the item of the compaction as it came")
    return _HEAD + summary
