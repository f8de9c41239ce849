"""`/v1/models`: what can be asked for, in OpenAI's shape, with its state beside it. Pure."""

from typing import Any

from fairlead.fleet.directory import Directory, answers_to
from fairlead.fleet.pool import Pool
from fairlead_protocol.adapters import split_adapter, with_adapter


def list_models(directory: Directory, chosen: Pool | None = None) -> dict[str, Any]:
    """Every name of every model that is ready, starting or scaled to zero; with `chosen`, of that one only."""
    pools = [pool for pool in (directory.pools if chosen is None else (chosen,)) if pool.state != "failed"]
    entries = {
        name: _entry(name, pool) for pool in pools for name in _with_adapters(_names(directory, pool, chosen), pool)
    }
    return {"object": "list", "data": list(entries.values())}


def find_model(directory: Directory, name: str, chosen: Pool | None = None) -> dict[str, Any] | None:
    """The entry of one name; None where it is unknown or cannot be served."""
    pool = chosen if chosen is not None and answers_to(chosen, name) else None
    if chosen is None:
        pool = directory.find(name)
    if pool is None or pool.state == "failed":
        return None
    adapter = split_adapter(name, pool.model.names)[1]
    return None if adapter is not None and adapter not in pool.adapters else _entry(name, pool)


def _names(directory: Directory, pool: Pool, chosen: Pool | None) -> list[str]:
    """At its own path or Host a model has its plain names, whoever else claims them."""
    if chosen is None:
        return directory.public_names(pool)
    return [pool.model.served_name, *pool.model.aliases]


def _with_adapters(names: list[str], pool: Pool) -> list[str]:
    """The names, and each adapter under the first of them."""
    return names + [with_adapter(name, adapter) for name in names[:1] for adapter in pool.adapters]


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
