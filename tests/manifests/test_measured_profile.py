"""The profile that `engine.profile` names: what becomes of it in the engine's configuration, and what is refused."""

from typing import Any

import msgspec
import pytest

from fairlead.api.conditions import Reason
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.children import children
from fairlead.manifests.measured_profile import mounted_profile
from fairlead.manifests.source import CannotBuild
from fairlead.operator_settings import OperatorSettings
from fairlead_testing.fleet_objects import stored
from fairlead_testing.measured_profiles import measured_profile, profile_config_map

NAMED = {"configMap": "measured"}


def built(config_map: Any, **engine: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The engine's ConfigMap, and its Deployment's pods."""
    body = LLMDeployment.from_body(stored("m", engine={"profile": NAMED, **engine}))
    config, deployment, _ = children(body, OperatorSettings(), profile=config_map)
    return dict(config), deployment["spec"]["template"]


def test_engines_read_it_beside_their_configuration_and_another_one_is_another_configuration() -> None:
    profile = measured_profile()
    config, pod = built(profile_config_map(profile))
    (engine,) = pod["spec"]["containers"]
    folder, _, key = engine["args"][engine["args"].index("--profile") + 1].rpartition("/")
    (volume,) = (each for each in pod["spec"]["volumes"] if "configMap" in each)
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    assert folder in {mount["mountPath"] for mount in engine["volumeMounts"]}
    assert msgspec.json.decode(config["data"][key]) == msgspec.to_builtins(profile)
    assert mounted_profile(config) == profile
    other, _ = built(profile_config_map(measured_profile(num_kv_blocks=7)))
    assert other["metadata"]["name"] != config["metadata"]["name"]
    without, pod = built(None, profile=None)
    assert "--profile" not in pod["spec"]["containers"][0]["args"]
    assert mounted_profile(without) is None


@pytest.mark.parametrize(
    ("config_map", "engine", "words"),
    [
        (None, {}, "there is no ConfigMap 'measured' in the namespace 'ns': kubectl create configmap measured -n ns"),
        ({"data": {"other.json": "{}"}}, {}, "no text under 'profile.json', but other.json: set engine.profile.key"),
        ({}, {}, "no text under 'profile.json', but nothing"),
        ({"data": {"profile.json": "{"}}, {}, "profile.json of the ConfigMap 'measured' is no engine profile"),
        (profile_config_map(measured_profile(profile_version=9)), {}, "has profile_version 9"),
        (
            profile_config_map(measured_profile(quantization="int8")),
            {"quantization": "fp8"},
            "measured with quantization int8, and engine.quantization is fp8",
        ),
        (profile_config_map(measured_profile()), {"dtype": "float16"}, "with dtype float32, and engine.dtype is"),
        (
            profile_config_map(measured_profile()),
            {"kvCache": {"dtype": "int8"}},
            "with kvCache.dtype auto, and engine.kvCache.dtype is int8",
        ),
    ],
)
def test_one_that_cannot_be_used_is_told_with_what_to_do(config_map: Any, engine: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotBuild) as refused:
        built(config_map, **engine)
    assert refused.value.reason == Reason.PROFILE_NOT_USABLE
    assert refused.value.message.startswith("engine.profile: ") and words in refused.value.message


def test_formats_that_are_left_to_the_engine_contradict_nothing() -> None:
    measured = measured_profile(dtype="bfloat16", quantization="fp8", kv_cache_dtype="int8")
    for engine in ({}, {"dtype": "auto"}, {"dtype": "bfloat16", "quantization": "fp8", "kvCache": {"dtype": "int8"}}):
        assert mounted_profile(built(profile_config_map(measured), **engine)[0]) == measured
