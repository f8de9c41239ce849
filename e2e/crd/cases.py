"""Objects with what a server must say about them: one broken and one kept for every rule, and each kind of limit."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from crd.verdicts import WHOLE_OBJECT
from fairlead.api import names

Json = dict[str, Any]


def deployment(name: str = "dinghy", **spec: Any) -> Json:
    """An LLMDeployment of the bundled model."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {"model": {"source": "demo://dinghy"}} | spec,
    }


@dataclass(frozen=True)
class RuleCase:
    """A rule at a place of its own, an object that breaks it and no other, and one that just keeps it."""

    sentence: str
    """The beginning of the rule's message."""
    field: str
    """The field that the rule stands on."""
    broken: Json
    kept: Json


_DEMO, _HUB = {"source": "demo://dinghy"}, {"source": "hf://o/name"}
_A = {"name": "a", "source": "file:///a"}
_ON_CLAIM = {"source": "pvc://models/a", "cache": {"node": True}}
SERVERS: Mapping[str, Json] = {
    "vLLM": {"type": "vLLM", "image": "vllm/vllm-openai:v0.22.0"},
    "llama.cpp": {"type": "llama.cpp", "image": "llama:1"},
    "SGLang": {"type": "SGLang", "image": "sglang:1"},
}


def _image(**cache: Any) -> Json:
    """A model that may be mounted from an image."""
    return {"source": "oci://h.example/a", "cache": cache}


def _at(field: str, value: Any) -> Json:
    """An LLMDeployment with this value at a field such as `spec.engine.dtype`, or as its spec (`spec`)."""
    for step in reversed(field.split(".")[1:]):
        value = {step: value}
    return deployment(**value)


_TWO_DEVICES = {"deviceClassName": "gpu.example", "count": 2}
_IN_IMAGE = _image(image=True)

