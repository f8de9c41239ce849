"""Server-side apply: we say what we want, the API server merges it and remembers which fields are ours."""

from collections.abc import Mapping
from typing import Any

from fairlead.kube.client import APPLY_PATCH, JsonObject, KubeClient
from fairlead.kube.resources import Resource


async def server_side_apply(
    client: KubeClient,
    resource: Resource,
    obj: Mapping[str, Any],
    field_manager: str,
    *,
    force: bool = False,
    subresource: str | None = None,
) -> JsonObject:
    """Creates `obj`, or makes the fields it names what it says; the object as it is afterwards.

    Fields that `field_manager` applied before and no longer names are removed. With `force`, fields that another
    manager holds become ours; without, that is a KubeError with status 409. With `metadata.uid` in `obj`, only that
    very object is changed (409 where it is gone or another has its name).
    """
    metadata = obj["metadata"]
    params = {"fieldManager": field_manager, "force": "true" if force else "false"}
    return await client.patch(
        resource,
        metadata["name"],
        obj,
        metadata.get("namespace"),
        content_type=APPLY_PATCH,
        subresource=subresource,
        params=params,
    )
