"""Programs of containers: the program behind an image, and environment, arguments and paths by the spec. Nothing is
ever pulled.

Reads ConfigMaps and Secrets through the API; starts nothing and touches no file.
"""

import base64
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from fairlead.api.names import ENGINE_IMAGE, OPERATOR_IMAGE
from fairlead.api.quantities import parse_quantity
from fairlead_local.apiserver.operations import Operations
from fairlead_local.apiserver.resources import CONFIG_MAPS, SECRETS, ResourceType
from fairlead_local.apiserver.status import Json


@dataclass(frozen=True, slots=True)
class Program:
    """The program of an image: argument vector of the entrypoint, and the names that `command` may use."""

    entrypoint: tuple[str, ...]
    names: frozenset[str] = frozenset()
    is_stand_in: bool = False
    """Whether the program replaces any program of the image."""


Images = Mapping[str, Program]
"""Image name without registry, tag and digest → program."""

OWN_IMAGES: Images = {
    ENGINE_IMAGE: Program((sys.executable, "-m", "fairlead_engine"), frozenset({"fairlead-engine"})),
    OPERATOR_IMAGE: Program((sys.executable, "-m", "fairlead"), frozenset({"fairlead"})),
}


def stand_in(text: str) -> tuple[str, Program]:
    """Parses `IMAGE=COMMAND`: the name of an image, and the command that its containers run. Raises ValueError."""
    image, _, command = text.partition("=")
    name, words = _name_of(image), shlex.split(command)
    if not name or not words:
        raise ValueError(f"{text!r} is not IMAGE=COMMAND, such as vllm/vllm-openai=vllm")
    return name, Program(tuple(words), is_stand_in=True)


class ImageNotFound(Exception):
    """An image that is not on this machine; the text names the images of this machine."""


class ContainerConfigError(Exception):
    """A container cannot be created from its spec; the text is the kubelet's report."""


def find_program(images: Images, image: str) -> Program:
    """Raises ImageNotFound; `docker.io/` and the tag are ignored."""
    if program := images.get(_name_of(image)):
        return program
    known = ", ".join(sorted(images))
    raise ImageNotFound(f'failed to pull "{image}": local mode runs these images only: {known}')


def _name_of(image: str) -> str:
    name = image.partition("@")[0].removeprefix("docker.io/")
    return name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name


def words_of(program: Program, container: Json) -> Sequence[str]:
    """The container's words after the program's entrypoint. Raises ContainerConfigError for a foreign `command`.

    The entrypoint belongs to this machine and stays unchanged; the words are expanded and translated later.
    """
    command: Sequence[str] = container.get("command") or ()
    args: Sequence[str] = container.get("args") or ()
    if not command:
        return args
    if command[0] not in program.names and not program.is_stand_in:
        allowed = " or ".join(sorted(program.names)) or "no command: leave it out"
        raise ContainerConfigError(f'command "{command[0]}" is not in image "{container["image"]}": it has {allowed}')
    return [*command[1:], *args]


_VARIABLE = re.compile(r"\$\$|\$\((?P<name>[-._a-zA-Z][-._a-zA-Z0-9]*)\)")


