"""What clients send as a prompt → token ids, checked against the model. Errors name the place in the request.

How a request becomes tokens is `fairlead_protocol.prompts`, which gateways use as well. A gateway that has done so
already sends the ids along (`fairlead_prompt_tokens`); everything is checked all the same.
"""

from collections.abc import Iterable, Sequence

from fairlead_engine.errors import RequestError
from fairlead_engine.images.decoded_image import DecodedImage
from fairlead_engine.server.schemas import (
    ChatRequest,
    ClassifyRequest,
    CompletionRequest,
    EmbeddingRequest,
    PromptRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
)
from fairlead_engine.server.served_model import ServedModel, request_error
from fairlead_protocol.messages import FIELD_TOKENS
from fairlead_protocol.prompts import (
    ChatPrompt,
    ClassifyPrompt,
    CompletionPrompt,
    EmbeddingPrompt,
    EncodedPrompt,
    PromptError,
    PromptFields,
)

_OF_CHATS = ("tools", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt", "continue_final_message")


def chat_prompts(request: ChatRequest, model: ServedModel, images: Sequence[DecodedImage] = ()) -> list[EncodedPrompt]:
    """The ids of a chat, a single prompt. Raises `RequestError`."""
    return _checked(_chat(request), request, model, images)


def completion_prompts(request: CompletionRequest, model: ServedModel) -> list[EncodedPrompt]:
    """The ids of each prompt of a completion. Raises `RequestError`."""
    fields = CompletionPrompt(prompt=request.prompt, add_special_tokens=request.add_special_tokens)
    return _checked(fields, request, model)


def embedding_prompts(request: EmbeddingRequest, model: ServedModel) -> list[EncodedPrompt]:
    """The ids of each text whose vector is asked for. Raises `RequestError`."""
    _check_without_soft_prompt(request, model)
    fields = EmbeddingPrompt(input=request.input, add_special_tokens=request.add_special_tokens)
    return _checked(fields, request, model)


def classify_prompts(request: ClassifyRequest, model: ServedModel) -> list[EncodedPrompt]:
    """The ids of each text to classify. Raises `RequestError`."""
    _check_without_soft_prompt(request, model)
    fields = ClassifyPrompt(input=request.input, add_special_tokens=request.add_special_tokens)
    return _checked(fields, request, model)


def pair_prompts(request: RerankRequest | ScoreRequest, model: ServedModel) -> list[EncodedPrompt]:
    """The ids of each pair to score, or of each text of them. Raises `RequestError`."""
    _check_without_soft_prompt(request, model)
    return _checked(request.compared, request, model)


def tokenize_prompt(request: TokenizeRequest, model: ServedModel, images: Sequence[DecodedImage] = ()) -> list[int]:
    """The ids `/tokenize` answers with. Raises `RequestError`."""
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("prompt", "send either prompt or messages")
    if request.prompt is not None:
        for name in _OF_CHATS:
            if getattr(request, name) is not None:
                raise RequestError(name, f"{name} is about how a chat is rendered; send messages, or leave it out")
        fields: PromptFields = CompletionPrompt(prompt=request.prompt, add_special_tokens=request.add_special_tokens)
    else:
        check_effort(request, model)
        fields = _chat(request)
    [(_, (token_ids, _))] = model.prompts(fields)
    return token_ids if request.messages is None else model.seen(token_ids, images)


def check_effort(request: ChatRequest | TokenizeRequest, model: ServedModel) -> None:
    """Raises `RequestError` for a `reasoning_effort` that the model's template does not know."""
    template = model.tokenizer.chat_template
    if request.reasoning_effort is not None and template is not None and "reasoning_effort" not in template.source:
        raise RequestError(
            "reasoning_effort",
            "reasoning_effort is not known to this model's chat template; leave it out, and use chat_template_kwargs "
            "if the template has such a switch",
            "unsupported_value",
        )


def _check_without_soft_prompt(request: PromptRequest, model: ServedModel) -> None:
    """Raises `RequestError` for an adapter that stands before prompts."""
    if model.num_virtual_tokens(request.model):
        problem = "no vectors are made with soft prompts; leave the adapter out of model"
        raise RequestError("model", problem, "unsupported_operation")


def _chat(request: ChatRequest | TokenizeRequest) -> ChatPrompt:
    return ChatPrompt(
        messages=request.messages or [],
        tools=request.tools,
        chat_template_kwargs=request.chat_template_kwargs,
        reasoning_effort=request.reasoning_effort,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        add_special_tokens=request.add_special_tokens,
    )


def _checked(
    fields: PromptFields, request: PromptRequest, model: ServedModel, images: Sequence[DecodedImage] = ()
) -> list[EncodedPrompt]:
    """A gateway may have sent the ids along; those of another tokenizer are of no use, nor those of a chat with images,
    of which they do not tell how large they are."""
    given = None if images else request.fairlead_prompt_tokens
    prompts: Iterable[tuple[str, EncodedPrompt]]
    if given is None or given.digest != model.tokenizer.digest:
        prompts = model.prompts(fields)
    else:
        try:
            places = fields.places(model.tokenizer)
        except PromptError as error:
            raise request_error(error) from error
        num_given = len(given.prompts)
        if num_given != len(places):
            raise RequestError(FIELD_TOKENS, f"{FIELD_TOKENS} has {num_given} prompts, the request {len(places)}")
        # Errors name the client's own field: the ids may be its own, too.
        starts = given.second_starts or [None] * num_given
        if len(starts) != num_given:
            raise RequestError(FIELD_TOKENS, f"{FIELD_TOKENS} has {num_given} prompts and {len(starts)} second_starts")
        prompts = zip(places, map(EncodedPrompt, given.prompts, starts), strict=True)
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
