"""Shared state of the front's endpoints: the server, the stream for followers, the lifecycle.

Wired once per process, by `front_process` or a test.
"""

import asyncio
from pathlib import Path

from fairlead_common.http.bodies import BodyReader
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_common.wire import messages
from fairlead_common.wire.messages import ModelInfo
from fairlead_engine.errors import Draining, NotReady
from fairlead_engine.external.foreign_engine import ForeignEngine, ForeignModel
from fairlead_engine.external.front_config import FrontConfig
from fairlead_engine.external.front_core import FrontCore
from fairlead_engine.host.engine_stream import EngineStream
from fairlead_engine.host.lifecycle import Lifecycle, Phase
from fairlead_engine.host.metrics import Metrics
from fairlead_engine.model.tokenizer_files import read_tokenizer, template_text

_MAX_PARTIAL_BODY_BYTES = 64 * 2**20


class FrontService:
    """One server and everything that requests need."""

    def __init__(self, config: FrontConfig, engine: ForeignEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.lifecycle = Lifecycle()
        self.client = FrontCore(engine, config, loop.time)
        self.stream = EngineStream(self.client, self.lifecycle)
        self.client.on_change = self.stream.stepped
        self.metrics = Metrics(config.name)
        self.bodies = BodyReader(
            limit=config.max_body_bytes, timeout=config.body_timeout, total_limit=_MAX_PARTIAL_BODY_BYTES
        )
        self.tokenizer: PromptTokenizer | None = None

    def read_files(self) -> None:
        """The model's tokenizer. Raises ModelLoadError."""
        self.tokenizer = read_tokenizer(Path(self.config.model), template_text(self.config.chat_template))

    def ready(self, model: ForeignModel) -> None:
        """The server serves: from now on requests are taken."""
        self.stream.mirror.block_size = model.block_size
        self.lifecycle.ready()

    def model(self) -> ForeignModel:
        """The served model. Raises `NotReady`, or `Draining` when it never will be."""
        if self.lifecycle.phase is Phase.LOADING or self.client.model is None:
            raise (
                Draining
                if self.lifecycle.is_draining
                else NotReady(f"the server behind this front does not serve: {self.client.trouble}")
            )
        return self.client.model

    def model_info(self) -> ModelInfo:
        """How prompts are to be prepared. Raises the same."""
        model, config, tokenizer = self.model(), self.config, self.tokenizer
        assert tokenizer is not None
        return ModelInfo(
            engine_version=f"{self.client.engine.name} {model.version}",
            served_name=config.name,
            digest=tokenizer.digest,
            tokenizer_json=tokenizer.tokenizer_json,
            chat_template=tokenizer.chat_template.source if tokenizer.chat_template else None,
            special_tokens=tokenizer.special_tokens,
            block_size=model.block_size,
            max_model_len=model.max_model_len,
            max_num_seqs=config.max_num_seqs,
            max_num_queued_tokens=config.queued_tokens,
            max_num_batched_tokens=config.max_num_batched_tokens,
            num_kv_blocks=model.num_kv_blocks,
            dtype="",
            device="",
            architecture=self.client.engine.name,
        )

    def drain(self) -> None:
        """Begins to drain as configured; returns at once."""
        self.lifecycle.drain(grace_seconds=self.config.drain_grace, timeout_seconds=self.config.drain_timeout)
        self.stream.tell_load()

    def readiness_problem(self) -> tuple[str, str] | None:
        """Why no requests should be sent here, as (reason, sentence); None when they should."""
        if self.lifecycle.is_draining:
            return messages.REASON_DRAINING, "this engine is shutting down"
        if self.lifecycle.phase is Phase.LOADING or self.client.model is None:
            return messages.REASON_LOADING, f"the server behind this front does not serve: {self.client.trouble}"
        age = self.client.step_age_seconds
        if age > self.config.step_timeout:
            return messages.REASON_ENGINE_DEAD, f"nothing has come of the server for {age:.0f} s while requests run"
        return None
