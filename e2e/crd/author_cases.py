"""What authors of LLMDeployments may ask for under an admission policy, and what they may not: for both who refuse."""

import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from crd.cases import Json, deployment

POLICY: Json = {
    "exemptNamespaces": ["platform-*"],
    "images": ["registry.example.com/models/", "vllm/vllm-openai"],
    "sources": [
        "demo://",
        "hf://example/",
        "pvc://models",
        "https://files.example.com/public/",
        "oci://r.example/boat",
    ],
    "secrets": ["hub-*"],
    "configMaps": ["profiles"],
    "claims": ["shared"],
    "arguments": ["--seed", "-ngl"],
    "environment": ["OMP_*", "HF_HUB_OFFLINE"],
    "mediaDomains": ["images.example.com"],
    "resources": ["cpu", "memory", "nvidia.com/*"],
    "deviceClasses": ["gpu.*"],
    "claimTemplates": ["shared"],
    "placement": True,
    "priorityClasses": ["models"],
    "labels": ["team"],
    "annotations": ["example.com/*"],
}
"""Something of everything, but for the nodes' cache."""
DEFAULTS: Json = {}
"""What is allowed where an administrator only turns the policy on."""


@dataclass(frozen=True)
class AuthorCase:
    """An object that a policy refuses for one field, and in whose sentence these words are."""

    field: str
    """Below `spec`."""
    refused: str
    """What is quoted."""
    body: Json
    policy: str = "POLICY"


def _spec(field: str, refused: str, policy: str = "POLICY", **spec: Any) -> AuthorCase:
    return AuthorCase(field, refused, deployment(**spec), policy)


def _pod(field: str, refused: str, **pod: Any) -> AuthorCase:
    return _pod_of(field, refused, pod)


def _pod_of(field: str, refused: str, pod: Json, policy: str = "POLICY") -> AuthorCase:
    return AuthorCase(f"template.spec{field}", refused, deployment(template={"spec": pod}), policy)


def _engine(field: str, refused: str, **engine: Any) -> AuthorCase:
    return _spec(f"engine.{field}", refused, engine=engine)


def _container(field: str, refused: str, **container: Any) -> list[AuthorCase]:
    """Of the engine's container, wherever it stands in the pod."""
    made = {"name": "engine", **container}
    return [_pod_of(f".{kind}[]{field}", refused, {kind: [made]}) for kind in ("containers", "initContainers")]


def _volume(kind: str, value: Any) -> AuthorCase:
    return _pod(".volumes[]", f"'{kind}'", volumes=[{"name": "theirs", kind: value}])


_SECRET = {"secretKeyRef": {"name": "root", "key": "k"}}
_OMP = "OMP_NUM_THREADS"

