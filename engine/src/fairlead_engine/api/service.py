"""Shared state of the endpoints: the engine client, the model once it is loaded, the lifecycle and the metrics.

Wired once per process, by `ServerProcess` or a test. Knows neither JSON nor HTTP.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from fairlead_common.http.bodies import BodyReader
from fairlead_common.http.lanes import Lanes, Pacer
from fairlead_common.http.loop_shares import LoopShares
from fairlead_common.openai.unknown_fields import UnknownFields
from fairlead_common.wire import messages
from fairlead_common.workers.root import WorkerRoot
from fairlead_engine.api.answers.answer_formats import choose_formats, choose_names, formats_named
from fairlead_engine.api.grammar_compiler import GrammarCompiler
from fairlead_engine.api.image_loader import ImageLoader
from fairlead_engine.api.injectable_answer import InjectableAnswer
from fairlead_engine.api.prompt_program import Files
from fairlead_engine.api.prompt_workers import MakeAsked, PromptWorkers
from fairlead_engine.api.schemas import EmbeddingRequest, PromptRequest
from fairlead_engine.api.served_model import ModelFiles, ServedModel
from fairlead_engine.config import ServerConfig
from fairlead_engine.core.client import EngineClient
from fairlead_engine.errors import Draining, NotReady, RequestError
from fairlead_engine.host.engine_stream import EngineStream
from fairlead_engine.host.lifecycle import Lifecycle, Phase
from fairlead_engine.host.metrics import Metrics
from fairlead_engine.host.workers import prompt_root
from fairlead_engine.model.tokenizer_files import template_text
from fairlead_engine.types import MAX_ANSWER_LOGPROBS, EngineInfo, SamplingParams

Result = TypeVar("Result")

_OFF_LOOP_BYTES = 8 * 1024
"""Larger requests are prepared in a thread, as all streams' tokens would wait."""


class Siblings:
    """The other HTTP processes of the same engine; here none."""

    @property
    def num_running(self) -> int:
        """API requests in progress when last asked."""
        return 0

    async def ask(self) -> None:
        """Asks the siblings for counts."""

    def drain(self, grace_seconds: float, timeout_seconds: float) -> None:
        """Begins to drain the siblings."""

    def problem(self, patience_seconds: float) -> str | None:
        """A sentence about a process without an answer for this long; None = all processes are sound."""
        return None


class Endpoint:
    """One endpoint of a service, or several."""

    def __init__(self, service: "Service") -> None:
        self._service = service