_PLACED: Mapping[str, Mapping[str, tuple[Any, Any]]] = {
    "spec": {
        "model.cache.image needs a model.source of oci://REGISTRY/NAME": (
            {"model": _HUB | {"cache": {"image": True}}},
            {"model": {"source": "oci://h.example/a:v1", "cache": {"image": True, "node": False}}},
        ),
        "engine.speculative.source must be oci:// or in place (pvc://) with model.cache.image": (
            {"model": _IN_IMAGE, "engine": {"speculative": {"method": "draft", "source": "hf://o/name"}}},
            {"model": _IN_IMAGE, "engine": {"speculative": {"method": "draft", "source": "oci://h.example/b"}}},
        ),
        "model.credentials is for sources that are downloaded": (
            {"model": {"source": "demo://dinghy", "credentials": {"secretName": "hub"}}},
            {
                "model": {"source": "demo://dinghy", "credentials": {"secretName": "hub"}},
                "engine": {"speculative": {"method": "draft", "source": "hf://o/name"}},
            },
        ),
        "model.cache is for sources that are downloaded": (
            {"model": _ON_CLAIM},
            {"model": _ON_CLAIM, "adapters": [{"name": "a", "source": "s3://bucket/a"}]},
        ),
        "engine.maxLoras must not be 0 where adapters are listed": (
            {"adapters": [_A], "engine": {"maxLoras": 0}},
            {"adapters": [], "engine": {"maxLoras": 0}},
        ),
        "model.source must name a .gguf file with engine.type llama.cpp": (
            {"model": {"source": "pvc://models/boat"}, "engine": SERVERS["llama.cpp"]},
            {"model": {"source": "pvc://models/boat.gguf"}, "engine": SERVERS["llama.cpp"]},
        ),
        "model.cache.imagePath must name a .gguf file with engine.type llama.cpp": (
            {"model": _image(image=True, imagePath="models/boat"), "engine": SERVERS["llama.cpp"]},
            {"model": _image(image=True, imagePath="models/boat.gguf"), "engine": SERVERS["llama.cpp"]},
        ),
        "resources.gpus must not be above engine.tensorParallelSize": (
            {"resources": {"gpus": 4}, "engine": {"tensorParallelSize": 2}},
            {"resources": {"gpus": 4}, "engine": {"tensorParallelSize": 4}},
        ),
        "resources.devices.count must not be above engine.tensorParallelSize": (
            {"resources": {"devices": _TWO_DEVICES}},
            {"resources": {"devices": _TWO_DEVICES}, "engine": {"tensorParallelSize": 2}},
        ),
    },
    "spec.engine": {
        "engine.maxNumSeqs must not be above engine.maxNumBatchedTokens": (
            {"maxNumSeqs": 33, "maxNumBatchedTokens": 32},
            {"maxNumSeqs": 32, "maxNumBatchedTokens": 32},
        ),
        "engine.extraArgs of type Fairlead must have none of": (
            {"extraArgs": ["--seed", "7", "--port=1"]},
            {"extraArgs": ["--seed", "7", "--max-num-seqs=1"]},
        ),
        "engine.speculative.method must be ngram where engine.tensorParallelSize is above 1": (
            {"tensorParallelSize": 2, "speculative": {"method": "draft", "source": "demo://dinghy"}},
            {"tensorParallelSize": 2, "speculative": {"method": "ngram"}},
        ),
    },
    "spec.engine.speculative": {
        "engine.speculative.source must be set for methods draft, medusa and eagle3": (
            {"method": "medusa"},
            {"method": "medusa", "source": "file:///heads"},
        ),
        "engine.speculative.source must be left out with methods ngram and mtp": (
            {"method": "mtp", "source": "pvc://models/small"},
            {"method": "draft", "source": "pvc://models/small"},
        ),
        "engine.speculative.source demo:// is for method draft": (
            {"method": "eagle3", "source": "demo://dinghy"},
            {"method": "draft", "source": "demo://dinghy"},
        ),
        "engine.speculative.tree is for methods medusa, eagle3 and mtp": (
            {"method": "ngram", "tree": "4x24"},
            {"method": "medusa", "source": "pvc://a/heads", "tree": "[[0],[0,0]]"},
        ),
        "engine.speculative.tree must be WIDTHxNODES": (
            {"method": "mtp", "tree": "[[0],[0,0]]"},
            {"method": "mtp", "tree": "4x24"},
        ),
    },
    "spec.resources": {
        "resources.profile excludes": ({"profile": "cpu-small", "limits": {}}, {"profile": "cpu-small"}),
        "resources.gpus excludes": ({"gpus": 0, "claimTemplateName": "a"}, {"gpus": 0, "limits": {}}),
        "resources.devices excludes": (
            {"devices": {"deviceClassName": "gpu.example"}, "claimTemplateName": "a"},
            {"devices": {"deviceClassName": "gpu.example"}},
        ),
    },
    "spec.autoscaling": {
        "autoscaling.minReplicas must not be above autoscaling.maxReplicas": (
            {"minReplicas": 3, "maxReplicas": 2},
            {"minReplicas": 2, "maxReplicas": 2},
        ),
        "autoscaling.mode External excludes": (
            {"mode": "External", "targets": {"queueDepth": 2}},
            {"mode": "External"},
        ),
        "autoscaling.maxReplicas must be set": (
            {"mode": "Fairlead", "minReplicas": 1},
            {"mode": "Fairlead", "minReplicas": 1, "maxReplicas": 1},
        ),
        "autoscaling.scaleToZeroAfter needs autoscaling.minReplicas: 0": (
            {"maxReplicas": 2, "scaleToZeroAfter": "5m"},
            {"minReplicas": 0, "maxReplicas": 2, "scaleToZeroAfter": "5m"},
        ),
        "autoscaling.scaleToZeroAfter must be more than 0": (
            {"minReplicas": 0, "maxReplicas": 2, "scaleToZeroAfter": "0.0m0s"},
            {"minReplicas": 0, "maxReplicas": 2, "scaleToZeroAfter": "0.0m1ms"},
        ),
        "autoscaling.targets.tolerance needs": (
            {"maxReplicas": 2, "targets": {"queueDepth": 2, "tolerance": 20}},
            {"maxReplicas": 2, "targets": {"timePerOutputToken": "30ms", "tolerance": 20}},
        ),
    },
    "spec.rollout": {
        "rollout.maxSurge and rollout.maxUnavailable must not both be 0": (
            {"maxSurge": 0},
            {"maxSurge": 0, "maxUnavailable": 1},
        ),
    },
}
"""Field → the beginning of a rule's sentence → values of the field that break it and keep it."""


