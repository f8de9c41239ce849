"""Conversations → the messages of the user and a summary, as OpenAI's clients compact them. Pure."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from fairlead_common.openai.prompts import PromptError
from fairlead_common.openai.translate.chat_answers import ChatChoice, ChatCompletion
from fairlead_common.openai.translate.decoding import decoded
from fairlead_common.openai.translate.responses import TRIGGER, ResponsesRequest, checked
from fairlead_common.openai.translate.responses_answers import Compaction, Responses, ending_of, unserved, usage_of
from fairlead_common.openai.translate.summaries import NO_SUMMARY
from fairlead_common.openai.unknown_fields import UnknownFields

COMPACT_PATH = "/v1/responses/compact"


class Compact(Responses):
    """A request to `/v1/responses/compact` as a chat that asks for a summary."""

    def asked(self, body: bytes, unknown: UnknownFields) -> ResponsesRequest:
        request = decoded(body, ResponsesRequest, unknown)
        for field in ("stream", "background"):
            if getattr(request, field):
                raise PromptError(field, f"{field}: a compaction is answered at once and as a whole; leave it out")
        items = [item for _, item in request.items]
        if request.asks_for_summary:
            items.pop()
        if items or (self._kept and self._kept.before):
            request = msgspec.structs.replace(request, input=[*items, {"type": TRIGGER}])
        return checked(request, self._kept)

    def _answered(self, status: int, answer: ChatCompletion) -> tuple[int, bytes]:
        choice = answer.choices[0] if answer.choices else ChatChoice()
        summary, ending = choice.message.content, ending_of(choice)
        if not summary or summary.isspace():
            return unserved(NO_SUMMARY)
        suffix = answer.id.removeprefix("chatcmpl-")
        compaction = Compaction(f"cmp_{suffix}")
        compaction.text = summary
        told = {
            "id": f"resp_{suffix}",
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": [*self._users(suffix), compaction.whole("completed")],
            "usage": usage_of(answer.usage),
        }
        return status, msgspec.json.encode(told | (ending if ending["incomplete_details"] else {}))

    def _users(self, suffix: str) -> Iterator[Mapping[str, Any]]:
        """The messages of the user, in the form of output."""
        items = [*(self._kept.before if self._kept else ()), *(item for _, item in self._request.items)]
        for index, item in enumerate(items):
            if item.get("type") in (None, "message") and item.get("role") == "user":
                content = item.get("content")
                if isinstance(content, str):
                    content = [{"type": "input_text", "text": content}]
                filled = {"type": "message", "status": "completed", "content": content}
                yield {"id": f"msg_{suffix}_{index}", **item, **filled}
