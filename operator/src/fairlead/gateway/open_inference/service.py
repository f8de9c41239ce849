"""The protocol's methods, and gRPC's own health check.

Every method is registered as a stream of bytes, with the same bytes on the wire: the API key is checked before a
message is read, and bytes that are no message get a sentence.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from fairlead import __version__
from fairlead.gateway.app import GatewayApp
from fairlead.gateway.open_inference import messages
from fairlead.gateway.open_inference.completions import (
    COMPLETIONS_PATH,
    FINAL,
    INPUTS,
    OUTPUTS,
    STREAM,
    TEXT_INPUT,
    VERSION,
    TextCompletion,
    answer_to,
    check_version,
    error_of,
)
from fairlead.gateway.open_inference.exchange import AppAnswer, AppExchange, OnEvents
from fairlead.gateway.open_inference.messages import Message, decoded
from fairlead.gateway.open_inference.statuses import code_of, details_of, headers_of, metadata_of
from fairlead.gateway.openai import errors
from fairlead.gateway.openai.errors import Header, OpenAIError, bad_request
from fairlead.gateway.openai.routes import find_model

logger = logging.getLogger(__name__)

INFERENCE_SERVICE = "inference.GRPCInferenceService"
HEALTH_SERVICE = "grpc.health.v1.Health"
PLATFORM = "fairlead"
EXTENSIONS = ("parameters", "model_stream_infer")
MOST_AT_ONCE = 128
"""Requests of a stream served at the same time; later requests wait unread."""
_STRICT = (b"triton_grpc_error", b"true")
"""With this header an error ends the stream with a status; without, an error is a message, and the stream goes on."""
_VARIABLE = -1
_TAKES_REQUESTS = frozenset({"ready", "asleep"})
"""States of ready models: the next request wakes a model that is asleep."""


class Answered(Exception):
    """The end of a call by an error that the application has counted."""

    def __init__(self, error: OpenAIError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(eq=False)
class GrpcCall:
    """One call of a client."""

    context: Any
    path: str
    headers: list[Header]
    client: str | None = None
    """The name of the API key's owner; None = no keys are used."""
    is_interrupted: bool = False
    """Whether this gateway drains, and reads no further request of the stream."""
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def write(self, message: Message) -> None:
        """Sends a message; waits while the client is behind."""
        async with self._writing:
            await self.context.write(message.SerializeToString())

    async def abort(self, error: OpenAIError) -> None:
        """Ends the call."""
        await self.context.abort(code_of(error.status), details_of(error), metadata_of(error.headers))


Single = Callable[[GrpcCall, Message], Awaitable[Message]]
"""A method with one request and one answer. Raises OpenAIError and Answered."""