def _in_context() -> Iterator[RuleCase]:
    """Rules on fields in lists, and on those whose value does not come alone."""

    def case(sentence: str, field: str, broken: Json, kept: Json) -> RuleCase:
        return RuleCase(sentence, field, deployment(**broken), deployment(**kept))

    def model(**fields: Any) -> Json:
        return {"model": _DEMO | fields}

    def adapter(**fields: Any) -> Json:
        return {"adapters": [_A | fields]}

    def second(**fields: Any) -> Json:
        return {"adapters": [_A | {"servedName": "boat"}, {"name": "b", "source": "file:///b"} | fields]}

    def draft(source: str) -> Json:
        return {"engine": {"speculative": {"method": "draft", "source": source}}}

    def variable(**fields: Any) -> Json:
        return {"engine": {"env": [{"name": "A", "value": "1"}, {"name": "B", **fields}]}}

    def schedule(**bounds: int) -> Json:
        return {"autoscaling": {"maxReplicas": 4, "schedules": [{"name": "day", **bounds}]}}

    cache, of_schedule = "spec.model.cache", "spec.autoscaling.schedules[0]"
    yield case("a schedule must have minReplicas or maxReplicas", of_schedule, schedule(), schedule(minReplicas=0))
    yield case(
        "minReplicas of a schedule must not be above its maxReplicas", of_schedule,
        schedule(minReplicas=3, maxReplicas=2), schedule(minReplicas=9),
    )  # fmt: skip
    yield RuleCase("metadata.name must not be longer than 40", WHOLE_OBJECT, deployment("a" * 41), deployment("a" * 40))
    yield RuleCase("metadata.name must start with a letter", WHOLE_OBJECT, deployment("1st"), deployment("st1"))
    yield case(
        "model.cache.claim excludes model.cache.node", cache,
        model(**_HUB, cache={"claim": "models", "node": True}),
        model(**_HUB, cache={"claim": "models", "node": False}),
    )  # fmt: skip
    yield case(
        "model.cache.image excludes model.cache.claim, node and size", cache,
        model(**_image(image=True, size="1Gi")),
        model(**_image(image=False, size="1Gi", node=True)),
    )  # fmt: skip
    yield case(
        "model.cache.imagePath needs model.cache.image: true", cache,
        model(**_image(node=True, imagePath="models/a")),
        model(**_image(image=True, imagePath="models/a")),
    )  # fmt: skip
    no_slash = "model.servedName, model.aliases and adapters[].servedName must not contain '/'"
    bad, good = "other/boat", "other-boat"
    yield case(no_slash, "spec.model.servedName", model(servedName=bad), model(servedName=good))
    yield case(no_slash, "spec.model.aliases[1]", model(aliases=["boat", bad]), model(aliases=["boat", good]))
    yield case(no_slash, "spec.adapters[0].servedName", adapter(servedName=bad), adapter(servedName=good))
    yield case(
        "two of adapters must not have the same servedName", "spec.adapters",
        second(servedName="boat"), second(servedName="ship"),
    )  # fmt: skip
    yield case(
        "adapters[].servedName must not be a name of the model itself", WHOLE_OBJECT,
        adapter(servedName="dinghy"), adapter(name="dinghy", servedName="dinghy-a"),
    )  # fmt: skip
    for what, field, spec in (
        ("model.source", "spec.model.source", lambda source: model(source=source)),
        ("adapters[].source", "spec.adapters[1].source", lambda source: second(source=source)),
        ("engine.speculative.source", "spec.engine.speculative.source", draft),
    ):
        yield case(f"{what} must look like", field, spec("hf://o/name:"), spec("hf://o/name:Q4_K_M@r"))
        yield case(f"{what} must not contain '..'", field, spec("pvc://a/../b"), spec("pvc://a/..b/c..d"))
        hub = "https://huggingface.co/o/name"
        yield case(f"{what} must be hf://", field, spec(f"{hub}/tree/main"), spec(f"{hub}/resolve/main/a.tar.gz"))
    yield case(
        "engine.chatTemplate must be the text of a Jinja template", "spec.engine.chatTemplate",
        {"engine": {"chatTemplate": "/templates/chat.jinja"}}, {"engine": {"chatTemplate": "{{ messages }}"}},
    )  # fmt: skip
    yield RuleCase(
        "engine.env must have none of FAIRLEAD_*, POD_IP", "spec.engine.env[0]",
        deployment(engine={"env": [{"name": "FAIRLEAD_ANYTHING", "value": "1"}]}),
        deployment(engine={"env": [{"name": "POD_IPS", "value": "1"}, {"name": "MY_FAIRLEAD_A", "value": "1"}]}),
    )  # fmt: skip
    yield case(
        "an environment variable has either a value or a valueFrom", "spec.engine.env[1]",
        variable(value="", valueFrom={}), variable(valueFrom={"fieldRef": {}}),
    )  # fmt: skip


