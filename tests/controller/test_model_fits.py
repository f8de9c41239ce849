"""The condition Fits: what is said before anything is scheduled, what keeps first pods from being made, and what never
is kept."""

from typing import Any

import pytest

from fairlead.api.conditions import ConditionType, Reason
from fairlead.controller.desired import Desired, desired, model_fit
from fairlead.controller.observe import Observed
from fairlead.controller.plan import key_of, make_plan
from fairlead.controller.status import situation, status
from fairlead.fit.presets import chart_profiles
from fairlead.kube.client import JsonObject
from fairlead.operator_settings import OperatorSettings
from fairlead_testing.fleet_objects import stored

SETTINGS = OperatorSettings.from_mapping({"profiles": chart_profiles()})
NOW = "2026-06-01T00:00:00Z"
LLAMA_70B, QWEN_7B = "hf://meta-llama/Llama-3.1-70B-Instruct", "hf://Qwen/Qwen2.5-7B-Instruct"
READY_POD = {
    "metadata": {"name": "r", "uid": "uid-r"},
    "spec": {"nodeName": "n"},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": []},
}


def body(
    source: str, profile: str = "nvidia-h100", annotations: dict[str, str] | None = None, **engine: Any
) -> JsonObject:
    found = stored("skipper", model={"source": source}, engine=engine, resources={"profile": profile})
    found["metadata"]["annotations"] = annotations or {}
    return found


def said(observed: Observed, settings: OperatorSettings = SETTINGS) -> tuple[Desired, dict[str, Any]]:
    """What is desired, and the condition."""
    wanted = desired(observed, settings)
    now = situation(observed, wanted, (), is_applying=False)
    conditions = {each["type"]: each for each in status(observed, now, settings, time=NOW)["conditions"]}
    return wanted, conditions


def fits(observed: Observed, settings: OperatorSettings = SETTINGS) -> tuple[str, str]:
    condition = said(observed, settings)[1][ConditionType.FITS]
    return condition["status"], condition["reason"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (body("demo://dinghy", "cpu-small"), ("True", "Fits")),
        (body(QWEN_7B, maxModelLen=8192, maxNumSeqs=16), ("True", "Fits")),
        (body(QWEN_7B, maxModelLen=32768, maxNumSeqs=512), ("True", "FewerSequences")),
        (body(LLAMA_70B), ("False", "WeightsTooLarge")),
        (body(QWEN_7B, "nvidia-l4", maxModelLen=32768, maxNumBatchedTokens=65536), ("False", "TooLarge")),
        (body(QWEN_7B, maxModelLen=200_000), ("False", "NotSupported")),
        (body(QWEN_7B, "gpu"), ("Unknown", "MemoryUnknown")),
        (body("hf://acme/secret"), ("Unknown", "ModelUnknown")),
        (body(f"{QWEN_7B}@gptq-4bit"), ("Unknown", "ModelUnknown")),
        (body(f"{LLAMA_70B}:Q2_K"), ("Unknown", "ModelUnknown")),
        (body("pvc://models/mine", "cpu-small"), ("Unknown", "ModelUnknown")),
        (body(QWEN_7B, tensorParallelSize=2), ("Unknown", "InvalidSpec")),
        (body(QWEN_7B, type="vLLM", image="vllm/vllm-openai:v0.22.0"), ("Unknown", "EngineNotOurs")),
        (body(QWEN_7B, maxModelLen=-1), ("Unknown", "InvalidSpec")),
        (body(QWEN_7B, extraArgs=["--max-num-seqs=x"]), ("Unknown", "InvalidSpec")),
        (body(QWEN_7B, extraArgs=["--gpu-memory-utilization=nan"]), ("Unknown", "InvalidSpec")),
        (body(QWEN_7B, extraArgs=["--dtype=half"]), ("Unknown", "InvalidSpec")),
        (body(QWEN_7B, extraArgs=[f"--block-size={10**320}"]), ("Unknown", "InvalidSpec")),
    ],
)
def test_it_is_said_before_anything_is_scheduled(spec: JsonObject, expected: tuple[str, str]) -> None:
    assert fits(Observed(body=spec)) == expected