class InferenceService:
    """Serves calls."""

    def __init__(self, app: GatewayApp) -> None:
        self._app = app
        self._running: set[asyncio.Task[AppAnswer]] = set()
        self._reads: set[asyncio.Task[Any]] = set()
        """Pending reads of streams; a client may keep a stream open without requests."""
        self._closed = False

    def handlers(self) -> tuple[Any, ...]:
        """The methods of both services, for a gRPC server."""
        singles: dict[str, tuple[Single, bool]] = {
            "ServerLive": (self._server_live, False),
            "ServerReady": (self._server_ready, False),
            "ModelReady": (self._model_ready, True),
            "ServerMetadata": (self._server_metadata, True),
            "ModelMetadata": (self._model_metadata, True),
            "ModelInfer": (self._model_infer, True),
        }
        kinds = messages.methods(INFERENCE_SERVICE)
        served = {name: self._single(name, kinds[name], *method) for name, method in singles.items()}
        served["ModelStreamInfer"] = self._handler(f"/{INFERENCE_SERVICE}/ModelStreamInfer", self._stream, True)
        kind = messages.methods(HEALTH_SERVICE)["Check"]
        health = {"Check": self._single("Check", kind, self._check, False)}
        make = grpc.method_handlers_generic_handler
        return make(INFERENCE_SERVICE, served), make(HEALTH_SERVICE, health)

    def close(self) -> None:
        """Streams end after the answers to the requests read so far."""
        self._closed = True
        for read in self._reads:
            read.cancel()

    def cut(self) -> None:
        """Ends running requests: each client gets an error."""
        for task in self._running:
            task.cancel()

    # -- Calls ---------------------------------------------------------------------------------------------------------

    def _handler(self, path: str, serve: Callable[[GrpcCall], Awaitable[None]], is_keyed: bool) -> Any:
        """Errors become the call's status."""

        async def called(_: Any, context: Any) -> None:
            call = GrpcCall(context, path, headers_of(context.invocation_metadata()))
            try:
                if is_keyed:
                    call.client = self._app.access.client(call.headers)  # 401 here, before anything is read
                await serve(call)
            except OpenAIError as error:
                self._count(error, call)
                await call.abort(error)
            except Answered as answered:
                await call.abort(answered.error)
            except Exception as error:
                if not context.done():
                    logger.error("a call of %s failed in the gateway", path, exc_info=error)
                    await call.abort(errors.internal_error())

        return grpc.stream_stream_rpc_method_handler(called)

    def _single(self, name: str, kind: Any, method: Single, is_keyed: bool) -> Any:
        async def serve(call: GrpcCall) -> None:
            data = await self._read(call)
            await self._app.pacer.pace(len(data))
            await call.write(await method(call, decoded(kind, data)))

        return self._handler(f"/{INFERENCE_SERVICE}/{name}", serve, is_keyed)

    def _count(self, error: OpenAIError, call: GrpcCall) -> None:
        self._app.refusals.refused(error, call.path, client=call.client)

    async def _read(self, call: GrpcCall) -> bytes:
        """The message of a call with a single message. Raises OpenAIError (400, 408)."""
        timeout = self._app.settings.body_timeout
        try:
            async with asyncio.timeout(timeout):
                data = await call.context.read()
        except TimeoutError as error:
            raise errors.body_stalled(timeout) from error
        if data is grpc.aio.EOF:
            raise bad_request("The call has no message; send one.")
        return bytes(data)

    async def _next(self, call: GrpcCall) -> bytes | None:
        """The next request of a stream; None = the client has ended the stream, or this gateway drains."""
        if self._closed:
            call.is_interrupted = True
            return None
        read = asyncio.ensure_future(call.context.read())
        self._reads.add(read)
        try:
            await asyncio.wait((read,))
        finally:
            self._reads.discard(read)
            read.cancel()
        call.is_interrupted = read.cancelled()
        return None if read.cancelled() or read.result() is grpc.aio.EOF else bytes(read.result())

    async def _exchange(
        self, call: GrpcCall, completion: TextCompletion, on_events: OnEvents | None = None
    ) -> AppAnswer:
        """Serves a completion by the gateway's application. Raises Answered for errors and clients that do not read."""
        await self._app.pacer.pace(completion.num_bytes)
        exchange = AppExchange(self._app, on_events)
        task = asyncio.create_task(exchange.run(COMPLETIONS_PATH, call.headers, completion.body()))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:  # the client has cancelled, left, or set a deadline that is over
            exchange.leave()
            raise
        if task.cancelled():
            raise Answered(errors.shutting_down())
        answer = task.result()
        if answer.status == 0:
            raise Answered(OpenAIError(408, "The answer was not read; open another call, and read what comes."))
        if answer.status >= 400:
            raise Answered(error_of(answer.status, answer.body, answer.headers))
        return answer

    # -- Questions -----------------------------------------------------------------------------------------------------

    async def _server_live(self, call: GrpcCall, request: Message) -> Message:
        return messages.ServerLiveResponse(live=True)

    async def _server_ready(self, call: GrpcCall, request: Message) -> Message:
        return messages.ServerReadyResponse(ready=self._app.ready)

    async def _check(self, call: GrpcCall, request: Message) -> Message:
        if request.service not in ("", INFERENCE_SERVICE, HEALTH_SERVICE):
            raise OpenAIError(404, f"There is no service {request.service[:128]!r}; ask for {INFERENCE_SERVICE}.")
        return messages.HealthCheckResponse(status="SERVING" if self._app.ready else "NOT_SERVING")

    async def _server_metadata(self, call: GrpcCall, request: Message) -> Message:
        return messages.ServerMetadataResponse(name=PLATFORM, version=__version__, extensions=EXTENSIONS)

    async def _model_ready(self, call: GrpcCall, request: Message) -> Message:
        entry = self._entry(request.name)
        ready = entry is not None and entry["state"] in _TAKES_REQUESTS and request.version in ("", VERSION)
        return messages.ModelReadyResponse(ready=ready)

    async def _model_metadata(self, call: GrpcCall, request: Message) -> Message:
        if self._entry(request.name) is None:
            raise errors.model_not_found(request.name, self._app.pools.fleet.directory.served_names)
        check_version(request.version)
        answer = messages.ModelMetadataResponse(name=request.name, versions=(VERSION,), platform=PLATFORM)
        for name, datatype in INPUTS.items():
            answer.inputs.add(name=name, datatype=datatype, shape=(_VARIABLE if name == TEXT_INPUT else 1,))
        for name, datatype in OUTPUTS.items():
            answer.outputs.add(name=name, datatype=datatype, shape=(_VARIABLE if datatype == "BYTES" else 1,))
        return answer

    def _entry(self, name: str) -> dict[str, Any] | None:
        """Raises OpenAIError (503)."""
        if not self._app.pools.fleet.synced:
            raise errors.not_synced()
        return find_model(self._app.pools.fleet.directory, name)

    # -- Inference -----------------------------------------------------------------------------------------------------

    async def _model_infer(self, call: GrpcCall, request: Message) -> Message:
        completion = TextCompletion(request)
        if completion.is_streamed:
            raise bad_request(f"{STREAM}: ModelInfer answers once; call ModelStreamInfer.", param=STREAM)
        answer = await self._exchange(call, completion)
        response = completion.whole(answer.body)
        await call.context.send_initial_metadata(metadata_of(answer.headers))
        return response

    async def _stream(self, call: GrpcCall) -> None:
        """Answers each request when done; errors are messages."""
        room = asyncio.Semaphore(MOST_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                while (data := await self._next(call)) is not None:
                    await room.acquire()
                    group.create_task(self._of_stream(call, data)).add_done_callback(lambda _: room.release())
        except* Answered as failed:
            raise failed.exceptions[0] from None
        if call.is_interrupted:
            raise Answered(errors.shutting_down())

    async def _of_stream(self, call: GrpcCall, data: bytes) -> None:
        """A request of a stream. Raises Answered where an error ends the whole stream."""
        about = messages.ModelInferResponse()
        await self._app.pacer.pace(len(data))
        try:
            request = decoded(messages.ModelInferRequest, data)
            about = answer_to(request)
            await self._infer(call, TextCompletion(request))
            return
        except OpenAIError as error:
            self._count(error, call)
            failure = error
        except Answered as answered:
            failure = answered.error
        if _STRICT in call.headers or failure.status == 408:
            raise Answered(failure)
        about.parameters[FINAL].bool_param = True
        await call.write(messages.ModelStreamInferResponse(error_message=failure.message, infer_response=about))

    async def _infer(self, call: GrpcCall, completion: TextCompletion) -> None:
        """Answers a request of a stream. Raises Answered and OpenAIError (502)."""
        failures: list[OpenAIError] = []

        async def on_events(data: bytes) -> None:
            for answer in completion.events(data):
                if isinstance(answer, OpenAIError):
                    failures.append(answer)
                else:
                    await call.write(messages.ModelStreamInferResponse(infer_response=answer))

        answer = await self._exchange(call, completion, on_events)
        if failures:
            raise Answered(failures[0])
        if not answer.is_stream:
            whole = completion.whole(answer.body)
            whole.parameters[FINAL].bool_param = True
            await call.write(messages.ModelStreamInferResponse(infer_response=whole))
