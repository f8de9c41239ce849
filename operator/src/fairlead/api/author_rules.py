"""What an AdmissionPolicy forbids the authors of LLMDeployments, as one table.

A row has a place, and the settings with more allowed values. The operator's verdict (`refusals`) and the CEL text of
the chart's ValidatingAdmissionPolicy (`docs/generate_admission_policy.py`) both come from the table. Harmless fields of
pods are listed; all other fields are refused, including future ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fairlead.api import names
from fairlead.api.admission_policy import SETTING, AdmissionPolicy
from fairlead.api.cel import matches


class RulePart(StrEnum):
    """What of a place is looked at."""

    VALUE = "value"
    """A text."""
    KEYS = "keys"
    """The names of an object's fields."""
    SWITCH = "switch"
    """Whether it is true."""


class Likeness(StrEnum):
    """How a text is compared with an entry of a list."""

    NAME = "name"
    """Equal; or an entry ends with `*`, and the text begins with the part before."""
    IMAGE = "image"
    SOURCE = "source"
    ARGUMENT = "argument"


IMAGE_REST = "^(:[A-Za-z0-9_.-]+)?(@sha256:[0-9a-f]+)?$"
"""What may follow a repository."""
SOURCE_REST = "^([@/].*|:[^/]*)?$"
"""After a fully named source: a revision, a folder or a tag."""
NUMBER = "^-?[0-9]+([.][0-9]+)?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorRule:
    """One row: what may stand at one place."""

    path: str
    """Below `spec`; `[]` after a list's name: in each of its items."""
    part: RulePart = RulePart.VALUE
    likeness: Likeness = Likeness.NAME
    always: tuple[str, ...] = ()
    """Entries that are allowed in any case."""
    setting: str = ""
    """Lists more allowed values; or a switch for `with_switch`, or for everything."""
    with_switch: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    """Instead of what is allowed: all but these is."""
    why: str
    """What is wrong with the rest."""

    @property
    def remedy(self) -> str:
        """What its author can do."""
        if self.setting:
            return f"leave it out, or have an administrator allow it with {SETTING}.{self.setting}"
        return f"leave it out, or have an administrator except the namespace with {SETTING}.exemptNamespaces"

    @property
    def before(self) -> str:
        """The sentence before what is refused."""
        return f"spec.{self.path}: "

    @property
    def after(self) -> str:
        """The sentence after it."""
        return f": {self.why}: {self.remedy}"

    @property
    def general(self) -> str:
        """The sentence without a quoted value."""
        return f"spec.{self.path}: {self.why}: {self.remedy}"


_OUR_CONTAINERS = (
    names.ENGINE_CONTAINER, names.FRONT_CONTAINER, names.DOWNLOAD_CONTAINER, names.DOWNLOAD_SPECULATIVE_CONTAINER,
    names.ADAPTERS_CONTAINER,
)  # fmt: skip
OUR_VOLUMES = ("config", "scratch", "model", "speculative", "downloads", "adapter-list", "shared-memory")
"""Of engines' pods; adapters' claims have hashes for names."""
_POD = ("containers", "initContainers", "volumes", "terminationGracePeriodSeconds", "enableServiceLinks",
        "priorityClassName")  # fmt: skip
_NUMBERS = ("profile", "gpus", "devices", "claimTemplateName", "requests", "limits")
_PLACEMENT = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints")
_CONTAINER = ("name", "env", "resources", "volumeMounts")
"""No image: a container without an image is not new, so its rights are known."""
_VOLUME = ("name", "emptyDir", "configMap", "secret", "persistentVolumeClaim")
_MOUNT = ("name", "mountPath", "readOnly", "subPath")
_VALUE_FROM = ("secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef")
_MOUNT_PATHS = ("/mnt/*",)


def _listed(
    path: str, setting: str, noun: str, likeness: Likeness = Likeness.NAME, part: RulePart = RulePart.VALUE
) -> AuthorRule:
    """A value, or the keys of an object, as listed in a setting."""
    why = f"{noun} not among those that are allowed"
    return AuthorRule(path=path, part=part, likeness=likeness, setting=setting, why=why)


