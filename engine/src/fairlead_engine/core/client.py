"""The engine as the HTTP server sees it: `EngineClient`, an asyncio interface to a core in another thread or process.

`ChannelClient` is the common part: `ProcessClient` runs the core in a child process, `SocketClient` connects to another
process's core. Nothing here imports torch.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol

from fairlead_engine.core import messages
from fairlead_engine.core.request_stream import RequestStream
from fairlead_engine.errors import (
    AdapterError,
    EngineDead,
    EngineError,
    EngineGone,
    InjectionError,
    QueueFull,
    RequestError,
    start_error,
)
from fairlead_engine.types import NO_LOAD, EngineInfo, EngineLoad, EngineRequest, FinishReason, HeldPrompt


class StepListener(Protocol):
    """Hears every report of a core, on the client's event loop, after the client's `load` was updated."""

    def stepped(self, changed: messages.BlocksChanged | None, num_commands: int) -> None:
        """A step or a round of commands is over: its changes to the reusable blocks, None without changes, and the
        number of commands that the load includes. Return at once; do not raise."""


class EngineClient(Protocol):
    """One engine core, as asyncio code uses it. `start` comes first, `close` last; both belong to one event loop."""

    async def start(self) -> EngineInfo:
        """Loads the model and returns once a real forward pass has run. Raises `ModelLoadError`, `KVCacheTooSmall` or
        another `StartError` with the core's own reason and message."""

    def listen(self, listener: StepListener) -> None:
        """Sets the listener of all reports, at most one; call before `start`."""

    def add(self, request: EngineRequest, stream: RequestStream) -> int:
        """Runs one request; the last output in `stream` alone has a finish reason. Returns the command's number, as
        `StepListener.stepped` counts commands.

        A step's outputs are put into all streams at once. A stream fails with `QueueFull` before anything was computed,
        with `EngineDead` when the core died or is closed. Raises `EngineGone` for a core that is dead already,
        `RequestError` for an id that is running.
        """

    def abort(self, request_id: str) -> None:
        """Ends a request: its blocks are free within one step, and its stream ends. An ended request is ignored."""

    async def load_adapter(self, name: str, folder: str) -> None:
        """Loads an adapter; returns when `load` lists it. Raises `AdapterError`, `EngineDead` or `EngineGone`."""

    async def unload_adapter(self, name: str) -> None:
        """Refuses new requests for an adapter; accepted ones go on. Raises the same."""

    def hold(self, hold: str, held: HeldPrompt) -> None:
        """Keeps a prompt, with its adapter now, for later requests (`EngineRequest.hold`). Raises `EngineGone`."""

    def release(self, hold: str) -> None:
        """Ends a hold; an unknown one is ignored."""

    async def inject(self, request_id: str, mark: str, token_ids: list[int]) -> None:
        """Puts tokens into an injectable answer at the next safe place, and returns afterwards;
        `SequenceOutput.injected` marks the place. Raises `InjectionError`, `EngineDead` or `EngineGone`."""

    @property
    def info(self) -> EngineInfo:
        """What `start` returned; `EngineDead` before that."""

    @property
    def load(self) -> EngineLoad:
        """The newest load the core reported."""

    @property
    def num_reports(self) -> int:
        """The number of the newest report; clients of one core count the same ones."""

    @property
    def alive(self) -> bool:
        """Whether the core has started and neither died nor been closed."""

    @property
    def step_age_seconds(self) -> float:
        """Age of the core's oldest unanswered command or running step; 0 = idle. Shows a hanging step."""

    async def close(self) -> None:
        """Stops the core. Requests that still run end with `EngineDead`. May be called twice."""


class _Ask(NamedTuple):
    """A command that awaits its `Answer`."""

    answer: asyncio.Future[None]
    refusal: type[EngineError]


