"""`/v1/models`: what can be asked for, in OpenAI's shape, with its state beside it. Pure."""

from typing import Any

from fairlead.fleet.directory import Directory, Pool, answers_to
from fairlead_protocol.adapters import split_adapter, with_adapter


def list_models(directory: Directory, chosen: Pool | None = None) -> dict[str, Any]:
    """Every name of every model that is ready, starting or scaled to zero, and under the first of them each adapter;
    with `chosen`, of that one only."""
    entries: dict[str, dict[str, Any]] = {}
    for pool in directory.pools if chosen is None else (chosen,):
        if pool.state == "failed":
            continue
        # At its own path or Host a model has its plain names, whoever else claims them.
        plain = [pool.model.served_name, *pool.model.aliases]
        names = plain if chosen is not None else directory.public_names(pool)
        adapters = [with_adapter(names[0], adapter) for adapter in pool.adapters]
        entries |= {name: _entry(name, pool) for name in (*names, *adapters)}
    return {"object": "list", "data": list(entries.values())}


def find_model(directory: Directory, name: str, chosen: Pool | None = None) -> dict[str, Any] | None:
    """The entry of one name; None where it is unknown or cannot be served."""
    pool = directory.find(name) if chosen is None else chosen
    if pool is None or pool.state == "failed" or not answers_to(pool, name):
        return None
    adapter = split_adapter(name, pool.model.names)[1]
    return None if adapter is not None and adapter not in pool.adapters else _entry(name, pool)


def _entry(name: str, pool: Pool) -> dict[str, Any]:
    model = pool.model
    limits = [replica.limits for replica in pool.replicas if replica.limits is not None]
    lengths = [limit.max_model_len for limit in limits if limit.max_model_len is not None]
    entry: dict[str, Any] = {"id": name, "object": "model", "created": int(model.created), "owned_by": model.namespace}
    entry["state"] = pool.state
    base, adapter = split_adapter(name, model.names)
    if base != model.served_name:
        entry["root"] = model.served_name
    if adapter is not None:
        entry["parent"] = base
    if lengths:
        entry["max_model_len"] = min(lengths)
    return entry