def _keys(path: str, always: tuple[str, ...], why: str) -> AuthorRule:
    return AuthorRule(path=path, part=RulePart.KEYS, always=always, why=why)


def _environment(path: str) -> tuple[AuthorRule, ...]:
    source = f"{path}[].valueFrom"
    return (
        _listed(f"{path}[].name", "environment", "an environment variable"),
        _keys(source, _VALUE_FROM, "an environment variable may come from a Secret, a ConfigMap or a field of the pod"),
        _listed(f"{source}.secretKeyRef.name", "secrets", "a Secret"),
        _listed(f"{source}.configMapKeyRef.name", "configMaps", "a ConfigMap"),
    )


def _resources(path: str) -> Iterator[AuthorRule]:
    for kind in ("requests", "limits"):
        yield _listed(f"{path}.{kind}", "resources", "a resource of nodes", part=RulePart.KEYS)


def _containers(path: str) -> tuple[AuthorRule, ...]:
    mount, may_say = f"{path}[].volumeMounts[]", "the template may say"
    return (
        AuthorRule(
            path=f"{path}[].name", always=_OUR_CONTAINERS,
            why=f"the template may add no container, only change {', '.join(_OUR_CONTAINERS)}",
        ),
        _keys(f"{path}[]", _CONTAINER, f"of a container {may_say} {', '.join(_CONTAINER[1:])} only"),
        _keys(f"{path}[].resources", ("requests", "limits"), f"of resources {may_say} requests and limits only"),
        *_resources(f"{path}[].resources"),
        *_environment(f"{path}[].env"),
        _keys(mount, _MOUNT, f"of a mount {may_say} {', '.join(_MOUNT)} only"),
        AuthorRule(path=f"{mount}.name", never=OUR_VOLUMES, why="the template may mount volumes of its own only"),
        AuthorRule(
            path=f"{mount}.mountPath", always=_MOUNT_PATHS, why="the template may mount volumes below /mnt only"
        ),
    )  # fmt: skip


_SHARED = "what nodes keep is shared by all namespaces, whatever credentials it was fetched with"

RULES = (
    *(
        _listed(path, "sources", "a source", Likeness.SOURCE)
        for path in ("model.source", "engine.speculative.source", "adapters[].source")
    ),
    _listed("model.credentials.secretName", "secrets", "a Secret"),
    _listed("model.cache.claim", "claims", "a PersistentVolumeClaim"),
    AuthorRule(path="model.cache.node", part=RulePart.SWITCH, setting="nodeCache", why=_SHARED),
    AuthorRule(path="model.cache.image", part=RulePart.SWITCH, setting="nodeCache", why=_SHARED),
    _listed("engine.image", "images", "an image", Likeness.IMAGE),
    AuthorRule(
        path="engine.extraArgs[]", likeness=Likeness.ARGUMENT, setting="arguments",
        why="an argument that is no number and none of the allowed flags, with its value after a '='",
    ),
    *_environment("engine.env"),
    _listed("engine.profile.configMap", "configMaps", "a ConfigMap"),
    _listed("engine.allowedMediaDomains[]", "mediaDomains", "a host"),
    *_resources("resources"),
    _listed("resources.devices.deviceClassName", "deviceClasses", "a DeviceClass"),
    _listed("resources.claimTemplateName", "claimTemplates", "a ResourceClaimTemplate"),
    AuthorRule(
        path="resources", part=RulePart.KEYS, always=_NUMBERS, setting="placement", with_switch=("nodeSelector",),
        why=f"of resources may be said {', '.join(_NUMBERS)} only, and where it is allowed nodeSelector",
    ),
    _listed("template.metadata.labels", "labels", "a label of pods", part=RulePart.KEYS),
    _listed("template.metadata.annotations", "annotations", "an annotation of pods", part=RulePart.KEYS),
    AuthorRule(
        path="template.spec", part=RulePart.KEYS, always=_POD, setting="placement", with_switch=_PLACEMENT,
        why=f"of a pod the template may say {', '.join(_POD)} only, and where it is allowed {', '.join(_PLACEMENT)}",
    ),
    _listed("template.spec.priorityClassName", "priorityClasses", "a PriorityClass"),
    *_containers("template.spec.containers"),
    *_containers("template.spec.initContainers"),
    _keys(
        "template.spec.volumes[]", _VOLUME,
        f"a volume of the template may be of the kinds {', '.join(_VOLUME[1:])} only",
    ),
    AuthorRule(
        path="template.spec.volumes[].name", never=OUR_VOLUMES,
        why="the operator's own volumes cannot be replaced: choose another name",
    ),
    _listed("template.spec.volumes[].configMap.name", "configMaps", "a ConfigMap"),
    _listed("template.spec.volumes[].secret.secretName", "secrets", "a Secret"),
    _listed("template.spec.volumes[].persistentVolumeClaim.claimName", "claims", "a PersistentVolumeClaim"),
)  # fmt: skip


