"""A streamed chat with injection of tools' results during generation: checks, tokens and replies.

A result ends the model's turn as a new request would: the tokens are the chat template's text from the end of the
current turn to the beginning of the next. `core/injections.py` finds the place.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from fairlead_engine.api.answers.reader import AnswerReader
from fairlead_engine.api.detokenizer import CallDelta, TextDelta
from fairlead_engine.api.prompt_workers import PromptWorkers
from fairlead_engine.api.prompts import chat_fields
from fairlead_engine.api.schemas import ChatRequest
from fairlead_engine.api.served_model import ServedModel
from fairlead_engine.api.structured_output import wish_of
from fairlead_engine.api.tool_use import ToolUse
from fairlead_engine.core.client import EngineClient
from fairlead_engine.errors import InjectionError, RequestError
from fairlead_engine.host.refusals import Gone
from fairlead_engine.types import EngineRequest, FinishReason, SequenceOutput


def check_injectable(request: ChatRequest, use: ToolUse | None, model: ServedModel, *, num_processes: int) -> None:
    """Raises `RequestError` for a chat that cannot take injections."""
    problem = None
    if model.injectable is None:
        problem = "this model's calls are not told apart by tokens before and behind them; leave injectable out"
    elif num_processes > 1:
        problem = "this engine has several HTTP processes, which do not know of each other's answers; leave it out"
    elif not request.stream:
        problem = "only a streamed answer can be told of what comes into it; set stream to true"
    elif use is None:
        problem = "there are no tools whose results could come; send tools, and a tool_choice that lets them be called"
    elif request.num_each > 1 or request.use_beam_search:
        problem = "a result belongs to one answer; leave n and use_beam_search out"
    elif use.is_kept_to or wish_of(request) is not None:
        problem = "an answer that is kept to a grammar cannot be interrupted; leave response_format, strict and "
        problem += "tool_choice out"
    elif request.thinking_token_budget is not None:
        problem = "a budget of reasoning is counted for one turn; leave thinking_token_budget out"
    elif request.continue_final_message:
        problem = "the turn that is continued has no beginning to be rendered with; leave continue_final_message out"
    if problem is not None:
        raise RequestError("injectable", problem, "unsupported_value")


class TurnsReader:
    """Reads an answer of several turns, each ended by an injected result."""

    def __init__(self, make: Callable[[list[int]], AnswerReader], prompt: list[int]) -> None:
        """`make`: makes the reader of a turn behind these tokens."""
        self.answer_id = f"chatcmpl-{secrets.token_hex(16)}"
        """The answer's id for the client. Knowing the id permits injections, so the id is random; a request's id can be
        guessed, and may be used twice."""
        self._make = make
        self._reader = make(prompt)
        self._num_tokens_before = self._num_calls_before = 0
        self.call_ids: list[str] = []
        """Of all calls, in order."""
        self.coming: dict[str, list[int]] = {}
        """By call, the tokens of a result on the way into the answer."""

    @property
    def num_tokens(self) -> int:
        """Output tokens so far, of all turns."""
        return self._num_tokens_before + self._reader.num_tokens

    def push(self, output: SequenceOutput) -> TextDelta:
        if output.injected is None:
            return self._counted(self._reader.push(output))
        ending = SequenceOutput(request_id=output.request_id, new_token_ids=[], finish_reason=FinishReason.STOP)
        rest = self._counted(self._reader.push(ending))
        self._num_tokens_before = self.num_tokens
        self._num_calls_before += self._reader.num_calls
        self._reader = self._make(self.coming.pop(output.injected.mark, []))
        return msgspec.structs.replace(rest, finish_reason=None, stop_reason=None, injected=output.injected)

    def _counted(self, delta: TextDelta) -> TextDelta:
        """The delta with calls numbered over the whole answer."""
        if not delta.calls:
            return delta
        self.call_ids += [call.id for call in delta.calls if call.id is not None]
        calls = [
            CallDelta(call.index + self._num_calls_before, call.arguments, call.id, call.name) for call in delta.calls
        ]
        return msgspec.structs.replace(delta, calls=calls)


@dataclass(slots=True)
class InjectableAnswer:
    """A running answer with injections."""

    request: ChatRequest
    engine_request: EngineRequest
    reader: TurnsReader
    client: EngineClient
    sent: set[str] = field(default_factory=set)
    """Calls with a result."""

    def check_call(self, tool_call_id: str) -> None:
        """Raises `RequestError` for an unknown call, or a second result."""
        calls = self.reader.call_ids
        if tool_call_id not in calls:
            there = f"it has made {', '.join(calls)}" if calls else "it has made none"
            raise RequestError("tool_call_id", f"the answer has made no call {tool_call_id!r}; {there}", "unknown_call")
        if tool_call_id in self.sent:
            raise RequestError("tool_call_id", f"the result of {tool_call_id} was sent already", "result_was_sent")

    async def tokens(self, tool_call_id: str, content: str, prompts: PromptWorkers, max_model_len: int) -> list[int]:
        """Tokens of a result behind the current turn. Raises `RequestError`, also for a result without room in the
        context."""
        mark = f"TURN{secrets.token_hex(16)}"
        ids, num_tokens = await prompts.result(chat_fields(self.request), tool_call_id, content, mark)
        if num_tokens:
            raise Gone(f"it has at least {num_tokens} tokens, and the context of {max_model_len} has room for fewer")
        return ids

    async def inject(self, tool_call_id: str, token_ids: list[int]) -> None:
        """Returns once the result is in the answer. Raises `Gone`, or errors of the core's client."""
        self.check_call(tool_call_id)  # a second result may have been sent meanwhile
        self.sent.add(tool_call_id)
        self.reader.coming[tool_call_id] = token_ids
        try:
            await self.client.inject(self.engine_request.request_id, tool_call_id, token_ids)
        except InjectionError as error:
            self.reader.coming.pop(tool_call_id, None)
            self.sent.discard(tool_call_id)
            raise Gone(error.message) from error
