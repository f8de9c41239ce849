"""The Open Inference Protocol at a gateway, by Triton's own client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import generate_grpc
import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from fairlead.gateway import gateway_settings
from fairlead.gateway.access import KeyedAccess
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.open_inference import messages
from fairlead.gateway.open_inference.completions import TextCompletion
from fairlead_common.settings import SettingError
from fairlead_testing.fake_engine import Death
from fairlead_testing.fake_engine.engine import Refusal

TEXT = "Hello, world!"
INFER = "/inference.GRPCInferenceService/ModelInfer"


def tensor(name: str, *values: Any) -> triton.InferInput:
    """Of BYTES, or of BOOL."""
    is_bool = isinstance(values[0], bool)
    given = np.array(values, dtype=bool if is_bool else object)
    made = triton.InferInput(name, list(given.shape), "BOOL" if is_bool else "BYTES")
    made.set_data_from_numpy(given)
    return made


PROMPT = tensor("text_input", b"ahoy")
STREAM = tensor("stream", True)


@asynccontextmanager
async def client(setup: Any) -> AsyncIterator[triton.InferenceServerClient]:
    async with triton.InferenceServerClient(f"127.0.0.1:{setup.gateway.grpc_port}") as made:
        yield made


async def streamed(
    client: triton.InferenceServerClient, *requests: list[triton.InferInput], headers: Any = None, model: str = "fake"
) -> list[Any]:
    """Each answer of a stream with these requests, whose ids are their numbers: a result or an error."""

    async def sent() -> AsyncIterator[dict[str, Any]]:
        for index, inputs in enumerate(requests):
            yield {"model_name": model, "inputs": inputs, "request_id": str(index)}

    return [error or result async for result, error in client.stream_infer(sent(), headers=headers)]


async def test_health_and_metadata(start) -> None:
    setup = await start(grpc_port=0)
    async with client(setup) as asked:
        assert await asked.is_server_live() and await asked.is_server_ready() and await asked.is_model_ready("fake")
        assert not await asked.is_model_ready("none") and not await asked.is_model_ready("fake", "2")
        assert (await asked.get_server_metadata()).name == "fairlead"
        model = await asked.get_model_metadata("default/fake")
        assert [each.name for each in model.outputs][:2] == ["text_output", "finish_reason"]
        assert (model.inputs[0].name, model.inputs[0].datatype, list(model.inputs[0].shape)) == (
            "text_input",
            "BYTES",
            [-1],
        )
        with pytest.raises(InferenceServerException, match=r"'none' does not exist\. Served: 'fake'") as refused:
            await asked.get_model_metadata("none")
        assert refused.value.status() == "StatusCode.NOT_FOUND"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{setup.gateway.grpc_port}") as channel:
        assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"
        setup.gateway.app.draining = True
        assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x02"


async def test_a_request_is_a_completion_that_is_counted(start) -> None:
    setup = await start(grpc_port=0)
    parameters = {"max_tokens": "5", "temperature": "0.5", "stop": ["\n"]}
    inputs = [PROMPT, tensor("sampling_parameters", json.dumps(parameters).encode())]
    async with client(setup) as asked:
        answer = await asked.infer("fake", inputs, request_id="7", parameters={"seed": 3, "max_tokens": 9})
        echoed = await asked.infer("fake", [*inputs, tensor("exclude_input_in_output", False)])
        only = await asked.infer("fake", [PROMPT], outputs=[triton.InferRequestedOutput("text_output")])
    found = {name: answer.as_numpy(name).tolist() for name in ("text_output", "finish_reason", "num_output_tokens")}
    assert found == {"text_output": [TEXT.encode()], "finish_reason": [b"stop"], "num_output_tokens": [4]}
    assert answer.get_response().id == "7"
    [first, second, _] = [json.loads(request.body) for request in setup.engines[0].requests]
    assert setup.engines[0].requests[0].path == "/v1/completions"
    common = {"max_tokens": 5, "temperature": 0.5, "stop": ["\n"], "prompt": "ahoy", "model": "fake"}
    assert first == {**common, "seed": 3} and second == {**common, "echo": True}
    assert [each.name for each in only.get_response().outputs] == ["text_output"] and echoed
    assert await setup.metric('fairlead_gateway_tokens_total{kind="completion"') == 12


async def test_contents_and_several_prompts(start) -> None:
    setup = await start(grpc_port=0)
    request = service_pb2.ModelInferRequest(model_name="fake")
    prompts = request.inputs.add(name="text_input", datatype="BYTES", shape=[2, 1])
    prompts.contents.bytes_contents.extend([b"one", b"two"])
    async with grpc.aio.insecure_channel(f"127.0.0.1:{setup.gateway.grpc_port}") as channel:
        call = channel.unary_unary(INFER)(request.SerializeToString())
        answer = service_pb2.ModelInferResponse.FromString(await call)
        assert dict(await call.initial_metadata())["x-fairlead-replica"] == "engine-0"
    assert json.loads(setup.engines[0].requests[0].body)["prompt"] == ["one", "two"]
    assert list(answer.outputs[0].contents.bytes_contents) == [TEXT.encode()] and not answer.raw_output_contents
    assert list(answer.outputs[0].shape) == [1, 1]


async def test_streams_tell_texts_errors_and_which_answer_is_the_last(start) -> None:
    setup = await start(grpc_port=0)
    async with client(setup) as asked:
        answers = await streamed(asked, [PROMPT, STREAM], [PROMPT])
        parts = [each for each in answers if each.get_response().id == "0"]
        [whole] = [each for each in answers if each.get_response().id == "1"]
        assert b"".join(each.as_numpy("text_output")[0] for each in parts).decode() == TEXT and len(parts) > 2
        final = [each.get_response().parameters["triton_final_response"].bool_param for each in parts]
        assert final == [False] * (len(parts) - 1) + [True]
        assert parts[-1].as_numpy("num_output_tokens").tolist() == [4]
        assert whole.as_numpy("text_output")[0] == TEXT.encode()
        [unknown] = await streamed(asked, [PROMPT, STREAM], model="none")
        assert "'none' does not exist. Served: 'fake'" in unknown.message()
        setup.engines[0].death = Death.AFTER_ONE_TOKEN
        begun, failed = await streamed(asked, [PROMPT, STREAM])
        assert begun.as_numpy("text_output")[0] == b"Hello" and "in the middle of its answer" in failed.message()
        with pytest.raises(grpc.aio.AioRpcError, match="does not exist") as refused:
            await streamed(asked, [PROMPT], headers={"triton_grpc_error": "true"}, model="none")
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND


def test_answers_of_several_prompts_have_the_prompts_order() -> None:
    request = messages.ModelInferRequest.FromString(raw(shape=[2], contents=[b"\0\0\0\0" * 2]))
    choices = [{"text": "b", "index": 1, "finish_reason": "stop"}, {"text": "a", "index": 0, "finish_reason": None}]
    answer = TextCompletion(request).whole(json.dumps({"choices": choices}).encode())
    outputs = {
        each.name: (list(each.shape), raw) for each, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }
    assert outputs == {
        "text_output": ([2], b"\x01\0\0\0a\x01\0\0\0b"),
        "finish_reason": ([2], b"\0\0\0\0\x04\0\0\0stop"),
    }


def raw(**fields: Any) -> bytes:
    """A request with one input."""
    request = service_pb2.ModelInferRequest(model_name="fake")
    request.raw_input_contents.extend(fields.pop("contents", [b"\x01\0\0\0a"]))
    values = {"name": "text_input", "datatype": "BYTES", "shape": [1]}
    for each in fields.pop("inputs", [fields]):
        request.inputs.add(**values | each)
    return bytes(request.SerializeToString())


def parameters(text: bytes) -> bytes:
    length = len(text).to_bytes(4, "little")
    return raw(inputs=[{}, {"name": "sampling_parameters"}], contents=[b"\x01\0\0\0a", length + text])


WRONG = [
    (b"", "model_name: is missing"),
    (b"\xff\xff", "is not a message of the type inference.ModelInferRequest"),
    (raw(name="prompt"), "inputs: 'prompt' is no input"),
    (raw(datatype="FP32"), "text_input: has the data type 'FP32'; send BYTES"),
    (raw(inputs=[{}, {}], contents=[b"\0\0\0\0"] * 2), "text_input: is there twice"),
    (raw(contents=[b""] * 2), "raw_input_contents: has 2 entries for 1 inputs"),
    (raw(shape=[2]), "text_input: has 1 elements, and its shape says 2"),
    (raw(shape=[-1]), "text_input: has the shape [-1]"),
    (raw(shape=[2**40] * 8), "at most 100,000 elements"),
    (raw(shape=[2**62] * 100_000), "at most 8 sizes"),
    (raw(shape=[0], contents=[b""]), "text_input: has no element"),
    (raw(contents=[b"\xff\xff\xff\xffa"]), "text_input: its raw contents end within element 0"),
    (raw(contents=[b"\x01\0\0\0\xff"]), "text_input: is not text in UTF-8"),
    (parameters(b"[1]"), "sampling_parameters: must be a JSON object"),
    (parameters(b"[" * 500_000), "more than"),
    (parameters(b'{"max_tokens": "many"}'), "sampling_parameters.max_tokens: 'many' is no whole number"),
    (parameters(b'{"prompt": "x"}'), "sampling_parameters.prompt is no sampling parameter; send the input"),
    (raw(inputs=[{"name": "stream", "datatype": "BOOL"}], contents=[b"\x01"]), "text_input: is missing"),
]  # fmt: skip
"""A request, and what its refusal says."""


async def test_what_is_wrong_is_named(start) -> None:
    setup = await start(grpc_port=0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{setup.gateway.grpc_port}") as channel:
        for body, words in WRONG:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(INFER)(body)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT and words in (refused.value.details() or "")
    assert setup.engines[0].requests == [] and f'status="400"}} {len(WRONG)}.0' in await setup.metrics()


async def test_keys_are_those_of_http(start, tmp_path: Path) -> None:
    (tmp_path / "ada").write_text("a" * 20)
    setup = await start(grpc_port=0, access=KeyedAccess(tmp_path))
    async with client(setup) as asked:
        for headers in ({"authorization": f"Bearer {'a' * 20}"}, {"x-api-key": "a" * 20}):
            assert await asked.infer("fake", [PROMPT], headers=headers)
        assert await asked.is_server_ready()
        for headers, words in (
            (None, "wants an API key"),
            ({"x-api-key": "b" * 20}, "not one that this gateway knows"),
        ):
            with pytest.raises(InferenceServerException, match=words) as refused:
                await asked.infer("fake", [PROMPT], headers=headers)
            assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
            with pytest.raises(grpc.aio.AioRpcError, match=words):
                await streamed(asked, [PROMPT], headers=headers)


async def test_who_leaves_is_computed_for_no_longer(start) -> None:
    setup = await start(grpc_port=0)
    engine, forever = setup.engines[0], asyncio.Event()
    engine.pace = lambda index: asyncio.sleep(0) if index == 0 else forever.wait()
    async with client(setup) as asked:
        answers = asked.stream_infer(_once({"model_name": "fake", "inputs": [PROMPT, STREAM]}))
        assert (await anext(answers))[0].as_numpy("text_output")[0] == b"Hello"
        answers.cancel()
        await setup.until(lambda: engine.num_cancelled == 1)
        with pytest.raises(InferenceServerException, match="Deadline"):
            await asked.infer("fake", [PROMPT], client_timeout=0.2)
        await setup.until(lambda: engine.num_cancelled == 2)
    assert 'outcome="disconnected",status="0"} 1.0' in await setup.metrics()


async def _once(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield request


async def test_limits_and_when_to_come_again(start) -> None:
    setup = await start(grpc_port=0, max_queue=1, max_body_bytes=2**20, model={"max_queue_time": 0.05})
    setup.engines[0].refusal = Refusal.UNAVAILABLE
    async with client(setup) as asked:
        with pytest.raises(InferenceServerException, match="larger than max"):
            await asked.infer("fake", [tensor("text_input", b"a" * 2**20)])
        with pytest.raises(InferenceServerException, match="gzip"):
            await asked.infer("fake", [PROMPT], compression_algorithm="gzip")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{setup.gateway.grpc_port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(INFER)(raw())
    told = dict(refused.value.trailing_metadata() or ())
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert (told["retry-after"], told["grpc-retry-pushback-ms"]) == ("1", "1000") and told["x-request-id"]


async def test_a_drain_ends_idle_streams_and_finishes_others(start) -> None:
    setup = await start(grpc_port=0)
    stream, may_go = await setup.begun()
    address = f"127.0.0.1:{setup.gateway.grpc_port}"
    async with grpc.aio.insecure_channel(address) as channel:
        idle = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        running = channel.unary_unary(INFER)(raw())
        await setup.until(lambda: len(setup.engines[0].requests) == 2)
        setup.gateway.stop()
        with pytest.raises(grpc.aio.AioRpcError, match="shutting down") as refused:
            await idle.read()
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        may_go.set()
        assert TEXT.encode() in await running
    stream.close()


@pytest.mark.parametrize(
    ("settings", "problem"), [({"grpc_port": 8080}, "must differ"), ({"grpc_port": 70000}, "between 0 and 65535")]
)
def test_settings_are_checked(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        GatewaySettings(**settings)


def test_without_its_packages_the_port_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_settings, "find_spec", lambda name: None)
    assert GatewaySettings().grpc_port is None
    with pytest.raises(SettingError, match=r"pip install 'fairlead\[grpc\]'"):
        GatewaySettings(grpc_port=0)


def test_the_descriptors_are_those_of_the_files() -> None:
    assert generate_grpc.DESCRIPTORS.read_bytes() == generate_grpc.descriptors(), "run make grpc"


def test_the_messages_are_those_of_the_published_interface() -> None:
    """Names, numbers and types of every field, compared with the client's."""
    theirs = service_pb2.DESCRIPTOR.message_types_by_name
    for name, kind in vars(messages).items():
        if name in theirs:
            assert _fields(kind.DESCRIPTOR) == _fields(theirs[name])


def _fields(kind: Any) -> dict[str, Any]:
    return {
        field.name: (field.number, field.type, field.is_repeated, field.message_type and _fields(field.message_type))
        for field in kind.fields
    }
