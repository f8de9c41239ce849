"""What the server sees of an engine: `EngineClient`, an asyncio interface to a core that runs somewhere else.

`InProcessClient` keeps the core in a thread, `ProcessClient` in a child process, and
`fairlead_engine_testing.ScriptedEngine` has none at all. Nothing here imports torch, so the HTTP process never does.
"""

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from fairlead_engine.core.messages import BlocksChanged
from fairlead_engine.types import EngineInfo, EngineLoad, EngineRequest, SequenceOutput


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

    def generate(
        self, request: EngineRequest, on_sent: Callable[[int], None] | None = None
    ) -> AsyncGenerator[SequenceOutput, None]:
        """Runs one request; the last output, and only that one, has a finish reason.

        Outputs of several steps come merged when the consumer is slower than the engine. Closing the iterator early
        aborts the request: its blocks are free within one step. Nothing is sent before the first `anext`; then
        `on_sent` is called with the command's number, as `StepListener.stepped` counts them.

        Raises `QueueFull` before anything was computed, `EngineDead` when the core died or is closed.
        """
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