def environment(operations: Operations, pod: Json, container: Json, pod_ip: str, host_ip: str) -> dict[str, str]:
    """The variables of `envFrom` and `env`, in order, later over earlier. Raises ContainerConfigError."""
    namespace = pod["metadata"]["namespace"]
    variables: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        reference, kind, found = _referred(operations, namespace, source, "Ref")
        if found is None and not reference.get("optional"):
            raise ContainerConfigError(f'{kind.lower()} "{reference.get("name", "")}" not found')
        prefix = source.get("prefix", "")
        variables |= {prefix + key: value.decode() for key, value in (found or {}).items()}
    for variable in container.get("env") or ():
        name, source = variable["name"], variable.get("valueFrom")
        if source is None:
            variables[name] = expand(variable.get("value", ""), variables)
            continue
        if "fieldRef" in source:
            variables[name] = _field(pod, source["fieldRef"]["fieldPath"], pod_ip, host_ip)
        elif "resourceFieldRef" in source:
            variables[name] = _resource(pod, container, source["resourceFieldRef"])
        elif (value := _one_key(operations, namespace, source)) is not None:
            variables[name] = value
    return variables


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` replaced by the variable; `$$` by `$`; unknown names stay."""

    def replaced(found: re.Match[str]) -> str:
        name = found["name"]
        return "$" if name is None else variables.get(name, found[0])

    return _VARIABLE.sub(replaced, text)


def translate(text: str, mounts: Mapping[str, str]) -> str:
    """A path below a mount path → where the volume's folder really is; also behind `--flag=`. Other texts stay."""
    if text.startswith("--") and "=" in text:
        flag, _, value = text.partition("=")
        return f"{flag}={translate(value, mounts)}"
    for mount_path in sorted(mounts, key=len, reverse=True):
        if text == mount_path or text.startswith(mount_path.rstrip("/") + "/"):
            return mounts[mount_path] + text[len(mount_path.rstrip("/")) :]
    return text


def arguments(words: Sequence[str], variables: Mapping[str, str], mounts: Mapping[str, str]) -> list[str]:
    """A container's arguments with variables expanded and paths translated."""
    return [translate(expand(word, variables), mounts) for word in words]


def _one_key(operations: Operations, namespace: str, source: Json) -> str | None:
    """The value of a configMapKeyRef or secretKeyRef; None = optional and absent."""
    reference, kind, found = _referred(operations, namespace, source, "KeyRef")
    key, name = reference.get("key", ""), reference.get("name", "")
    if found is not None and key in found:
        return found[key].decode()
    if reference.get("optional"):
        return None
    if found is None:
        raise ContainerConfigError(f'{kind.lower()} "{name}" not found')
    raise ContainerConfigError(f"couldn't find key {key} in {kind} {namespace}/{name}")


def _referred(
    operations: Operations, namespace: str, source: Json, suffix: str
) -> tuple[Json, str, dict[str, bytes] | None]:
    """A reference such as configMapKeyRef or secretRef, the kind, and the contents; None = no such object."""
    resource, reference = CONFIG_MAPS, source.get(f"configMap{suffix}")
    if not reference:
        resource, reference = SECRETS, source.get(f"secret{suffix}") or {}
    return reference, resource.kind, contents(operations, resource, namespace, reference.get("name", ""))


def contents(operations: Operations, resource: ResourceType, namespace: str, name: str) -> dict[str, bytes] | None:
    """The decoded contents of a ConfigMap or Secret; None = no such object."""
    found = operations.find(resource, namespace, name)
    if found is None:
        return None
    binary, texts = ("data", "") if resource is SECRETS else ("binaryData", "data")
    decoded = {key: base64.b64decode(value) for key, value in (found.get(binary) or {}).items()}
    return decoded | {key: value.encode() for key, value in (found.get(texts) or {}).items()}


def _field(pod: Json, path: str, pod_ip: str, host_ip: str) -> str:
    metadata, spec = pod["metadata"], pod["spec"]
    simple = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
        "status.hostIP": host_ip,
        "status.hostIPs": host_ip,
    }
    if path in simple:
        return str(simple[path])
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str((metadata.get(found[1]) or {}).get(found[2], ""))
    raise ContainerConfigError(
        f"invalid fieldPath {path!r}: local mode knows {', '.join(simple)}, labels and annotations"
    )


def _resource(pod: Json, container: Json, reference: Json) -> str:
    """A request or limit as a whole number of `divisor`s, rounded up; 0 when none is set."""
    wanted = reference.get("containerName", container["name"])
    every = (*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ()))
    chosen = next((c for c in every if c["name"] == wanted), container)
    kind, _, name = reference["resource"].partition(".")
    quantity = ((chosen.get("resources") or {}).get(kind) or {}).get(name, "0")
    exact = parse_quantity(quantity) / (parse_quantity(reference.get("divisor") or "1") or Decimal(1))
    return str(int(exact.to_integral_value(rounding="ROUND_CEILING")))