def refusals(policy: AdmissionPolicy | None, body: Mapping[str, Any]) -> list[str]:
    """A sentence for each rule broken by an LLMDeployment of the CRD's types; empty without a policy, or in an exempt
    namespace."""
    namespace, spec = body["metadata"]["namespace"], body["spec"]
    if policy is None or any(_is_named(namespace, entry) for entry in policy.exempt_namespaces):
        return []
    found = ((rule, _refused(rule, policy, spec, rule.path.split("."))) for rule in RULES)
    return [f"{rule.before}{', '.join(refused)}{rule.after}" for rule, refused in found if refused]


def _refused(rule: AuthorRule, policy: AdmissionPolicy, value: Any, path: Sequence[str]) -> list[str]:
    """Refused parts of `value`, which is above `path`; also parts without the path's shape."""
    if not path:
        return _refused_here(rule, policy, value)
    field = path[0].removesuffix("[]")
    if not isinstance(value, Mapping):
        return [_quoted(value)]
    inner = value.get(field)
    if inner is None:
        return []
    if not path[0].endswith("[]"):
        return _refused(rule, policy, inner, path[1:])
    if not isinstance(inner, list):
        return [_quoted(inner)]
    return [each for item in inner for each in _refused(rule, policy, item, path[1:])]


def _refused_here(rule: AuthorRule, policy: AdmissionPolicy, value: Any) -> list[str]:
    if rule.part is RulePart.SWITCH:
        return [_quoted("true")] if value and not policy.entries(rule.setting) else []
    if rule.part is RulePart.KEYS:
        if not isinstance(value, Mapping):
            return [_quoted(value)]
        return [_quoted(key) for key in value if not is_allowed(rule, policy, key)]
    return [] if isinstance(value, str) and is_allowed(rule, policy, value) else [_quoted(value)]


def is_allowed(rule: AuthorRule, policy: AdmissionPolicy, text: str) -> bool:
    """Whether a text may stand at the rule's place."""
    if rule.never:
        return text not in rule.never
    listed: tuple[str, ...] = rule.always
    if rule.with_switch:
        listed += rule.with_switch if policy.entries(rule.setting) else ()
    elif rule.setting:
        listed += tuple(policy.entries(rule.setting))
    if rule.likeness is Likeness.ARGUMENT and matches(NUMBER, text):
        return True
    return any(_ALIKE[rule.likeness](text, entry) for entry in listed)


def _is_named(text: str, entry: str) -> bool:
    if entry.endswith("*"):
        return text.startswith(entry[:-1]) and ".." not in text
    return text == entry


def _is_image(text: str, entry: str) -> bool:
    if not text.startswith(entry) or ".." in text:
        return False
    return entry.endswith("/") or matches(IMAGE_REST, text[len(entry) :])


def _is_source(text: str, entry: str) -> bool:
    if not text.startswith(entry) or ("%" in text and not entry.endswith("://")):
        return False  # what is written as %2e%2e may mean another folder to a server
    return entry.endswith("/") or matches(SOURCE_REST, text[len(entry) :])


def _is_argument(text: str, entry: str) -> bool:
    return entry == "*" or text == entry or text.startswith(f"{entry}=")


_ALIKE = {
    Likeness.NAME: _is_named,
    Likeness.IMAGE: _is_image,
    Likeness.SOURCE: _is_source,
    Likeness.ARGUMENT: _is_argument,
}


def _quoted(value: Any) -> str:
    return f"'{value}'"
