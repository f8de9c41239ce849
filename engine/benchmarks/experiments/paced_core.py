"""A core whose steps begin at the ticks of a steady beat, and compute nothing.

It is a process like the real one, with a real engine. Its pace is the query of the model:
`paced://?step_seconds=0.025`.
"""

import sys
import time
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from idle_runner import IdleRunner

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.process import serve_core
from fairlead_engine.types.batch import Batch

IDS = range(300, 1000)
"""That are drawn: words and pieces of them, in a byte-level vocabulary; before them come single bytes."""


class PacedRunner(IdleRunner):
    """Every launch waits for the next tick."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__("block_tables", config.block_size, config.seed, IDS)
        self._step_seconds = float(dict(parse_qsl(urlsplit(config.model).query))["step_seconds"])
        self._tick = time.monotonic()

    def launch(self, batch: Batch) -> Any:
        launched = super().launch(batch)
        self._tick = max(self._tick + self._step_seconds, time.monotonic())
        time.sleep(max(0.0, self._tick - time.monotonic()))
        return launched


if __name__ == "__main__":
    sys.exit(serve_core(lambda config: Engine(config, PacedRunner(config))))
