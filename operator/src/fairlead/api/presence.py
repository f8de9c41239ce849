"""Presence: what the operator that acts says of itself on its Lease, so that others can tell what it looks after.

The operator writes it whenever it renews the Lease, `fairlead status` reads it. Nothing is decided by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from fairlead.api import names

LABELS = {names.LABEL_PART_OF: names.PART_OF, names.LABEL_COMPONENT: names.OPERATOR_COMPONENT}
"""By which its Lease is found, whatever the release is called."""
_EVERYWHERE = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What one operator looks after, and where its gateways are."""

    namespaces: tuple[str, ...] | None
    """Those that it watches now; None = all."""
    gateway_namespace: str
    gateway_selector: str

    @property
    def annotations(self) -> dict[str, str]:
        """As the Lease carries it."""
        watched = _EVERYWHERE if self.namespaces is None else ",".join(self.namespaces)
        gateways = f"{self.gateway_namespace}/{self.gateway_selector}"
        return {names.ANNOTATION_WATCHED_NAMESPACES: watched, names.ANNOTATION_GATEWAYS: gateways}

    @classmethod
    def from_annotations(cls, annotations: Mapping[str, Any]) -> Self | None:
        """What a Lease carries; None where its holder says nothing."""
        watched, gateways = (
            annotations.get(name) for name in (names.ANNOTATION_WATCHED_NAMESPACES, names.ANNOTATION_GATEWAYS)
        )
        if watched is None or gateways is None:
            return None
        namespaces = None if watched == _EVERYWHERE else tuple(filter(None, watched.split(",")))
        namespace, _, selector = gateways.partition("/")
        return cls(namespaces=namespaces, gateway_namespace=namespace, gateway_selector=selector)
