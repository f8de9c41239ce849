"""What a cluster's DNS names mean: pure answers from the Services and EndpointSlices that are known.

It follows Kubernetes' DNS specification for A and CNAME records. It has no SRV and no PTR records, and forwards
nothing: a name outside the cluster does not exist.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from cluster.layout import CLUSTER_DOMAIN

_SERVICE_LABEL = "kubernetes.io/service-name"
"""On an EndpointSlice: the Service that it belongs to."""
_MAX_ALIASES = 8
"""ExternalNames may point at one another, even in a circle."""


class Outcome(Enum):
    """RFC 1035 response codes that a lookup ends in; the value is the code."""

    NO_ERROR = 0
    NAME_ERROR = 3


@dataclass(frozen=True)
class Record:
    """One resource record: `kind` is "A" with an IPv4 address as `value`, or "CNAME" with a name."""

    owner: str
    kind: str
    value: str


@dataclass(frozen=True)
class Lookup:
    """A name's meaning; NO_ERROR without records says that the name exists without any of the kind asked for."""

    outcome: Outcome
    records: tuple[Record, ...] = ()


Key = tuple[str, str]
"""Namespace and name."""


@dataclass
class Directory:
    """The Services and EndpointSlices of a cluster, as the API's objects; whoever follows the API updates them."""

    services: dict[Key, dict[str, Any]] = field(default_factory=dict)
    slices: dict[Key, dict[str, Any]] = field(default_factory=dict)

    def lookup(self, name: str, kind: str) -> Lookup:
        """What a query for `name` (any case, without the last dot) and record type `kind` is answered."""
        records: list[Record] = []
        owner = name.lower()
        for _ in range(_MAX_ALIASES):
            alias = self._alias(owner)
            if alias is None:
                break
            records.append(Record(owner, "CNAME", alias))
            if kind == "CNAME":
                return Lookup(Outcome.NO_ERROR, tuple(records))
            owner = alias
        addresses = self._addresses(owner)
        if addresses is None:
            # The alias exists whatever becomes of its target, which may lie outside the cluster (RFC 1034, 3.6.2).
            known = bool(records) or self._is_above_a_name(owner)
            return Lookup(Outcome.NO_ERROR if known else Outcome.NAME_ERROR, tuple(records))
        if kind == "A":
            records += [Record(owner, "A", address) for address in addresses]
        return Lookup(Outcome.NO_ERROR, tuple(records))

    def _alias(self, name: str) -> str | None:
        match _labels(name):
            case [service, namespace]:
                spec = self.services.get((namespace, service), {}).get("spec", {})
                if spec.get("type") == "ExternalName":
                    return str(spec["externalName"]).lower().rstrip(".")
        return None

    def _addresses(self, name: str) -> list[str] | None:
        """The addresses of a Service, or of one host of a headless Service; None when there is no such name."""
        match _labels(name):
            case [service, namespace] if (namespace, service) in self.services:
                spec = self.services[namespace, service]["spec"]
                if spec.get("clusterIP", "None") != "None":
                    return [spec["clusterIP"]]
                return [address for entry in self._hosts(namespace, service) for address in entry["addresses"]]
            case [host, service, namespace] if self._is_headless(namespace, service):
                hosts = [entry for entry in self._hosts(namespace, service) if _hostname(entry) == host]
                return [address for entry in hosts for address in entry["addresses"]] or None
        return None

    def _is_headless(self, namespace: str, service: str) -> bool:
        spec = self.services.get((namespace, service), {}).get("spec", {})
        return bool(spec.get("clusterIP") == "None")

    def _hosts(self, namespace: str, service: str) -> list[dict[str, Any]]:
        """A headless Service's endpoints: the ready ones, and the others too where the Service publishes them."""
        publish = self.services[namespace, service]["spec"].get("publishNotReadyAddresses", False)
        found: list[dict[str, Any]] = []
        for (place, _), piece in list(self.slices.items()):  # another thread may add to it
            labels = piece["metadata"].get("labels") or {}
            if (place, labels.get(_SERVICE_LABEL)) == (namespace, service) and piece["addressType"] == "IPv4":
                found += [entry for entry in piece.get("endpoints") or [] if publish or _is_ready(entry)]
        return found

    def _is_above_a_name(self, name: str) -> bool:
        """Whether a name exists only because names below it do: the zone itself, svc, a namespace with Services."""
        if name in (CLUSTER_DOMAIN, f"svc.{CLUSTER_DOMAIN}"):
            return True
        match _labels(name):
            case [namespace]:
                return any(key[0] == namespace for key in list(self.services))  # another thread may add to it
        return False


def _labels(name: str) -> list[str]:
    """The labels in front of svc.<cluster domain>; none for any other name."""
    suffix = f".svc.{CLUSTER_DOMAIN}"
    return name.removesuffix(suffix).split(".") if name.endswith(suffix) else []


def _hostname(entry: dict[str, Any]) -> str:
    """The first label of an endpoint's own name: its hostname, else its address with dashes."""
    return str(entry.get("hostname") or entry["addresses"][0].replace(".", "-"))


def _is_ready(entry: dict[str, Any]) -> bool:
    """Whether an endpoint of a slice takes traffic; without a word about it, it does (EndpointConditions)."""
    return bool((entry.get("conditions") or {}).get("ready") is not False)
