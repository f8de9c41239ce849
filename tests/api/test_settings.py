"""The operator's settings: defaults, files, and refusals by name with a hint."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fairlead.operator_settings import GpuBudget, OperatorSettings, Profile, SettingsError
from fairlead_common.settings import docstrings


def test_every_setting_has_a_docstring() -> None:
    for cls in (OperatorSettings, Profile, GpuBudget):
        assert set(docstrings(cls)) == {item.name for item in fields(cls)}


def test_a_file_changes_only_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("gatewayUrl: http://127.0.0.1:8080\nallowFileSources: true\nleaseDuration: 5s\nport: 0\n")
    settings = OperatorSettings.from_file(path)
    assert settings.gateway_url == "http://127.0.0.1:8080"
    assert settings.allow_file_sources is True
    assert settings.lease_duration == 5.0
    assert settings.port == 0
    assert settings.engine_image == OperatorSettings().engine_image


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("")
    assert OperatorSettings.from_file(path) == OperatorSettings()


def test_profiles_are_added_to_the_built_in_ones_and_replace_those_of_the_same_name() -> None:
    settings = OperatorSettings.from_mapping(
        {
            "profiles": {
                "cpu-small": {"requests": {"cpu": 2}},
                "big": {
                    "limits": {"nvidia.com/gpu": "1"},
                    "nodeSelector": {"gpu": "yes"},
                    "runtimeClassName": "nvidia",
                },
            }
        }
    )
    assert settings.all_profiles["cpu-small"] == Profile(requests={"cpu": "2"})
    assert settings.all_profiles["big"].node_selector == {"gpu": "yes"}
    assert {"gpu", "cpu-medium"} <= set(settings.all_profiles)


@pytest.mark.parametrize(
    ("raw", "name", "hint"),
    [
        ({"gatewayURL": "http://x"}, "gatewayURL", "did you mean gatewayUrl?"),
        ({"nonsense": 1}, "nonsense", "known are"),
        ({"profiles": {"x": {"request": {}}}}, "profiles.x.request", "did you mean requests?"),
        ({"gatewayUrl": "gateway:80"}, "gatewayUrl", "start it with http:// or https://"),
        ({"workers": 0}, "workers", "at the same time"),
        ({"workers": "four"}, "workers", "at the same time"),
        ({"port": 70000}, "port", "Port for health"),
        ({"engineImagePullPolicy": "Sometimes"}, "engineImagePullPolicy", "IfNotPresent, Always or Never"),
        ({"engineImagePullSecrets": ["No_Secret"]}, "engineImagePullSecrets[0]", "registry's credentials"),
        ({"podMonitorInterval": "fast"}, "podMonitorInterval", "as Prometheus writes it (15s)"),
        ({"podMonitorScrapeTimeout": "0s"}, "podMonitorScrapeTimeout", "at most the interval"),
        ({"logLevel": "loud"}, "logLevel", "How much is logged"),
        ({"leaseDuration": "1s"}, "leaseDuration", "use 3s or more"),
        ({"autoscalerInterval": "10ms"}, "autoscalerInterval", "use 100ms or more"),
        ({"resyncInterval": "soon"}, "resyncInterval", "looked at again"),
        ({"defaultProfile": "huge"}, "defaultProfile", "use one of cpu-large, cpu-medium"),
        ({"profiles": {"x": {"requests": {"cpu": "lots"}}}}, "profiles.x.requests.cpu", ""),
        ({"profiles": {"x": {"image": ""}}}, "profiles.x.image", "engine.image"),
        ({"profiles": {"x": {"image": "a b"}}}, "profiles.x.image", "engine.image"),
        ({"profiles": {"x": {"env": [{"value": "1"}]}}}, "profiles.x.env[0].name", "variable's name"),
        ({"profiles": {"x": {"env": [{"name": "A", "vlaue": "1"}]}}}, "profiles.x.env[0].vlaue", "did you mean value?"),
        ({"profiles": {"x": {"env": [{"name": "A"}, {"name": "A"}]}}}, "profiles.x.env[1]", "as in a pod"),
        ({"profiles": {"x": {"env": [{"name": "POD_IP", "value": "1"}]}}}, "profiles.x.env[0].name", "leave it out"),
        ({"profiles": {"x": {"env": [{"name": "VLLM_API_KEY"}]}}}, "profiles.x.env[0].name", "leave it out"),
        (
            {"profiles": {"x": {"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {}}}]}}},
            "profiles.x.env[0]",
            "leave one of them out",
        ),
        ({"profiles": {"x": {"affinity": {"nodeAfinity": {}}}}}, "profiles.x.affinity.nodeAfinity", "nodeAffinity?"),
        ({"profiles": {"x": {"affinity": {"podAffinity": []}}}}, "profiles.x.affinity.podAffinity", "certain pods"),
        ({"gpuBudgets": [{"name": "a", "gpus": 1, "profiles": ["x"]}]}, "gpuBudgets[0].profiles", "cpu-small"),
        ({"gpuBudgets": [{"name": "a", "gpus": 1}, {"name": "a", "gpus": 2}]}, "gpuBudgets[1]", "GPUs that"),
        (["list"], "file", "key: value"),
    ],
)
def test_a_bad_setting_is_refused_by_name_with_a_hint(raw: Any, name: str, hint: str) -> None:
    with pytest.raises(SettingsError) as raised:
        OperatorSettings.from_mapping(raw)
    assert raised.value.name == name
    assert hint in raised.value.hint
    assert "hint: " in str(raised.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        OperatorSettings.from_file(tmp_path / "missing.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(SettingsError, match="cannot be read"):
        OperatorSettings.from_file(tmp_path / "bad.yaml")


def test_no_default_profile_is_possible() -> None:
    assert OperatorSettings.from_mapping({"defaultProfile": ""}).default_profile == ""
