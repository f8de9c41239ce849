"""`LLM`: a model in this process, for scripts, tests and benchmarks. No server, no other process, no asyncio.

The same engine and the same text handling as behind HTTP; `generate` drives `Engine.step()` itself.
"""

import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead_common.openai.chat import Message
from fairlead_common.openai.image_parts import image_parts
from fairlead_common.openai.prompts import ChatPrompt, EncodedPrompt, ScorePrompt
from fairlead_common.wire.adapters import with_adapter
from fairlead_engine.api.detokenizer import Detokenizer
from fairlead_engine.api.prompt_endpoints import pair_scores, vector_of
from fairlead_engine.api.served_model import ModelFiles, ServedModel
from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.runner import Runner
from fairlead_engine.demo import resolve_model
from fairlead_engine.errors import AdapterError, EngineError, RequestError
from fairlead_engine.types import (
    EngineInfo,
    EngineRequest,
    FinishReason,
    Kind,
    Pooling,
    Reading,
    SamplingParams,
    SequenceOutput,
    TokenLogprobs,
)

Prompt = str | Sequence[int]


@dataclass(slots=True)
class Completion:
    """Result of one prompt."""

    prompt_token_ids: list[int]
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One entry per token, when asked for."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One entry per token of the prompt but the first, when asked for."""
    finish_reason: FinishReason | None = None
    message: str | None = None
    """What happened, if it ended with an error."""
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""


class LLM:
    """A loaded model. Settings are those of `EngineConfig`; for one thread at a time, which is bound to a core only
    where `pin_threads` says so: what its program starts afterwards would be bound as well.

    `LLM("demo://dinghy").chat([{"role": "user", "content": "What is 2 + 3?"}])` → a `Completion` with "5". Raises the
    errors of `fairlead_engine.errors` when the model cannot be loaded. `runner` stands in for the model in tests.
    """

    def __init__(self, model: str, *, runner: Runner[Any] | None = None, **settings: Any) -> None:
        settings.setdefault("pin_threads", False)
        config = EngineConfig(model=model, **settings)
        files = ModelFiles.read(resolve_model(model))
        self.engine = Engine(config, runner)
        self.model = ServedModel(
            config.name,
            files,
            self.engine.info,
            adapters=lambda: self.engine.load.adapters,
            virtual_tokens=lambda: self.engine.adapters.virtual_tokens,
        )
        self._ids = itertools.count()

    @property
    def info(self) -> EngineInfo:
        """Facts settled at load: architecture, limits, cache size."""
        return self.engine.info

    def default_sampling(self) -> SamplingParams:
        """The makers' recommendation, up to the end of the context."""
        return SamplingParams(**self.model.sampling_defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str | None] | None = None,
    ) -> list[Completion]:
        """Continues every prompt, given as text or token ids; completions come in the prompts' order.

        `sampling` is for all prompts or one for each; None = `default_sampling()`. So is `adapter`, the name of one
        that was loaded; None = the model as it is. Raises `RequestError` for a prompt that is empty, too long or not of
        this vocabulary, and for an adapter that is not there.
        """
        self.model.check_kind(Kind.GENERATE)
        ids = self._prompt_ids(prompts)
        each = [sampling or self.default_sampling()] * len(ids) if not isinstance(sampling, Sequence) else [*sampling]
        if len(each) != len(ids):
            raise RequestError("sampling", f"there are {len(ids)} prompts but {len(each)} sampling parameters")
        names = [adapter] * len(ids) if adapter is None or isinstance(adapter, str) else [*adapter]
        if len(names) != len(ids):
            raise RequestError("adapter", f"there are {len(ids)} prompts but {len(names)} adapters")
        jobs = zip(ids, each, names, strict=True)
        completing = [_Job(prompt, params, self.model, name) for prompt, params, name in jobs]
        self._run(completing)
        return [job.completion for job in completing]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling: Pooling | None = None,
        *,
        prompt_name: str | None = None,
    ) -> list[list[float]]:
        """A vector of each text or list of token ids; `pooling`: None = the makers'. `prompt_name`: which of their
        prompts stands before each text; None = the default one, if any; empty = none. Raises `RequestError`."""
        task = self.info.task
        try:
            before = self.model.tokenizer.embedding_prompts.text(prompt_name)
        except ValueError as error:
            raise RequestError("prompt_name", f"prompt_name: {error}") from error
        given = [before + each if isinstance(each, str) else each for each in _as_prompts(prompts)]
        return self._read(Kind.EMBED, self._texts(given), pooling or task.pooling, task.reading)

    def classify(self, prompts: Prompt | Sequence[Prompt]) -> list[dict[str, float]]:
        """The classifier's result for each text or list of token ids: label → probability, or score, as `config.json`
        says. Raises `RequestError`."""
        task = self.info.task
        numbers = self._read(Kind.CLASSIFY, self._texts(prompts), task.pooling, Reading.LABELS)
        return [dict(zip(task.labels, each, strict=True)) for each in numbers]

    def score(self, first: str | Sequence[str], second: str | Sequence[str]) -> list[float]:
        """How relevant texts are to one another: one to one or to each of several, or as many to as many, in order. A
        cross-encoder's label, or the cosine of vectors. Raises `RequestError`."""
        task = self.info.task
        sides = [each if isinstance(each, str) else [*each] for each in (first, second)]
        compared = ScorePrompt(text_1=sides[0], text_2=sides[1])
        prompts = []
        for place, prompt in self.model.prompts(compared):
            self.model.check_prompt(prompt.token_ids, place)
            prompts.append(prompt)
        reading = Reading.LABELS if task.joins_pairs else Reading.UNIT
        numbers = self._read(Kind.SCORE, prompts, task.pooling, reading)
        return pair_scores(compared, numbers, joins_pairs=task.joins_pairs)

    def chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        adapter: str | None = None,
        **template_variables: Any,
    ) -> Completion:
        """Answers one conversation through the model's chat template; raises `RequestError`, of images too."""
        if parts := image_parts(messages):
            raise RequestError(parts[0].place, f"{parts[0].place} is an image, which servers take alone; send text")
        fields = ChatPrompt(
            messages=[dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] if tools else None,
            chat_template_kwargs=template_variables,
        )
        [(_, (prompt, _))] = self.model.prompts(fields)
        return self.generate([prompt], sampling, adapter=adapter)[0]

    def load_adapter(self, name: str, folder: str | Path) -> None:
        """Loads an adapter from a folder that PEFT has written; needs `max_loras`. Raises `AdapterError`."""
        ended: list[AdapterError | None] = []
        self.engine.load_adapter(name, Path(folder), ended.append)
        while not ended:
            self.engine.adapters.wait()
            self.engine.adapters.settle()
        if ended[0] is not None:
            raise ended[0]

    def unload_adapter(self, name: str) -> None:
        """Forgets an adapter. Raises `AdapterError`."""
        self.engine.unload_adapter(name)

    def _prompt_ids(self, prompts: Prompt | Sequence[Prompt]) -> list[list[int]]:
        encode = self.model.tokenizer.encode
        ids = [encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in _as_prompts(prompts)]
        for prompt_ids in ids:
            self.model.check_prompt(prompt_ids, "prompt")
        return ids

    def _texts(self, prompts: Prompt | Sequence[Prompt]) -> list[EncodedPrompt]:
        return [EncodedPrompt(token_ids) for token_ids in self._prompt_ids(prompts)]

    def _read(
        self, kind: Kind, prompts: Sequence[EncodedPrompt], pooling: Pooling, reading: Reading
    ) -> list[list[float]]:
        self.model.check_kind(kind)
        jobs = [_Reading(prompt, pooling, reading) for prompt in prompts]
        self._run(jobs)
        return [job.numbers for job in jobs]

    def _run(self, jobs: Sequence["_Job | _Reading"]) -> None:
        waiting = deque(jobs)
        running: dict[str, _Job | _Reading] = {}
        try:
            while waiting or running:
                while waiting and self._start(waiting[0], running):
                    waiting.popleft()
                for output in self.engine.step():
                    job = running[output.request_id]
                    if job.take(output):
                        self.engine.abort(output.request_id)  # where a stop string ended it, the core does not know
                        del running[output.request_id]
        finally:
            for request_id in running:
                self.engine.abort(request_id)

    def _start(self, job: "_Job | _Reading", running: dict[str, "_Job | _Reading"]) -> bool:
        """Hands a job to the engine; False while its queue is full."""
        request_id = str(next(self._ids))
        refusal = self.engine.add(job.request(request_id))
        if refusal is None:
            running[request_id] = job
            return True
        if refusal.finish_reason is FinishReason.REJECTED and running:
            return False
        raise RequestError(refusal.field or "prompt", refusal.message or "the engine refused the prompt")


