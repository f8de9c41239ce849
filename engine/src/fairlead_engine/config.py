"""The engine's settings: what they are called, what they mean, and which values fit.

`EngineConfig` configures the core (scheduler, cache, model) and is all that `LLM` needs; `ServerConfig` adds what only
the HTTP server knows, `CharacteriseConfig` what only that command does. How settings are read from flags and files is
`config_sources`' business. Both are immutable: what the engine settles at start (block count, real limits) is reported
in `EngineInfo`, never written back here.
"""

import math
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fairlead_common.logs import LogFormat
from fairlead_common.models.choices import (
    ADAPTER_EXPERT_RANK,
    ADAPTER_RANK,
    BLOCK_SIZE,
    LEAST_UTILIZATION,
    NUM_ADAPTERS,
    UTILIZATION,
    DeviceKind,
    Dtype,
    KvCacheDtype,
    Quantization,
    ReasoningParser,
    SpeculativeMethod,
    ToolCallParser,
    step_limits,
)
from fairlead_common.openai.unknown_fields import Unknown
from fairlead_common.settings import BYTES, SECONDS
from fairlead_engine.errors import ConfigError
from fairlead_engine.speculative.drafting import METHODS, Method, methods_by_setting
from fairlead_engine.speculative.tree_shape import StaticTree, TreeError, TreeShape, parse_tree

