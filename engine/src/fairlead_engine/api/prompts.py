"""Clients' prompts and their token ids, checked against the model. Errors name the place in the request.

`fairlead_common.openai.prompts`, shared with gateways, makes tokens of requests. A gateway may send the ids along
(`fairlead_prompt_tokens`); they are checked all the same.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead_common.openai.chat import is_image
from fairlead_common.openai.prompts import (
    ChatPrompt,
    CompletionPrompt,
    EncodedPrompt,
    PromptError,
    PromptFields,
    TextPrompts,
)
from fairlead_common.openai.truncation import FIELD as TRUNCATE
from fairlead_common.openai.truncation import Truncation, truncation_of
from fairlead_common.wire.messages import FIELD_TOKENS
from fairlead_engine.api.schemas import (
    ChatRequest,
    PromptRequest,
    TokenizeRequest,
)
from fairlead_engine.api.served_model import ServedModel, request_error
from fairlead_engine.errors import RequestError
from fairlead_engine.images.image import DecodedImage

_OF_CHATS = ("tools", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt", "continue_final_message")


Prompts = list[tuple[str, EncodedPrompt]]
"""Prompts with places in the request."""


def tokenize_fields(request: TokenizeRequest) -> PromptFields:
    """Prompt fields of a request to `/tokenize`. Raises `RequestError`."""
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("prompt", "send either prompt or messages")
    if request.prompt is not None:
        for name in _OF_CHATS:
            if getattr(request, name) is not None:
                raise RequestError(name, f"{name} is about how a chat is rendered; send messages, or leave it out")
        return CompletionPrompt(prompt=request.prompt, add_special_tokens=request.add_special_tokens)
    return chat_fields(request)


def check_without_soft_prompt(request: PromptRequest, model: ServedModel) -> None:
    """Raises `RequestError` for an adapter with a soft prompt."""
    if model.num_virtual_tokens(request.model):
        problem = "no vectors are made with soft prompts; leave the adapter out of model"
        raise RequestError("model", problem, "unsupported_operation")


def chat_fields(request: ChatRequest | TokenizeRequest) -> ChatPrompt:
    """Prompt fields of a chat, without the images' content, which templates do not read."""
    return ChatPrompt(
        messages=[_without_images(message) for message in request.messages or ()],
        tools=request.tools,
        functions=request.functions if isinstance(request, ChatRequest) else None,
        truncate_prompt_tokens=request.truncate_prompt_tokens if isinstance(request, ChatRequest) else None,
        truncation_side=request.truncation_side if isinstance(request, ChatRequest) else None,
        chat_template_kwargs=request.chat_template_kwargs,
        reasoning_effort=request.reasoning_effort,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        add_special_tokens=request.add_special_tokens,
    )


def _without_images(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list) or not any(map(is_image, content)):
        return message
    return {**message, "content": [{"type": part["type"]} if is_image(part) else part for part in content]}


def fitting(
    fields: PromptFields, request: PromptRequest, model: ServedModel, images: Sequence[DecodedImage] = ()
) -> tuple[PromptFields, Truncation | None]:
    """How the request's prompts are cut for this model (None = not at all), and the fields with the number of tokens
    that this is. Raises `RequestError`."""
    room = model.info.max_model_len - model.num_virtual_tokens(request.model)
    try:
        truncation = truncation_of(fields, room, request.answer_limit)
    except PromptError as error:
        raise request_error(error) from error
    if truncation is None:
        return fields, None
    if images:
        text = f"{TRUNCATE} is not for chats with images; leave one of the two out"
        raise RequestError(TRUNCATE, text, "unsupported_value")
    return msgspec.structs.replace(fields, truncate_prompt_tokens=truncation.num_tokens), truncation


def given_prompts(
    fields: PromptFields,
    request: PromptRequest,
    model: ServedModel,
    images: Sequence[DecodedImage] = (),
    truncation: Truncation | None = None,
) -> Prompts | None:
    """Prompts with given ids; None = texts are to be tokenised. Raises `RequestError`. A gateway may have sent the ids
    along. Ids of another tokenizer are ignored, ids of a chat with images, which do not tell the images' sizes, and
    those that were cut for a longer context."""
    given = None if images else request.fairlead_prompt_tokens
    if given is not None and truncation is not None:
        given = None if any(len(each) > truncation.num_tokens for each in given.prompts) else given
    if given is not None and given.digest != model.tokenizer.digest:
        given = None
    if given is None and not (isinstance(fields, TextPrompts) and fields.is_of_ids):
        return None
    try:
        places = fields.places(model.tokenizer)
        if given is None:
            assert isinstance(fields, TextPrompts)
            contents = fields.contents if truncation is None else [truncation.cut(each) for each in fields.contents]
            return [*zip(places, map(EncodedPrompt, contents), strict=True)]
    except PromptError as error:
        raise request_error(error) from error
    num_given = len(given.prompts)
    if num_given != len(places):
        raise RequestError(FIELD_TOKENS, f"{FIELD_TOKENS} has {num_given} prompts, the request {len(places)}")
    # Errors name the client's own field: the ids may be its own, too.
    starts = given.second_starts or [None] * num_given
    if len(starts) != num_given:
        raise RequestError(FIELD_TOKENS, f"{FIELD_TOKENS} has {num_given} prompts and {len(starts)} second_starts")
    return [*zip(places, map(EncodedPrompt, given.prompts, starts), strict=True)]


def checked_prompts(
    prompts: Prompts,
    fields: PromptFields,
    request: PromptRequest,
    model: ServedModel,
    images: Sequence[DecodedImage] = (),
) -> list[EncodedPrompt]:
    """The model's prompts, with the images' tokens. Raises `RequestError`."""
    checked = []
    for place, prompt in prompts:
        if isinstance(fields, ChatPrompt):
            prompt = EncodedPrompt(model.seen(prompt.token_ids, images))
        model.check_prompt(prompt.token_ids, place)
        model.check_room(prompt.token_ids, request.answer_limit)
        if num_virtual_tokens := model.num_virtual_tokens(request.model):
            if images:
                text = "images are not seen behind the soft prompt of an adapter; leave one of the two out"
                raise RequestError("messages", text, "unsupported_value")
            model.check_beside(num_virtual_tokens, prompt.token_ids, place, request.answer_limit)
        if prompt.second_start is not None and not 0 <= prompt.second_start <= len(prompt.token_ids):
            raise RequestError(FIELD_TOKENS, f"{FIELD_TOKENS} has a second text that begins outside its prompt")
        checked.append(prompt)
    return checked
