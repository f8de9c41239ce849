"""A real `Engine` on a `FakeRunner`, in this process or as the core process of a `ProcessClient`.

`python -m fairlead_engine_testing.fake_engine` is such a core process. How it misbehaves is written in the query of
`config.model`, since that is all that travels to it: `fake://?step_seconds=0.01&hang_at_step=5`.
"""

import sys
import time
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import start_error
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import SampledToken
from fairlead_engine_testing.fake_runner import BYTES_PER_SLOT, FakeRunner

FAKE_CORE = "fairlead_engine_testing.fake_engine"
"""The module for `ProcessClient(config, module=FAKE_CORE)`."""


class Misbehaviour(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong; steps count from the first one after warm-up."""

    start_error: str = ""
    """The engine cannot start, with this reason."""
    step_seconds: float = 0.0
    """Every step takes at least this long."""
    fail_at_step: int = 0
    """This step raises; 0 = none."""
    hang_at_step: int = 0
    """This step never ends; 0 = none."""

    @classmethod
    def from_model(cls, model: str) -> "Misbehaviour":
        """Reads the query of a `fake://` model."""
        return msgspec.convert(dict(parse_qsl(urlsplit(model).query)), cls, strict=False)


class FlakyRunner(FakeRunner):
    """A `FakeRunner` that is slow, fails or hangs when told to."""

    def __init__(self, misbehaviour: Misbehaviour, *, block_size: int, num_adapter_slots: int = 0) -> None:
        super().__init__(block_size=block_size, num_adapter_slots=num_adapter_slots)
        self.misbehaviour = misbehaviour
        self.num_warm_up_steps: int | None = None

    def launch(self, batch: Batch) -> list[SampledToken | None]:
        if self.num_warm_up_steps is not None:
            step = len(self.batches) - self.num_warm_up_steps + 1
            if step == self.misbehaviour.fail_at_step:
                raise RuntimeError("this step was told to fail")
            if step == self.misbehaviour.hang_at_step:
                time.sleep(3600)
            time.sleep(self.misbehaviour.step_seconds)
        return super().launch(batch)


def fake_config(misbehaviour: str = "", *, num_blocks: int = 64, block_size: int = 4, **changes: Any) -> EngineConfig:
    """A configuration for `make_fake_engine`; `misbehaviour` is a query such as `step_seconds=0.01`."""
    settings: dict[str, Any] = {
        "model": f"fake://?{misbehaviour}",
        "block_size": block_size,
        "kv_cache_memory": num_blocks * block_size * BYTES_PER_SLOT,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        **changes,
    }
    return EngineConfig(**settings)


def make_fake_engine(config: EngineConfig) -> Engine:
    """A real engine on a fake runner. Raises the `StartError` that the configuration asks for."""
    misbehaviour = Misbehaviour.from_model(config.model)
    if misbehaviour.start_error:
        raise start_error(misbehaviour.start_error, "this engine was told not to start")
    runner = FlakyRunner(misbehaviour, block_size=config.block_size, num_adapter_slots=config.num_adapter_slots)
    engine = Engine(config, runner)
    runner.num_warm_up_steps = len(runner.batches)
    return engine


if __name__ == "__main__":
    from fairlead_engine.core.process import serve_core

    sys.exit(serve_core(make_fake_engine))
