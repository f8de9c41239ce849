"""What an LLMDeployment of vLLM becomes: a server with its own flags, and a front that makes an engine of it."""

import argparse
import shlex
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.llmdeployment import LLMDeployment, broken_rules
from fairlead.controller.applier import engine_url
from fairlead.manifests.children import children
from fairlead.manifests.common import Manifest
from fairlead.operator_settings import OperatorSettings
from fairlead_engine.__main__ import build_parser
from fairlead_testing.fake_vllm.__main__ import parser as vllm_parser
from fairlead_testing.fleet_objects import stored

SETTINGS = OperatorSettings(engine_image="fairlead/engine:test", allow_file_sources=True)
IMAGE = "vllm/vllm-openai:v0.22.0"
OTHER = {"name": "other", "image": "other:1"}


def built(source: str = "pvc://models/boat", spec: dict[str, Any] | None = None, **engine: Any) -> tuple[Any, Any]:
    """(the pod's spec, the front's configuration file)"""
    config, deployment, _ = manifests(source, spec, **engine)
    return deployment["spec"]["template"]["spec"], yaml.safe_load(config["data"]["engine.yaml"])


def manifests(
    source: str = "pvc://models/boat", spec: dict[str, Any] | None = None, **engine: Any
) -> tuple[Manifest, ...]:
    """ConfigMap, Deployment and Service."""
    engine = {"type": "vLLM", "image": IMAGE, **engine}
    body = stored("boat", "ships", **{"model": {"source": source}, "engine": engine, **(spec or {})})
    assert not broken_rules(body)
    return children(LLMDeployment.from_body(body), SETTINGS)


def server(pod: Any) -> Any:
    return next(each for each in pod["initContainers"] if each["name"] == "engine")


def front(pod: Any) -> Any:
    (made,) = pod["containers"]
    assert made["name"] == "front"
    return made


def test_the_server_gets_its_own_flags() -> None:
    pod, _ = built(
        dtype="bfloat16", tensorParallelSize=2, maxModelLen=4096, maxNumSeqs=64, maxNumBatchedTokens=2048,
        kvCache={"blockSize": 32, "memory": "2Gi", "dtype": "fp8"}, toolCallParser="hermes",
        reasoningParser="mistral", extraArgs=["--seed", "7"], spec={"resources": {"gpus": 2}},
    )  # fmt: skip
    made = server(pod)
    assert made["image"] == IMAGE and made["command"] == ["vllm"]
    assert made["args"] == shlex.split(
        "serve /models/boat --served-model-name boat --dtype bfloat16 --tensor-parallel-size 2 "
        "--max-model-len 4096 --max-num-seqs 64 --max-num-batched-tokens 2048 --block-size 32 "
        "--kv-cache-memory-bytes 2147483648 --kv-cache-dtype fp8 --reasoning-parser mistral --tool-call-parser hermes "
        "--scheduling-policy priority --host '$(POD_IP)' --port 8001 --enable-auto-tool-choice "
        "--enable-prompt-tokens-details --enable-prefix-caching --kv-events-config.enable_kv_cache_events=true "
        "--kv-events-config.publisher=zmq '--kv-events-config.endpoint=ipc://@fairlead-kv-$(POD_NAME)' "
        "'--kv-events-config.replay_endpoint=ipc://@fairlead-kv-$(POD_NAME)-replay' --seed 7"
    )
    assert made["resources"]["limits"] == {"nvidia.com/gpu": "2"}


def test_server_and_front_render_chats_with_one_template() -> None:
    template = "{% for m in messages %}$(POD_IP) {{ m.content }}\n{% endfor %}"
    pod, config = built(chatTemplate=template)
    arguments = server(pod)["args"]
    passed = arguments[arguments.index("--chat-template") + 1]
    assert config["chat-template"] == template == passed.replace("$$", "$") and "$(" not in passed.replace("$$", "")


def test_the_front_has_the_engines_port_and_knows_what_the_server_was_told() -> None:
    pod, config = built(maxNumSeqs=64, maxNumQueuedTokens=9000, spec={"drain": {"timeout": "90s"}})
    made = front(pod)
    assert made["image"] == "fairlead/engine:test"
    assert made["ports"] == [{"name": "http", "containerPort": 8000, "protocol": "TCP"}]
    assert made["readinessProbe"]["httpGet"] == {"path": "/ready", "port": 8000, "scheme": "HTTP"}
    assert "lifecycle" not in made and made["resources"] == {"requests": {"cpu": "100m", "memory": "256Mi"}}
    assert config == {
        "engine": "vllm", "upstream-port": 8001, "served-name": "boat", "max-num-seqs": 64,
        "max-num-batched-tokens": 8192, "max-num-queued-tokens": 9000, "drain-timeout": "1m30s",
    }  # fmt: skip
    assert pod["terminationGracePeriodSeconds"] == 120