class Service:
    """One engine and everything that requests need."""

    def __init__(
        self,
        name: str,
        client: EngineClient,
        config: ServerConfig,
        *,
        place: int = 0,
        num_places: int = 1,
        root: WorkerRoot | None = None,
        make_asked: MakeAsked | None = None,
    ) -> None:
        """`place`: of this process among the `num_places` processes of the engine. `root`: of the workers, if already
        started. `make_asked`: tokenises in place of the workers."""
        self.client = client
        self.config = config
        self.lifecycle = Lifecycle()
        self.siblings = Siblings()
        self.stream = EngineStream(client, self.lifecycle)
        self.metrics = Metrics(name)
        self.lanes = Lanes()
        self.shares = LoopShares()
        """Of the loop, for requests of many prompts."""
        self._root = root or prompt_root()
        self.prompts = PromptWorkers(name, self._root, make_asked)
        self.grammars = GrammarCompiler(self._root, config.grammar_timeout)
        self.images = ImageLoader(self._root, config)
        self.pacer = Pacer()
        self.bodies = BodyReader(
            limit=config.max_body_bytes, timeout=config.body_timeout, total_limit=config.max_partial_body_bytes
        )
        self.unknown_fields = UnknownFields(config.unknown_fields)
        self.injectable_answers: dict[str, InjectableAnswer] = {}
        """Running answers that accept injections, by the client's id."""
        self._name = name
        self._model: ServedModel | None = None
        self.num_processes = num_places
        self.serials = itertools.count(place, num_places)
        """Numbers for unique ids of requests at the core, over all processes: clients may repeat ids."""
        client.listen(self.stream)

    async def load(self, path: Path) -> ModelFiles:
        """Reads a model's folder or file, after a worker has shown it to be harmless. Raises `ModelLoadError`, and
        ConfigError for a template that cannot be read."""
        template = template_text(self.config.chat_template)
        await self.prompts.load(path, template)
        files = await asyncio.to_thread(ModelFiles.read, path, template, renders=False)
        config, source = self.config, files.tokenizer.template_source
        names = await self.prompts.formats(config.tool_call_parser, config.reasoning_parser)
        names = names or choose_names(source, config.tool_call_parser, config.reasoning_parser, renders=False)
        files.formats = formats_named(*names, source)
        return files

    def ready(self, files: ModelFiles, info: EngineInfo, created: int | None = None) -> None:
        """The core has started: from now on requests are taken. `created`: see `ServedModel`."""
        tokenizer, source = files.tokenizer, files.tokenizer.template_source
        formats = files.formats or choose_formats(
            source, self.config.tool_call_parser, self.config.reasoning_parser, tokenizer.special_tokens
        )
        self._model = ServedModel(
            self._name,
            files,
            info,
            created,
            formats,
            lambda: self.client.load.adapters,
            lambda: self.client.load.virtual_tokens,
        )
        content = Files(None, tokenizer.tokenizer_json, source, tokenizer.special_tokens, tokenizer.embedding_prompts)
        self.prompts.serve(content, self._model.shape)
        self.stream.mirror.block_size = info.block_size
        self.metrics.watch(self.client, self.stream, info)
        if info.task.images is not None:
            self.images.start()
        self.lifecycle.ready()

    def model(self) -> ServedModel:
        """The loaded model. Raises `NotReady`, or `Draining` when it never will be."""
        if self._model is None:
            raise Draining if self.lifecycle.is_draining else NotReady
        return self._model

    def close(self) -> None:
        """Ends threads and processes, after the last answer."""
        self.grammars.close()
        self.prompts.close()
        self.lanes.close()
        self.images.close()
        self._root.close()

    def drain(self, *, quickly_within: float | None = None) -> None:
        """Begins to drain as configured, or without grace and within `quickly_within` seconds; returns at once."""
        grace, timeout = self.config.drain_grace, self.config.drain_timeout
        if quickly_within is not None:
            grace, timeout = 0.0, min(timeout, quickly_within)
        self.lifecycle.drain(grace_seconds=grace, timeout_seconds=timeout)
        self.siblings.drain(grace, timeout)
        self.metrics.show_draining(True)
        self.stream.tell_load()

    def health_problem(self) -> str | None:
        """Why this process should be restarted; None while it is sound."""
        if self._model is None:
            return None  # loading may take long; a core that fails to load ends the process
        if not self.client.alive:
            return "the engine core has died"
        age = self.client.step_age_seconds
        if age > self.config.step_timeout:
            return f"the engine core has been in one step for {age:.0f} s"
        return self.siblings.problem(self.config.step_timeout)

    def readiness_problem(self) -> tuple[str, str] | None:
        """Why no requests should be sent here, as (reason, sentence); None when they should."""
        if self.lifecycle.is_draining:
            return messages.REASON_DRAINING, "this engine is shutting down"
        if self.lifecycle.phase is Phase.LOADING:
            return messages.REASON_LOADING, "the model is still being loaded"
        problem = self.health_problem()
        return (messages.REASON_ENGINE_DEAD, problem) if problem else None

    async def prepared(self, size: int, prepare: Callable[[], Result]) -> Result:
        """`prepare()`, off the event loop for a request of many bytes."""
        return prepare() if size <= _OFF_LOOP_BYTES else await self.lanes.run(size, prepare)

    def check_choices(self, request: PromptRequest, sampling: SamplingParams) -> None:
        """Raises `RequestError` for too many or too large choices, before prompts are tokenised."""
        num_each = request.num_each
        limit, num_prompts = self.config.max_choices, request.num_prompts
        if isinstance(request, EmbeddingRequest):
            most = self.config.max_embedding_inputs
            if num_prompts > most:
                raise RequestError(
                    request.prompts_field,
                    f"{num_prompts} inputs are more than the {most} of one request for embeddings; send fewer at a "
                    "time, or serve the model with a higher max-embedding-inputs",
                )
            return
        if not 1 <= num_each <= limit:
            name = "n" if getattr(request, "best_of", None) is None else "best_of"
            raise RequestError(name, f"{name} must be in [1, {limit}], not {num_each}")
        if (given := getattr(request, "n", None)) is not None and given < 1:
            raise RequestError("n", f"n must be in [1, {limit}], not {given}")
        if num_each * num_prompts > limit:
            raise RequestError(
                request.prompts_field,
                f"{num_prompts} prompts with n = {num_each} are more than the {limit} choices of one request; send "
                "fewer at a time, or serve the model with a higher max-choices",
            )
        if request.is_streamed or sampling.logprobs is None or sampling.max_tokens is None:
            return  # an answer without max_tokens is ended where it gets too large
        each = min(sampling.max_tokens, self.model().info.max_model_len) * (1 + sampling.logprobs)
        if num_each * num_prompts * each > MAX_ANSWER_LOGPROBS:
            raise RequestError(
                "max_tokens",
                f"{num_each * num_prompts} choices of max_tokens = {sampling.max_tokens} with {sampling.logprobs} "
                f"top_logprobs may have {num_each * num_prompts * each:,} log-probabilities, more than the "
                f"{MAX_ANSWER_LOGPROBS:,} of one answer; lower one of the three, or stream the answer",
                "answer_too_large",
            )

    def check_scores(self, request: PromptRequest, prompts: Sequence[list[int]], sampling: SamplingParams) -> None:
        """Raises `RequestError` for prompts with more log-probabilities than an answer may have, streamed or not:
        prompts are computed faster than answers are read."""
        if sampling.prompt_logprobs is None:
            return
        num_tokens = request.num_each * sum(map(len, prompts))
        num_logprobs = num_tokens * (1 + sampling.prompt_logprobs)
        if num_logprobs > MAX_ANSWER_LOGPROBS:
            raise RequestError(
                "prompt" if getattr(request, "prompt_logprobs", None) is None else "prompt_logprobs",
                f"{num_tokens:,} tokens of prompts, told with {sampling.prompt_logprobs} alternatives each, have "
                f"{num_logprobs:,} log-probabilities, more than the {MAX_ANSWER_LOGPROBS:,} of one answer; send fewer "
                "prompts at a time, or lower logprobs",
                "answer_too_large",
            )
