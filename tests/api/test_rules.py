"""The rules between fields: what each refuses, and that we evaluate their CEL as API servers do, of every object."""

from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest
from crd.cases import RULES, RuleCase
from crd.mutations import mutated_specs
from crd.verdicts import WHOLE_OBJECT
from generate_crds import object_schema
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api import rules
from fairlead.api.llmdeployment import InvalidSpec, LLMDeployment, broken_rules
from fairlead.api.rules import BrokenRule
from fairlead.api.schema import Rule
from fairlead_local.apiserver import cel
from fairlead_local.apiserver.cel import check_rules
from fairlead_local.apiserver.structural import prune_nulls

STORED = {"namespace": "default", "uid": "u", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}


def body(name: str = "dinghy", **spec: Any) -> dict[str, Any]:
    return {"metadata": STORED | {"name": name}, "spec": {"model": {"source": "demo://dinghy"}} | spec}


def whole(value: Any) -> Any:
    """2.0 is read back as 2: API servers store whole doubles without a point."""
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def agreed(obj: dict[str, Any]) -> list[BrokenRule]:
    """The rules that an object breaks, as the operator evaluates them; an API server's evaluation of the CRD has to
    confirm them.

    Raises InvalidSpec for objects that no rule is asked about."""
    LLMDeployment.from_body(obj)
    broken = broken_rules(obj)
    stored = whole(prune_nulls(object_schema(), deepcopy(obj)))
    by_cel = [(each.path, each.message.rpartition(": ")[2]) for each in check_rules(object_schema(), stored)]
    assert Counter((each.path, each.message.rpartition(": ")[2]) for each in broken) == Counter(by_cel)
    return broken


def test_every_rule_has_a_case_for_each_of_its_places() -> None:
    messages = [rule["message"] for schema in schemas(object_schema()) for rule in schema.get(VALIDATIONS, ())]
    cases = {message: [case for case in RULES if message.startswith(case.sentence)] for message in messages}
    assert {message: len(found) for message, found in cases.items()} == Counter(messages)


VALIDATIONS = "x-kubernetes-validations"


def schemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A schema and every schema in it."""
    yield schema
    inner = [*(schema.get("properties") or {}).values(), schema.get("items"), schema.get("additionalProperties")]
    for child in inner:
        if isinstance(child, Mapping):
            yield from schemas(child)


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.sentence)
def test_each_rule_is_what_its_case_breaks_and_just_keeps(case: RuleCase) -> None:
    """As the operator evaluates it; of API servers, ours among them, `e2e/test_crd.py` asks the same."""
    broken, kept = (deepcopy(each) for each in (case.broken, case.kept))
    for obj in (broken, kept):
        obj["metadata"] = STORED | obj["metadata"]
        LLMDeployment.from_body(obj)
    (found,) = broken_rules(broken)
    assert found.message.startswith(case.sentence)
    assert (found.path or WHOLE_OBJECT) == case.field
    assert broken_rules(kept) == []


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"autoscaling": {"mode": "External", "maxReplicas": 2}}, "autoscaling.mode External excludes"),
        ({"autoscaling": {"mode": "External", "scaleUp": {"maxStep": 2}}}, "autoscaling.mode External excludes"),
        ({"resources": {"profile": "gpu", "gpus": 1}}, "resources.profile excludes"),
        ({"resources": {"gpus": 2}}, "resources.gpus must not be above engine.tensorParallelSize"),
        ({"rollout": {"maxSurge": 0, "maxUnavailable": 0}}, "must not both be 0"),
        ({"model": {"source": "demo://a", "aliases": ["b", "other/b"]}}, "NAMESPACE/NAME is the name that every"),
        ({"model": {"source": "dinghy"}}, "model.source must look like demo://NAME"),
        ({"model": {"source": "file://relative"}}, "model.source must look like"),
        ({"model": {"source": "https://user:password@host/a"}}, "those belong into model.credentials"),
        ({"model": {"source": "https://host/a?X-Amz-Signature=1"}}, "those belong into model.credentials"),
        ({"model": {"source": "pvc://a", "cache": {"claim": "c"}}}, "model.cache is for sources"),
        *(
            ({"model": {"source": "oci://h.example/a", "cache": {"image": True, **other}}}, sentence)
            for other, sentence in (
                ({"claim": "c"}, "model.cache.image excludes model.cache.claim, node and size"),
                ({"node": True}, "model.cache.image excludes model.cache.claim, node and size"),
                ({"size": "1Gi"}, "model.cache.image excludes model.cache.claim, node and size"),
                ({"image": False, "imagePath": "a"}, "model.cache.imagePath needs model.cache.image: true"),
            )
        ),
        (
            {
                "model": {"source": "pvc://a", "cache": {"image": True}},
                "adapters": [{"name": "a", "source": "hf://o/n"}],
            },
            "model.cache.image needs a model.source of oci://REGISTRY/NAME",
        ),
        (
            {
                "model": {"source": "oci://h.example/a", "cache": {"image": True}},
                "engine": {"speculative": {"method": "draft", "source": "https://h.example/b"}},
            },
            "engine.speculative.source must be oci:// or in place (pvc://) with model.cache.image",
        ),
        (
            {
                "model": {"source": "demo://a", "cache": {"node": True}},
                "engine": {"speculative": {"method": "draft", "source": "pvc://hf/a"}},
            },
            "model.cache is for sources that are downloaded",
        ),
    ],
)
def test_a_broken_rule_says_what_to_do(spec: dict[str, Any], sentence: str) -> None:
    """Further ways to break the rules of `crd.cases`."""
    (broken,) = agreed(body(**spec))
    assert sentence in broken.message


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {
            "autoscaling": {
                "minReplicas": 0,
                "maxReplicas": 2,
                "scaleToZeroAfter": "500ms",
                "targets": {"timeToFirstToken": "300ms", "tolerance": 0},
                "scaleUp": {"stabilizationWindow": "0s", "maxStep": 1, "period": "5s"},
                "scaleDown": {"stabilizationWindow": "5s", "maxStep": 1, "period": "1s"},
            }
        },
        {"resources": {"gpus": 1, "limits": {"memory": "1Gi"}}},
        *(
            {"model": {"source": source}}
            for source in (
                "demo://dinghy", "file:///models/a", "pvc://claim", "pvc://claim/a/b", "hf://org/name@main", "hf://org/name:Q4_K_M",
                "s3://bucket/a/b", "oci://registry/image:tag", "pvc://claim/..hidden/model..v2",
                "hf://org/name@refs/pr/1", "gs://bucket/a", "az://container/a", "https://host:8443/a/b.tar",
                "oci://registry:5000/a/b@sha256:0a",
            )
        ),
        {"model": {"source": "hf://o/n", "credentials": {"secretName": "hub"}, "cache": {"size": "100Gi"}}},
        *(
            {
                "model": {"source": "oci://h.example/a", "cache": {"image": True, "imagePath": "models/a"}},
                "engine": {"speculative": {"method": "draft", "source": source}},
                "adapters": [{"name": "a", "source": "hf://o/n"}],
            }
            for source in ("oci://h.example/b@sha256:0a", "pvc://claim/b", "demo://dinghy")
        ),
        {
            "model": {"source": "demo://a", "credentials": {"secretName": "hub"}, "cache": {"size": "100Gi"}},
            "adapters": [{"name": "a", "source": "pvc://a/b"}, {"name": "b", "source": "hf://o/n@r"}],
        },
        {
            "model": {"source": "demo://a", "credentials": {"secretName": "hub"}, "cache": {"size": "100Gi"}},
            "engine": {"speculative": {"method": "medusa", "source": "hf://o/n@r"}},
        },
    ],
)  # fmt: skip
def test_what_is_meant_to_be_possible_breaks_no_rule(spec: dict[str, Any]) -> None:
    assert agreed(body(**spec)) == []


@pytest.mark.parametrize("name", ["a" * 41, "1st", "with.dot", "end-"])
def test_names_that_children_could_not_have_are_refused(name: str) -> None:
    broken = agreed(body(name))
    assert broken
    assert all(each.message.startswith("metadata.name must") for each in broken)


def test_a_name_of_forty_characters_is_possible() -> None:
    assert agreed(body("a" * 40)) == []


@pytest.mark.compute
@settings(deadline=None, max_examples=80)
@given(mutated_specs())
def test_the_operator_and_cel_agree_on_nearly_valid_objects(spec: dict[str, Any]) -> None:
    try:
        agreed({"metadata": STORED | {"name": "dinghy"}, "spec": spec})
    except InvalidSpec:
        pass


replicas = st.none() | st.integers(0, 3)
durations = st.none() | st.from_regex(r"([0-9]{1,2}([.][0-9]{1,2})?(ms|s|m|h|d)){1,2}", fullmatch=True)
targets = st.fixed_dictionaries(
    {},
    optional={
        "tolerance": replicas,
        "timeToFirstToken": durations,
        "timePerOutputToken": durations,
        "queueDepth": st.integers(1, 2),
    },
)
boats = st.sampled_from(["a", "b", "-"])
sources = st.sampled_from(["hf://o/n", "demo://a", "az://a/b", "oci://h/a", "", "hf:/"])
models = st.fixed_dictionaries(
    {"source": sources},
    optional={
        "servedName": boats,
        "aliases": st.lists(boats, max_size=2),
        "credentials": st.just({"secretName": "s"}),
        "cache": st.sampled_from([{"node": True}, {"image": True}, {"image": False}, {}]),
    },
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "resources": st.fixed_dictionaries(
            {}, optional={"gpus": replicas, "devices": st.fixed_dictionaries({}, optional={"count": replicas})}
        ),
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "tensorParallelSize": st.integers(1, 3),
                "maxLoras": st.integers(0, 1),
                "speculative": st.fixed_dictionaries({}, optional={"source": sources}),
            },
        ),
        "adapters": st.lists(st.fixed_dictionaries({"source": sources}, optional={"servedName": boats}), max_size=2),
    },
).flatmap(lambda spec: models.map(lambda model: {**spec, "model": model}))
values: dict[str, tuple[tuple[Rule, ...], st.SearchStrategy[Any]]] = {
    "object": (
        rules.OBJECT,
        st.builds(
            lambda name, spec: {"metadata": {"name": name}, "spec": spec}, st.text("ab-.0A\n", max_size=42), specs
        ),
    ),
    "spec": (rules.SPEC, specs),
    "model name": (rules.MODEL_NAME, st.text("a/\n", max_size=4)),
    "source": (
        rules.SOURCE,
        st.builds(
            "".join,
            st.lists(
                st.sampled_from(
                    [
                        "demo://",
                        "file:///",
                        "pvc://",
                        "hf://",
                        "s3://",
                        "az://",
                        "https://",
                        "a",
                        "/",
                        "..",
                        "@",
                        "?",
                        "\n",
                    ]
                ),
                max_size=7,
            ),
        ),
    ),
    "cache": (
        rules.CACHE,
        st.fixed_dictionaries(
            {},
            optional={
                "claim": st.just("c"),
                "node": st.booleans(),
                "image": st.booleans(),
                "imagePath": st.just("a"),
                "size": st.just("1Gi"),
            },
        ),
    ),
    "adapter source": (
        rules.ADAPTER_SOURCE,
        st.builds(
            "".join,
            st.lists(st.sampled_from(["file:///", "pvc://", "hf://", "a", "/", "..", ".", "-", "\n"]), max_size=6),
        ),
    ),
    "adapters": (
        rules.ADAPTERS,
        st.lists(st.fixed_dictionaries({}, optional={"servedName": st.none() | boats}), max_size=3),
    ),
    "chat template": (rules.CHAT_TEMPLATE, st.text("{}%\n a", max_size=4)),
    "speculative source": (
        rules.SPECULATIVE_SOURCE,
        st.builds(
            "".join,
            st.lists(
                st.sampled_from(["file:///", "pvc://", "demo://", "hf://", "a", "/", "..", ".", "-", "@", "\n"]),
                max_size=6,
            ),
        ),
    ),
    "speculative": (
        rules.SPECULATIVE,
        st.fixed_dictionaries(
            {"method": st.sampled_from(["ngram", "draft", "medusa", "eagle3", "mtp"])},
            optional={
                "source": st.none() | st.sampled_from(["demo://a", "pvc://a/demo://"]),
                "tree": st.none() | st.sampled_from(["4x24", "[[0],[1]]", "x", "4x24\n"]),
            },
        ),
    ),
    "engine": (
        rules.ENGINE,
        st.fixed_dictionaries(
            {},
            optional={
                "maxNumSeqs": replicas,
                "maxNumBatchedTokens": replicas,
                "tensorParallelSize": replicas,
                "speculative": st.none() | st.fixed_dictionaries({"method": st.sampled_from(["ngram", "draft"])}),
            },
        ),
    ),
    "resources": (
        rules.RESOURCES,
        st.fixed_dictionaries(
            {},
            optional={
                "profile": st.just("gpu"),
                "gpus": replicas,
                "devices": st.none() | st.just({}),
                "claimTemplateName": st.none() | st.just("a"),
                "requests": st.just({}),
                "limits": st.just({}),
            },
        ),
    ),
    "autoscaling": (
        rules.AUTOSCALING,
        st.fixed_dictionaries(
            {},
            optional={
                "mode": st.sampled_from(["Fairlead", "External"]),
                "minReplicas": replicas,
                "maxReplicas": replicas,
                "schedules": st.just([]),
                "targets": st.none() | targets,
                "scaleUp": st.just({}),
                "scaleDown": st.none() | st.just({}),
                "scaleToZeroAfter": durations,
            },
        ),
    ),
    "schedule": (
        rules.SCHEDULE,
        st.fixed_dictionaries({"name": st.just("a")}, optional={"minReplicas": replicas, "maxReplicas": replicas}),
    ),
    "rollout": (
        rules.ROLLOUT,
        st.fixed_dictionaries({}, optional={"maxSurge": replicas, "maxUnavailable": replicas}),
    ),
    "environment variable": (
        rules.ENVIRONMENT_VARIABLE,
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(
                    ["FAIRLEAD_", "FAIRLEAD_X", "A_FAIRLEAD_X", "POD_IP", "POD_IPS", "POD_IP\n", "A"]
                )
            },
            optional={"value": st.none() | st.text(max_size=1), "valueFrom": st.just({})},
        ),
    ),
}


@pytest.mark.compute
@pytest.mark.parametrize("name", values)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_we_evaluate_cel_as_an_evaluator_of_all_of_it_does(name: str, data: st.DataObject) -> None:
    table, strategy = values[name]
    value = data.draw(strategy)
    converted = cel.to_cel({}, value)
    assert [rule.holds(value) for rule in table] == [cel.holds(rule.rule, converted) for rule in table]


def test_every_rule_of_the_table_is_tried() -> None:
    tables = [each for name, each in vars(rules).items() if name.isupper() and not name.startswith("_")]
    assert [each for each, _ in values.values()] == tables


def test_no_rule_makes_a_list() -> None:
    """An API server reckons before what a rule may cost, and takes a list that a rule makes for one without an end."""
    written = [rule.rule for table, _ in values.values() for rule in table]
    assert [rule for rule in written if ".filter(" in rule or ".map(" in rule] == []


OWNED = {
    "Fairlead": ["--port", "--port=1", "--host=0.0.0.0", "--served-name", "--model=/x", "--config",
                 "--drain-timeout=1s", "--adapter-folder", "--port=1\n2"],
    "vLLM": ["--port", "--por=1", "--served-model-name=x", "--served_model_name", "--served-m", "--model", "--config=x",
             "--api-key=x", "--kv-events-config.publisher=null", "--uds", "--host"],
    "llama.cpp": ["--port", "-m", "-a=x", "--alias", "--api-key", "--ssl-key-file=x"],
    "SGLang": ["--port", "--po", "--model-path", "--mode", "--served_model_name=x", "--ssl-certfile"],
}  # fmt: skip
FREE = {
    "Fairlead": [
        "--portable",
        "--max-model-len=9",
        "--model-x",
        "port",
        "--seed",
        "--lora-modules=a=/b",
        "--speculative-model",
    ],
    "vLLM": ["--max-model-len", "--model-impl=vllm", "--hf-token", "--enforce-eager", "--limit-mm-per-prompt", "-O3"],
    "llama.cpp": ["--mmproj", "-ngl", "99", "--mlock", "--threads-http=4", "-fa"],
    "SGLang": ["--mem-fraction-static=0.8", "--context-length", "--quantization", "--tokenizer-worker-num=2"],
}


@pytest.mark.parametrize("kind", OWNED)
def test_arguments_that_the_operator_says_are_refused_by_name_however_they_are_written(kind: str) -> None:
    source = {"source": "hf://o/name"}
    image = {} if kind == "Fairlead" else {"image": "server:1"}

    def told(argument: str) -> list[str]:
        engine = {"type": kind, **image, "extraArgs": ["--x", argument]}
        return [each.message for each in agreed(body(model=source, engine=engine))]

    for argument in OWNED[kind]:
        (message,) = told(argument)
        assert message.startswith(f"engine.extraArgs of type {kind} must have none of "), argument
    for argument in FREE[kind]:
        assert told(argument) == [], argument


@pytest.mark.parametrize(
    ("kind", "name", "refused"),
    [
        ("Fairlead", "FAIRLEAD_MODELS_FOLDER", True),
        ("Fairlead", "POD_IP", True),
        ("Fairlead", "POD_NAME", False),
        ("Fairlead", "VLLM_API_KEY", False),
        ("vLLM", "VLLM_API_KEY", True),
        ("vLLM", "FAIRLEAD_A", True),
        ("vLLM", "VLLM_USE_V1", False),
        ("llama.cpp", "LLAMA_API_KEY", True),
        ("llama.cpp", "LLAMA_ARG_PORT", True),
        ("llama.cpp", "LLAMA_ARG_THREADS", False),
        ("SGLang", "SGLANG_LOGGING", False),
    ],
)
def test_variables_that_the_operator_says_are_refused_by_name_wherever_they_stand(
    kind: str, name: str, refused: bool
) -> None:
    engine = {"type": kind} | ({} if kind == "Fairlead" else {"image": "server:1"})
    variables, source = [{"name": "A", "value": "1"}, {"name": name, "value": "1"}], {"source": "hf://o/name"}
    told = agreed(body(model=source, engine=engine | {"env": variables}))
    assert [name.partition("_")[0] in each.message or name in each.message for each in told] == [True] * refused
    for kind in ("containers", "initContainers"):
        template = {"spec": {kind: [{"name": "engine", "env": variables}]}}
        found = broken_rules(body(model=source, engine=engine, template=template))
        assert [(each.path, name in each.message) for each in found] == [
            (f"spec.template.spec.{kind}[0].env", True)
        ] * refused
