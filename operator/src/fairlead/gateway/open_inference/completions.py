"""Requests of the protocol → completions of OpenAI's API, and answers back. Pure.

Inputs, outputs and parameters have the names of Triton's vLLM backend.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from fairlead.gateway.open_inference.messages import Message, ModelInferResponse
from fairlead.gateway.open_inference.tensors import BOOL, BYTES, UINT32, Tensor, add_output, read_tensors
from fairlead.gateway.openai.errors import OpenAIError, bad_request, upstream_failed
from fairlead.gateway.openai.parse import UNREADABLE, check_cost
from fairlead.gateway.openai.sse import Usage
from fairlead_common.openai.translate.chat_answers import DONE, is_error, payloads

COMPLETIONS_PATH = "/v1/completions"
VERSION = "1"
"""Of every model: an LLMDeployment has no versions."""
TEXT_INPUT = "text_input"
STREAM = "stream"
PARAMETERS = "sampling_parameters"
EXCLUDE_INPUT = "exclude_input_in_output"
TEXT_OUTPUT = "text_output"
FINISH_REASON = "finish_reason"
NUM_INPUT_TOKENS = "num_input_tokens"
NUM_OUTPUT_TOKENS = "num_output_tokens"
OUTPUTS = {TEXT_OUTPUT: BYTES, FINISH_REASON: BYTES, NUM_INPUT_TOKENS: UINT32, NUM_OUTPUT_TOKENS: UINT32}
"""Name → data type."""
_RETURNED = {f"return_{name}": name for name in OUTPUTS if name != TEXT_OUTPUT}
"""Input → the optional output."""
INPUTS = {TEXT_INPUT: BYTES, STREAM: BOOL, PARAMETERS: BYTES, EXCLUDE_INPUT: BOOL, **dict.fromkeys(_RETURNED, BOOL)}
"""Name → data type."""
FINAL = "triton_final_response"
"""Parameter of a stream's answers: whether the answer is the request's last."""
_IGNORED = frozenset({"triton_enable_empty_final_response", "binary_data_output"})
"""Parameters without effect here."""
_ELSEWHERE = {
    "model": "is no sampling parameter; the message's model_name says it",
    "prompt": f"is no sampling parameter; send the input {TEXT_INPUT}",
    "messages": f"are not taken here; send the input {TEXT_INPUT}, or a chat by HTTP",
    "stream": f"is no sampling parameter; send the input {STREAM}",
    "stream_options": "is no sampling parameter; the last answer has the counts of tokens",
    "echo": f"is no sampling parameter; send the input {EXCLUDE_INPUT}",
    "lora_name": "is no sampling parameter; the message's model_name says it, as MODEL:ADAPTER",
    "timeout": "is not kept here; set a deadline on the call",
    "sequence_id": "is for models with a state; send the whole prompt",
    "sequence_start": "is for models with a state; send the whole prompt",
    "sequence_end": "is for models with a state; send the whole prompt",
}
"""Refused parameters → advice."""
_NUMBERS: dict[str, type[int | float]] = {
    **dict.fromkeys(("max_tokens", "min_tokens", "top_k", "n", "best_of", "seed", "logprobs", "prompt_logprobs"), int),
    **dict.fromkeys(("temperature", "top_p", "min_p", "length_penalty", "repetition_penalty"), float),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), float),
}
"""Numeric parameters; clients of Triton may write the number as a text."""
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _TextChoice(msgspec.Struct, frozen=True):
    """A text, or in a stream more of one."""

    text: str = ""
    index: int = 0
    finish_reason: str | None = None


class _Answer(msgspec.Struct, frozen=True):
    """A completion's answer, or a chunk of its stream."""

    choices: list[_TextChoice]
    usage: Usage | None = None


_answer_decoder = msgspec.json.Decoder(_Answer)


