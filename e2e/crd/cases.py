"""Objects with what a server must say about them: one broken and one kept for every rule, and each kind of limit."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

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


def _autoscaling(**fields: Any) -> Json:
    return deployment(autoscaling=fields)


def _source(source: str) -> Json:
    return deployment(model={"source": source})


def _adapters(*adapters: Json, **spec: Any) -> Json:
    return deployment(adapters=list(adapters), **spec)


def _vllm(**fields: Any) -> Json:
    return deployment(
        model={"source": "hf://o/name"}, engine={"type": "vLLM", "image": "vllm/vllm-openai:v0.22.0", **fields}
    )


def _llama(**fields: Any) -> Json:
    return deployment(model={"source": "hf://o/name"}, engine={"type": "llama.cpp", "image": "llama:1", **fields})


def _not_llamas(field: str, value: Any, kept: Json | None = None) -> RuleCase:
    """A field that llama.cpp has not; our engine has it."""
    ours = {**_llama(), "spec": {"model": {"source": "hf://o/name"}, "engine": {field: value}}}
    return RuleCase(
        f"engine.{field} must be left out with engine.type llama.cpp",
        "spec.engine",
        _llama(**{field: value}),
        kept or ours,
    )


def _sglang(**fields: Any) -> Json:
    return deployment(model={"source": "hf://o/name"}, engine={"type": "SGLang", "image": "sglang:1", **fields})


def _not_sglangs(field: str, value: Any, kept: Json | None = None) -> RuleCase:
    """A field that SGLang has not; our engine has it."""
    outer, _, inner = field.rpartition(".")
    fields = {outer: {inner: value}} if outer else {field: value}
    ours = {**_sglang(), "spec": {"model": {"source": "hf://o/name"}, "engine": fields}}
    return RuleCase(
        f"engine.{field} must be left out with engine.type SGLang", "spec.engine", _sglang(**fields), kept or ours
    )


def _left_out(field: str, value: Any, kept: Json | None = None) -> RuleCase:
    """A field that vLLM has not; our engine has it."""
    ours = {**_vllm(**{field: value}), "spec": {"model": {"source": "hf://o/name"}, "engine": {field: value}}}
    return RuleCase(
        f"engine.{field} must be left out with engine.type vLLM", "spec.engine", _vllm(**{field: value}), kept or ours
    )


RULES = (
    RuleCase("metadata.name must not be longer than 40", "<nil>", deployment("a" * 41), deployment("a" * 40)),
    RuleCase("metadata.name must start with a letter", "<nil>", deployment("1st"), deployment("st1")),
    RuleCase("model.source must look like", "spec.model.source", _source("hf://only-a-name"), _source("hf://o/name@r")),
    RuleCase(
        "model.source must not contain '..'", "spec.model.source", _source("pvc://a/../b"), _source("pvc://a/..b/c..d")
    ),
    RuleCase(
        "model.cache.claim excludes model.cache.node",
        "spec.model.cache",
        deployment(model={"source": "hf://o/name", "cache": {"claim": "models", "node": True}}),
        deployment(model={"source": "hf://o/name", "cache": {"claim": "models", "node": False}}),
    ),
    RuleCase(
        "model.cache.image excludes model.cache.claim, node and size",
        "spec.model.cache",
        deployment(model={"source": "oci://h.example/a", "cache": {"image": True, "size": "1Gi"}}),
        deployment(model={"source": "oci://h.example/a", "cache": {"image": False, "size": "1Gi", "node": True}}),
    ),
    RuleCase(
        "model.cache.imagePath needs model.cache.image: true",
        "spec.model.cache",
        deployment(model={"source": "oci://h.example/a", "cache": {"node": True, "imagePath": "models/a"}}),
        deployment(model={"source": "oci://h.example/a", "cache": {"image": True, "imagePath": "models/a"}}),
    ),
    RuleCase(
        "model.cache.image needs a model.source of oci://REGISTRY/NAME",
        "spec",
        deployment(model={"source": "hf://o/name", "cache": {"image": True}}),
        deployment(model={"source": "oci://h.example/a:v1", "cache": {"image": True, "node": False}}),
    ),
    RuleCase(
        "engine.speculative.source must be oci:// or in place (pvc://) with model.cache.image",
        "spec",
        deployment(
            model={"source": "oci://h.example/a", "cache": {"image": True}},
            engine={"speculative": {"method": "draft", "source": "hf://o/name"}},
        ),
        deployment(
            model={"source": "oci://h.example/a", "cache": {"image": True}},
            engine={"speculative": {"method": "draft", "source": "oci://h.example/b"}},
        ),
    ),
    RuleCase(
        "model.credentials is for sources that are downloaded",
        "spec",
        deployment(model={"source": "demo://dinghy", "credentials": {"secretName": "hub"}}),
        deployment(
            model={"source": "demo://dinghy", "credentials": {"secretName": "hub"}},
            engine={"speculative": {"method": "draft", "source": "hf://o/name"}},
        ),
    ),
    RuleCase(
        "model.cache is for sources that are downloaded",
        "spec",
        deployment(model={"source": "pvc://models/a", "cache": {"node": True}}),
        _adapters(
            {"name": "a", "source": "s3://bucket/a"}, model={"source": "pvc://models/a", "cache": {"node": True}}
        ),
    ),
    RuleCase(
        "model.servedName, model.aliases and adapters[].servedName must not contain '/'",
        "spec.model.servedName",
        deployment(model={"source": "demo://dinghy", "servedName": "other/boat"}),
        deployment(model={"source": "demo://dinghy", "servedName": "other-boat"}),
    ),
    RuleCase(
        "model.servedName, model.aliases and adapters[].servedName must not contain '/'",
        "spec.model.aliases[1]",
        deployment(model={"source": "demo://dinghy", "aliases": ["boat", "other/boat"]}),
        deployment(model={"source": "demo://dinghy", "aliases": ["boat", "other-boat"]}),
    ),
    RuleCase(
        "model.servedName, model.aliases and adapters[].servedName must not contain '/'",
        "spec.adapters[0].servedName",
        _adapters({"name": "a", "source": "file:///a", "servedName": "other/boat"}),
        _adapters({"name": "a", "source": "file:///a", "servedName": "other-boat"}),
    ),
    RuleCase(
        "adapters[].source must look like",
        "spec.adapters[0].source",
        _adapters({"name": "a", "source": "hf://only-a-name"}),
        _adapters({"name": "a", "source": "hf://org/name@r"}),
    ),
    RuleCase(
        "adapters[].source must not contain '..'",
        "spec.adapters[1].source",
        _adapters({"name": "a", "source": "file:///a"}, {"name": "b", "source": "pvc://claim/../a"}),
        _adapters({"name": "a", "source": "file:///a"}, {"name": "b", "source": "pvc://claim/..a"}),
    ),
    RuleCase(
        "two of adapters must not have the same servedName",
        "spec.adapters",
        _adapters(
            {"name": "a", "source": "file:///a", "servedName": "boat"},
            {"name": "b", "source": "file:///b", "servedName": "boat"},
        ),
        _adapters(
            {"name": "a", "source": "file:///a", "servedName": "boat"},
            {"name": "b", "source": "file:///b", "servedName": "ship"},
        ),
    ),
    RuleCase(
        "adapters[].servedName must not be a name of the model itself",
        "<nil>",
        _adapters({"name": "a", "source": "file:///a", "servedName": "dinghy"}),
        _adapters({"name": "dinghy", "source": "file:///a", "servedName": "dinghy-a"}),
    ),
    RuleCase(
        "engine.maxLoras must not be 0 where adapters are listed",
        "spec",
        _adapters({"name": "a", "source": "file:///a"}, engine={"maxLoras": 0}),
        deployment(adapters=[], engine={"maxLoras": 0}),
    ),
    RuleCase(
        "engine.maxNumSeqs must not be above engine.maxNumBatchedTokens",
        "spec.engine",
        deployment(engine={"maxNumSeqs": 33, "maxNumBatchedTokens": 32}),
        deployment(engine={"maxNumSeqs": 32, "maxNumBatchedTokens": 32}),
    ),
    RuleCase(
        "engine.extraArgs of type Fairlead must have none of",
        "spec.engine",
        deployment(engine={"extraArgs": ["--seed", "7", "--port=1"]}),
        deployment(engine={"extraArgs": ["--seed", "7", "--max-num-seqs=1"]}),
    ),
    RuleCase(
        "engine.extraArgs of type vLLM must have none of",
        "spec.engine",
        _vllm(extraArgs=["--served_model_nam", "other"]),
        _vllm(extraArgs=["--swap-space=1"]),
    ),
    RuleCase(
        "engine.extraArgs of type llama.cpp must have none of",
        "spec.engine",
        _llama(extraArgs=["-m", "/other.gguf"]),
        _llama(extraArgs=["--mmproj", "/models/eye.gguf"]),
    ),
    RuleCase(
        "engine.extraArgs of type SGLang must have none of",
        "spec.engine",
        _sglang(extraArgs=["--por=1"]),
        _sglang(extraArgs=["--mem-fraction-static=0.8"]),
    ),
    RuleCase(
        "engine.image must be set with engine.type vLLM",
        "spec.engine",
        deployment(model={"source": "hf://o/name"}, engine={"type": "vLLM"}),
        _vllm(),
    ),
    _left_out("quantization", "int8"),
    _left_out("apiServers", 2, _vllm(apiServers=1)),
    _left_out("speculative", {"method": "ngram"}),
    _left_out("profile", {"configMap": "measured"}),
    _left_out("maxLoras", 2),
    _left_out("maxLoraRank", 8),
    _left_out("maxCpuLoras", 8),
    _left_out("maxImages", 2),
    _left_out("maxImagePixels", 100000),
    _left_out("allowedMediaDomains", ["example.com"]),
    RuleCase(
        "engine.toolCallParser harmony must be left out with engine.type vLLM",
        "spec.engine",
        _vllm(toolCallParser="harmony"),
        _vllm(toolCallParser="hermes"),
    ),
    RuleCase(
        "engine.reasoningParser think is not vLLM's",
        "spec.engine",
        _vllm(reasoningParser="think"),
        _vllm(reasoningParser="mistral"),
    ),
    RuleCase(
        "engine.kvCache.dtype int8 is not vLLM's",
        "spec.engine",
        _vllm(kvCache={"dtype": "int8"}),
        _vllm(kvCache={"dtype": "fp8"}),
    ),
    RuleCase(
        "adapters must be left out with engine.type vLLM",
        "spec",
        _vllm() | {"spec": _vllm()["spec"] | {"adapters": [{"name": "pirate", "source": "pvc://a/b"}]}},
        _vllm() | {"spec": _vllm()["spec"] | {"adapters": []}},
    ),
    RuleCase(
        "model.source demo:// is not for engine.type vLLM",
        "spec",
        deployment(engine={"type": "vLLM", "image": "vllm/vllm-openai:v0.22.0"}),
        deployment(engine={"type": "Fairlead", "image": "fairlead/engine:1"}),
    ),
    RuleCase(
        "engine.image must be set with engine.type llama.cpp",
        "spec.engine",
        deployment(model={"source": "hf://o/name"}, engine={"type": "llama.cpp"}),
        _llama(),
    ),
    _not_llamas("quantization", "int8"),
    _not_llamas("dtype", "float16", _llama(dtype="auto")),
    _not_llamas("apiServers", 2, _llama(apiServers=1)),
    _not_llamas("toolCallParser", "hermes", _llama(toolCallParser="auto")),
    _not_llamas("reasoningParser", "think", _llama(reasoningParser="none")),
    _not_llamas("speculative", {"method": "ngram"}),
    _not_llamas("profile", {"configMap": "measured"}),
    _not_llamas("maxLoras", 2),
    _not_llamas("maxLoraRank", 8),
    _not_llamas("maxCpuLoras", 8),
    _not_llamas("maxImages", 2),
    _not_llamas("maxImagePixels", 100000),
    _not_llamas("allowedMediaDomains", ["example.com"]),
    RuleCase(
        "engine.kvCache.dtype fp8 is not llama.cpp's",
        "spec.engine",
        _llama(kvCache={"dtype": "fp8"}),
        _llama(kvCache={"dtype": "int8"}),
    ),
    RuleCase(
        "adapters must be left out with engine.type llama.cpp",
        "spec",
        _llama() | {"spec": _llama()["spec"] | {"adapters": [{"name": "pirate", "source": "pvc://a/b"}]}},
        _llama() | {"spec": _llama()["spec"] | {"adapters": []}},
    ),
    RuleCase(
        "model.source demo:// is not for engine.type llama.cpp",
        "spec",
        deployment(engine={"type": "llama.cpp", "image": "llama:1"}),
        deployment(engine={"type": "Fairlead", "image": "fairlead/engine:1"}),
    ),
    RuleCase(
        "model.source must name a .gguf file with engine.type llama.cpp",
        "spec",
        deployment(model={"source": "pvc://models/boat"}, engine={"type": "llama.cpp", "image": "llama:1"}),
        deployment(model={"source": "pvc://models/boat.gguf"}, engine={"type": "llama.cpp", "image": "llama:1"}),
    ),
    RuleCase(
        "model.cache.imagePath must name a .gguf file with engine.type llama.cpp",
        "spec",
        deployment(
            model={"source": "oci://h.example/a", "cache": {"image": True, "imagePath": "models/boat"}},
            engine={"type": "llama.cpp", "image": "llama:1"},
        ),
        deployment(
            model={"source": "oci://h.example/a", "cache": {"image": True, "imagePath": "models/boat.gguf"}},
            engine={"type": "llama.cpp", "image": "llama:1"},
        ),
    ),
    RuleCase(
        "engine.image must be set with engine.type SGLang",
        "spec.engine",
        deployment(model={"source": "hf://o/name"}, engine={"type": "SGLang"}),
        _sglang(),
    ),
    _not_sglangs("quantization", "int8"),
    _not_sglangs("apiServers", 2, _sglang(apiServers=1)),
    _not_sglangs("kvCache.memory", "2Gi", _sglang(kvCache={"blockSize": 32})),
    _not_sglangs("speculative", {"method": "ngram"}),
    _not_sglangs("profile", {"configMap": "measured"}),
    _not_sglangs("maxLoras", 2),
    _not_sglangs("maxLoraRank", 8),
    _not_sglangs("maxCpuLoras", 8),
    _not_sglangs("maxImages", 2),
    _not_sglangs("maxImagePixels", 100000),
    _not_sglangs("allowedMediaDomains", ["example.com"]),
    RuleCase(
        "engine.reasoningParser think is not SGLang's",
        "spec.engine",
        _sglang(reasoningParser="think"),
        _sglang(reasoningParser="mistral"),
    ),
    RuleCase(
        "engine.kvCache.dtype int8 is not SGLang's",
        "spec.engine",
        _sglang(kvCache={"dtype": "int8"}),
        _sglang(kvCache={"dtype": "fp8"}),
    ),
    RuleCase(
        "engine.maxNumBatchedTokens (8192) must be a multiple of engine.kvCache.blockSize (16)",
        "spec.engine",
        _sglang(kvCache={"blockSize": 48}),
        _sglang(kvCache={"blockSize": 48}, maxNumBatchedTokens=4800),
    ),
    RuleCase(
        "adapters must be left out with engine.type SGLang",
        "spec",
        _sglang() | {"spec": _sglang()["spec"] | {"adapters": [{"name": "pirate", "source": "pvc://a/b"}]}},
        _sglang() | {"spec": _sglang()["spec"] | {"adapters": []}},
    ),
    RuleCase(
        "model.source demo:// is not for engine.type SGLang",
        "spec",
        deployment(engine={"type": "SGLang", "image": "sglang:1"}),
        deployment(engine={"type": "Fairlead", "image": "fairlead/engine:1"}),
    ),
    RuleCase(
        "engine.speculative.method must be ngram where engine.tensorParallelSize is above 1",
        "spec.engine",
        deployment(engine={"tensorParallelSize": 2, "speculative": {"method": "draft", "source": "demo://dinghy"}}),
        deployment(engine={"tensorParallelSize": 2, "speculative": {"method": "ngram"}}),
    ),
    RuleCase(
        "engine.speculative.source must be set for methods draft, medusa and eagle3",
        "spec.engine.speculative",
        deployment(engine={"speculative": {"method": "medusa"}}),
        deployment(engine={"speculative": {"method": "medusa", "source": "file:///heads"}}),
    ),
    RuleCase(
        "engine.speculative.source must be left out with method ngram",
        "spec.engine.speculative",
        deployment(engine={"speculative": {"method": "ngram", "source": "pvc://models/small"}}),
        deployment(engine={"speculative": {"method": "draft", "source": "pvc://models/small"}}),
    ),
    RuleCase(
        "engine.speculative.source demo:// is for method draft",
        "spec.engine.speculative",
        deployment(engine={"speculative": {"method": "eagle3", "source": "demo://dinghy"}}),
        deployment(engine={"speculative": {"method": "draft", "source": "demo://dinghy"}}),
    ),
    RuleCase(
        "engine.speculative.tree is for methods medusa and eagle3",
        "spec.engine.speculative",
        deployment(engine={"speculative": {"method": "ngram", "tree": "4x24"}}),
        deployment(engine={"speculative": {"method": "medusa", "source": "pvc://a/heads", "tree": "[[0],[0,0]]"}}),
    ),
    RuleCase(
        "engine.speculative.tree must be WIDTHxNODES",
        "spec.engine.speculative",
        deployment(engine={"speculative": {"method": "eagle3", "source": "pvc://a/head", "tree": "[[0],[0,0]]"}}),
        deployment(engine={"speculative": {"method": "eagle3", "source": "pvc://a/head", "tree": "4x24"}}),
    ),
    RuleCase(
        "engine.speculative.source must look like",
        "spec.engine.speculative.source",
        deployment(engine={"speculative": {"method": "draft", "source": "hf://only-a-name"}}),
        deployment(engine={"speculative": {"method": "draft", "source": "hf://o/name@r"}}),
    ),
    RuleCase(
        "engine.speculative.source must not contain '..'",
        "spec.engine.speculative.source",
        deployment(engine={"speculative": {"method": "draft", "source": "pvc://claim/../a"}}),
        deployment(engine={"speculative": {"method": "draft", "source": "pvc://claim/..a"}}),
    ),
    RuleCase(
        "an environment variable has either a value or a valueFrom",
        "spec.engine.env[1]",
        deployment(engine={"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "", "valueFrom": {}}]}),
        deployment(engine={"env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {}}}]}),
    ),
    RuleCase(
        "resources.profile excludes",
        "spec.resources",
        deployment(resources={"profile": "cpu-small", "limits": {}}),
        deployment(resources={"profile": "cpu-small"}),
    ),
    RuleCase(
        "resources.gpus must not be above engine.tensorParallelSize",
        "spec",
        deployment(resources={"gpus": 4}, engine={"tensorParallelSize": 2}),
        deployment(resources={"gpus": 4}, engine={"tensorParallelSize": 4}),
    ),
    RuleCase(
        "autoscaling.minReplicas must not be above autoscaling.maxReplicas",
        "spec.autoscaling",
        _autoscaling(minReplicas=3, maxReplicas=2),
        _autoscaling(minReplicas=2, maxReplicas=2),
    ),
    RuleCase(
        "autoscaling.mode External excludes",
        "spec.autoscaling",
        _autoscaling(mode="External", targets={"queueDepth": 2}),
        _autoscaling(mode="External"),
    ),
    RuleCase(
        "autoscaling.maxReplicas must be set",
        "spec.autoscaling",
        _autoscaling(mode="Fairlead", minReplicas=1),
        _autoscaling(mode="Fairlead", minReplicas=1, maxReplicas=1),
    ),
    RuleCase(
        "autoscaling.scaleToZeroAfter needs autoscaling.minReplicas: 0",
        "spec.autoscaling",
        _autoscaling(maxReplicas=2, scaleToZeroAfter="5m"),
        _autoscaling(minReplicas=0, maxReplicas=2, scaleToZeroAfter="5m"),
    ),
    RuleCase(
        "autoscaling.scaleToZeroAfter must be more than 0",
        "spec.autoscaling",
        _autoscaling(minReplicas=0, maxReplicas=2, scaleToZeroAfter="0.0m0s"),
        _autoscaling(minReplicas=0, maxReplicas=2, scaleToZeroAfter="0.0m1ms"),
    ),
    RuleCase(
        "autoscaling.targets.tolerance needs",
        "spec.autoscaling",
        _autoscaling(maxReplicas=2, targets={"queueDepth": 2, "tolerance": 20}),
        _autoscaling(maxReplicas=2, targets={"timeToFirstToken": "300ms", "tolerance": 20}),
    ),
    RuleCase(
        "rollout.maxSurge and rollout.maxUnavailable must not both be 0",
        "spec.rollout",
        deployment(rollout={"maxSurge": 0}),
        deployment(rollout={"maxSurge": 0, "maxUnavailable": 1}),
    ),
)


@dataclass(frozen=True)
class LimitCase:
    """A value that a type, a limit, a pattern or an enum refuses, by the field that is named for it."""

    field: str
    spec: Json

    @property
    def body(self) -> Json:
        return deployment(**self.spec)


def _limits() -> Iterator[LimitCase]:
    """The fields are those of the answer; where one is inside a list, that is its index."""
    yield LimitCase("spec.model", {"model": None})
    yield LimitCase("spec.model.source", {"model": {}})
    yield LimitCase("spec.model.source", {"model": {"source": 7}})
    yield LimitCase("spec.model.source", {"model": {"source": "demo://" + "a" * 1018}})
    for name in ("", "-a", "a-", "a b", "a\n", "ä", "a" * 129):
        yield LimitCase("spec.model.servedName", {"model": {"source": "demo://dinghy", "servedName": name}})
    for field_name, aliases in (
        ("spec.model.aliases", "a"),
        ("spec.model.aliases", [f"a{number}" for number in range(17)]),
        ("spec.model.aliases[1]", ["a", "a"]),
        ("spec.model.aliases[0]", ["-"]),
        ("spec.model.aliases[0]", [None]),
    ):
        yield LimitCase(field_name, {"model": {"source": "demo://dinghy", "aliases": aliases}})
    for dtype in ("float64", "", "Auto", 16):
        yield LimitCase("spec.engine.dtype", {"engine": {"dtype": dtype}})
    for length in (0, -1, "8", 1.5, True, 2**31):
        yield LimitCase("spec.engine.maxModelLen", {"engine": {"maxModelLen": length}})
    yield LimitCase("spec.engine.maxNumSeqs", {"engine": {"maxNumSeqs": 65537}})
    for name in ("", "A", "a:b", "-a", "a" * 64):
        yield LimitCase("spec.adapters[0].name", {"adapters": [{"name": name, "source": "file:///a"}]})
    yield LimitCase("spec.adapters[0].source", {"adapters": [{"name": "a"}]})
    yield LimitCase("spec.adapters[1]", {"adapters": [{"name": "a", "source": "file:///a"}] * 2})
    yield LimitCase("spec.engine.maxLoraRank", {"engine": {"maxLoraRank": 0}})
    sizes: tuple[Any, ...] = ("", "2GiB", "-1", "1e", 1.5, [], "9" * 33, "1 Gi")
    for memory in sizes:
        yield LimitCase("spec.engine.kvCache.memory", {"engine": {"kvCache": {"memory": memory}}})
    yield LimitCase("spec.engine.enablePrefixCaching", {"engine": {"enablePrefixCaching": "yes"}})
    yield LimitCase("spec.engine.extraArgs", {"engine": {"extraArgs": ["a"] * 65}})
    yield LimitCase("spec.engine.extraArgs[0]", {"engine": {"extraArgs": [1]}})
    yield LimitCase("spec.engine.speculative.method", {"engine": {"speculative": {"method": "magic"}}})
    yield LimitCase(
        "spec.engine.speculative.numTokens", {"engine": {"speculative": {"method": "ngram", "numTokens": 33}}}
    )
    for tree in ("4by24", "", "[0]]x", "100x9"):
        speculative = {"method": "medusa", "source": "pvc://a/heads", "tree": tree}
        yield LimitCase("spec.engine.speculative.tree", {"engine": {"speculative": speculative}})
    yield LimitCase("spec.engine.env[0].name", {"engine": {"env": [{"name": "1A"}]}})
    yield LimitCase("spec.engine.speculative.method", {"engine": {"speculative": {"method": "magic"}}})
    yield LimitCase(
        "spec.engine.speculative.numTokens", {"engine": {"speculative": {"method": "ngram", "numTokens": 33}}}
    )
    yield LimitCase("spec.engine.env[0].name", {"engine": {"env": [{"value": "1"}]}})
    yield LimitCase("spec.engine.env[1]", {"engine": {"env": [{"name": "A"}, {"name": "A"}]}})
    yield LimitCase("spec.engine.env[0].valueFrom", {"engine": {"env": [{"name": "A", "valueFrom": "x"}]}})
    yield LimitCase("spec.resources.profile", {"resources": {"profile": ""}})
    yield LimitCase("spec.resources.limits.cpu", {"resources": {"limits": {"cpu": "two"}}})
    yield LimitCase("spec.resources.requests", {"resources": {"requests": {f"r{n}": 1 for n in range(33)}}})
    for replicas in (-1, "1", 10001, 2**31, 1.5, 2**63):
        yield LimitCase("spec.replicas", {"replicas": replicas})
    for window in ("", "5", "5 s", "s", "-5s", 5, "1s" * 17):
        scaled = {"maxReplicas": 2, "scaleUp": {"stabilizationWindow": window}}
        yield LimitCase("spec.autoscaling.scaleUp.stabilizationWindow", {"autoscaling": scaled})
    yield LimitCase("spec.autoscaling.mode", {"autoscaling": {"mode": "HPA", "maxReplicas": 2}})
    for percentile in (0, 100):
        targets = {"timeToFirstToken": "1s", "percentile": percentile}
        percentiles = {"maxReplicas": 2, "targets": targets}
        yield LimitCase("spec.autoscaling.targets.percentile", {"autoscaling": percentiles})
    yield LimitCase("spec.engine.maxImages", {"engine": {"maxImages": 0}})
    yield LimitCase("spec.engine.allowedMediaDomains[0]", {"engine": {"allowedMediaDomains": ["https://a.test"]}})
    yield LimitCase("spec.routing.policy", {"routing": {"policy": "Random"}})
    yield LimitCase("spec.routing.prefixHash.meanLoadFactor", {"routing": {"prefixHash": {"meanLoadFactor": 99}}})
    yield LimitCase("spec.rollout.maxSurge", {"rollout": {"maxSurge": "25%"}})
    yield LimitCase("spec.drain", {"drain": "15m"})
    yield LimitCase("spec.template.metadata.labels.a", {"template": {"metadata": {"labels": {"a": 1}}}})
    yield LimitCase("spec.template.spec", {"template": {"spec": []}})


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
        "maxCpuLoras": 4,
        "maxImages": 4,
        "maxImagePixels": 1003520,
        "allowedMediaDomains": ["images.example.test", "10.0.0.7:8080"],
        "speculative": {"method": "eagle3", "source": "pvc://heads/a", "numTokens": 3, "tree": "4x24"},
        "extraArgs": ["--seed", "7"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    },
    resources={"gpus": 1, "requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": 2, "memory": "2Gi"}},
    replicas=2,
    autoscaling={
        "mode": "Fairlead",
        "minReplicas": 0,
        "maxReplicas": 4,
        "targets": {"queueDepth": 4, "timeToFirstToken": "1.5s", "percentile": 95, "tolerance": 5},
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


_OPEN = ("requests", "limits", "labels", "annotations", "valueFrom")
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