class ChannelClient(ABC):
    """An `EngineClient` over a pair of message lines. Subclasses start a core and carry the messages; they call
    `_handle` for every reply and `_die` when the core is gone, both on the event loop of `start`."""

    _hears_of_every_step = True
    """False = the core reports only steps with something for this client, and answers only this client's commands."""

    def __init__(self) -> None:
        self._streams: dict[str, RequestStream] = {}
        self._asks: dict[int, _Ask] = {}  # by number
        self._holds: set[str] = set()
        self._num_asks = 0
        self._started: asyncio.Future[EngineInfo] | None = None
        self._info: EngineInfo | None = None
        self.load = NO_LOAD
        self.death: str | None = "the engine core has not been started"
        """Why the core takes no commands; None while it lives."""
        self._listener: StepListener | None = None
        self._num_sent = 0
        self.num_reports = 0
        # Monotonic seconds since when the core has owed the next reply; None = it owes nothing.
        self._owed_since: float | None = None

    async def start(self) -> EngineInfo:
        self._started = asyncio.get_running_loop().create_future()
        try:
            await self._launch()
            return await self._started
        except BaseException:
            self._started.cancel()
            await self.close()
            raise

    async def close(self) -> None:
        self._die("the engine core was closed")
        await self._shut_down()

    def listen(self, listener: StepListener) -> None:
        self._listener = listener

    def add(self, request: EngineRequest, stream: RequestStream) -> int:
        request_id = request.request_id
        if request_id in self._streams:
            raise RequestError("request_id", f"a request with the id {request_id!r} is running already")
        self._send(messages.Add(request))
        self._streams[request_id] = stream
        return self._num_sent

    def abort(self, request_id: str) -> None:
        if self._streams.pop(request_id, None) is not None and self.alive:
            self._send(messages.Abort(request_id))

    async def load_adapter(self, name: str, folder: str) -> None:
        await self._ask(lambda ask: messages.LoadAdapter(ask, name, folder), AdapterError)

    async def unload_adapter(self, name: str) -> None:
        await self._ask(lambda ask: messages.UnloadAdapter(ask, name), AdapterError)

    def hold(self, hold: str, held: HeldPrompt) -> None:
        self._send(messages.Hold(hold, held))
        self._holds.add(hold)

    def release(self, hold: str) -> None:
        if hold in self._holds:
            self._holds.remove(hold)
            if self.alive:
                self._send(messages.Abort(hold))

    async def inject(self, request_id: str, mark: str, token_ids: list[int]) -> None:
        await self._ask(lambda ask: messages.Inject(ask, request_id, mark, token_ids), InjectionError)

    async def _ask(self, command: Callable[[int], messages.Command], refusal: type[EngineError]) -> None:
        self._num_asks += 1
        ask = self._num_asks
        self._send(command(ask))
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asks[ask] = _Ask(answer, refusal)
        try:
            await answer
        finally:
            self._asks.pop(ask, None)

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineDead("the engine core has not started")
        return self._info

    @property
    def alive(self) -> bool:
        return self.death is None

    @property
    def step_age_seconds(self) -> float:
        return 0.0 if self._owed_since is None else time.monotonic() - self._owed_since

    @abstractmethod
    async def _launch(self) -> None:
        """Starts the core; `Started` or `Failed` comes later."""

    @abstractmethod
    async def _shut_down(self) -> None:
        """Ends the core and releases everything; may be called twice, and after a failed `_launch`."""

    @abstractmethod
    def _transmit(self, command: messages.Command) -> None:
        """Sends one command to the core, in order, without waiting."""

    def _send(self, command: messages.Command) -> None:
        if self.death is not None:
            raise EngineGone(self.death)
        self._transmit(command)  # first, as what cannot be sent is not owed
        self._num_sent += 1
        if self._owed_since is None:
            self._owed_since = time.monotonic()

    def _handle(self, reply: messages.Reply) -> None:
        starting = self._started if self._started is not None and not self._started.done() else None
        match reply:
            case messages.Stepped(outputs, load, num_commands, changed, number):
                self.load, self.num_reports = load, number
                owes = num_commands < self._num_sent or (self._hears_of_every_step and load.num_sequences > 0)
                self._owed_since = time.monotonic() if owes else None
                for output in outputs:
                    stream = self._streams.get(output.request_id)
                    if stream is None:  # its consumer has just left, and the abort is on its way
                        continue
                    if output.finish_reason is not None:
                        del self._streams[output.request_id]
                    if output.finish_reason is FinishReason.REJECTED:
                        stream.fail(QueueFull(output.message or "the engine's queue is full"))
                    else:
                        stream.put(output)
                if self._listener is not None:
                    self._listener.stepped(changed, num_commands)
            case messages.Answer(ask, problem):
                if (asked := self._asks.get(ask)) is not None and not asked.answer.done():
                    if problem is None:
                        asked.answer.set_result(None)
                    else:
                        asked.answer.set_exception(asked.refusal(problem))
            case messages.Started(info, load) if starting is not None:
                self._info, self.load, self.death = info, load, None
                starting.set_result(info)
            case messages.Failed(reason, message) if starting is not None:
                starting.set_exception(start_error(reason, message))
            case messages.Died(message):
                self._die(message)

    def _die(self, message: str) -> None:
        """Ends every running request with `EngineDead`; only the first cause counts."""
        if self._started is not None and not self._started.done():
            self._started.set_exception(EngineDead(message))
        if self.death is not None:
            return
        self.death = message
        self._owed_since = None
        for stream in self._streams.values():
            stream.fail(EngineDead(message))
        self._streams.clear()
        for asked in self._asks.values():
            if not asked.answer.done():
                asked.answer.set_exception(EngineDead(message))