REFUSED = [
    # -- fields of pods that nobody lists --
    *(
        _pod_of("", f"'{name}'", {name: value})
        for name, value in {
            "hostNetwork": True, "hostPID": True, "hostIPC": True, "hostUsers": True, "shareProcessNamespace": True,
            "serviceAccountName": "default", "serviceAccount": "default", "automountServiceAccountToken": True,
            "securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]},
            "runtimeClassName": "kata", "schedulerName": "mine", "nodeName": "node-1", "priority": 1,
            "preemptionPolicy": "PreemptLowerPriority", "hostname": "a", "subdomain": "b", "setHostnameAsFQDN": True,
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["huggingface.co"]}], "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["10.0.0.1"]}, "imagePullSecrets": [{"name": "root"}],
            "ephemeralContainers": [{"name": "debug", "image": "busybox"}], "overhead": {"cpu": "1"},
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "theirs"}], "os": {"name": "linux"},
            "activeDeadlineSeconds": 1, "restartPolicy": "Never", "readinessGates": [], "schedulingGates": [],
            "hostnameOverride": "a", "resources": {"limits": {"cpu": "1"}}, "aFieldOfTheFuture": 1,
        }.items()
    ),
    # What is taken away is the operator's own.
    _pod("", "'securityContext'", securityContext=None),
    _pod("", "'automountServiceAccountToken'", automountServiceAccountToken=None),
    # -- containers --
    *(
        case
        for name, value in {
            "securityContext": {"privileged": True}, "command": ["sh"], "args": ["serve"], "workingDir": "/",
            "envFrom": [{"secretRef": {"name": "root"}}], "ports": [{"containerPort": 1, "hostPort": 80}],
            "volumeDevices": [{"name": "a", "devicePath": "/dev/sda"}], "lifecycle": {"preStop": {"exec": {}}},
            "livenessProbe": {"httpGet": {"host": "10.0.0.1", "port": 80}}, "imagePullPolicy": "Never",
            "stdin": True, "image": "registry.example.com/models/a",
            "resizePolicy": [], "restartPolicy": "Always", "terminationMessagePath": "/dev/sda",
        }.items()
        for case in _container("", f"'{name}'", **{name: value})
    ),
    *(
        case
        for value in (
            {"procMount": "Unmasked"}, {"capabilities": {"add": ["SYS_ADMIN"]}}, {"allowPrivilegeEscalation": True},
            {"runAsUser": 0}, {"seccompProfile": {"type": "Unconfined"}}, {"appArmorProfile": {"type": "Unconfined"}},
            {"seLinuxOptions": {"type": "spc_t"}}, {"windowsOptions": {"hostProcess": True}}, None,
        )
        for case in _container("", "'securityContext'", securityContext=value)
    ),
    *(_pod_of(f".{kind}[].name", "'debug'", {kind: [{"name": "debug"}]}) for kind in ("containers", "initContainers")),
    *_container(".env[].name", "'LD_PRELOAD'", env=[{"name": "LD_PRELOAD", "value": "/a.so"}]),
    *_container(".env[].name", "'A', 'B'", env=[{"name": "A"}, {"name": "B"}]),
    *_container(".env[].valueFrom.secretKeyRef.name", "'root'", env=[{"name": _OMP, "valueFrom": _SECRET}]),
    *_container(
        ".env[].valueFrom.configMapKeyRef.name", "'theirs'",
        env=[{"name": _OMP, "valueFrom": {"configMapKeyRef": {"name": "theirs", "key": "k"}}}],
    ),
    *_container(".env[].valueFrom", "'fileKeyRef'", env=[{"name": _OMP, "valueFrom": {"fileKeyRef": {"key": "k"}}}]),
    *_container(".resources", "'claims'", resources={"claims": [{"name": "gpu"}]}),
    *(case for kind in ("requests", "limits") for case in _container(
        f".resources.{kind}", "'devices.example.com/kvm'",
        resources={kind: {"devices.example.com/kvm": "1", "cpu": "1"}},
    )),
    *_container(
        ".volumeMounts[]", "'mountPropagation'",
        volumeMounts=[{"name": "theirs", "mountPath": "/mnt/a", "mountPropagation": "Bidirectional"}],
    ),
    *_container(
        ".volumeMounts[]", "'subPathExpr'",
        volumeMounts=[{"name": "theirs", "mountPath": "/mnt/a", "subPathExpr": "$(POD_NAME)"}],
    ),
    *_container(".volumeMounts[].name", "'downloads'", volumeMounts=[{"name": "downloads", "mountPath": "/mnt/a"}]),
    *(case for path in ("/etc/fairlead", "/mnt", "/mnt/../etc/fairlead", "/mntx/a") for case in _container(
        ".volumeMounts[].mountPath", f"'{path}'", volumeMounts=[{"name": "theirs", "mountPath": path}]
    )),
    # -- volumes --
    _volume("hostPath", {"path": "/"}),
    _volume("projected", {"sources": [{"serviceAccountToken": {"path": "token"}}]}),
    _volume("csi", {"driver": "secrets-store.csi.k8s.io"}),
    _volume("ephemeral", {"volumeClaimTemplate": {}}),
    _volume("nfs", {"server": "10.0.0.1", "path": "/"}),
    _volume("image", {"reference": "registry.example.com/private:1"}),
    _volume("downwardAPI", {"items": []}),
    *(_volume(kind, {}) for kind in (
        "iscsi", "rbd", "cephfs", "glusterfs", "fc", "flexVolume", "azureFile", "azureDisk", "gcePersistentDisk",
        "awsElasticBlockStore", "cinder", "vsphereVolume", "portworxVolume", "scaleIO", "storageos", "quobyte",
        "photonPersistentDisk", "flocker", "gitRepo", "aKindOfTheFuture",
    )),
    _pod(".volumes[].name", "'config'", volumes=[{"name": "config", "configMap": {"name": "profiles"}}]),
    _pod(".volumes[].configMap.name", "'theirs'", volumes=[{"name": "a", "configMap": {"name": "theirs"}}]),
    _pod(".volumes[].secret.secretName", "'root'", volumes=[{"name": "a", "secret": {"secretName": "root"}}]),
    _pod(
        ".volumes[].persistentVolumeClaim.claimName", "'data'",
        volumes=[{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}],
    ),
    _pod(".priorityClassName", "'system-node-critical'", priorityClassName="system-node-critical"),
    *(
        _pod_of("", f"'{name}'", {name: value}, "DEFAULTS")
        for name, value in {
            "nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}], "affinity": {},
            "topologySpreadConstraints": [],
        }.items()
    ),
    _spec("template.metadata.labels", "'app'", template={"metadata": {"labels": {"app": "bank", "team": "a"}}}),
    _spec(
        "template.metadata.annotations", "'sidecar.istio.io/inject'",
        template={"metadata": {"annotations": {"sidecar.istio.io/inject": "false", "example.com/a": "b"}}},
    ),
    # -- the engine --
    *(
        _engine("image", f"'{image}'", image=image)
        for image in (
            "busybox", "registry.example.com/model/a", "registry.example.com.evil/models/a", "vllm/vllm-openai2:v1",
            "vllm/vllm-openai:5000/evil", "vllm/vllm-openai/evil", "registry.example.com/models/../root", "vllm/vllm",
        )
    ),
    *(
        _engine("extraArgs[]", f"'{argument}'", extraArgs=["--seed=1", argument])
        for argument in ("--trust-remote-code", "--seeds=1", "theirs/model", "-ngl2", "")
    ),
    _engine("env[].name", "'LD_PRELOAD'", env=[{"name": "LD_PRELOAD", "value": "/a.so"}]),
    _engine("env[].valueFrom.secretKeyRef.name", "'root'", env=[{"name": _OMP, "valueFrom": _SECRET}]),
    _engine(
        "env[].valueFrom.configMapKeyRef.name", "'theirs'",
        env=[{"name": _OMP, "valueFrom": {"configMapKeyRef": {"name": "theirs", "key": "k"}}}],
    ),
    _engine("env[].valueFrom", "'fileKeyRef'", env=[{"name": _OMP, "valueFrom": {"fileKeyRef": {"key": "k"}}}]),
    _engine("profile.configMap", "'theirs'", profile={"configMap": "theirs"}),
    _engine("allowedMediaDomains[]", "'10.0.0.1'", allowedMediaDomains=["10.0.0.1", "images.example.com"]),
    *(
        _spec(f"resources.{kind}", "'devices.example.com/kvm'", resources={kind: {"devices.example.com/kvm": "1"}})
        for kind in ("requests", "limits")
    ),
    *(
        _spec("resources", "'nodeSelector'", "DEFAULTS", resources={"nodeSelector": each})
        for each in ({"pool": "theirs"}, {})
    ),
    # -- sources --
    *(
        _spec("model.source", f"'{source}'", model={"source": source})
        for source in (
            "hf://other/name", "hf://example2/name", "pvc://models2", "pvc://model", "file:///etc", "s3://bucket/a",
            "https://files.example.com/private/a", "https://files.example.com/public/%2e%2e/private/a",
            "oci://r.example/boats", "oci://r.example/boat:1/other",
        )
    ),
    _spec(
        "engine.speculative.source", "'hf://other/name'",
        engine={"speculative": {"method": "draft", "source": "hf://other/name"}},
    ),
    _spec("adapters[].source", "'hf://other/a'", adapters=[{"name": "a", "source": "hf://other/a"}]),
    _spec(
        "model.credentials.secretName", "'root'",
        model={"source": "hf://example/a", "credentials": {"secretName": "root"}},
    ),
    _spec("model.cache.claim", "'data'", model={"source": "hf://example/a", "cache": {"claim": "data"}}),
    _spec("model.cache.node", "'true'", model={"source": "hf://example/a", "cache": {"node": True}}),
    _spec("model.cache.image", "'true'", model={"source": "oci://r.example/boat", "cache": {"image": True}}),
    _spec(
        "resources.devices.deviceClassName", "'nic.example'", resources={"devices": {"deviceClassName": "nic.example"}}
    ),
    _spec(
        "resources.devices.deviceClassName", "'gpu.example'", "DEFAULTS",
        resources={"devices": {"deviceClassName": "gpu.example"}},
    ),
    _spec("resources.claimTemplateName", "'theirs'", resources={"claimTemplateName": "theirs"}),
    _spec("model.source", "'https://host.example/a'", "DEFAULTS", model={"source": "https://host.example/a"}),
    _spec("model.source", "'pvc://claim'", "DEFAULTS", model={"source": "pvc://claim"}),
]  # fmt: skip