_OURS_ALONE: Json = {
    "quantization": "int8",
    "speculative": {"method": "ngram"},
    "profile": {"configMap": "measured"},
    "maxLoras": 2,
    "maxLoraRank": 8,
    "maxLoraExpertRank": 4,
    "maxCpuLoras": 8,
    "maxImages": 2,
    "maxImagePixels": 100000,
    "allowedMediaDomains": ["example.com"],
    "unknownFields": "refuse",
}
"""Fields of `spec.engine` that servers which are not ours have not."""
_OF_A_SERVER: Mapping[str, Mapping[str, tuple[Json, Json]]] = {
    "vLLM": {
        "engine.extraArgs of type vLLM must have none of": (
            {"extraArgs": ["--served_model_nam", "other"]},
            {"extraArgs": ["--swap-space=1"]},
        ),
        "engine.env of type vLLM must have none of": (
            {"env": [{"name": "VLLM_LOGGING_LEVEL", "value": "INFO"}, {"name": "VLLM_API_KEY", "value": "k"}]},
            {"env": [{"name": "VLLM_API_KEYS", "value": "k"}, {"name": "LLAMA_API_KEY", "value": "k"}]},
        ),
        "engine.toolCallParser harmony must be left out with engine.type vLLM": (
            {"toolCallParser": "harmony"},
            {"toolCallParser": "hermes"},
        ),
        **{
            f"engine.toolCallParser {value} is not vLLM's": ({"toolCallParser": value}, {"toolCallParser": "lfm2"})
            for value in ("nemotron", "solar_open", "functionary")
        },
        **{
            f"engine.reasoningParser {value} is not vLLM's": (
                {"reasoningParser": value},
                {"reasoningParser": "mistral"},
            )
            for value in ("think", "solar_open")
        },
        "engine.kvCache.dtype int8 is not vLLM's": ({"kvCache": {"dtype": "int8"}}, {"kvCache": {"dtype": "fp8"}}),
    },
    "llama.cpp": {
        "engine.extraArgs of type llama.cpp must have none of": (
            {"extraArgs": ["-m", "/other.gguf"]},
            {"extraArgs": ["--mmproj", "/models/eye.gguf"]},
        ),
        "engine.env of type llama.cpp must have none of": (
            {"env": [{"name": "LLAMA_ARG_API_PREFIX", "value": "/a"}]},
            {"env": [{"name": "LLAMA_ARG_THREADS", "value": "4"}]},
        ),
        "engine.dtype must be left out with engine.type llama.cpp": ({"dtype": "float16"}, {"dtype": "auto"}),
        "engine.toolCallParser must be left out with engine.type llama.cpp": (
            {"toolCallParser": "hermes"},
            {"toolCallParser": "auto"},
        ),
        "engine.reasoningParser must be left out with engine.type llama.cpp": (
            {"reasoningParser": "think"},
            {"reasoningParser": "none"},
        ),
        "engine.kvCache.dtype fp8 is not llama.cpp's": ({"kvCache": {"dtype": "fp8"}}, {"kvCache": {"dtype": "int8"}}),
    },
    "SGLang": {
        "engine.extraArgs of type SGLang must have none of": (
            {"extraArgs": ["--por=1"]},
            {"extraArgs": ["--mem-fraction-static=0.8"]},
        ),
        "engine.chatTemplate must be left out with engine.type SGLang": (
            {"chatTemplate": "{{ messages }}"},
            {"extraArgs": ["--chat-template", "/templates/a.jinja"]},
        ),
        "engine.kvCache.memory must be left out with engine.type SGLang": (
            {"kvCache": {"memory": "2Gi"}},
            {"kvCache": {"blockSize": 32}},
        ),
        "engine.reasoningParser think is not SGLang's": ({"reasoningParser": "think"}, {"reasoningParser": "mistral"}),
        "engine.kvCache.dtype int8 is not SGLang's": ({"kvCache": {"dtype": "int8"}}, {"kvCache": {"dtype": "fp8"}}),
        "engine.maxNumBatchedTokens (8192) must be a multiple of engine.kvCache.blockSize (16)": (
            {"kvCache": {"blockSize": 48}},
            {"kvCache": {"blockSize": 48}, "maxNumBatchedTokens": 4800},
        ),
    },
}
"""Type of a server that is not ours → sentence → what breaks and keeps the rule beside type and image."""


