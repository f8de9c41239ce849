"""The children of an LLMDeployment: whole objects, compared as a whole."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.api.conditions import Reason
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.api.pod_spec import lasting_containers
from fairlead.fit.presets import presets
from fairlead.manifests.children import children
from fairlead.manifests.common import Manifest
from fairlead.manifests.downloaders import has_adapter_downloader
from fairlead.manifests.source import CannotBuild, mounted_claims, placed_adapters
from fairlead.operator_settings import OperatorSettings, Profile
from fairlead_common.wire.model_sources import folder_name
from fairlead_local.system import operator_settings
from fairlead_testing.fleet_objects import stored

SETTINGS = OperatorSettings(engine_image="fairlead/engine:test", gateway_service="gw.fairlead-system.svc")


def llmdeployment(**spec: Any) -> LLMDeployment:
    return LLMDeployment.from_body(stored(namespace="ships", **spec))


def build(settings: OperatorSettings = SETTINGS, **spec: Any) -> tuple[Manifest, Manifest, Manifest]:
    config, deployment, service = children(llmdeployment(**spec), settings)
    return config, deployment, service


def pod(settings: OperatorSettings = SETTINGS, **spec: Any) -> dict[str, Any]:
    template: dict[str, Any] = build(settings, **spec)[1]["spec"]["template"]
    return template


def container(settings: OperatorSettings = SETTINGS, **spec: Any) -> dict[str, Any]:
    (engine,) = pod(settings, **spec)["spec"]["containers"]
    assert isinstance(engine, dict)
    return engine


def flags(**spec: Any) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(build(**spec)[0]["data"]["engine.yaml"])
    return loaded


OWNER = {
    "apiVersion": "fairlead.dev/v1alpha1",
    "kind": "LLMDeployment",
    "name": "dinghy",
    "uid": "u-1",
    "controller": True,
    "blockOwnerDeletion": True,
}
LABELS = {
    "app.kubernetes.io/managed-by": "fairlead",
    "app.kubernetes.io/part-of": "fairlead",
    "fairlead.dev/llmdeployment": "dinghy",
    "app.kubernetes.io/component": "engine",
}

SPREAD: dict[str, Any] = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {"fairlead.dev/llmdeployment": "dinghy", "app.kubernetes.io/component": "engine"}},
}


def config_name(**spec: Any) -> str:
    name: str = build(**spec)[0]["metadata"]["name"]
    return name


def test_each_configuration_has_a_config_map_of_its_own() -> None:
    assert re.fullmatch(r"dinghy-engine-[0-9a-f]{16}", config_name())
    assert config_name(replicas=3, routing={"policy": "RoundRobin"}) == config_name()
    other = {"engine": {"maxNumSeqs": 4}}
    assert config_name(**other) != config_name()
    assert pod(**other)["spec"]["volumes"][0] == {"name": "config", "configMap": {"name": config_name(**other)}}


def test_a_template_may_bring_its_own_configuration() -> None:
    theirs = {"name": "config", "secret": {"secretName": "theirs"}}
    volumes = pod(template={"spec": {"volumes": [theirs]}})["spec"]["volumes"]
    assert [volume for volume in volumes if volume["name"] == "config"] == [theirs]


def test_the_config_map_is_exactly_this() -> None:
    config = build(replicas=2)[0]
    assert config == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_name(),
            "namespace": "ships",
            "labels": LABELS,
            "ownerReferences": [OWNER],
            "annotations": {
                "fairlead.dev/applied-hash": config["metadata"]["annotations"]["fairlead.dev/applied-hash"]
            },
        },
        "data": {
            "engine.yaml": (
                "model: demo://dinghy\n"
                "served-name: dinghy\n"
                "dtype: auto\n"
                "enable-prefix-caching: true\n"
                "num-threads: 1\n"
                "drain-timeout: 15m\n"
            )
        },
    }


def test_the_service_is_exactly_this() -> None:
    service = build()[2]
    assert service == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "dinghy",
            "namespace": "ships",
            "labels": LABELS,
            "ownerReferences": [OWNER],
            "annotations": {
                "fairlead.dev/applied-hash": service["metadata"]["annotations"]["fairlead.dev/applied-hash"]
            },
        },
        "spec": {
            "type": "ExternalName",
            "externalName": "gw.fairlead-system.svc",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        },
    }


def test_the_deployment_is_exactly_this() -> None:
    deployment = build(replicas=2)[1]
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert deployment == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "dinghy-engine",
            "namespace": "ships",
            "labels": LABELS,
            "ownerReferences": [OWNER],
            "annotations": deployment["metadata"]["annotations"],
        },
        "spec": {
            "replicas": 2,
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": 3600,
            "selector": {
                "matchLabels": {"fairlead.dev/llmdeployment": "dinghy", "app.kubernetes.io/component": "engine"}
            },
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {
                    "labels": LABELS,
                    "annotations": {
                        "fairlead.dev/config-hash": annotations["fairlead.dev/config-hash"],
                        "fairlead.dev/served-name": "dinghy",
                    },
                },
                "spec": {
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 930,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 65532,
                        "runAsGroup": 65532,
                        "fsGroup": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "topologySpreadConstraints": [SPREAD],
                    "containers": [
                        {
                            "name": "engine",
                            "image": "fairlead/engine:test",
                            "imagePullPolicy": "IfNotPresent",
                            "args": [
                                "serve", "--config", "/etc/fairlead/engine.yaml",
                                "--host", "$(POD_IP)", "--port", "8000",
                            ],
                            "env": [
                                {
                                    "name": "POD_IP",
                                    "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}},
                                },
                                {
                                    "name": "POD_NAME",
                                    "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
                                },
                            ],
                            "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
                            "resources": {
                                "requests": {"cpu": "1", "memory": "1Gi"},
                                "limits": {"memory": "2Gi"},
                            },
                            "startupProbe": {
                                "httpGet": {"path": "/ready?wait=1", "port": 8000, "scheme": "HTTP"},
                                "periodSeconds": 1,
                                "timeoutSeconds": 2,
                                "successThreshold": 1,
                                "failureThreshold": 1800,
                            },
                            "readinessProbe": {
                                "httpGet": {"path": "/ready", "port": 8000, "scheme": "HTTP"},
                                "periodSeconds": 2,
                                "timeoutSeconds": 2,
                                "successThreshold": 1,
                                "failureThreshold": 2,
                            },
                            "livenessProbe": {
                                "httpGet": {"path": "/health", "port": 8000, "scheme": "HTTP"},
                                "periodSeconds": 10,
                                "timeoutSeconds": 5,
                                "successThreshold": 1,
                                "failureThreshold": 3,
                            },
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "readOnlyRootFilesystem": True,
                                "capabilities": {"drop": ["ALL"]},
                            },
                            "terminationMessagePath": "/dev/termination-log",
                            "terminationMessagePolicy": "FallbackToLogsOnError",
                            "volumeMounts": [
                                {"name": "config", "mountPath": "/etc/fairlead", "readOnly": True},
                                {"name": "scratch", "mountPath": "/tmp"},
                            ],
                        }
                    ],
                    "volumes": [
                        {"name": "config", "configMap": {"name": config_name()}},
                        {"name": "scratch", "emptyDir": {}},
                    ],
                },
            },
        },
    }  # fmt: skip


def test_the_same_spec_gives_the_same_objects_and_another_one_other_hashes() -> None:
    assert build() == build()
    hashes = [
        [child["metadata"]["annotations"]["fairlead.dev/applied-hash"] for child in build(**spec)]
        for spec in ({}, {"replicas": 2}, {"engine": {"dtype": "float32"}})
    ]
    assert hashes[0][0] == hashes[1][0]
    assert hashes[0][1] != hashes[1][1]
    assert hashes[0][0] != hashes[2][0]
    assert len({child_hashes[2] for child_hashes in hashes}) == 1


def test_pods_roll_when_the_engine_configuration_changes_and_not_when_they_are_scaled() -> None:
    assert pod() == pod(replicas=7)
    assert pod()["metadata"] != pod(engine={"maxNumSeqs": 4})["metadata"]


def test_every_engine_field_becomes_its_flag() -> None:
    assert flags(
        model={"source": "demo://dinghy", "servedName": "llama"},
        engine={
            "dtype": "float32",
            "maxModelLen": 2048,
            "maxNumSeqs": 8,
            "maxNumBatchedTokens": 256,
            "maxNumQueuedTokens": 512,
            "kvCache": {"blockSize": 32, "memory": "512Mi"},
            "enablePrefixCaching": False,
        },
        drain={"timeout": "90s"},
    ) == {
        "model": "demo://dinghy",
        "served-name": "llama",
        "dtype": "float32",
        "max-model-len": 2048,
        "max-num-seqs": 8,
        "max-num-batched-tokens": 256,
        "max-num-queued-tokens": 512,
        "block-size": 32,
        "kv-cache-memory": 512 * 2**20,
        "enable-prefix-caching": False,
        "num-threads": 1,
        "drain-timeout": "1m30s",
    }


@pytest.mark.parametrize(
    ("resources", "num_threads"),
    [
        ({"requests": {"cpu": "4"}, "limits": {"cpu": "2"}}, 2),
        ({"requests": {"cpu": "3"}, "limits": {"memory": "8Gi"}}, 3),
        ({"limits": {"cpu": "2500m"}}, 3),
        ({"requests": {"cpu": "100m"}}, 1),
        ({"requests": {"cpu": 0}}, 1),
        ({"requests": {"memory": "8Gi"}}, None),
    ],
)
def test_the_engine_computes_with_one_thread_per_cpu_it_may_use(resources: Any, num_threads: int | None) -> None:
    assert flags(resources=resources).get("num-threads") == num_threads


@pytest.mark.parametrize(("cpus", "api_servers", "num_threads"), [(8, 4, 5), (4, 2, 3), (2, 4, 1)])
def test_further_http_processes_have_cpus_of_their_own(cpus: int, api_servers: int, num_threads: int) -> None:
    found = flags(engine={"apiServers": api_servers}, resources={"gpus": 0, "limits": {"cpu": cpus}})
    assert (found["api-servers"], found["num-threads"]) == (api_servers, num_threads)


@pytest.mark.parametrize("arguments", [["--num-threads", "7"], ["--num-threads=7"]])
def test_the_users_own_number_of_threads_stands(arguments: list[str]) -> None:
    assert "num-threads" not in flags(engine={"extraArgs": arguments})


def test_cpus_of_the_template_count_as_those_of_the_pod() -> None:
    def overlay(resources: Any) -> dict[str, Any]:
        return {"spec": {"containers": [{"name": "engine", "resources": resources}, {"name": "sidecar"}]}}

    assert flags(template=overlay({"limits": {"cpu": 6}}))["num-threads"] == 6
    assert "num-threads" not in flags(template=overlay(None))
    with pytest.raises(CannotBuild, match=r"limits\.cpu of the engine: 'many' is not a quantity") as raised:
        flags(template=overlay({"limits": {"cpu": "many"}}))
    assert raised.value.reason is Reason.INVALID_SPEC


def test_extra_arguments_come_last_so_that_they_win() -> None:
    assert container(engine={"extraArgs": ["--seed", "7"]})["args"][-3:] == ["8000", "--seed", "7"]


def test_a_claim_is_mounted_read_only() -> None:
    template = pod(model={"source": "pvc://models/llama"})["spec"]
    claim = {"claimName": "models", "readOnly": True}
    assert template["volumes"][-1] == {"name": "model", "persistentVolumeClaim": claim}
    mount = {"name": "model", "mountPath": "/models", "readOnly": True}
    assert template["containers"][0]["volumeMounts"][-1] == mount


def test_a_folder_on_a_volume_is_an_argument_since_local_mode_finds_mounts_there_only() -> None:
    assert container(model={"source": "pvc://models"})["args"][3:5] == ["--model", "/models"]
    assert container(model={"source": "pvc://models/llama/8b"})["args"][3:5] == ["--model", "/models/llama/8b"]
    assert "model" not in flags(model={"source": "pvc://models/llama/8b"})
    assert "--model" not in container()["args"]


def test_files_are_served_only_where_the_settings_allow_it() -> None:
    local = OperatorSettings(allow_file_sources=True)
    config = build(local, model={"source": "file:///srv/models/a"})[0]
    assert "model: /srv/models/a\n" in config["data"]["engine.yaml"]
    with pytest.raises(CannotBuild, match="pvc://CLAIM/FOLDER") as raised:
        build(model={"source": "file:///srv/models/a"})
    assert raised.value.reason is Reason.SOURCE_NOT_SUPPORTED


def speculative(source: str, method: str = "eagle3") -> dict[str, Any]:
    return {"speculative": {"method": method, "source": source}}


def test_what_guesses_tokens_is_mounted_beside_the_model_where_it_is_on_another_claim() -> None:
    model, head = {"source": "pvc://models/llama"}, speculative("pvc://heads/llama")
    template = pod(model=model, engine=head)["spec"]
    claim = {"claimName": "heads", "readOnly": True}
    assert template["volumes"][-1] == {"name": "speculative", "persistentVolumeClaim": claim}
    engine = template["containers"][0]
    assert engine["volumeMounts"][-1] == {"name": "speculative", "mountPath": "/speculative", "readOnly": True}
    assert engine["args"][3:7] == ["--model", "/models/llama", "--speculative-model", "/speculative/llama"]
    assert flags(model=model, engine=head)["speculative-method"] == "eagle3"
    together = pod(model=model, engine=speculative("pvc://models/head"))["spec"]
    assert [volume["name"] for volume in together["volumes"]] == ["config", "scratch", "model"], (
        "a claim is mounted once"
    )
    assert together["containers"][0]["args"][5:7] == ["--speculative-model", "/models/head"]


def test_what_guesses_tokens_may_be_a_folder_or_a_model_that_comes_with_the_engine() -> None:
    assert flags(engine=speculative("demo://dinghy", "draft"))["speculative-model"] == "demo://dinghy"
    local = OperatorSettings(allow_file_sources=True)
    config = build(local, engine=speculative("file:///srv/head"))[0]
    assert "speculative-model: /srv/head\n" in config["data"]["engine.yaml"]
    with pytest.raises(CannotBuild, match=r"write engine\.speculative\.source: pvc://CLAIM/FOLDER") as raised:
        build(engine=speculative("file:///srv/head"))
    assert raised.value.reason is Reason.SOURCE_NOT_SUPPORTED


DOWNLOADED = ["hf://org/name@v1", "s3://bucket/a", "gs://bucket/a", "az://c/a", "https://host/a", "oci://host/a:1"]


@pytest.mark.parametrize("source", DOWNLOADED)
def test_a_model_from_elsewhere_is_downloaded_before_the_engine_starts(source: str) -> None:
    settings = OperatorSettings(engine_image="fairlead/engine:test", download_environment={"HF_ENDPOINT": "http://hub"})
    spec = pod(settings, model={"source": source})["spec"]
    (download,), (engine,) = spec["initContainers"], spec["containers"]
    assert download["args"] == [
        "download", source, "--to", "/downloads", "--host", "$(POD_IP)", "--progress-port", "8000",
    ]  # fmt: skip
    assert download["env"][-1] == {"name": "HF_ENDPOINT", "value": "http://hub"}
    assert all(each["name"] != "HF_ENDPOINT" for each in engine["env"])
    for part in ("image", "imagePullPolicy", "securityContext", "terminationMessagePath", "resources"):
        assert download[part] == engine[part]
    assert download["volumeMounts"][-1] == {"name": "downloads", "mountPath": "/downloads"}
    assert engine["volumeMounts"][-1] == {"name": "downloads", "mountPath": "/downloads", "readOnly": True}
    assert engine["args"][3:5] == ["--model", f"/downloads/{folder_name(source)}"]
    assert spec["volumes"][-1] == {"name": "downloads", "emptyDir": {}}
    assert "initContainers" not in pod()["spec"]
    deadlines = [build(settings, model={"source": each})[1]["spec"]["progressDeadlineSeconds"] for each in DOWNLOADED]
    assert set(deadlines) == {3600 + 86400}


def test_what_guesses_tokens_is_downloaded_beside_the_model_with_its_secret_into_its_cache() -> None:
    model = {"source": "hf://org/llama", "credentials": {"secretName": "hub"}, "cache": {"claim": "models"}}
    spec = pod(model=model, engine=speculative("hf://org/head@v1"))["spec"]
    first, second = spec["initContainers"]
    assert (first["name"], second["name"]) == ("download", "download-speculative")
    assert (first["args"][1], second["args"][1]) == ("hf://org/llama", "hf://org/head@v1")
    alike = ("env", "envFrom", "image", "resources", "securityContext", "volumeMounts")
    assert [first[part] for part in alike] == [second[part] for part in alike]
    assert [volume["name"] for volume in spec["volumes"]] == ["config", "scratch", "downloads"], "one volume for both"
    engine = spec["containers"][0]
    assert [each["name"] for each in engine["volumeMounts"]] == ["config", "scratch", "downloads"]
    assert engine["args"][3:7] == [
        "--model", f"/downloads/{folder_name('hf://org/llama')}",
        "--speculative-model", f"/downloads/{folder_name('hf://org/head@v1')}",
    ]  # fmt: skip
    assert "envFrom" not in engine


def test_either_may_be_downloaded_and_the_other_not() -> None:
    """And what is both is downloaded once."""
    spec = pod(model={"source": "demo://dinghy"}, engine=speculative("https://host/head"))["spec"]
    assert [each["name"] for each in spec["initContainers"]] == ["download-speculative"]
    assert spec["volumes"][-1] == {"name": "downloads", "emptyDir": {}}
    spec = pod(model={"source": "hf://o/n"}, engine=speculative("pvc://heads/a"))["spec"]
    assert [each["name"] for each in spec["initContainers"]] == ["download"]
    spec = pod(model={"source": "hf://o/n"}, engine=speculative("hf://o/n", "draft"))["spec"]
    assert [each["name"] for each in spec["initContainers"]] == ["download"]
    with pytest.raises(CannotBuild, match=r"engine\.speculative\.source: oci:// is written oci://REGISTRY"):
        build(engine=speculative("oci://host/Upper/case"))


@pytest.mark.parametrize("cache", [None, {"claim": "models", "size": "1Gi"}, {"node": True}, {"size": "1Gi"}])
def test_kubernetes_schemas_know_every_field_of_a_download(cache: dict[str, Any] | None) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    settings = OperatorSettings(node_models_folder="/srv/models", download_environment={"HTTPS_PROXY": "http://p"})
    model = {"source": "hf://org/name", "credentials": {"secretName": "hub"}, "cache": cache}
    kubernetes_validate.validate(build(settings, model=model)[1], "1.32", strict=True)


def test_credentials_are_the_downloads_alone() -> None:
    model = {"source": "hf://org/name", "credentials": {"secretName": "hub"}}
    spec = pod(model=model)["spec"]
    assert spec["initContainers"][0]["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert "hub" not in str(spec["containers"]) + str(spec["volumes"])


def test_no_variable_of_the_kubelets_stands_in_a_source() -> None:
    """Else `$(HF_TOKEN)` would be sent to whatever host a source names."""
    (download,) = pod(model={"source": "https://host/$(HF_TOKEN)"})["spec"]["initContainers"]
    assert download["args"][1] == "https://host/$$(HF_TOKEN)"


def test_a_source_that_only_looks_like_one_is_refused_before_anything_is_made() -> None:
    with pytest.raises(CannotBuild, match=r"model\.source: oci:// is written oci://REGISTRY"):
        build(model={"source": "oci://host/Upper/case"})


def test_a_download_takes_no_gpu() -> None:
    limits = {"nvidia.com/gpu": "1", "memory": "8Gi"}
    (download,) = pod(model={"source": "hf://org/name"}, resources={"limits": limits})["spec"]["initContainers"]
    assert download["resources"] == {"limits": {"memory": "8Gi"}}


def test_downloaded_models_are_kept_where_the_cache_says() -> None:
    def downloads(settings: OperatorSettings = SETTINGS, **cache: Any) -> tuple[dict[str, Any], list[str]]:
        spec = pod(settings, model={"source": "hf://org/name", "cache": cache})["spec"]
        return spec["volumes"][-1], spec["initContainers"][0]["args"]

    volume, arguments = downloads(claim="models", size="1Gi")
    assert volume == {"name": "downloads", "persistentVolumeClaim": {"claimName": "models"}}
    assert arguments[4:6] == ["--size-limit", "1073741824"]
    nodes = OperatorSettings(node_models_folder="/var/lib/fairlead/models")
    path = {"path": "/var/lib/fairlead/models", "type": "DirectoryOrCreate"}
    assert downloads(nodes, node=True)[0] == {"name": "downloads", "hostPath": path}
    assert downloads(size="1Gi")[0] == {"name": "downloads", "emptyDir": {"sizeLimit": "1073741824"}}
    with pytest.raises(CannotBuild, match=r"\(nodeModelsFolder\): have one set, or use model\.cache\.claim"):
        downloads(node=True)


def in_an_image(source: str = "oci://registry.example/models/barge:v1", **model: Any) -> dict[str, Any]:
    return {"source": source, "cache": {"image": True}} | model


def test_a_model_in_an_image_is_mounted_and_nothing_is_downloaded() -> None:
    settings = OperatorSettings(engine_image_pull_secrets=("engines", "registry"))
    spec = pod(settings, model=in_an_image(credentials={"secretName": "registry"}))["spec"]
    assert "initContainers" not in spec
    image = {"reference": "registry.example/models/barge:v1", "pullPolicy": "IfNotPresent"}
    assert spec["volumes"][-1] == {"name": "model", "image": image}
    (engine,) = spec["containers"]
    assert engine["volumeMounts"][-1] == {"name": "model", "mountPath": "/models", "readOnly": True}
    assert engine["args"][3:5] == ["--model", "/models"]
    assert "registry" not in str(engine.get("env")) + str(engine.get("envFrom"))
    assert spec["imagePullSecrets"] == [{"name": "engines"}, {"name": "registry"}]
    assert build(model=in_an_image())[1]["spec"]["progressDeadlineSeconds"] == 3600 + 86400, "a pull may take as long"
    assert "imagePullSecrets" not in pod(model=in_an_image())["spec"]


def test_where_in_an_image_its_model_is_is_said() -> None:
    model = in_an_image(cache={"image": True, "imagePath": "models/barge"})
    spec = pod(model=model, engine=speculative("oci://registry.example/head@sha256:" + "0a" * 32))["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["config", "scratch", "model", "speculative"]
    assert spec["volumes"][-1]["image"]["reference"] == "registry.example/head@sha256:" + "0a" * 32
    assert spec["containers"][0]["args"][3:7] == [
        "--model", "/models/models/barge", "--speculative-model", "/speculative",
    ]  # fmt: skip
    assert "initContainers" not in spec


def test_an_image_is_mounted_into_servers_that_are_not_ours() -> None:
    model = in_an_image(cache={"image": True, "imagePath": "barge.gguf"})
    server, front = lasting_containers(pod(model=model, engine={"type": "llama.cpp", "image": "llama:1"})["spec"])
    assert server["args"][server["args"].index("--model") + 1] == "/models/barge.gguf"
    assert front["args"][front["args"].index("--model") + 1] == "/models/barge.gguf"
    assert server["volumeMounts"][-1]["name"] == "model"


def test_slashes_at_the_ends_of_a_path_are_none_of_the_image_s_name() -> None:
    spec = pod(model=in_an_image("oci://registry.example//models/barge:v1/"))["spec"]
    assert spec["volumes"][-1]["image"]["reference"] == "registry.example/models/barge:v1"


def test_adapters_beside_an_image_are_downloaded_into_each_pod() -> None:
    manifests = children(
        llmdeployment(model=in_an_image(credentials={"secretName": "registry"}), adapters=[HUB_ADAPTER]), SETTINGS
    )
    (spec,) = (each["spec"]["template"]["spec"] for each in manifests if each["kind"] == "Deployment")
    assert {"name": "downloads", "emptyDir": {}} in spec["volumes"]
    assert spec["initContainers"][0]["envFrom"] == [{"secretRef": {"name": "registry", "optional": True}}]


@pytest.mark.parametrize("cache", [None, {"node": False}, {"image": False}])
def test_without_being_asked_no_image_is_mounted(cache: dict[str, Any] | None) -> None:
    spec = pod(model=in_an_image(cache=cache))["spec"]
    assert [each["name"] for each in spec["initContainers"]] == ["download"]
    assert "image" not in spec["volumes"][-1]


def test_local_mode_and_registries_that_nodes_would_take_for_others_are_refused_with_the_way_out() -> None:
    local = OperatorSettings(claims_folder="/claims", node_models_folder="/srv/models")
    with pytest.raises(
        CannotBuild, match=r"local mode mounts no images: write model\.cache: \{node: true\}"
    ) as refused:
        build(local, model=in_an_image())
    assert refused.value.reason is Reason.SOURCE_NOT_SUPPORTED
    with pytest.raises(CannotBuild, match=r"'acme' has neither: write it in full, such as oci://docker\.io/"):
        build(model=in_an_image("oci://acme/barge"))
    with pytest.raises(CannotBuild, match=r"engine\.speculative\.source: with model\.cache\.image a registry"):
        build(model=in_an_image("oci://localhost/barge"), engine=speculative("oci://acme/head"))
    with pytest.raises(CannotBuild, match=r"model\.source: oci:// is written oci://REGISTRY"):
        build(model=in_an_image("oci://host/Upper/case"))


def test_kubernetes_schemas_know_every_field_of_the_guides_image_volume() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    text = (Path(__file__).parents[2] / "docs" / "guides" / "model-sources.md").read_text()
    (written,) = (part for part in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "imagePath" in part)
    model = yaml.safe_load(written)["spec"]["model"]
    assert container(model=model)["args"][4] == "/models/models/barge"
    kubernetes_validate.validate(build(model=model)[1], "1.32", strict=True)


def test_the_users_image_wins_over_the_settings() -> None:
    assert container(engine={"image": "mine:1"})["image"] == "mine:1"


def test_environment_variables_of_the_user_replace_ours_of_the_same_name() -> None:
    secret = {"secretKeyRef": {"name": "s", "key": "k"}}
    variables = container(
        engine={"env": [{"name": "POD_NAME", "value": "x"}, {"name": "TOKEN", "valueFrom": secret}, {"name": "EMPTY"}]}
    )["env"]
    assert [variable["name"] for variable in variables] == ["POD_IP", "POD_NAME", "TOKEN", "EMPTY"]
    assert variables[1] == {"name": "POD_NAME", "value": "x"}
    assert variables[2] == {"name": "TOKEN", "valueFrom": secret}
    assert variables[3] == {"name": "EMPTY", "value": ""}


def test_a_profile_decides_resources_and_placement() -> None:
    profile = Profile(
        requests={"cpu": "4"},
        limits={"nvidia.com/gpu": "1"},
        node_selector={"gpu": "h200"},
        tolerations=({"key": "gpu", "operator": "Exists"},),
        runtime_class_name="nvidia",
        priority_class_name="high",
        shared_memory="2Gi",
    )
    spec = pod(OperatorSettings(profiles={"big": profile}), resources={"profile": "big"})["spec"]
    assert spec["containers"][0]["resources"] == {"requests": {"cpu": "4"}, "limits": {"nvidia.com/gpu": "1"}}
    assert spec["nodeSelector"] == {"gpu": "h200"}
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert (spec["runtimeClassName"], spec["priorityClassName"]) == ("nvidia", "high")
    assert spec["volumes"][-1] == {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
    assert spec["containers"][0]["volumeMounts"][-1] == {"name": "shared-memory", "mountPath": "/dev/shm"}


NODES = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]}}
CUDA = OperatorSettings.from_mapping(
    {
        "engineImage": "fairlead/engine:cpu",
        "profiles": {
            "cuda": {
                "image": "fairlead/engine:cuda",
                "env": [
                    {"name": "NCCL_DEBUG", "value": "WARN"},
                    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ],
                "nodeSelector": {"pool": "h100", "zone": "a"},
                "affinity": {"nodeAffinity": NODES},
            }
        },
    }
)


def test_a_profile_names_the_image_of_engines_and_of_what_downloads_for_them() -> None:
    spec: dict[str, Any] = {"resources": {"profile": "cuda"}, "model": {"source": "hf://o/n"}}
    assert container(CUDA, resources={})["image"] == "fairlead/engine:cpu"
    made = pod(CUDA, **spec)["spec"]
    assert {each["image"] for each in (*made["containers"], *made["initContainers"])} == {"fairlead/engine:cuda"}
    made = pod(CUDA, **spec, engine={"image": "mine:1"})["spec"]
    assert {each["image"] for each in (*made["containers"], *made["initContainers"])} == {"mine:1"}


def test_a_profile_names_no_image_of_other_engines() -> None:
    model = {"source": "hf://o/n"}
    made = pod(CUDA, resources={"profile": "cuda"}, model=model, engine={"type": "vLLM", "image": "vllm:1"})["spec"]
    images = {each["name"]: each["image"] for each in (*made["initContainers"], *made["containers"])}
    assert images == {"download": "fairlead/engine:cpu", "engine": "vllm:1", "front": "fairlead/engine:cpu"}
    (server,) = (each for each in made["initContainers"] if each["name"] == "engine")
    assert {"name": "NCCL_DEBUG", "value": "WARN"} in server["env"]


def test_environment_variables_of_an_llmdeployment_win_over_those_of_its_profile() -> None:
    own = {"env": [{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "OTHER", "value": "1"}]}
    made = container(CUDA, resources={"profile": "cuda"}, engine=own)["env"]
    assert [each["name"] for each in made] == ["POD_IP", "POD_NAME", "NCCL_DEBUG", "TOKEN", "OTHER"]
    assert made[2] == {"name": "NCCL_DEBUG", "value": "INFO"}
    assert made[3] == {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


@pytest.mark.parametrize(
    ("own", "selector"),
    [
        ({}, {"pool": "h100", "zone": "a"}),
        ({"resources": {"nodeSelector": {"pool": "spare"}}}, {"pool": "spare"}),
        ({"resources": {"nodeSelector": {}}}, None),
        ({"template": {"spec": {"nodeSelector": {"zone": "b"}}}}, {"pool": "h100", "zone": "b"}),
        (
            {"resources": {"nodeSelector": {"pool": "x"}}, "template": {"spec": {"nodeSelector": {"zone": "b"}}}},
            {"pool": "x", "zone": "b"},
        ),
    ],
    ids=["the profile's", "replaced", "any node", "merged by the template", "replaced, then merged"],
)
def test_nodes_are_the_profiles_unless_an_llmdeployment_chooses_others(
    own: dict[str, Any], selector: dict[str, str] | None
) -> None:
    spec: dict[str, Any] = {**own, "resources": {"profile": "cuda", **own.get("resources", {})}}
    assert pod(CUDA, **spec)["spec"].get("nodeSelector") == selector


def test_a_replica_without_a_profile_chooses_nodes_too() -> None:
    spec = pod(resources={"gpus": 1, "nodeSelector": {"pool": "h100"}})["spec"]
    assert spec["nodeSelector"] == {"pool": "h100"}


def test_a_templates_affinity_is_laid_over_the_profiles() -> None:
    resources = {"profile": "cuda"}
    assert pod(CUDA, resources=resources)["spec"]["affinity"] == {"nodeAffinity": NODES}
    apart: dict[str, Any] = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    template = {"spec": {"affinity": apart}}
    found = pod(CUDA, resources=resources, template=template)["spec"]["affinity"]
    assert found == {"nodeAffinity": NODES, **apart}
    assert "affinity" not in pod(CUDA, resources=resources, template={"spec": {"affinity": None}})["spec"]


def test_the_cluster_chooses_ids_that_the_settings_leave_out() -> None:
    settings = OperatorSettings.from_mapping({"enginePodSecurityContext": {"fsGroup": 0}})
    found = pod(settings)["spec"]["securityContext"]
    assert found == {"runAsNonRoot": True, "fsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}}


def test_resources_by_number_need_no_profile() -> None:
    resources = {"gpus": 1, "requests": {"cpu": "2"}, "limits": {"memory": "8Gi"}}
    assert container(resources=resources)["resources"] == {
        "requests": {"cpu": "2"},
        "limits": {"memory": "8Gi", "nvidia.com/gpu": "1"},
    }


def test_several_gpus_by_number_have_shared_memory_which_a_template_may_replace() -> None:
    several = {"engine": {"tensorParallelSize": 2}, "resources": {"gpus": 2}}
    ours = {"name": "shared-memory", "mountPath": "/dev/shm"}
    assert ours in container(**several)["volumeMounts"]
    assert ours not in container(resources={"gpus": 1})["volumeMounts"]
    volume = {"name": "own", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}
    own = {"name": "engine", "volumeMounts": [{"name": "own", "mountPath": "/dev/shm"}]}
    found = container(**several, template={"spec": {"volumes": [volume], "containers": [own]}})["volumeMounts"]
    assert [mount["name"] for mount in found if mount["mountPath"] == "/dev/shm"] == ["own"]


def test_without_a_default_profile_nothing_is_reserved() -> None:
    assert container(OperatorSettings(default_profile=""))["resources"] == {}


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CannotBuild, match="use one of cpu-large, cpu-medium, cpu-small, gpu") as raised:
        build(resources={"profile": "huge"})
    assert raised.value.reason is Reason.UNKNOWN_PROFILE and "local mode" not in str(raised.value)


def test_local_mode_says_why_it_lacks_the_profile_of_a_preset_for_gpus() -> None:
    profile = presets()["tinyllama-1-1b-chat"].profile
    local = OperatorSettings.from_mapping(operator_settings("http://127.0.0.1", 8000, Path("/claims"), Path("/models")))
    with pytest.raises(CannotBuild, match="local mode has none of the chart's profiles: gpu takes a GPU") as raised:
        build(local, resources={"profile": profile})
    known = "use one of cpu-large, cpu-medium, cpu-small, gpu, or"
    assert f"{profile!r} is not in the operator's settings: {known}" in str(raised.value)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (
            {"resources": {"profile": "eight"}},
            "resources.profile 'eight': its limits ask for nvidia.com/gpu: 8, and engine.tensorParallelSize is 1: make "
            "them equal",
        ),
        ({"resources": {"limits": {"amd.com/gpu": 2}}}, "resources: its limits ask for amd.com/gpu: 2, and"),
        ({"resources": {"requests": {"nvidia.com/gpu": "2"}}}, "resources: its requests ask for nvidia.com/gpu: 2"),
        (
            {"resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": "1"}}},
            "nvidia.com/gpu: 1, nvidia.com/mig-1g.10gb: 1, and",
        ),
        (
            {"template": {"spec": {"containers": [{"name": "engine", "resources": {"limits": {"a.b/gpu": "4"}}}]}}},
            "template.spec: its limits ask for a.b/gpu: 4, and",
        ),
        (
            {"template": {"spec": {"containers": [{"name": "engine", "resources": {"limits": {"a.b/gpu": "x"}}}]}}},
            "template.spec: limits of the engine: 'x' is not a quantity",
        ),
    ],
)
def test_gpus_that_the_engine_would_leave_idle_are_refused_wherever_they_are_asked_for(
    spec: dict[str, Any], told: str
) -> None:
    settings = OperatorSettings.from_mapping({"profiles": {"eight": {"limits": {"nvidia.com/gpu": "8"}}}})
    with pytest.raises(CannotBuild, match=re.escape(told)) as raised:
        build(settings, **spec)
    assert raised.value.reason is Reason.INVALID_SPEC


def test_a_model_is_divided_among_as_many_gpus_as_its_pods_have() -> None:
    settings = OperatorSettings.from_mapping({"profiles": {"eight": {"limits": {"nvidia.com/gpu": "8"}}}})
    children = build(settings, engine={"tensorParallelSize": 8}, resources={"profile": "eight"})
    assert "tensor-parallel-size: 8\n" in children[0]["data"]["engine.yaml"]
    with pytest.raises(CannotBuild, match=r"ask for nvidia\.com/gpu: 1, and engine\.tensorParallelSize is 8"):
        build(settings, engine={"tensorParallelSize": 8}, resources={"gpus": 1})


def test_a_sidecar_may_have_a_gpu_of_its_own() -> None:
    spec = {"containers": [{"name": "sidecar", "image": "other", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}
    assert pod(template={"spec": spec})["spec"]["containers"][1] == spec["containers"][0]


def test_the_grace_period_covers_the_drain() -> None:
    assert pod(drain={"timeout": "1500ms"})["spec"]["terminationGracePeriodSeconds"] == 32


def test_the_template_is_laid_over_the_pod_but_our_labels_stay() -> None:
    template = pod(
        template={
            "metadata": {
                "labels": {"team": "a", "fairlead.dev/llmdeployment": "stolen"},
                "annotations": {"note": "b", "fairlead.dev/config-hash": "stolen"},
            },
            "spec": {
                "priorityClassName": "high",
                "containers": [
                    {"name": "engine", "resources": {"limits": {"memory": "3Gi"}}},
                    {"name": "sidecar", "image": "other"},
                ],
            },
        }
    )
    assert template["metadata"]["labels"] == LABELS | {"team": "a"}
    assert template["metadata"]["annotations"]["note"] == "b"
    assert template["metadata"]["annotations"]["fairlead.dev/config-hash"] != "stolen"
    assert template["spec"]["priorityClassName"] == "high"
    engine, sidecar = template["spec"]["containers"]
    assert engine["resources"] == {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "3Gi"}}
    assert engine["image"] == "fairlead/engine:test"
    assert sidecar == {"name": "sidecar", "image": "other"}


def test_replicas_are_spread_over_nodes_unless_the_template_says_how() -> None:
    def spread(constraints: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        spec: dict[str, Any] = pod(template={"spec": {"topologySpreadConstraints": constraints}})["spec"]
        return spec.get("topologySpreadConstraints")

    assert pod(replicas=2)["spec"]["topologySpreadConstraints"] == [SPREAD]
    assert SPREAD["labelSelector"]["matchLabels"].items() <= LABELS.items(), "it counts the engine's own pods"
    theirs = [{"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 2}]
    assert spread(theirs) == theirs, "nothing of ours is merged into it"
    assert not spread([])
    assert not spread(None)


def test_images_are_pulled_as_the_settings_say_unless_the_template_says_how() -> None:
    assert "imagePullSecrets" not in pod()["spec"], "the namespace's ServiceAccount has its own"
    settings = OperatorSettings.from_mapping(
        {"engineImagePullPolicy": "Always", "engineImagePullSecrets": ["registry", "mirror"]}
    )
    assert container(settings)["imagePullPolicy"] == "Always"
    assert pod(settings)["spec"]["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}]
    theirs = {
        "imagePullSecrets": [{"name": "theirs"}],
        "containers": [{"name": "engine", "imagePullPolicy": "Never"}],
    }
    assert container(settings, template={"spec": theirs})["imagePullPolicy"] == "Never"
    assert {"name": "theirs"} in pod(settings, template={"spec": theirs})["spec"]["imagePullSecrets"]


@pytest.mark.parametrize(
    "spec",
    [{"containers": [{"image": "nameless"}]}, {"containers": ["text"]}, {"containers": True}, {"containers": "text"}],
)
def test_a_template_that_fits_no_pod_is_an_invalid_spec(spec: dict[str, Any]) -> None:
    with pytest.raises(CannotBuild, match="need a name") as raised:
        build(template={"spec": spec})
    assert raised.value.reason is Reason.INVALID_SPEC


def test_the_volume_for_compiled_kernels_is_mounted_as_documented() -> None:
    text = (Path(__file__).parents[2] / "docs/kubernetes.md").read_text()
    (documented,) = (part for part in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "--compile-cache" in part)
    spec = yaml.safe_load(documented)["spec"]
    engine = container(**spec)
    assert "--compile-cache=/kernels" in engine["args"]
    assert {"name": "kernels", "mountPath": "/kernels"} in engine["volumeMounts"]
    assert len(engine["volumeMounts"]) > 1, "the template takes none away"
    assert spec["template"]["spec"]["volumes"][0] in pod(**spec)["spec"]["volumes"]


def test_claims_of_adapters_are_mounted_each_once_and_engines_told_where_they_may_load_from() -> None:
    spec = {"adapters": [{"name": "a", "source": "pvc://boats.v1/a"}, {"name": "b", "source": "pvc://boats.v1/b"}]}
    made = children(llmdeployment(**spec), SETTINGS, (), ["boats.v1"])
    template = made[1]["spec"]["template"]["spec"]
    (volume,) = [each for each in template["volumes"] if each["name"].startswith("adapters-")]
    assert volume["persistentVolumeClaim"] == {"claimName": "boats.v1", "readOnly": True}
    (mount,) = [each for each in template["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    assert (mount["mountPath"], mount["readOnly"]) == ("/adapters/boats.v1", True)
    assert mounted_claims(made[1]) == {"boats.v1"}
    other = children(llmdeployment(adapters=spec["adapters"][:1]), SETTINGS, (), ["boats.v1"])
    assert other[1] == made[1], "which adapters there are is nothing that pods are replaced for"
    placed = placed_adapters(llmdeployment(**spec), SETTINGS, ["boats.v1"])
    assert [each.path for each in placed] == ["/adapters/boats.v1/a", "/adapters/boats.v1/b"]


HUB_ADAPTER = {"name": "a", "source": "hf://org/lora@v1"}


def test_adapters_from_elsewhere_are_downloaded_beside_the_engine_which_gets_no_secret() -> None:
    settings = OperatorSettings(engine_image="fairlead/engine:test", download_environment={"HF_ENDPOINT": "http://hub"})
    model = {
        "source": "demo://dinghy",
        "credentials": {"secretName": "hub"},
        "cache": {"claim": "models", "size": "1Gi"},
    }
    limits = {"limits": {"memory": "8Gi"}}
    deployment = llmdeployment(model=model, adapters=[HUB_ADAPTER], resources=limits)
    made = children(deployment, settings, ["NetworkPolicy"])
    assert [each["kind"] for each in made] == ["ConfigMap", "ConfigMap", "NetworkPolicy", "Deployment", "Service"]
    assert made[1]["metadata"]["name"] == "dinghy-engine-adapters"
    assert made[1]["data"] == {"sources": "hf://org/lora@v1\n"}
    spec = made[3]["spec"]["template"]["spec"]
    (downloader,), (engine,) = spec["initContainers"], spec["containers"]
    assert (engine["name"], downloader["name"]) == ("engine", "download-adapters")
    assert downloader["restartPolicy"] == "Always" and "startupProbe" not in downloader, (
        "an adapter that cannot be had keeps no pod from starting"
    )
    assert downloader["args"] == [
        "download-adapters", "--listed-in", "/etc/fairlead-adapters/sources", "--to", "/adapters/.downloads",
        "--size-limit", "1073741824", "--host", "$(POD_IP)", "--port", "8001",
    ]  # fmt: skip
    assert downloader["envFrom"] == [{"secretRef": {"name": "hub", "optional": True}}]
    assert "envFrom" not in engine and "hub" not in str(engine)
    assert downloader["env"][-1] == {"name": "HF_ENDPOINT", "value": "http://hub"}
    assert downloader["securityContext"] == engine["securityContext"]
    assert downloader["resources"] == {"limits": {"cpu": "250m", "memory": "1Gi"}}
    shared = {"name": "downloads", "mountPath": "/adapters/.downloads"}
    assert shared in downloader["volumeMounts"] and shared | {"readOnly": True} in engine["volumeMounts"]
    assert {"name": "downloads", "persistentVolumeClaim": {"claimName": "models"}} in spec["volumes"]
    of_operator = made[2]["spec"]["ingress"][1]
    assert of_operator["ports"] == [{"port": 8001, "protocol": "TCP"}] and len(of_operator["from"]) == 1


def test_what_downloads_adapters_starts_after_the_models_download_which_ends() -> None:
    def deployed(**spec: Any) -> dict[str, Any]:
        made = children(llmdeployment(**spec), SETTINGS)
        return next(each["spec"] for each in made if each["kind"] == "Deployment")

    both = deployed(model={"source": "hf://org/name"}, adapters=[HUB_ADAPTER])
    download, adapters = both["template"]["spec"]["initContainers"]
    assert (download["name"], "restartPolicy" in download) == ("download", False)
    assert (adapters["name"], adapters["restartPolicy"]) == ("download-adapters", "Always")
    alone, neither = deployed(adapters=[HUB_ADAPTER]), deployed()
    assert alone["progressDeadlineSeconds"] == neither["progressDeadlineSeconds"] < both["progressDeadlineSeconds"], (
        "no start waits for adapters"
    )


def test_pods_are_not_replaced_for_which_adapters_are_downloaded() -> None:
    def made(*adapters: dict[str, str], keeps: bool = False) -> tuple[Manifest, ...]:
        deployment = llmdeployment(adapters=list(adapters), engine={"maxLoras": 2})
        return children(deployment, SETTINGS, (), ["boats"], keeps_downloader=keeps)

    one, other = made(HUB_ADAPTER), made({"name": "b", "source": "https://host/b"}, HUB_ADAPTER)
    assert one[2] == other[2] and one[1] != other[1]
    on_claim = {"name": "c", "source": "pvc://boats/c"}
    assert has_adapter_downloader(one[2]) and not has_adapter_downloader(made(on_claim)[1])
    assert made(on_claim, keeps=True)[2] == one[2] == made(keeps=True)[2], "nor for one that goes"
    assert len(children(llmdeployment(), SETTINGS, keeps_downloader=True)) == 3, "without room for any there is none"
    placed = placed_adapters(llmdeployment(adapters=[HUB_ADAPTER, {"name": "b", "source": "oci://h/Up"}]), SETTINGS, ())
    assert [(each.is_downloaded, each.path, each.reason) for each in placed] == [
        (True, "", ""), (False, "", "SourceNotSupported"),
    ]  # fmt: skip


def test_a_model_and_its_adapters_are_kept_in_one_place() -> None:
    spec = pod_with_adapters(model={"source": "hf://org/name"}, adapters=[HUB_ADAPTER])
    assert [each["name"] for each in spec["volumes"]].count("downloads") == 1
    mounts = [each["mountPath"] for each in spec["containers"][0]["volumeMounts"] if each["name"] == "downloads"]
    assert mounts == ["/downloads", "/adapters/.downloads"]
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    made = children(llmdeployment(adapters=[HUB_ADAPTER]), SETTINGS, ["NetworkPolicy"])
    for each in made:
        kubernetes_validate.validate(each, "1.32", strict=True)


def pod_with_adapters(**spec: Any) -> dict[str, Any]:
    made = children(llmdeployment(**spec), SETTINGS)
    found: dict[str, Any] = next(each for each in made if each["kind"] == "Deployment")["spec"]["template"]["spec"]
    return found


def test_engines_have_room_for_adapters_where_some_are_listed_or_places_are_asked_for() -> None:
    assert "adapter-folder" not in flags() and "adapter-folder" not in flags(engine={"maxLoras": 0})
    asked = flags(engine={"maxLoras": 2, "maxLoraRank": 8, "maxCpuLoras": 16})
    assert {name: asked[name] for name in ("adapter-folder", "max-loras", "max-lora-rank", "max-cpu-loras")} == {
        "adapter-folder": "/adapters", "max-loras": 2, "max-lora-rank": 8, "max-cpu-loras": 16,
    }  # fmt: skip
    local = OperatorSettings(allow_file_sources=True)
    spec = {"adapters": [{"name": "a", "source": "file:///srv/a"}]}
    assert yaml.safe_load(build(local, **spec)[0]["data"]["engine.yaml"])["adapter-folder"] == "/"
    assert placed_adapters(llmdeployment(**spec), local, ())[0].path == "/srv/a"
    unmounted = OperatorSettings(claims_folder="/here/volumes")
    spec = {"adapters": [{"name": "a", "source": "pvc://boats/small/a"}]}
    assert yaml.safe_load(build(unmounted, **spec)[0]["data"]["engine.yaml"])["adapter-folder"] == "/"
    assert placed_adapters(llmdeployment(**spec), unmounted, ["boats"])[0].path == "/here/volumes/ships/boats/small/a"
