"""What the server sees of an engine: `EngineClient`, an asyncio interface to a core that runs somewhere else.

`InProcessClient` keeps the core in a thread, `ProcessClient` in a child process, `SocketClient` shares one, and
`fairlead_engine_testing.ScriptedEngine` has none at all. Nothing here imports torch, so the HTTP process never does.
"""

from typing import Protocol

from fairlead_engine.core.messages import BlocksChanged
from fairlead_engine.core.request_stream import RequestStream
from fairlead_engine.types import EngineInfo, EngineLoad, EngineRequest, Held


class StepListener(Protocol):
    """Hears of every report of a core, on the client's event loop, after the client's `load` is that report's."""

    def stepped(self, changed: BlocksChanged | None, num_commands: int) -> None:
        """A step or a round of commands is over: what it did to the reusable blocks, if it did anything, and how many
        commands its load includes. Must return at once and not raise."""
        ...


class EngineClient(Protocol):
    """One engine core, as asyncio code uses it. `start` comes first, `close` last; both belong to one event loop."""

    async def start(self) -> EngineInfo:
        """Loads the model and returns once a real forward pass has run.

        Raises `ModelLoadError`, `KVCacheTooSmall` or another `StartError` with the core's own reason and message.
        """
        ...

    def listen(self, listener: StepListener) -> None:
        """From now on `listener` hears of every report; call it before `start`. There is at most one."""
        ...

    def add(self, request: EngineRequest, stream: RequestStream) -> int:
        """Runs one request; the last output in `stream`, and only that one, has a finish reason. Returns the command's
        number, as `StepListener.stepped` counts them.

        The outputs of a step are put into all streams in one go, before the loop turns to anything else. A stream fails
        with `QueueFull` before anything was computed, with `EngineDead` when the core died or is closed. Raises
        `EngineGone` when it had done so before, `RequestError` for an id that is running already.
        """
        ...

    def abort(self, request_id: str) -> None:
        """Nobody wants the request's outputs any more: its blocks are free within one step, and its stream gets nothing
        more. Nothing happens when it has ended already."""
        ...

    async def load_adapter(self, name: str, folder: str) -> None:
        """Has the core load an adapter beside its steps; returns when requests may ask for it, and this client's `load`
        says so. Raises `AdapterError`, `EngineDead` or `EngineGone`."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Has the core take no more requests for it; those that are there go on. Raises the same."""
        ...

    def hold(self, hold: str, held: Held) -> None:
        """Has the core keep this, with the adapter that has its name now, for requests that will name the hold
        (`EngineRequest.hold`); `hold` is no request's id. Raises `EngineGone`."""
        ...

    def release(self, hold: str) -> None:
        """No more such requests come. Nothing happens where nothing is held."""
        ...

    async def inject(self, request_id: str, mark: str, token_ids: list[int]) -> None:
        """Has the core put tokens into the answer of a request that allows it, at the next safe place. Returns when
        they are there; `SequenceOutput.injected` says so between the tokens before and behind them, by `mark`. Raises
        `InjectionError`, `EngineDead` or `EngineGone`."""
        ...

    @property
    def info(self) -> EngineInfo:
        """What `start` returned; `EngineDead` before that."""
        ...

    @property
    def load(self) -> EngineLoad:
        """The newest load the core reported."""
        ...

    @property
    def num_reports(self) -> int:
        """The number of the newest report; clients of one core count the same ones."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the core has started and neither died nor been closed."""
        ...

    @property
    def step_age_seconds(self) -> float:
        """How long the core has owed an answer: the age of the running step, 0 when it has nothing to do.

        A step that hangs shows here, since the core can no longer say so itself.
        """
        ...

    async def close(self) -> None:
        """Stops the core. Requests that still run end with `EngineDead`. May be called twice."""
        ...