def _foreign(kind: str) -> Iterator[RuleCase]:
    """The rules of a server that is not ours."""
    server = SERVERS[kind]

    def spec(model: Json = _HUB, adapters: list[Json] | None = None, **engine: Any) -> Json:
        more: Json = {} if adapters is None else {"adapters": adapters}
        return deployment(model=model, engine=server | engine, **more)

    without_image = deployment(model=_HUB, engine={"type": kind})
    yield RuleCase(f"engine.image must be set with engine.type {kind}", "spec.engine", without_image, spec())
    left_out = f"must be left out with engine.type {kind}"
    for field, value in _OURS_ALONE.items():
        ours = deployment(model=_HUB, engine={field: value})
        yield RuleCase(f"engine.{field} {left_out}", "spec.engine", spec(**{field: value}), ours)
    yield RuleCase(f"engine.apiServers {left_out}", "spec.engine", spec(apiServers=2), spec(apiServers=1))
    yield RuleCase(f"adapters {left_out}", "spec", spec(adapters=[_A]), spec(adapters=[]))
    ours = deployment(engine=server | {"type": "Fairlead"})
    yield RuleCase(f"model.source demo:// is not for engine.type {kind}", "spec", spec(_DEMO), ours)
    for sentence, (broken, kept) in _OF_A_SERVER[kind].items():
        yield RuleCase(sentence, "spec.engine", spec(**broken), spec(**kept))


RULES = (
    *_in_context(),
    *(
        RuleCase(sentence, field, _at(field, broken), _at(field, kept))
        for field, rules in _PLACED.items()
        for sentence, (broken, kept) in rules.items()
    ),
    *(case for kind in SERVERS for case in _foreign(kind)),
)


@dataclass(frozen=True)
class LimitCase:
    """A value that a type, a limit, a pattern or an enum refuses, by the field that is named for it."""

    field: str
    """As in the answer; where it is inside a list, with its index."""
    body: Json