class TextCompletion:
    """One ModelInferRequest, and its answers."""

    def __init__(self, request: Message) -> None:
        """Raises OpenAIError (400, 404) with the name of the input or parameter."""
        check_version(request.model_version)
        if not request.model_name:
            raise bad_request("model_name: is missing; name a model.", param="model_name")
        tensors = read_tensors(request, INPUTS)
        if TEXT_INPUT not in tensors:
            raise bad_request(f"{TEXT_INPUT}: is missing; send the prompt as an input of this name.", param=TEXT_INPUT)
        self._request = request
        self._raw = bool(request.raw_input_contents)
        """The form of the request's contents, and so of the answer's."""
        self._wanted = _outputs(request, tensors)
        self._texts = tensors[TEXT_INPUT]
        self._fields = _parameters(request, tensors.get(PARAMETERS))
        self._fields |= _as_json(model=request.model_name)
        self._prompts = _prompts(self._texts)
        self.num_bytes = sum(len(bytes(each)) for each in self._texts.elements)
        """Of the prompts."""
        if EXCLUDE_INPUT in tensors and not _flag(EXCLUDE_INPUT, tensors):
            self._fields |= _as_json(echo=True)
        self.is_streamed = _flag(STREAM, tensors)
        if self.is_streamed:
            if len(self._texts.elements) > 1 or bytes(self._fields.get("n", b"1")) != b"1":
                problem = "a stream has one prompt and n = 1; send requests of their own, or no stream"
                raise bad_request(f"{STREAM}: {problem}.", param=STREAM)
            self._fields |= _as_json(stream=True, stream_options={"include_usage": True})
        self._last = ""
        self._finish_reason: str | None = None
        self._usage: Usage | None = None

    def body(self) -> bytes:
        """The completion in JSON; takes some 5 ms a megabyte."""
        return msgspec.json.encode(self._fields | _as_json(prompt=self._prompts))

    def whole(self, body: bytes) -> Message:
        """The answer, from a completion's whole answer in JSON. Raises OpenAIError (502)."""
        answer = _decoded(body)
        choices = sorted(answer.choices, key=lambda choice: choice.index)
        reasons = [choice.finish_reason or "" for choice in choices]
        return self._response([choice.text for choice in choices], reasons, answer.usage)

    def events(self, data: bytes) -> Iterator[Message | OpenAIError]:
        """Answers with more text, from whole events of a stream; the last answer has the rest and the counts. An error
        ends the stream."""
        for payload in payloads(data):
            if payload == DONE:
                last = self._response([self._last], [self._finish_reason or ""], self._usage)
                last.parameters[FINAL].bool_param = True
                yield last
            elif is_error(payload):
                yield error_of(502, payload)
            else:
                yield from self._more(payload)

    def _more(self, payload: bytes) -> Iterator[Message]:
        try:
            chunk = _answer_decoder.decode(payload)
        except UNREADABLE:
            return  # a comment of some server
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices[:1]:
            if choice.finish_reason is not None:
                self._last += choice.text
                self._finish_reason = choice.finish_reason
            elif choice.text:
                response = self._response([choice.text])
                response.parameters[FINAL].bool_param = False
                yield response

    def _response(self, texts: list[str], reasons: list[str] | None = None, usage: Usage | None = None) -> Message:
        """`reasons`: None = more text follows."""
        response = answer_to(self._request)
        shape = (len(texts), *[1] * (len(self._texts.shape) - 1))
        for name, values in ((TEXT_OUTPUT, texts), (FINISH_REASON, reasons)):
            if values is not None and name in self._wanted:
                add_output(response, name, BYTES, shape, [value.encode() for value in values], raw=self._raw)
        counts = {} if usage is None else _counts(usage)
        for name, count in counts.items():
            if count is not None and name in self._wanted:
                add_output(response, name, UINT32, (1,), [count], raw=self._raw)
        return response


def answer_to(request: Message) -> Message:
    """A ModelInferResponse without outputs."""
    return ModelInferResponse(model_name=request.model_name, model_version=VERSION, id=request.id)


def check_version(version: str) -> None:
    """Raises OpenAIError (404)."""
    if version not in ("", VERSION):
        message = f"model_version: models have the version {VERSION!r} alone; leave it out."
        raise OpenAIError(404, message, param="model_version", code="model_not_found")


def error_of(status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> OpenAIError:
    """The error in a body, with the input's name in place of the field's."""
    told: Any = {}
    try:
        told = msgspec.json.decode(body).get("error")
        message, param = told["message"], told.get("param")
    except (*UNREADABLE, AttributeError, KeyError, TypeError):
        message, param = f"What serves this model answered with HTTP {status}.", None
    if param == "prompt":
        message, param = f"{TEXT_INPUT}: {message}", TEXT_INPUT
    return OpenAIError(status, str(message), param=param, headers=headers)


def _counts(usage: Usage) -> dict[str, int | None]:
    return {NUM_INPUT_TOKENS: usage.prompt_tokens, NUM_OUTPUT_TOKENS: usage.completion_tokens}


def _decoded(body: bytes) -> _Answer:
    try:
        return _answer_decoder.decode(body)
    except UNREADABLE as error:
        raise upstream_failed("What serves this model does not answer completions.") from error


def _as_json(**fields: Any) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}