class _Job:
    """One prompt on its way to a completion."""

    def __init__(
        self, prompt: list[int], sampling: SamplingParams, model: ServedModel, adapter: str | None = None
    ) -> None:
        """Raises `RequestError` for parameters or an adapter that this model does not have."""
        model.check_sampling(sampling)
        model.adapter(with_adapter(model.name, adapter))
        self._adapter = adapter
        self.completion = Completion(prompt)
        self._sampling = sampling
        self._text = Detokenizer(model.vocabulary, sampling, prompt)

    def request(self, request_id: str) -> EngineRequest:
        return EngineRequest(
            request_id=request_id,
            prompt_token_ids=self.completion.prompt_token_ids,
            sampling=self._sampling,
            arrival_time=time.time(),
            adapter=self._adapter,
        )

    def take(self, output: SequenceOutput) -> bool:
        """Adds an output; True when the completion is complete."""
        delta = self._text.push(output)
        self.completion.text += delta.text
        self.completion.token_ids += delta.token_ids
        self.completion.logprobs += delta.logprobs
        self.completion.prompt_logprobs += delta.prompt_logprobs
        self.completion.finish_reason = delta.finish_reason
        self.completion.message = output.message
        self.completion.num_cached_tokens = output.num_cached_tokens
        return delta.finish_reason is not None


class _Reading:
    """One prompt on its way to a vector or classification."""

    def __init__(self, prompt: EncodedPrompt, pooling: Pooling, reading: Reading) -> None:
        self.numbers: list[float] = []
        self._prompt = prompt
        self._pooling = pooling
        self._made = reading

    def request(self, request_id: str) -> EngineRequest:
        return EngineRequest(
            request_id=request_id,
            prompt_token_ids=self._prompt.token_ids,
            second_start=self._prompt.second_start,
            sampling=SamplingParams(max_tokens=0),
            arrival_time=time.time(),
            pooling=self._pooling,
            reading=self._made,
        )

    def take(self, output: SequenceOutput) -> bool:
        """Keeps the result; True when it is there. Raises EngineError where there is none."""
        if output.finish_reason is FinishReason.ERROR:
            raise EngineError(output.message or "the engine could not go on with this prompt")
        self.numbers = vector_of(output.embedding or b"")
        return output.finish_reason is not None


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, text or ids, as a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [[token_id for token_id in prompts if isinstance(token_id, int)]]
    return [prompt for prompt in prompts if not isinstance(prompt, int)]