DTYPES = tuple(map(str, Dtype))
DEVICES = ("auto", *map(str, DeviceKind))
ATTENTION_BACKENDS = ("auto", "cpu_spans", "block_tables", "triton")
"""Those of `kernels.attention.choice`, which imports torch."""
KV_CACHE_DTYPES = tuple(map(str, KvCacheDtype))
QUANTIZATIONS = tuple(map(str, Quantization))
_HOST = re.compile(r"([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
LOG_LEVELS = ("debug", "info", "warning", "error")

_DEFAULT_SPECULATIVE_TOKENS = 4
_DEFAULT_LOOKUP = (2, 4)
_HOST_LORAS_PER_SLOT = 4
_QUEUE_STEPS = 2
"""The queue holds this many full steps of prefill by default: enough to keep the engine busy, little enough that
waiting happens in the gateway, where a request can still go elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How to load a model and run it. Raises `ConfigError`, naming the field, for a value that does not fit."""

    model: str
    """Folder of a Hugging Face style model (`config.json`, safetensors, `tokenizer.json`), a GGUF file, or `demo://dinghy`."""
    served_name: str | None = None
    """Name that clients write in `model`. None = the last part of `model`."""
    dtype: str = "auto"
    """Number format of weights, activations and KV cache: auto, float32, bfloat16 or float16. auto = as the checkpoint
    says; on a CPU half precision only where it multiplies bfloat16 natively (AMX or AVX512-BF16), else float32."""
    quantization: str | None = None
    """Format that linear layers' weights are rounded to while they are loaded: int8 (activations too),
    int8-weight-only, int4-weight-only or fp8 (activations too; for GPUs that multiply it). The output projection and
    routers keep theirs. None = as the checkpoint stores them."""
    head_quantization: str | None = None
    """Format that the output projection's weight is rounded to, of those of `quantization` and whatever that is. A tied
    one is rounded beside the embedding, which stays as it is. None = as the checkpoint stores it."""
    device: str = "auto"
    """Where the model runs: auto, cpu or cuda. auto = cuda where there is one."""
    attention_backend: str = "auto"
    """How attention goes over the KV cache: auto, cpu_spans (each sequence over its own stretch of consecutive blocks),
    triton (a kernel that reads blocks where they lie) or block_tables (the same in plain torch). auto = cpu_spans on a
    CPU; on CUDA triton, or block_tables where Triton or a C compiler is missing."""
    max_model_len: int | None = None
    """Longest prompt plus output, in tokens; more than the model was made for is refused. None = what it was made for,
    or as much of it as the KV cache has room for (2048 at least, or the engine does not start)."""
    max_num_seqs: int | None = None
    """Sequences that one step may run. None = 32 on a CPU, 256 on CUDA."""
    max_num_batched_tokens: int | None = None
    """Tokens that one step may compute, prefill and decode together. None = 512 on a CPU, 8192 on CUDA."""
    block_size: int = BLOCK_SIZE
    """Tokens per block of the KV cache; prefixes are shared in whole blocks."""
    kv_cache_dtype: str = "auto"
    """Number format of keys and values in the KV cache: auto, fp8 (e4m3) or int8. Those of 8 bits have a scale for each
    head of each token, hold about twice the tokens of half precision, and err a little. auto = as `dtype`."""
    kv_cache_memory: Annotated[int | None, BYTES] = None
    """Bytes for the KV cache (also as 512Mi, 2Gi). None = on a CPU the smaller of 1 GiB and 40 % of the memory that is
    free to this process; on CUDA what `gpu_memory_utilization` leaves beside weights and the largest step."""
    host_kv_cache_memory: Annotated[int | None, BYTES] = None
    """Bytes (also as 2Gi) of the host's memory for a second tier of the prefix cache: KV blocks that the device has no
    room for are copied there, and back for a prompt that begins with them. Each rank takes as much. None = they are
    forgotten."""
    gpu_memory_utilization: float = UTILIZATION
    """Share of a CUDA device's memory that weights, cache and work space may take together, in (0, 1]."""
    max_num_queued_tokens: int | None = None
    """Prompt tokens that may wait to be computed, without those expected in the prefix cache; beyond it what gateways
    send is refused with 429. An empty queue always takes one request. None = twice `max_num_batched_tokens`."""
    enable_prefix_caching: bool = True
    """Whether requests share the KV of common prefixes."""
    num_threads: int | None = None
    """CPU threads for one operation; more than there are CPUs to run them slow every engine of the machine down. The
    operator sets it from the pod's CPU limit or request. None = the cores this process may use."""
    pin_threads: bool | None = None
    """Whether each of those threads keeps to a core of its own, which no other engine may be bound to as well. None =
    where this process has been given some of the machine's cores, as by Kubernetes' static CPU manager."""
    tensor_parallel_size: int = 1
    """Ranks that the model is divided among, each a process with a GPU of its own, or with its share of the threads on
    a CPU. They must divide the model's heads. `kv_cache_memory` is each rank's."""
    async_scheduling: bool | None = None
    """Whether the next step is planned and begun while the device still computes one, so that it never waits for the
    host; what ended is then known one step later. None = yes on CUDA without a `speculative_method`, else no; a CPU
    would wait for nothing."""
    enforce_eager: bool = False
    """Whether every step is launched operation by operation. Otherwise steps are captured as CUDA graphs at the start,
    on CUDA, and repeated: that takes time and memory, which the log tells, and saves the host most of what a step costs
    it. Nothing is captured on a CPU, of models whose experts are quantised in different ways, or where attention does
    not run in Triton."""
    compile_cache: str | None = None
    """Folder for compiled kernels and what was timed, on CUDA, so that only the first start on a kind of GPU does it:
    engines may share it, at the same time too. None = where the environment's TRITON_CACHE_DIR says, or `.triton` in
    the home folder."""
    speculative_method: str | None = None
    """Who guesses the tokens that come next, which a step then computes beside the next one and keeps as far as they
    are what it would have chosen: ngram (what followed the same few tokens before in prompt and answer), draft (a
    smaller model), medusa (heads beside the model), eagle3 (a layer beside the model) or mtp (the layer for
    multi-token prediction that a checkpoint of DeepSeek-V3 or GLM-4.5 brings along). Answers stay the same. Steps then
    do not overlap (`async_scheduling`), and requests with a thinking budget are not guessed for. None = nobody."""
    speculative_model: str | None = None
    """Folder of the smaller model, for draft, whose tokenizer must be the model's; its weights come as stored. Or that
    of the heads, for medusa, or of the head, for eagle3. Keys and values of a smaller model, of eagle3's head and of
    mtp's layer take their part of the cache's memory."""
    num_speculative_tokens: int | None = None
    """Places of one sequence that are guessed in one step, at most; fewer where fewer turn out right, none where none
    does. None = 4, or as many as the paths of `speculative_tree` have.
    """
    speculative_tree: str | None = None
    """Guesses for medusa, eagle3 and mtp to make where that is not one for each place: a tree of them, all of which a
    step verifies. A list of paths such as [[0],[0,0],[1]] (Medusa's medusa_choices: the likeliest token, the likeliest
    behind it, the second likeliest; medusa alone), or WIDTHxNODES such as 4x24: at each place the 4 likeliest guesses
    are followed by 4 each, and of all those the 24 are verified that are likeliest as a whole. At most 63. None = a
    chain.
    """
    prompt_lookup_min: int | None = None
    """Tokens that must have stood there before for ngram to guess what follows them. None = 2."""
    prompt_lookup_max: int | None = None
    """Tokens that ngram looks for first, before it looks for fewer. None = 4."""
    lora_modules: str | None = None
    """Adapters to begin with, as NAME=FOLDER and with commas between them: folders of LoRA adapters or soft prompts, as
    PEFT writes them. Requests ask for `MODEL:NAME`."""
    adapter_folder: str | None = None
    """Folder below which adapters may be loaded while the engine runs (`POST /v1/load_lora_adapter`). None = none may.
    """
    max_loras: int | None = None
    """Adapters that steps may compute with at once: so many have room on the device, taken at the start, and sequences
    whose adapter has none wait. Each step with adapters costs for all of them. None = 4 where `lora_modules` or
    `adapter_folder` is set, else none."""
    max_lora_rank: int = ADAPTER_RANK
    """Largest rank of an adapter, up to 256; memory is taken for it in each place."""
    max_lora_expert_rank: int | None = None
    """Largest rank of what adapters change of experts, up to 256; memory is taken for it in each place and expert. 0 =
    adapters change no experts. None = 8, or `max_lora_rank` where that is lower."""
    max_cpu_loras: int | None = None
    """Adapters that the host's memory keeps beside, in the order of their last use; others are read from their folders
    when they are wanted. None = four times `max_loras`."""
    merged_adapter: str | None = None
    """Folder of one LoRA adapter, as PEFT writes it, that becomes part of the weights while they are loaded: of a model
    that is computed by transformers' code, which takes none while it runs. None = none."""
    profile: str | None = None
    """File that `fairlead-engine characterise` wrote about this model on this kind of machine: its costs are known
    before the first request, and its batch weight bounds what runs at once. None = costs are learnt from the warm-up
    and from requests, and the KV cache is the only bound."""
    max_image_pixels: int | None = None
    """Pixels of the largest image that the model sees, where it sees any: larger ones are made smaller. It bounds what
    one image takes of a prompt and, on CUDA, of memory. None = what the model's `preprocessor_config.json` says."""
    seed: int = 0
    """Seeds the random draws of requests that bring no seed of their own."""

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("model", "is empty", "give a model's folder or demo://dinghy")
        if self.served_name is not None and not self.served_name.strip():
            raise ConfigError("served_name", "is empty", "leave it out to use the model folder's name")
        if self.compile_cache is not None and not self.compile_cache:
            raise ConfigError("compile_cache", "is empty", "name a folder, or leave it out")
        _one_of("dtype", self.dtype, DTYPES)
        if self.quantization is not None:
            _one_of("quantization", self.quantization, QUANTIZATIONS)
        if self.head_quantization is not None:
            _one_of("head_quantization", self.head_quantization, QUANTIZATIONS)
        _one_of("device", self.device, DEVICES)
        _one_of("attention_backend", self.attention_backend, ATTENTION_BACKENDS)
        _one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_num_queued_tokens"):
            _at_least(name, getattr(self, name), 1)
        _at_least("kv_cache_memory", self.kv_cache_memory, 1)
        _at_least("host_kv_cache_memory", self.host_kv_cache_memory, 1)
        if self.host_kv_cache_memory is not None and not self.enable_prefix_caching:
            hint = "leave it out, or leave enable-prefix-caching on"
            raise ConfigError("host_kv_cache_memory", "is set, and prefixes are not cached", hint)
        _at_least("max_image_pixels", self.max_image_pixels, 1)
        if self.num_threads is not None:
            _within("num_threads", self.num_threads, 1, 4096)
        _within("block_size", self.block_size, 1, 1024)
        _within("tensor_parallel_size", self.tensor_parallel_size, 1, 64)
        _within("gpu_memory_utilization", self.gpu_memory_utilization, LEAST_UTILIZATION, 1.0)
        _within("seed", self.seed, -(2**63), 2**63 - 1)
        if self.max_loras is not None:
            _within("max_loras", self.max_loras, 0, 256)
        if self.max_cpu_loras is not None:
            _within("max_cpu_loras", self.max_cpu_loras, 1, 65536)
        _within("max_lora_rank", self.max_lora_rank, 1, 256)
        if self.max_lora_expert_rank is not None:
            _within("max_lora_expert_rank", self.max_lora_expert_rank, 0, 256)
        if self.adapters and not self.num_adapter_slots:
            raise ConfigError("max_loras", "is 0, and lora-modules names adapters", "give them a place")
        if (self.max_num_seqs or 0) > (self.max_num_batched_tokens or math.inf):
            raise ConfigError(
                "max_num_batched_tokens",
                f"{self.max_num_batched_tokens} is below max-num-seqs ({self.max_num_seqs})",
                "every running sequence takes one token of each step",
            )
        self._check_speculative()

    def _check_speculative(self) -> None:
        if self.speculative_method is not None:
            _one_of("speculative_method", self.speculative_method, tuple(METHODS))
        for name, methods in methods_by_setting().items():
            if getattr(self, name) is not None and self.speculative_method not in methods:
                hint = f"set speculative-method to {' or '.join(methods)}, or leave it out"
                raise ConfigError(name, f"is set with speculative-method {self.speculative_method or 'not set'}", hint)
        if (method := self.drafting_method) is None:
            return
        if self.async_scheduling:
            raise ConfigError(
                "async_scheduling",
                "is set with a speculative-method, which needs the tokens of a step to plan the next one",
                "leave one of them out",
            )
        if method.drafter is not None:
            if "speculative_model" in method.settings and not self.speculative_model:
                raise ConfigError("speculative_model", "is not given", f"name the folder for {self.speculative_method}")
            if self.tensor_parallel_size > 1:
                raise ConfigError(
                    "speculative_method",
                    f"is {self.speculative_method}, which cannot guess for a model that is divided among ranks yet",
                    "use ngram, or one rank",
                )
        if self.num_speculative_tokens is not None:
            _within("num_speculative_tokens", self.num_speculative_tokens, 1, 32)
        self._check_tree(method)
        for name, value in (
            ("prompt_lookup_min", self.lookup_lengths[0]),
            ("prompt_lookup_max", self.lookup_lengths[1]),
        ):
            _within(name, value, 1, 32)
        if self.lookup_lengths[0] > self.lookup_lengths[1]:
            raise ConfigError(
                "prompt_lookup_min",
                f"{self.lookup_lengths[0]} is above prompt-lookup-max ({self.lookup_lengths[1]})",
                "lower it, or raise the other",
            )

    def _check_tree(self, method: Method) -> None:
        if self.speculative_tree is None:
            return
        try:
            tree = parse_tree(self.speculative_tree, self.num_speculative_tokens, _DEFAULT_SPECULATIVE_TOKENS)
        except TreeError as error:
            hint = "give a list of paths such as [[0],[0,0],[1]], or WIDTHxNODES such as 4x24"
            raise ConfigError("speculative_tree", str(error), hint) from error
        if method.why_no_paths is not None and isinstance(tree, StaticTree):
            problem = f"is a list of paths, and {method.why_no_paths}"
            raise ConfigError("speculative_tree", problem, "say how many: WIDTHxNODES, such as 4x24")

    @property
    def drafting_method(self) -> Method | None:
        """The entry of `speculative_method`; None = nobody guesses."""
        return None if self.speculative_method is None else METHODS[SpeculativeMethod(self.speculative_method)]

    @property
    def tree(self) -> TreeShape | None:
        """`speculative_tree`, read."""
        if self.speculative_tree is None:
            return None
        return parse_tree(self.speculative_tree, self.num_speculative_tokens, _DEFAULT_SPECULATIVE_TOKENS)

    @property
    def most_places(self) -> int:
        """`num_speculative_tokens`, or its default, and no more than a tree has; 0 where nobody guesses."""
        if self.speculative_method is None:
            return 0
        if self.tree is not None:
            return self.tree.depth
        return self.num_speculative_tokens or _DEFAULT_SPECULATIVE_TOKENS

    @property
    def most_drafts(self) -> int:
        """Guesses for one sequence in one step."""
        return self.most_places if self.tree is None else self.tree.num_nodes(self.tree.depth)

    @property
    def lookup_lengths(self) -> tuple[int, int]:
        """`prompt_lookup_min` and `prompt_lookup_max`."""
        shortest, longest = self.prompt_lookup_min, self.prompt_lookup_max
        if shortest is None:
            shortest = _DEFAULT_LOOKUP[0] if longest is None else min(_DEFAULT_LOOKUP[0], longest)
        if longest is None:
            longest = max(_DEFAULT_LOOKUP[1], shortest)
        return shortest, longest

    @property
    def name(self) -> str:
        """The name clients use: `served_name`, or the last part of `model`."""
        return self.served_name or self.model.rstrip("/").rsplit("/", 1)[-1]

    @property
    def adapters(self) -> dict[str, str]:
        """Name → folder, of `lora_modules`."""
        found: dict[str, str] = {}
        for part in filter(None, (self.lora_modules or "").split(",")):
            name, folder = (each.strip() for each in (*part.split("=", 1), "")[:2])
            if not name or not folder or name in found:
                problem = f"has {part.strip()!r}" + (f", and {name!r} twice" if name in found else "")
                raise ConfigError("lora_modules", problem, "write NAME=FOLDER,OTHER=FOLDER")
            found[name] = folder
        return found

    @property
    def num_adapter_slots(self) -> int:
        """`max_loras`, or what it is by default."""
        if self.max_loras is not None:
            return self.max_loras
        return NUM_ADAPTERS if self.lora_modules or self.adapter_folder else 0

    @property
    def expert_rank(self) -> int:
        """`max_lora_expert_rank`, or what it is by default."""
        if self.max_lora_expert_rank is not None:
            return self.max_lora_expert_rank
        return min(ADAPTER_EXPERT_RANK, self.max_lora_rank)

    @property
    def num_host_adapters(self) -> int:
        """`max_cpu_loras`, or what it is by default."""
        return self.max_cpu_loras or _HOST_LORAS_PER_SLOT * max(1, self.num_adapter_slots)

    def for_device(self, device: str, whole_prompt: int = 0) -> "EngineConfig":
        """The same with the limits that depend on the device filled in; `device` is cpu, cuda or cuda:INDEX. A step has
        room for a prompt of `whole_prompt` tokens, of a model that sees prompts whole."""
        kind = device.partition(":")[0]
        whole_prompt = min(whole_prompt, self.max_model_len or whole_prompt)
        num_seqs, batched = step_limits(kind, self.max_num_seqs, self.max_num_batched_tokens, whole_prompt)
        overlaps = kind == "cuda" and self.speculative_method is None
        return replace(
            self,
            device=kind,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=batched,
            async_scheduling=overlaps if self.async_scheduling is None else self.async_scheduling,
            num_speculative_tokens=self.most_places or None,
            max_num_queued_tokens=self.max_num_queued_tokens or _QUEUE_STEPS * batched,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the HTTP server behaves. Raises `ConfigError`, naming the field, for a value that does not fit."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 = all."""
    port: int = 8000
    """TCP port; 0 = any free one, which the start-up log line names."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_format: str = "text"
    """text (logfmt) or json: an object a line, with the same keys."""
    drain_grace: Annotated[float, SECONDS] = 3.0
    """Seconds (also as 500ms, 3s) that a draining server still takes requests, for clients that do not yet know."""
    drain_timeout: Annotated[float, SECONDS] = 900.0
    """Seconds (also as 15m, 1h30m) that running requests get to finish when draining; then they are aborted."""
    api_servers: int = 1
    """Processes that take requests, tokenise and stream, each on a CPU of its own; they share the port, the core and
    what the limits below allow. More than one pays where a thousand streams or a fast device make more tokens than one
    process can write, some 40,000 a second."""
    max_connections: int = 4096
    """Most connections at once. More are answered with 429 and closed, except for the probes and metrics, and far more
    are cut. Each takes a file descriptor."""
    max_body_bytes: Annotated[int, BYTES] = 16 * 2**20
    """Largest request body (also as 16Mi); a larger one is answered with 413."""
    max_partial_body_bytes: Annotated[int, BYTES] = 64 * 2**20
    """Bytes (also as 64Mi) of memory that all request bodies may take while they are received and decoded; a body that
    is not whole by then is answered with 429, which gateways take for a full queue."""
    body_timeout: Annotated[float, SECONDS] = 30.0
    """Seconds (also as 500ms, 30s) a request's body may take to arrive; then it is answered with 408."""
    max_queue_time: Annotated[float, SECONDS] = 30.0
    """Seconds (also as 500ms, 30s) that a request which comes from no gateway may have to wait before it begins, as
    predicted from the queue and from what steps cost; more is answered with 429. An empty queue takes any request. What
    gateways send is bounded by `max_num_queued_tokens` instead."""
    grammar_timeout: Annotated[float, SECONDS] = 10.0
    """Seconds (also as 500ms, 30s) that it may take to make a grammar of what a request's answer is to keep to. Then
    schemas that are not strict are relaxed to any JSON, and the request is refused where that does not help. Grammars
    are made in a process of their own, which is ended."""
    max_choices: int = 128
    """Largest `n` of a request, and the most prompts of a batch in one completions request times `n`, or pairs of texts
    in one that compares them."""
    max_embedding_inputs: int = 2048
    """Most texts, or lists of token ids, of one request for embeddings."""
    max_images: int = 16
    """Images that the messages of one chat may have, of a model that sees any."""
    image_timeout: Annotated[float, SECONDS] = 5.0
    """Seconds (also as 500ms, 30s) of processor time that unpacking one image may take; then its request is refused.
    Images are unpacked in processes of their own, which are ended."""
    image_memory: Annotated[int, BYTES] = 512 * 2**20
    """Bytes (also as 512Mi) of memory that unpacking one image may take: 4 of a pixel in a plain JPEG or PNG, 8 where
    it is turned or has transparency, 10 in a progressive JPEG, 16 to 20 in a WebP. What would take more is refused. One
    large image is unpacked at a time for each two cores, at most four."""
    allowed_media_domains: str | None = None
    """Hosts, as HOST,OTHER or with a port as HOST:8080, from which the URLs of images may be fetched: over http and
    https, within 10 seconds, without redirects, whatever address a host has. None = from nowhere: images come as data:
    URLs."""
    chat_template: str | None = None
    """Chat template in Jinja, or a file with a template, in place of the model's own. None = the model's own."""
    tool_call_parser: str = "auto"
    """How the model writes calls of tools: a format of docs/api.md, such as hermes (Hermes, Qwen2.5 and Qwen3),
    llama3_json, mistral, deepseek_v3 or harmony (gpt-oss); none = requests with tools are refused. auto = as its chat
    template shows."""
    reasoning_parser: str = "auto"
    """How the model writes what it thinks before it answers, which clients get as `reasoning_content`: think
    (`<think>`), mistral (`[THINK]`) or another format of docs/api.md; none = as text. auto = as its chat template
    shows."""
    allowed_origins: str = ""
    """Origins of web pages, as https://a.example,https://b.example, that may read answers (CORS); * = all. Empty =
    none."""
    unknown_fields: str = "ignore"
    """What becomes of a request with fields that are not known: ignore = they are left out, with one line in the log
    for each name (of the first 100); refuse = 400, naming one."""
    step_timeout: Annotated[float, SECONDS] = 120.0
    """Seconds one step may take, or one of several `api_servers` say nothing, before `/health` reports that it hangs
    and the kubelet restarts the pod."""

    def __post_init__(self) -> None:
        if not self.host:
            raise ConfigError("host", "is empty", "use 127.0.0.1, 0.0.0.0 or the pod's address")
        _within("port", self.port, 0, 65535)
        _one_of("log_level", self.log_level, LOG_LEVELS)
        _one_of("log_format", self.log_format, tuple(LogFormat))
        _within("drain_grace", self.drain_grace, 0.0, 3600.0)
        _within("drain_timeout", self.drain_timeout, 0.0, 7 * 86400.0)
        _within("api_servers", self.api_servers, 1, 64)
        _within("max_connections", self.max_connections, 1, 1_000_000)
        if self.max_connections < self.api_servers:
            raise ConfigError(
                "max_connections",
                f"{self.max_connections} is below api-servers ({self.api_servers})",
                "each of these processes needs one at least",
            )
        _within("max_body_bytes", self.max_body_bytes, 1024, 2**30)
        _within("max_partial_body_bytes", self.max_partial_body_bytes, self.max_body_bytes, 2**40)
        _within("body_timeout", self.body_timeout, 0.1, 3600.0)
        _within("max_queue_time", self.max_queue_time, 0.0, 86400.0)
        _within("grammar_timeout", self.grammar_timeout, 0.1, 3600.0)
        _within("max_choices", self.max_choices, 1, 1024)
        _within("max_embedding_inputs", self.max_embedding_inputs, 1, 16384)
        _within("max_images", self.max_images, 1, 1024)
        _within("image_timeout", self.image_timeout, 0.1, 3600.0)
        _within("image_memory", self.image_memory, 16 * 2**20, 2**36)
        for host in self.media_hosts:
            if not _HOST.fullmatch(host):
                hint = "write HOST,OTHER:8080"
                raise ConfigError("allowed_media_domains", f"has {host!r}, which is no host", hint)
        _within("step_timeout", self.step_timeout, 1.0, 86400.0)
        _one_of("unknown_fields", self.unknown_fields, tuple(Unknown))
        _one_of("tool_call_parser", self.tool_call_parser, tuple(ToolCallParser))
        _one_of("reasoning_parser", self.reasoning_parser, tuple(ReasoningParser))

    @property
    def media_hosts(self) -> frozenset[str]:
        """Those of `allowed_media_domains`."""
        return frozenset(host.strip().lower() for host in (self.allowed_media_domains or "").split(",") if host.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacteriseConfig:
    """What `fairlead-engine characterise` measures and writes. Raises `ConfigError`, naming the field, for a value that
    does not fit."""

    output: str = "profile.json"
    """File to write the profile to, for `--profile` of `serve`."""
    plot: str | None = None
    """File to write the picture to, as SVG. None = beside the profile, as `.svg`."""
    tpot_target: Annotated[float | None, SECONDS] = None
    """Seconds (also as 50ms) that an output token may take: bounds the maximum batch weight. None = memory alone bounds
    it."""
    time_limit: Annotated[float, SECONDS] = 300.0
    """Seconds (also as 5m) after which no further shape of requests is begun; the cheapest are measured first."""

    def __post_init__(self) -> None:
        if not self.output:
            raise ConfigError("output", "is empty", "name a file")
        if self.tpot_target is not None:
            _within("tpot_target", self.tpot_target, 1e-6, 3600.0)
        _within("time_limit", self.time_limit, 0.0, 86400.0)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(name, f"{value!r} is not known", f"use one of {', '.join(allowed)}")


def _at_least(name: str, value: int | None, low: int) -> None:
    if value is not None and value < low:
        raise ConfigError(name, f"must be at least {low}, not {value}")


def _within(name: str, value: Any, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise ConfigError(name, f"must be from {low} to {high}, not {value}")