def _outputs(request: Message, tensors: dict[str, Tensor]) -> frozenset[str]:
    """The requested outputs, or all. Raises OpenAIError (400)."""
    wanted = {output.name for output in request.outputs} or set(OUTPUTS)
    if unknown := sorted(wanted - OUTPUTS.keys()):
        message = f"outputs: {unknown[0][:64]!r} is no output of a model; there are {', '.join(OUTPUTS)}."
        raise bad_request(message, param="outputs")
    return frozenset(wanted - {output for name, output in _RETURNED.items() if not _flag(name, tensors, default=True)})


def _flag(name: str, tensors: dict[str, Tensor], *, default: bool = False) -> bool:
    """Raises OpenAIError (400)."""
    return bool(_single(name, tensors[name])) if name in tensors else default


def _single(name: str, tensor: Tensor) -> bytes | bool:
    """Raises OpenAIError (400)."""
    if len(tensor.elements) != 1:
        raise bad_request(f"{name}: has {len(tensor.elements)} elements; send 1.", param=name)
    return tensor.elements[0]


def _prompts(tensor: Tensor) -> str | list[str]:
    """Raises OpenAIError (400)."""
    texts = [_text(TEXT_INPUT, element) for element in tensor.elements]
    if not texts:
        raise bad_request(f"{TEXT_INPUT}: has no element; send a prompt.", param=TEXT_INPUT)
    return texts[0] if len(texts) == 1 else texts


def _text(name: str, data: bytes | bool) -> str:
    """Raises OpenAIError (400)."""
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise bad_request(f"{name}: is not text in UTF-8.", param=name) from error


def _parameters(request: Message, tensor: Tensor | None) -> dict[str, msgspec.Raw]:
    """Fields of the completion: the message's parameters, overridden by the input's. Raises OpenAIError (400)."""
    fields = {name: _value(name, given) for name, given in request.parameters.items() if name not in _IGNORED}
    text = fields.pop(PARAMETERS, None)
    fields = {name: _known(f"parameters.{name}", name, raw) for name, raw in fields.items()}
    data = _text_of(text) if tensor is None else _single(PARAMETERS, tensor)
    for name, raw in _object(bytes(data)).items():
        fields[name] = _known(f"{PARAMETERS}.{name}", name, raw)
    return fields


def _value(name: str, given: Message) -> msgspec.Raw:
    """Raises OpenAIError (400)."""
    kind = given.WhichOneof("parameter_choice")
    value = None if kind is None else getattr(given, kind)
    if isinstance(value, float) and not math.isfinite(value):
        raise bad_request(f"parameters.{name[:64]}: is {value}; send a finite number.", param="parameters")
    return msgspec.Raw(msgspec.json.encode(value))


def _text_of(raw: msgspec.Raw | None) -> bytes:
    """The value of the message's parameter with the input's name. Raises OpenAIError (400)."""
    try:
        return msgspec.json.decode(raw or b'"{}"', type=str).encode()
    except UNREADABLE as error:
        message = f"parameters.{PARAMETERS}: must be a text with a JSON object."
        raise bad_request(message, param=PARAMETERS) from error


def _object(data: bytes) -> dict[str, msgspec.Raw]:
    """Raises OpenAIError (400)."""
    check_cost(data)
    try:
        return _fields_decoder.decode(_text(PARAMETERS, data))
    except UNREADABLE as error:
        raise bad_request(f"{PARAMETERS}: must be a JSON object: {error}.", param=PARAMETERS) from error


def _known(place: str, name: str, raw: msgspec.Raw) -> msgspec.Raw:
    """The parameter's value, with numbers in texts as numbers. Raises OpenAIError (400)."""
    if name in _ELSEWHERE:
        raise bad_request(f"{place} {_ELSEWHERE[name]}.", param=name)
    number = _NUMBERS.get(name)
    if number is None or not bytes(raw).startswith(b'"'):
        return raw
    return _number(place, raw, number)


def _number(place: str, raw: msgspec.Raw, number: Callable[[str], int | float]) -> msgspec.Raw:
    """Raises OpenAIError (400)."""
    text = ""
    try:
        text = msgspec.json.decode(raw, type=str)
        value = number(text) if len(text) <= 64 else math.nan
    except (ValueError, *UNREADABLE):
        value = math.nan
    if not math.isfinite(value):
        wanted = "whole number" if number is int else "number"
        raise bad_request(f"{place}: {text[:64]!r} is no {wanted}.", param=place.rpartition(".")[2])
    return msgspec.Raw(msgspec.json.encode(value))