_MISFITS: Mapping[str, Sequence[Any]] = {
    "spec.model": [None],
    "spec.replicas": [-1, "1", 10001, 2**31, 1.5, 2**63],
    "spec.engine.dtype": ["float64", "", "Auto", 16],
    "spec.engine.maxModelLen": [0, -1, "8", 1.5, True, 2**31],
    "spec.engine.maxNumSeqs": [65537],
    "spec.engine.maxLoraRank": [0],
    "spec.engine.maxLoraExpertRank": [-1, 257],
    "spec.engine.maxImages": [0],
    "spec.engine.kvCache.memory": ["", "2GiB", "-1", "1e", 1.5, [], "9" * 33, "1 Gi"],
    "spec.engine.enablePrefixCaching": ["yes"],
    "spec.engine.extraArgs": [["a"] * 65],
    "spec.engine.speculative.method": ["magic"],
    "spec.resources.profile": [""],
    "spec.resources.limits.cpu": ["two"],
    "spec.resources.nodeSelector.pool": ["a b", 1],
    "spec.resources.requests": [{f"r{number}": 1 for number in range(33)}],
    "spec.routing.policy": ["Random"],
    "spec.routing.prefixHash.meanLoadFactor": [99],
    "spec.rollout.maxSurge": ["25%"],
    "spec.drain": ["15m"],
    "spec.template.metadata.labels.a": [1],
    "spec.template.spec": [[]],
}
"""Field → values that are refused for it."""


def _limits() -> Iterator[LimitCase]:
    for field, values in _MISFITS.items():
        yield from (LimitCase(field, _at(field, value)) for value in values)
    for model in ({}, {"source": 7}, {"source": "demo://" + "a" * 1018}):
        yield LimitCase("spec.model.source", deployment(model=model))
    for name in ("", "-a", "a-", "a b", "a\n", "ä", "a" * 129):
        yield LimitCase("spec.model.servedName", deployment(model=_DEMO | {"servedName": name}))
    for place, aliases in (
        ("", "a"),
        ("", [f"a{number}" for number in range(17)]),
        ("[1]", ["a", "a"]),
        ("[0]", ["-"]),
        ("[0]", [None]),
    ):
        yield LimitCase(f"spec.model.aliases{place}", deployment(model=_DEMO | {"aliases": aliases}))
    for name in ("", "A", "a:b", "-a", "a" * 64):
        yield LimitCase("spec.adapters[0].name", deployment(adapters=[_A | {"name": name}]))
    yield LimitCase("spec.adapters[0].source", deployment(adapters=[{"name": "a"}]))
    yield LimitCase("spec.adapters[1]", deployment(adapters=[_A, _A]))
    for place, engine in (
        ("extraArgs[0]", {"extraArgs": [1]}),
        ("speculative.numTokens", {"speculative": {"method": "ngram", "numTokens": 33}}),
        ("env[0].name", {"env": [{"name": "1A"}]}),
        ("env[0].name", {"env": [{"value": "1"}]}),
        ("env[1]", {"env": [{"name": "A"}, {"name": "A"}]}),
        ("env[0].valueFrom", {"env": [{"name": "A", "valueFrom": "x"}]}),
        ("allowedMediaDomains[0]", {"allowedMediaDomains": ["https://a.test"]}),
    ):
        yield LimitCase(f"spec.engine.{place}", deployment(engine=engine))
    for tree in ("4by24", "", "[0]]x", "100x9"):
        speculative = {"method": "medusa", "source": "pvc://a/heads", "tree": tree}
        yield LimitCase("spec.engine.speculative.tree", deployment(engine={"speculative": speculative}))
    for window in ("", "5", "5 s", "s", "-5s", 5, "1s" * 17):
        scaled = {"maxReplicas": 2, "scaleUp": {"stabilizationWindow": window}}
        yield LimitCase("spec.autoscaling.scaleUp.stabilizationWindow", deployment(autoscaling=scaled))
    yield LimitCase("spec.autoscaling.mode", deployment(autoscaling={"mode": "HPA", "maxReplicas": 2}))
    for percentile in (0, 100):
        percentiles = {"maxReplicas": 2, "targets": {"timeToFirstToken": "1s", "percentile": percentile}}
        yield LimitCase("spec.autoscaling.targets.percentile", deployment(autoscaling=percentiles))