def test_weights_that_are_too_large_keep_the_first_pods_from_being_made() -> None:
    observed = Observed(body=body(LLAMA_70B))
    wanted, conditions = said(observed)
    assert make_plan(wanted, observed).apply == ()
    message = conditions[ConditionType.READY]["message"]
    assert "no pod is made, as it could only fail: the weights alone take 131.4 GiB" in message
    assert "What would fit: engine.tensorParallelSize: 2 (with 2 GPUs in resources)" in message
    assert "the annotation fairlead.dev/ignore-fit: 'true' has one made all the same" in message
    degraded = conditions[ConditionType.DEGRADED]
    assert (degraded["status"], degraded["reason"]) == ("True", "WeightsTooLarge")


def test_ranks_that_do_not_divide_the_model_do_so_too_whatever_memory_there_is() -> None:
    profile = {"limits": {"nvidia.com/gpu": "8"}}
    settings = OperatorSettings.from_mapping({"profiles": {"eight": profile}})
    wanted, conditions = said(Observed(body=body(QWEN_7B, "eight", tensorParallelSize=8)), settings)
    assert wanted.children == ()
    assert conditions[ConditionType.FITS]["reason"] == Reason.NOT_DIVISIBLE
    assert "28 attention heads" in conditions[ConditionType.FITS]["message"]


def test_an_estimate_keeps_nothing_from_being_made() -> None:
    tight = body(QWEN_7B, "nvidia-l4", maxModelLen=32768, maxNumBatchedTokens=65536)
    for spec in (tight, body(QWEN_7B, maxModelLen=200_000), body("hf://acme/secret"), body(QWEN_7B, "gpu")):
        assert said(Observed(body=spec))[0].children


def test_an_annotation_has_pods_made_all_the_same() -> None:
    observed = Observed(body=body(LLAMA_70B, annotations={"fairlead.dev/ignore-fit": "true"}))
    wanted, conditions = said(observed)
    assert [child["kind"] for child in make_plan(wanted, observed).apply][:2] == ["ConfigMap", "Deployment"]
    assert conditions[ConditionType.FITS]["status"] == "False"
    assert not said(Observed(body=body(LLAMA_70B, annotations={"fairlead.dev/ignore-fit": "no"})))[0].children


def test_what_is_there_is_never_touched() -> None:
    """An edit that cannot work rolls as any other does: the replicas of before stay until new ones are ready."""
    running = desired(Observed(body=body(QWEN_7B)), SETTINGS).children
    children = {key_of(child): child for child in running}
    wanted, conditions = said(Observed(body=body(LLAMA_70B), children=children))
    assert len(wanted.children) == len(running)
    assert conditions[ConditionType.FITS]["status"] == "False"
    assert said(Observed(body=body(LLAMA_70B), pods=(READY_POD,)))[0].children


def test_a_replica_that_runs_knows_better() -> None:
    spec = body(LLAMA_70B, annotations={"fairlead.dev/ignore-fit": "true"})
    children = {key_of(child): child for child in desired(Observed(body=spec), SETTINGS).children}
    children["Deployment", "skipper-engine"] |= {"status": {"replicas": 1, "updatedReplicas": 1}}
    assert fits(Observed(body=spec, children=children, pods=(READY_POD,))) == ("True", "ModelLoaded")
    assert fits(Observed(body=body("hf://acme/secret"), pods=(READY_POD,))) == ("True", "ModelLoaded")


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        ({"image": "mine:1"}, {}),
        ({"extraArgs": ["--device", "cpu"]}, {}),
        ({}, {"downloadEnvironment": {"HF_ENDPOINT": "http://mirror"}}),
    ],
)
def test_nothing_is_certain_where_something_else_may_decide(engine: dict[str, Any], settings: dict[str, Any]) -> None:
    known = OperatorSettings.from_mapping({"profiles": chart_profiles(), **settings})
    wanted, conditions = said(Observed(body=body(LLAMA_70B, **engine)), known)
    assert wanted.children
    assert conditions[ConditionType.FITS]["reason"] == Reason.WEIGHTS_TOO_LARGE


def test_a_template_that_gives_other_resources_leaves_it_open() -> None:
    spec = body(LLAMA_70B)
    limits = {"nvidia.com/gpu": "1", "memory": "1Ti"}
    spec["spec"]["template"] = {"spec": {"containers": [{"name": "engine", "resources": {"limits": limits}}]}}
    assert said(Observed(body=spec))[0].children


def test_it_is_the_same_whenever_it_is_asked() -> None:
    deployment = desired(Observed(body=body(LLAMA_70B)), SETTINGS).deployment
    assert deployment is not None
    assert model_fit(deployment, SETTINGS) == model_fit(deployment, SETTINGS)