ALLOWED = [
    deployment(),
    *(
        deployment(model={"source": source})
        for source in (
            "hf://example/name",
            "hf://example/name@main",
            "pvc://models",
            "pvc://models/a/b",
            "oci://r.example/boat:v1",
            "https://files.example.com/public/a",
            "oci://r.example/boat@sha256:0a",
        )
    ),
    deployment(
        model={"source": "hf://example/a", "credentials": {"secretName": "hub-token"}, "cache": {"claim": "shared"}},
        adapters=[{"name": "a", "source": "pvc://models/a"}],
    ),
    deployment(model={"source": "hf://example/a", "cache": {"size": "1Gi", "node": False}}),
    deployment(
        engine={
            "image": "vllm/vllm-openai:v0.22.0",
            "extraArgs": ["--seed=1", "--seed", "-ngl", "99", "-1.5"],
            "env": [
                {"name": _OMP, "value": "1"},
                {"name": "HF_HUB_OFFLINE", "valueFrom": {"secretKeyRef": {"name": "hub-a", "key": "k"}}},
                {"name": "OMP_A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            ],
            "allowedMediaDomains": ["images.example.com"],
            "profile": {"configMap": "profiles"},
        },
        resources={"limits": {"cpu": "1", "nvidia.com/gpu": 1}, "nodeSelector": {"pool": "a"}},
    ),
    deployment(resources={"devices": {"deviceClassName": "gpu.example", "count": 1, "selectors": ["true"]}}),
    deployment(resources={"claimTemplateName": "shared"}),
    *(
        deployment(engine={"image": image})
        for image in ("registry.example.com/models/a/b:1", f"vllm/vllm-openai@sha256:{'0' * 64}", "vllm/vllm-openai")
    ),
    deployment(
        template={
            "metadata": {"labels": {"team": "a"}, "annotations": {"example.com/cost": "7"}},
            "spec": {
                "terminationGracePeriodSeconds": 60,
                "enableServiceLinks": False,
                "nodeSelector": {"a": "b"},
                "tolerations": [{"operator": "Exists"}],
                "affinity": {"nodeAffinity": {}},
                "topologySpreadConstraints": [],
                "priorityClassName": "models",
                "containers": [
                    {
                        "name": "engine",
                        "env": [{"name": _OMP, "value": "1"}],
                        "resources": {"limits": {"cpu": "1"}, "requests": None},
                        "volumeMounts": [{"name": "mine", "mountPath": "/mnt/a", "readOnly": True, "subPath": "a"}],
                    }
                ],
                "initContainers": [{"name": "download", "resources": {"limits": {"memory": "1Gi"}}}],
                "volumes": [
                    {"name": "mine", "emptyDir": {"medium": "Memory"}},
                    {"name": "a", "configMap": {"name": "profiles"}},
                    {"name": "b", "secret": {"secretName": "hub-a"}},
                    {"name": "c", "persistentVolumeClaim": {"claimName": "shared"}},
                ],
            },
        }
    ),
    deployment(template={"spec": {"containers": None, "volumes": None}}),
]
"""Under POLICY."""
ODD = [
    deployment(template={"spec": pod})
    for pod in (
        {"containers": "x"}, {"containers": {"a": 1}}, {"containers": [1]}, {"volumes": ["x"]},
        {"volumes": [{"name": 1}]},
        {"containers": [{"name": "engine", "env": "x"}]}, {"containers": [{"name": "engine", "image": 5}]},
        {"containers": [{"name": "engine", "volumeMounts": [{"name": "a", "mountPath": 5}]}]},
        {"volumes": [{"name": "a", "secret": "x"}]}, {"volumes": [{"name": "a", "secret": {"secretName": ["root"]}}]},
        {"containers": [{"name": "engine", "env": ["x"]}]}, {"volumes": [{"name": "a", "secret": ["x"]}]},
        {"containers": [{"name": "engine", "env": [{"name": "OMP_A", "valueFrom": "x"}]}]},
        {"containers": [{"name": "engine", "env": [{"name": "OMP_A", "valueFrom": {"secretKeyRef": "root"}}]}]},
        {"containers": [{"name": "engine", "resources": "x"}]},
        {"containers": [{"name": "engine", "resources": {"limits": 1}}]},
        {"priorityClassName": {"a": "b"}}, {"containers": [{"name": "engine", "env": [{"name": 1}]}]},
    )
]  # fmt: skip
"""What is no pod: it is refused, in whatever words."""
POLICIES: dict[str, Json] = {"POLICY": POLICY, "DEFAULTS": DEFAULTS}


def grafted(seed: int) -> Json:
    """One of the objects, in which up to three values are replaced by others of anywhere."""
    choice = random.Random(seed)
    every = [*ALLOWED, *(case.body for case in REFUSED), *ODD]
    body = deepcopy(choice.choice(every))
    for _ in range(choice.randint(1, 3)):
        *above, last = choice.choice([path for path, _ in _values(body["spec"]) if path])
        place = body["spec"]
        for key in above:
            place = place[key]
        donor = choice.choice([value for _, value in _values(choice.choice(every)["spec"])])
        place[last] = deepcopy(choice.choice([donor, donor, choice.choice(_ODD_VALUES)]))
    return body


_ODD_VALUES = ["", 0, 1.5, True, [], {}, {"": "x"}, ["x"], "a\nb", "..", "*"]


def _values(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """A value and all in it, with their places."""
    yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from _values(each, (*path, key))