LIMITS = tuple(_limits())

FULL = deployment(
    "full",
    model={"source": "pvc://models/a", "servedName": "org-full", "aliases": ["full-a", "full-b"]},
    adapters=[{"name": "pirate", "source": "pvc://adapters/pirate", "servedName": "redbeard"}],
    engine={
        "image": "example.test/engine:1",
        "dtype": "float32",
        "maxModelLen": 4096,
        "maxNumSeqs": 8,
        "maxNumBatchedTokens": 256,
        "maxNumQueuedTokens": 512,
        "kvCache": {"blockSize": 16, "memory": "2Gi"},
        "enablePrefixCaching": True,
        "maxLoras": 2,
        "maxLoraRank": 8,
        "maxLoraExpertRank": 0,
        "maxCpuLoras": 4,
        "maxImages": 4,
        "maxImagePixels": 1003520,
        "allowedMediaDomains": ["images.example.test", "10.0.0.7:8080"],
        "speculative": {"method": "eagle3", "source": "pvc://heads/a", "numTokens": 3, "tree": "4x24"},
        "extraArgs": ["--seed", "7"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    },
    resources={
        "devices": {
            "deviceClassName": "gpu.example.com",
            "count": 1,
            "selectors": ["device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) >= 0"],
        },
        "requests": {"cpu": "500m", "memory": "1Gi"},
        "limits": {"cpu": 2, "memory": "2Gi"},
        "nodeSelector": {"pool": "a", "spot": ""},
    },
    replicas=2,
    autoscaling={
        "mode": "Fairlead",
        "minReplicas": 0,
        "maxReplicas": 4,
        "schedules": [
            {
                "name": "day",
                "timeZone": "Europe/Berlin",
                "days": ["Mon", "Tue"],
                "start": "08:00",
                "end": "18:30",
                "minReplicas": 2,
                "maxReplicas": 8,
            }
        ],
        "priority": 10,
        "targets": {
            "queueDepth": 4,
            "timeToFirstToken": "1.5s",
            "timePerOutputToken": "50ms",
            "percentile": 95,
            "tolerance": 5,
        },
        "scaleUp": {"stabilizationWindow": "0s", "maxStep": 2, "period": "15s"},
        "scaleDown": {"stabilizationWindow": "2m", "maxStep": 1, "period": "1m30s"},
        "scaleToZeroAfter": "10m",
    },
    routing={
        "policy": "PrefixHash",
        "prefixHash": {"meanLoadFactor": 150, "replication": 128, "prefixCharLength": 64},
        "maxQueueTime": "30s",
        "coldStartTimeout": "10m",
    },
    rollout={"maxSurge": 1, "maxUnavailable": 1},
    drain={"timeout": "15m"},
    template={
        "metadata": {"labels": {"team": "search"}, "annotations": {"note": "kept"}},
        "spec": {"priorityClassName": "high", "tolerations": [{"key": "gpu", "operator": "Exists"}]},
    },
)
"""An object that has every field of the spec."""


def typos() -> Iterator[tuple[str, Json]]:
    """Objects with one field that nobody knows, and its path: one for every object in `FULL`."""
    for path in _objects(FULL["spec"], ("spec",)):
        body = deepcopy(FULL)
        found: Any = body
        for step in path:
            found = found[step]
        found["typo"] = 1
        yield "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".") + ".typo", body


_OPEN = ("requests", "limits", "labels", "annotations", "nodeSelector", "valueFrom")
"""Objects whose fields are not the schema's to know, and `template.spec`."""


def _objects(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if path[-1] in _OPEN or path[-2:] == ("template", "spec"):
        return
    if isinstance(value, Mapping):
        yield path
        for name, item in value.items():
            yield from _objects(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _objects(item, (*path, index))
