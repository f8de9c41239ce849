"""The noun of this package: one conversation, and which side of the train / held-out line its content lies on."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from random import Random
from typing import Any

HELD_OUT_SHARE = 0.1
"""Share of all possible questions that training never sees."""

Message = Mapping[str, Any]


class Split(StrEnum):
    """Which side of the line; the two never share a question."""

    TRAIN = "train"
    HELD_OUT = "held-out"


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in OpenAI's shape that end with the assistant's right answer."""

    kind: str
    """The lesson it comes from; figures are reported per kind."""
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tool definitions in OpenAI's shape, given to the chat template."""

    @property
    def question(self) -> tuple[Message, ...]:
        """Everything the model is shown."""
        return self.messages[:-1]

    @property
    def answer(self) -> str:
        """What it must say, to the letter."""
        return str(self.messages[-1]["content"])

    def to_json(self) -> dict[str, Any]:
        """How questions are kept in files: `{"kind", "messages", "answer"}`, and `tools` if there are any."""
        record: dict[str, Any] = {"kind": self.kind, "messages": list(self.question), "answer": self.answer}
        if self.tools:
            record["tools"] = list(self.tools)
        return record


Lesson = Callable[[Random], Conversation]


def split_of(conversation: Conversation) -> Split:
    """Which side a conversation lies on; hashes decide, so the two sides are disjoint by construction.

    It is held out when its first question is, or any later one together with what was asked before it. So training
    never sees a held-out question, while what a question is about (a fact, a pair of numbers) it may see: in other
    words, or in another order.
    """
    asked = [message["content"] for message in conversation.messages if message["role"] == "user"]
    turns = ("\n".join(asked[: turn + 1]) for turn in range(len(asked)))
    return Split.HELD_OUT if any(_is_held_out(text) for text in turns) else Split.TRAIN


def _is_held_out(text: str) -> bool:
    digest = blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < HELD_OUT_SHARE * 2**64


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def tool_call_message(name: str, arguments: Mapping[str, Any]) -> Message:
    """An assistant's call of a tool, as clients send it back."""
    function = {"name": name, "arguments": compact_json(arguments)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call", "type": "function", "function": function}],
    }


def tool_result(content: str) -> Message:
    return {"role": "tool", "tool_call_id": "call", "content": content}


def compact_json(value: Any) -> str:
    """JSON as the dinghy reads and writes it."""
    return json.dumps(value, ensure_ascii=False)
