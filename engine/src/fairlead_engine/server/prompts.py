"""What clients send as a prompt → token ids, checked. Errors name the place in the request."""

from collections.abc import Mapping, Sequence
from typing import Any

from fairlead_engine.errors import RequestError
from fairlead_engine.server.schemas import ChatRequest, CompletionRequest, TokenizeRequest
from fairlead_engine.server.served_model import ServedModel

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def chat_prompt(request: ChatRequest, model: ServedModel) -> list[int]:
    """The ids of a chat. Raises `RequestError`."""
    check_messages(request.messages)
    token_ids = model.chat_prompt(
        request.messages,
        tools=request.tools,
        variables=request.chat_template_kwargs,
        add_generation_prompt=request.add_generation_prompt is not False,
        add_special_tokens=bool(request.add_special_tokens),
    )
    model.check_prompt(token_ids, "messages")
    return token_ids


def completion_prompts(request: CompletionRequest, model: ServedModel) -> list[list[int]]:
    """The ids of each prompt of a completion. Raises `RequestError`."""
    prompts = []
    for place, prompt in _each_prompt(request.prompt):
        if isinstance(prompt, str):
            prompt = model.tokenizer.encode(prompt, add_special_tokens=request.add_special_tokens is not False)
        model.check_prompt(prompt, place)
        prompts.append(prompt)
    return prompts


def tokenize_prompt(request: TokenizeRequest, model: ServedModel) -> list[int]:
    """The ids `/tokenize` answers with. Raises `RequestError`."""
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("prompt", "send either prompt or messages")
    if request.prompt is not None:
        return model.tokenizer.encode(request.prompt, add_special_tokens=request.add_special_tokens is not False)
    messages = request.messages or []
    check_messages(messages)
    return model.chat_prompt(
        messages,
        tools=request.tools,
        variables=request.chat_template_kwargs,
        add_generation_prompt=request.add_generation_prompt is not False,
        add_special_tokens=bool(request.add_special_tokens),
    )


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises `RequestError` for messages without a known role or with content that is neither text nor parts."""
    if not messages:
        raise RequestError("messages", "messages is empty; send at least one message")
    for position, message in enumerate(messages):
        place = f"messages[{position}]"
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            problem = "is missing" if role is None else f"must be one of {', '.join(ROLES)}, not {role!r}"
            raise RequestError(f"{place}.role", f"{place}.role {problem}")
        if content is None and role != "assistant":
            raise RequestError(f"{place}.content", f"{place}.content is missing")
        if not isinstance(content, str | list | None):
            kind = type(content).__name__
            raise RequestError(f"{place}.content", f"{place}.content must be text or a list of parts, not {kind}")


def _each_prompt(prompt: str | list[Any]) -> list[tuple[str, str | list[int]]]:
    """The prompts in a request's `prompt`, each with its place."""
    if isinstance(prompt, str):
        return [("prompt", prompt)]
    if not prompt:
        raise RequestError("prompt", "prompt is empty; send a text or token ids")
    if all(type(part) is int for part in prompt):
        return [("prompt", prompt)]
    if all(isinstance(part, str) for part in prompt) or all(_is_ids(part) for part in prompt):
        return [(f"prompt[{position}]", part) for position, part in enumerate(prompt)]
    raise RequestError("prompt", "prompt must be a text, a list of texts, token ids, or a list of lists of token ids")


def _is_ids(part: Any) -> bool:
    return isinstance(part, list) and all(type(token_id) is int for token_id in part)