def test_the_server_is_a_sidecar_that_starts_before_its_front_and_is_asked_at_its_own_port() -> None:
    made = server(built()[0])
    assert made["restartPolicy"] == "Always" and "lifecycle" not in made
    assert made["livenessProbe"]["httpGet"]["port"] == made["startupProbe"]["httpGet"]["port"] == 8001
    assert "readinessProbe" not in made and "ports" not in made
    assert engine_url({"spec": built()[0], "status": {"podIP": "10.0.0.7"}}) == "http://10.0.0.7:8000"


def test_whose_log_is_shown_is_still_the_servers() -> None:
    shown = "kubectl.kubernetes.io/default-container"

    def annotations(**spec: Any) -> Any:
        return manifests(spec=spec)[1]["spec"]["template"]["metadata"]["annotations"]

    assert annotations()[shown] == "engine"
    assert annotations(template={"metadata": {"annotations": {shown: "front"}}})[shown] == "front"


@pytest.mark.parametrize("group", ["containers", "initContainers"])
def test_a_template_is_laid_over_the_server_wherever_it_looks_for_it(group: str) -> None:
    changed = {"name": "engine", "resources": {"limits": {"memory": "3Gi"}}}
    template = {"spec": {group: [changed], "containers": [*([changed] if group == "containers" else []), OTHER]}}
    pod, _ = built(spec={"template": template})
    assert server(pod)["resources"]["limits"]["memory"] == "3Gi" and server(pod)["image"] == IMAGE
    assert [each["name"] for each in pod["initContainers"]] == ["engine"]
    assert [each["name"] for each in pod["containers"]] == ["front", "other"]


def test_a_pod_is_what_kubernetes_takes() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for version in ("1.29", "1.36"):
        for each in manifests("hf://org/boat@main"):
            kubernetes_validate.validate(each, version, strict=True)


def test_both_know_what_they_are_told() -> None:
    """Their own command lines take what stands in the pod."""
    pod, config = built("file:///models/boat", dtype="auto")
    assert vllm_parser().parse_args(server(pod)["args"]).served_model_name == "boat"
    words = front(pod)["args"]
    parsed = build_parser().parse_args(words)
    assert isinstance(parsed, argparse.Namespace) and parsed.events == "ipc://@fairlead-kv-$(POD_NAME)"
    assert config["model"] == server(pod)["args"][1] == "/models/boat"
    (mount,) = (each for each in server(pod)["volumeMounts"] if each["mountPath"] == "/models/boat")
    (volume,) = (each for each in pod["volumes"] if each["name"] == mount["name"])
    assert volume["hostPath"] == {"path": "/models/boat"}, "so that local mode takes no path below /tmp for the pod's"


def test_a_download_is_our_images_and_both_read_the_same_folder() -> None:
    pod, _ = built("hf://org/boat@main")
    download, sidecar = pod["initContainers"]
    assert sidecar["name"] == "engine", "a download ends before the server starts"
    assert "restartPolicy" not in download
    assert download["image"] == "fairlead/engine:test"
    folder = server(pod)["args"][1]
    assert folder.startswith("/downloads/") and folder in front(pod)["args"]
    for made in (server(pod), front(pod)):
        assert "downloads" in [each["name"] for each in made["volumeMounts"]]


def test_without_prefix_caching_there_are_no_events() -> None:
    pod, config = built(enablePrefixCaching=False)
    assert config["enable-prefix-caching"] is False and "enable-prefix-caching" not in built()[1]
    assert "--no-enable-prefix-caching" in server(pod)["args"]
    assert not [word for made in (server(pod), front(pod)) for word in made["args"] if "ipc://" in word]


def test_the_users_variables_win_over_ours() -> None:
    named = {each["name"]: each.get("value") for each in server(built(env=[{"name": "HOME", "value": "/x"}])[0])["env"]}
    assert named["HOME"] == "/x" and named["HF_HUB_OFFLINE"] == "1" and "POD_NAME" in named
    assert {each["name"] for each in front(built()[0])["env"]} == {"POD_IP", "POD_NAME"}


@pytest.mark.parametrize("container", [server, front])
def test_both_run_without_rights(container: Any) -> None:
    made = container(built()[0])
    assert made["securityContext"]["readOnlyRootFilesystem"] and made["securityContext"]["capabilities"] == {
        "drop": ["ALL"]
    }


@given(st.integers(1, 65536), st.integers(65536, 10**6))
def test_server_and_front_are_told_the_same_limits(num_seqs: int, num_tokens: int) -> None:
    pod, config = built(maxNumSeqs=num_seqs, maxNumBatchedTokens=num_tokens)
    words = server(pod)["args"]
    assert words[words.index("--max-num-seqs") + 1] == str(config["max-num-seqs"])
    assert words[words.index("--max-num-batched-tokens") + 1] == str(config["max-num-batched-tokens"])
