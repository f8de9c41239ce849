"""LLMDeployment as Python types: the user's object, and the source of the CRD (`docs/generate_crds.py`).

`LLMDeployment.from_body` is the only way in. Defaults live here and not in the CRD, so a newer version's better default
reaches every object without its own choice. Every field has an effect somewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import cache
from itertools import islice
from typing import Annotated, Any, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fairlead.api import engine_rules, names, rules
from fairlead.api.devices import DeviceRequest
from fairlead.api.model_cache import ModelCache, ModelCredentials
from fairlead.api.pod_spec import misfits
from fairlead.api.quantities import format_duration
from fairlead.api.rules import BrokenRule
from fairlead.api.schema import Bytes, Constraints, InvalidValue, Quantities, Raw, Seconds, decode
from fairlead_common.models.choices import Dtype, Quantization, SpeculativeMethod
from fairlead_common.models.choices import KvCacheDtype as KvCacheDtype
from fairlead_common.models.choices import ReasoningParser as ReasoningParser
from fairlead_common.models.choices import ToolCallParser as ToolCallParser
from fairlead_common.openai.unknown_fields import Unknown


class InvalidSpec(InvalidValue):
    """The object cannot be understood."""


class EngineType(StrEnum):
    """Which server runs the model."""

    FAIRLEAD = "Fairlead"
    VLLM = "vLLM"
    LLAMA_CPP = "llama.cpp"
    SGLANG = "SGLang"


class ScalingMode(StrEnum):
    """Who writes `spec.replicas`."""

    FAIRLEAD = "Fairlead"
    EXTERNAL = "External"


class Weekday(StrEnum):
    """A day of the week."""

    MONDAY = "Mon"
    TUESDAY = "Tue"
    WEDNESDAY = "Wed"
    THURSDAY = "Thu"
    FRIDAY = "Fri"
    SATURDAY = "Sat"
    SUNDAY = "Sun"


class RoutingPolicy(StrEnum):
    """How the gateway picks a replica."""

    PREDICTED_TTFT = "PredictedTTFT"
    LEAST_LOADED = "LeastLoaded"
    ROUND_ROBIN = "RoundRobin"
    PREFIX_HASH = "PrefixHash"


DEFAULT_QUEUE_DEPTH = 4
"""Waiting requests per replica targeted for an autoscaled fleet without any target."""
DEFAULT_SCALE_TO_ZERO_AFTER = 600.0
"""Default of `scaleToZeroAfter` for a fleet with minReplicas 0, in seconds."""
Name = Annotated[
    str,
    Constraints(
        pattern=r"^[A-Za-z0-9]([-A-Za-z0-9._/:]*[A-Za-z0-9])?$", min_length=1, max_length=128, rules=rules.MODEL_NAME
    ),
]
"""A name of a model, as clients send it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Which model is served, and under which names."""

    source: Annotated[str, Constraints(min_length=1, max_length=1024, rules=rules.SOURCE)]
    """Where the model is. Downloaded before the engine starts: hf://ORGANISATION/NAME[:QUANTISATION][@REVISION] (the
    quantisation names one of several GGUF files, as :Q4_K_M), s3://BUCKET/FOLDER, gs://BUCKET/FOLDER,
    az://CONTAINER/FOLDER, https://HOST/PATH, oci://REGISTRY/NAME[:TAG]. In place: demo://NAME for a model that comes
    with the engine, pvc://CLAIM/FOLDER for a folder on a PersistentVolumeClaim of the same namespace, file:///FOLDER
    for a folder on the machine (only where the operator's settings allow it).
    """
    credentials: Annotated[ModelCredentials | None, Constraints(default_text="none")] = None
    """With what downloads are allowed: of the model, of engine.speculative, of adapters. The engine never sees it."""
    cache: Annotated[
        ModelCache | None,
        Constraints(rules=rules.CACHE, default_text="each pod has a copy of its own, and downloads it"),
    ] = None
    """Where what is downloaded is kept."""
    served_name: Annotated[Name, Constraints(default_text="metadata.name")] = ""
    """The name clients put into the `model` field of their requests."""
    aliases: Annotated[tuple[Name, ...], Constraints(max_items=16, list_type="set")] = ()
    """More names for the same model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAdapter:
    """A LoRA adapter or a soft prompt of the model. Requests name `MODEL:NAME`, or the adapter's own served name."""

    name: Annotated[str, Constraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]
    """The part after the colon, behind a name of the model."""
    source: Annotated[str, Constraints(min_length=1, max_length=1024, rules=rules.ADAPTER_SOURCE)]
    """Where the adapter's folder is, in PEFT's format (adapter_config.json, adapter_model.safetensors). Downloaded
    beside the engine, with model.credentials into model.cache: hf://ORGANISATION/NAME[@REVISION] and the other schemes
    of model.source. In place: pvc://CLAIM/FOLDER for a folder on a PersistentVolumeClaim of the same namespace,
    file:///FOLDER for a folder on the machine (only where the operator's settings allow it)."""
    served_name: Annotated[Name, Constraints(default_text="none")] = ""
    """Another name for the model with this adapter, for the `model` field of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """The engine's paged key-value cache."""

    block_size: Annotated[int | None, Constraints(minimum=1, maximum=1024, default_text="16")] = None
    """Tokens per block. Only whole blocks are shared between prompts with the same beginning."""
    memory: Annotated[Bytes | None, Constraints(default_text="chosen by the engine from what the machine has left")] = (
        None
    )
    """Size of the cache, such as 2Gi. Limits the tokens in progress or cached."""
    dtype: KvCacheDtype = KvCacheDtype.AUTO
    """Number format of keys and values in it; auto takes that of the activations. fp8 and int8 hold about twice the
    tokens of half precision, and err a little, int8 less than fp8."""


_SPECULATIVE_TREE = r"^([1-9][0-9]?x[1-9][0-9]?|\[[\[\]0-9, ]+\])$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculative:
    """Draft tokens, verified in one step together with the next token. Answers stay the same."""

    method: SpeculativeMethod
    """Source of the drafts: ngram = tokens after the same few tokens earlier in prompt and answer; draft = a smaller
    model with the same tokenizer; medusa = Medusa heads for the model; eagle3 = an EAGLE-3 head for it; mtp = the layer
    for multi-token prediction that the model's own checkpoint brings along."""
    source: Annotated[
        str | None, Constraints(min_length=1, max_length=1024, rules=rules.SPECULATIVE_SOURCE, default_text="none")
    ] = None
    """Where the smaller model or the heads are; needed for every method but ngram and mtp. As model.source:
    hf://ORGANISATION/NAME and the like are downloaded before the engine starts, with model.credentials into
    model.cache; pvc://CLAIM/FOLDER is a folder on a PersistentVolumeClaim of the same namespace, which may be the
    model's, file:///FOLDER a folder on the machine (only where the operator's settings allow it), demo://NAME a model
    that comes with the engine."""
    num_tokens: Annotated[int | None, Constraints(minimum=1, maximum=32, default_text="4")] = None
    """Most places of one sequence that are guessed in one step; there are fewer where fewer turn out right."""
    tree: Annotated[
        str | None, Constraints(min_length=3, max_length=2048, pattern=_SPECULATIVE_TREE, default_text="none")
    ] = None
    """Several guesses for each place, all of which a step verifies, of medusa, eagle3 and mtp: WIDTHxNODES such as 4x24
    (at each place the 4 likeliest are followed by 4 each, and the 24 that are likeliest as a whole are verified), or
    for medusa a list of paths such as [[0],[0,0],[1]] (its medusa_choices)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProfile:
    """Measurements of this model on this kind of machine, by `fairlead-engine characterise`."""

    config_map: Annotated[str, Constraints(min_length=1, max_length=253, pattern=names.DNS_SUBDOMAIN_PATTERN)]
    """A ConfigMap of the same namespace with the profile."""
    key: Annotated[str, Constraints(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = "profile.json"
    """Under which it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentVariable:
    """One environment variable of the engine's container."""

    name: Annotated[str, Constraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
    """The variable's name."""
    value: Annotated[str | None, Constraints(max_length=32768)] = None
    """Its value."""
    value_from: Raw | None = None
    """Source of the value, as in a pod: secretKeyRef, configMapKeyRef, fieldRef or resourceFieldRef."""


_MEDIA_DOMAIN = r"^([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """How the engine runs the model. Unset fields are chosen by the engine, for model and device."""

    type: EngineType = EngineType.FAIRLEAD
    """Fairlead: the engine of this project. vLLM, llama.cpp and SGLang: their servers, behind a front; the fields below
    set the server's flags of the same meaning."""
    image: Annotated[
        str | None, Constraints(min_length=1, max_length=512, default_text="from the operator's settings")
    ] = None
    """Container image of the engine; required for any type but Fairlead: vllm/vllm-openai:v0.22.0."""
    dtype: Dtype = Dtype.AUTO
    """Number format of weights and activations; auto takes the checkpoint's, if the device computes it natively."""
    quantization: Annotated[Quantization | None, Constraints(default_text="as the checkpoint stores them")] = None
    """Format to which weights of linear layers are rounded at loading, for speed and memory."""
    tensor_parallel_size: Annotated[int, Constraints(minimum=1, maximum=64)] = 1
    """GPUs among which every replica divides the model; `resources` must ask for as many, or for none at all."""
    api_servers: Annotated[int, Constraints(minimum=1, maximum=64)] = 1
    """Processes of every replica for requests and answers, each on a CPU of its own; for more than some 40,000 tokens a
    second."""
    max_model_len: Annotated[
        int | None, Constraints(minimum=1, default_text="the model's own limit, or what the cache holds")
    ] = None
    """Longest context in tokens, prompt and output together."""
    max_num_seqs: Annotated[int | None, Constraints(minimum=1, maximum=65536, default_text="chosen by device")] = None
    """Most sequences in one step."""
    max_num_batched_tokens: Annotated[int | None, Constraints(minimum=1, default_text="chosen by device")] = None
    """Most tokens in one step: the budget that prefill and decode share."""
    max_num_queued_tokens: Annotated[int | None, Constraints(minimum=1, default_text="two steps of prefill")] = None
    """Most prompt tokens waiting in one engine; further requests go back to the gateway."""
    kv_cache: KvCache = field(default_factory=KvCache)
    """The paged key-value cache."""
    profile: Annotated[MeasuredProfile | None, Constraints(default_text="none")] = None
    """A measured profile: engines begin with its step cost and admit by its maximum batch weight, and the autoscaler
    knows the capacity of a replica before the first one runs. A profile of another model, number format or device is
    refused."""
    enable_prefix_caching: bool = True
    """Whether prompts reuse the computed beginning of earlier prompts."""
    speculative: Annotated[Speculative | None, Constraints(rules=rules.SPECULATIVE)] = None
    """Speculative decoding: answers in fewer steps where the next tokens are predictable."""
    chat_template: Annotated[
        str | None,
        Constraints(min_length=1, max_length=65536, default_text="the model's own", rules=rules.CHAT_TEMPLATE),
    ] = None
    """Chat template in Jinja, in place of the model's own: how messages become a prompt."""
    tool_call_parser: ToolCallParser = ToolCallParser.AUTO
    """How the model writes tool calls; auto = as its chat template shows, none = requests with tools are refused."""
    reasoning_parser: ReasoningParser = ReasoningParser.AUTO
    """How the model marks its reasoning before the answer; auto = as its chat template shows, none = as text."""
    unknown_fields: Unknown = Unknown.IGNORE
    """What becomes of a request with fields that are not known: ignore = they are left out, with one line in the
    engine's log for each name; refuse = 400, naming one. Gateways decide by a setting of their own about /v1/messages,
    /v1/responses and Ollama's paths."""
    max_loras: Annotated[
        int | None, Constraints(minimum=0, maximum=256, default_text="4 where adapters are listed, else none")
    ] = None
    """Adapters in one step: room for as many is taken on the device at the start. If set, the first adapter can be
    added without replacing replicas."""
    max_lora_rank: Annotated[int | None, Constraints(minimum=1, maximum=256, default_text="16")] = None
    """Largest rank of an adapter."""
    max_lora_expert_rank: Annotated[
        int | None, Constraints(minimum=0, maximum=256, default_text="8, or maxLoraRank where that is lower")
    ] = None
    """Largest rank of what an adapter changes of experts: room for it is taken for each expert. 0 = adapters change no
    experts."""
    max_cpu_loras: Annotated[int | None, Constraints(minimum=1, maximum=65536, default_text="four times maxLoras")] = (
        None
    )
    """Adapters kept in the host's memory beside those on the device; others are read again when requested."""
    max_images: Annotated[int | None, Constraints(minimum=1, maximum=1024, default_text="16")] = None
    """Most images in the messages of one chat, for a model with vision."""
    max_image_pixels: Annotated[
        int | None, Constraints(minimum=1, default_text="as the model's preprocessor_config.json says")
    ] = None
    """Pixels of the largest image for the model; larger images are scaled down."""
    allowed_media_domains: Annotated[
        tuple[Annotated[str, Constraints(min_length=1, max_length=259, pattern=_MEDIA_DOMAIN)], ...],
        Constraints(max_items=64, list_type="atomic"),
    ] = ()
    """Hosts, as HOST or HOST:PORT, from which engines fetch images named by URL in chats, whatever address a host has.
    Empty: no fetching, images come as data: URLs."""
    extra_args: Annotated[
        tuple[Annotated[str, Constraints(max_length=1024)], ...], Constraints(max_items=64, list_type="atomic")
    ] = ()
    """More arguments of `fairlead-engine serve`, such as --seed, or of the server named by `type`; they override the
    fields above. Arguments set by the operator, such as --port and --model, are refused."""
    env: Annotated[
        tuple[Annotated[EnvironmentVariable, Constraints(rules=rules.ENVIRONMENT_VARIABLE)], ...],
        Constraints(max_items=64, list_type="map", list_map_keys=("name",)),
    ] = ()
    """Environment variables of the engine's container. Variables set by the operator (POD_IP, FAIRLEAD_…), or able to
    lock it out (VLLM_API_KEY), are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one replica may use: a profile, or the numbers themselves."""

    profile: Annotated[
        str | None, Constraints(min_length=1, max_length=63, default_text="the default of those settings")
    ] = None
    """A profile of the operator's settings: requests, limits and where such pods run."""
    gpus: Annotated[int | None, Constraints(minimum=0, maximum=64, default_text="0")] = None
    """GPUs per replica (the resource nvidia.com/gpu). A replica with several has 4Gi of shared memory (/dev/shm)."""
    devices: Annotated[DeviceRequest | None, Constraints(default_text="none")] = None
    """Devices per replica by dynamic resource allocation (Kubernetes from 1.34 on), in place of gpus. A replica with
    several has 4Gi of shared memory (/dev/shm)."""
    claim_template_name: Annotated[
        str | None, Constraints(pattern=names.DNS_SUBDOMAIN_PATTERN, min_length=1, max_length=253, default_text="none")
    ] = None
    """A ResourceClaimTemplate of the same namespace, in place of devices: each replica has a claim made from it, for as
    many devices as engine.tensorParallelSize says."""
    requests: Quantities = field(default_factory=dict)
    """Resources to reserve per replica, as in a container. Without a CPU limit, the reserved CPUs are also the engine's
    compute threads."""
    limits: Quantities = field(default_factory=dict)
    """Most that a replica may use, as in a container. The CPUs here are the engine's compute threads."""
    node_selector: Annotated[
        Mapping[str, Annotated[str, Constraints(pattern=names.LABEL_VALUE_PATTERN, max_length=63)]] | None,
        Constraints(max_items=64, default_text="the profile's"),
    ] = None
    """Labels of the nodes to run on, in place of the profile's; {} = any node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingTargets:
    """What an autoscaled fleet is held to."""

    queue_depth: Annotated[
        int | None,
        Constraints(
            minimum=1,
            maximum=100000,
            default_text=f"{DEFAULT_QUEUE_DEPTH} where timeToFirstToken is not set either, else no limit",
        ),
    ] = None
    """Most requests waiting in the gateways, per replica."""
    time_to_first_token: Seconds | None = None
    """Longest time from a request's arrival to its first token, waiting included. Predicted from the demand and the
    engines' step costs, and corrected by measurements of streamed requests."""
    time_per_output_token: Seconds | None = None
    """Longest mean time between two tokens of an answer. Predicted from the sequences that run on a replica and the
    engines' step costs, and corrected by measurements of streamed requests. Where a single sequence's steps take longer
    already, no replica is added for it."""
    percentile: Annotated[int, Constraints(minimum=1, maximum=99)] = 90
    """Share of requests, in percent, to be served within timeToFirstToken and timePerOutputToken."""
    tolerance: Annotated[int, Constraints(minimum=0, maximum=50)] = 10
    """Percent by which these times may be missed before replicas are added, and by which fewer replicas must beat them
    before any is taken away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUp:
    """How carefully replicas are added."""

    stabilization_window: Seconds = 0.0
    """Replicas are added only after more were needed for this long."""
    max_step: Annotated[
        int | None, Constraints(minimum=1, maximum=10000, default_text="as many as there were, or 30 if that is more")
    ] = None
    """Most replicas that are added within one period. Before a replica is ready and its
    step cost is known, 4 take the place of 30."""
    period: Seconds = 15.0
    """The time that maxStep is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDown:
    """How carefully replicas are taken away."""

    stabilization_window: Seconds = 120.0
    """Replicas are taken away only after fewer were enough for this long. Rates are measured over this time as well,
    but over 10s at least and 60s at most."""
    max_step: Annotated[int | None, Constraints(minimum=1, maximum=10000, default_text="no limit")] = None
    """Most replicas taken away within one period. Scaling to zero takes all at once."""
    period: Seconds = 15.0
    """The time that maxStep is about."""


_TIME_OF_DAY = Constraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$", max_length=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSchedule:
    """Other bounds of an autoscaled fleet at times of the week."""

    name: Annotated[str, Constraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]
    """Named by the autoscaler's sentences while the schedule applies."""
    time_zone: Annotated[str, Constraints(pattern=r"^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$", max_length=64)] = "UTC"
    """Time zone of days and times, by its IANA name: Europe/Berlin."""
    days: Annotated[tuple[Weekday, ...], Constraints(max_items=7, list_type="set", default_text="every day")] = ()
    """Days on which the schedule starts."""
    start: Annotated[str, _TIME_OF_DAY] = "00:00"
    """Time of day from which on it applies."""
    end: Annotated[str, _TIME_OF_DAY] = "00:00"
    """Time of day at which it ceases to apply: of the next day where end is not after start."""
    min_replicas: Annotated[
        int | None, Constraints(minimum=0, maximum=10000, default_text="autoscaling.minReplicas, at most maxReplicas")
    ] = None
    """Fewest replicas while it applies."""
    max_replicas: Annotated[
        int | None, Constraints(minimum=1, maximum=10000, default_text="autoscaling.maxReplicas, at least minReplicas")
    ] = None
    """Most replicas while it applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """Who adjusts `spec.replicas` to the load."""

    mode: ScalingMode = ScalingMode.FAIRLEAD
    """Fairlead: the operator, by the gateways' signals. External: somebody else, such as an HPA or KEDA, through the
    scale subresource."""
    min_replicas: Annotated[int | None, Constraints(minimum=0, maximum=10000, default_text="1")] = None
    """Fewest replicas. With 0 the fleet goes to zero after scaleToZeroAfter without a request; the next request starts
    a replica and waits for it, up to routing.coldStartTimeout."""
    max_replicas: Annotated[int | None, Constraints(minimum=1, maximum=10000)] = None
    """Most replicas; required where mode is Fairlead, since it bounds the cost."""
    schedules: Annotated[
        tuple[Annotated[ScalingSchedule, Constraints(rules=rules.SCHEDULE)], ...],
        Constraints(max_items=16, list_type="map", list_map_keys=("name",)),
    ] = ()
    """Other bounds at times of the week. Of several that apply at a time, the first does."""
    priority: Annotated[int, Constraints(minimum=-1000, maximum=1000)] = 0
    """Who gets GPUs first where a budget of the operator's settings (gpuBudgets) has too few: the higher number, which
    may also take replicas above minReplicas from lower ones."""
    targets: ScalingTargets | None = None
    """What the fleet is held to."""
    scale_up: ScaleUp | None = None
    """How carefully replicas are added."""
    scale_down: ScaleDown | None = None
    """How carefully replicas are taken away."""
    scale_to_zero_after: Annotated[
        Seconds | None, Constraints(default_text=f"{format_duration(DEFAULT_SCALE_TO_ZERO_AFTER)} with minReplicas: 0")
    ] = None
    """Time without any request, arriving, waiting or running, before the last replica goes; needs minReplicas: 0."""
    scale_for_batches: bool = False
    """Whether lines of batches (/v1/batches) are demand: replicas are added for them, and a fleet at zero starts. Else
    they take what others leave of the replicas that there are, and neither add nor keep any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHashSettings:
    """Consistent hashing with bounded loads on the beginning of the first user message, as KubeAI defines it."""

    mean_load_factor: Annotated[int, Constraints(minimum=100, maximum=10000)] = 125
    """Most load of a replica in percent of the mean; above it, the next replica on the ring is taken."""
    replication: Annotated[int, Constraints(minimum=1, maximum=4096)] = 256
    """Places of each replica on the ring."""
    prefix_char_length: Annotated[int, Constraints(minimum=1, maximum=100000)] = 100
    """Characters of the first user message in the hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How the gateway treats requests for this model."""

    policy: RoutingPolicy = RoutingPolicy.PREDICTED_TTFT
    """How a replica is picked. PredictedTTFT: the earliest predicted first token, by cached prefixes and step costs.
    LeastLoaded: the fewest requests. RoundRobin: each in turn. PrefixHash: by the prompt's beginning, within bounds of
    load."""
    prefix_hash: PrefixHashSettings = field(default_factory=PrefixHashSettings)
    """Settings of the policy PrefixHash."""
    max_queue_time: Seconds = 30.0
    """Longest time a request waits in the gateway while every replica is busy; after it, 429."""
    cold_start_timeout: Seconds = 600.0
    """Longest time a request waits in the gateway for a first replica to become ready; after it, 503."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How replicas are replaced when the engine's configuration changes."""

    max_surge: Annotated[int, Constraints(minimum=0, maximum=10000)] = 1
    """Replicas allowed beyond the desired number during a rollout."""
    max_unavailable: Annotated[int, Constraints(minimum=0, maximum=10000)] = 0
    """Desired replicas that may be missing meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """How replicas go."""

    timeout: Seconds = 900.0
    """Longest time for a leaving replica to finish its requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateMetadata:
    """Metadata of the engine's pods."""

    labels: Annotated[Mapping[str, str], Constraints(max_items=64)] = field(default_factory=dict)
    """More labels; the operator's own cannot be changed."""
    annotations: Annotated[Mapping[str, str], Constraints(max_items=64)] = field(default_factory=dict)
    """More annotations; the operator's own cannot be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """An overlay on the engine's pods."""

    metadata: TemplateMetadata = field(default_factory=TemplateMetadata)
    """Labels and annotations to add."""
    spec: Raw = field(default_factory=dict)
    """A partial pod spec, merged into the operator's as `kubectl patch` would: objects by field; containers, volumes,
    environment variables and the like by name; the engine's container is named engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMDeploymentSpec:
    """The model to serve, and how."""

    model: Model
    """Which model is served, and under which names."""
    adapters: Annotated[
        tuple[ListedAdapter, ...],
        Constraints(max_items=64, list_type="map", list_map_keys=("name",), rules=rules.ADAPTERS),
    ] = ()
    """Adapters served beside the model itself: LoRA and soft prompts. Running engines load and unload adapters.
    Replicas are replaced only for a claim that is not mounted yet or is deleted, for the first adapter to download,
    and, without engine.maxLoras, for the first adapter and after the last."""
    engine: Annotated[EngineSpec, Constraints(rules=rules.ENGINE)] = field(default_factory=EngineSpec)
    """How the engine runs the model."""
    resources: Annotated[Resources, Constraints(rules=rules.RESOURCES)] = field(default_factory=Resources)
    """What one replica may use."""
    replicas: Annotated[
        int | None, Constraints(minimum=0, maximum=10000, default_text="autoscaling.minReplicas, at least 1")
    ] = None
    """Replicas to run. Written by the scale subresource (kubectl scale, an autoscaler), so leave it out of manifests
    that are applied again and again."""
    autoscaling: Annotated[Autoscaling | None, Constraints(rules=rules.AUTOSCALING)] = None
    """Who adjusts replicas to the load; absent: nobody but you."""
    routing: Routing = field(default_factory=Routing)
    """How the gateway treats requests for this model."""
    rollout: Annotated[Rollout, Constraints(rules=rules.ROLLOUT)] = field(default_factory=Rollout)
    """How replicas are replaced when the engine's configuration changes."""
    drain: Drain = field(default_factory=Drain)
    """How replicas go."""
    template: Template = field(default_factory=Template)
    """An overlay on the engine's pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The part of an object's metadata used for decisions."""

    name: str
    namespace: str
    uid: str
    generation: int
    creation_timestamp: datetime
    """Creation time; of two objects with the same served name, the older has the name."""
    deletion_timestamp: datetime | None
    """Since when it is being deleted; None = it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMDeployment:
    """One LLMDeployment as the API server has it."""

    metadata: Metadata
    spec: LLMDeploymentSpec
    status: Mapping[str, Any]
    """As it is on the object; empty before the operator has seen it."""

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        """Decodes an object of the API. Raises InvalidSpec, naming the field, for wrong types and exceeded limits.

        Rules between fields are left to API servers, and to the operator (`broken_rules`) where the server is too old.
        """
        raw = body["metadata"]
        deleted = raw.get("deletionTimestamp")
        metadata = Metadata(
            name=raw["name"],
            namespace=raw["namespace"],
            uid=raw["uid"],
            generation=int(raw.get("generation") or 0),
            creation_timestamp=datetime.fromisoformat(raw["creationTimestamp"]),
            deletion_timestamp=datetime.fromisoformat(deleted) if deleted else None,
        )
        try:
            decoded = decode(LLMDeploymentSpec, body.get("spec") or {}, "spec")
        except InvalidValue as e:
            raise InvalidSpec(e.path, e.message) from e
        for index, schedule in enumerate(decoded.autoscaling.schedules if decoded.autoscaling else ()):
            if not is_time_zone(schedule.time_zone):
                unknown = f"there is no time zone {schedule.time_zone!r}: name it as IANA does, such as Europe/Berlin"
                raise InvalidSpec(f"spec.autoscaling.schedules[{index}].timeZone", unknown)
        if not decoded.model.served_name:
            decoded = replace(decoded, model=replace(decoded.model, served_name=metadata.name))
        return cls(metadata=metadata, spec=decoded, status=body.get("status") or {})

    @property
    def desired_replicas(self) -> int:
        """`spec.replicas`; where nobody has set it, the autoscaling minimum, at least 1."""
        if self.spec.replicas is not None:
            return self.spec.replicas
        minimum = self.spec.autoscaling.min_replicas if self.spec.autoscaling else None
        return max(1, minimum or 1)


@cache
def is_time_zone(name: str) -> bool:
    """Whether the IANA time zone database has this name."""
    try:
        return ZoneInfo(name).key == name
    except (ZoneInfoNotFoundError, ValueError, OSError):  # the last two for names of folders
        return False


_MOST_MISFITS = 8
"""Of a template that are told."""


def broken_rules(body: Mapping[str, Any]) -> list[BrokenRule]:
    """Every broken rule between fields of an object that `LLMDeployment.from_body` accepts, and every field of its
    template unknown in pods."""
    spec = body["spec"]
    template = (spec.get("template") or {}).get("spec") or {}
    odd = list(islice(misfits(template, "spec.template.spec"), _MOST_MISFITS))
    return [
        *rules.broken(rules.OBJECT, body),
        *rules.broken(rules.SPEC, spec, "spec"),
        *rules.broken_below(LLMDeploymentSpec, spec, "spec"),
        *(odd or _owned_by_the_operator(spec, template)),
    ]


def _owned_by_the_operator(spec: Mapping[str, Any], template: Mapping[str, Any]) -> list[BrokenRule]:
    """Environment variables of a template that are set by the operator."""
    engine_type = (spec.get("engine") or {}).get("type") or EngineType.FAIRLEAD
    sentence = "template.spec.{} must not have {}, which the operator says, or which would keep it out: leave it out"
    return [
        BrokenRule(f"spec.template.spec.{where}", sentence.format(where, name))
        for where, name in engine_rules.owned_variables(engine_type, template)
    ]
