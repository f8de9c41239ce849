"""Paths and Host headers → targets; the list of models, `/v1/models`; `/openapi.json`."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.api.signals_message import PATH_SIGNALS
from fairlead.fleet.directory import Directory, Pool, answers_to
from fairlead.gateway.openai.errors import model_not_found
from fairlead_common.openai.prompts import READING_PATHS, RERANK_PATH, SCORE_PATH
from fairlead_common.openai.translate import TRANSLATED_PATHS
from fairlead_common.openai.translate.messages_models import MODELS_PATH
from fairlead_common.openai.translate.ollama_models import MODEL_QUESTIONS
from fairlead_common.openai.translate.responses import RESPONSES_PATH
from fairlead_common.wire.adapters import with_adapter
from fairlead_common.wire.own_paths import ALL_OWN_PATHS

CHAT_PATH = "/v1/chat/completions"
INFERENCE_PATHS = READING_PATHS | TRANSLATED_PATHS | {CHAT_PATH, "/v1/completions", "/tokenize", "/detokenize"}
"""Forwarded to engines by POST, other dialects after translation."""
FORWARDED_PATHS = INFERENCE_PATHS.union(ALL_OWN_PATHS)
"""With those that only some servers have."""
OTHER_PATHS: Mapping[str, str] = {"/rerank": RERANK_PATH, "/v2/rerank": RERANK_PATH, "/score": SCORE_PATH}
"""Names that Cohere's clients, Jina's and vLLM's use → ours."""
INJECT_PATH = f"{CHAT_PATH}/{{id}}/inject"
"""To whichever engine has the answer (`dispatch/injector.py`)."""
PROBES: Mapping[str, str] = {
    "/health": "200 while the process lives.",
    "/ping": "The same, by the name that SageMaker asks for.",
    "/ready": "200 when clients should be sent here; 503 before the models are known, and while draining.",
}
"""On both ports, path → what it answers."""
CONTROL_PATHS: Mapping[str, str] = {
    **PROBES,
    "/metrics": "Metrics in Prometheus' text format.",
    PATH_SIGNALS: "What the operator scales by: a JSON object per line, every second, until the gateway ends.",
}
"""Paths of the control port → their answers."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is for."""

    path: str
    """Without the canonical path's beginning."""
    chosen: Pool | None
    """The pool that path or Host say; None = the body's `model` decides."""


def find_target(path: str, host: str, directory: Directory) -> Target:
    """`/<namespace>/<name>/v1/…` and `Host: <name>.<namespace>` choose a pool; the path goes before the Host. Raises
    OpenAIError (404) for a canonical path of an LLMDeployment that does not exist."""
    path = OTHER_PATHS.get(path, path)
    if path in FORWARDED_PATHS or path in MODEL_QUESTIONS or path.startswith("/v1/"):
        return Target(path, directory.find_host(host))
    parts = path.split("/", 3)
    rest = OTHER_PATHS.get(f"/{parts[-1]}", f"/{parts[-1]}")
    is_known = rest in FORWARDED_PATHS or rest in MODEL_QUESTIONS
    is_known = is_known or rest.startswith((f"{CHAT_PATH}/", f"{RESPONSES_PATH}/"))
    if len(parts) == 4 and (is_known or f"{rest}/".startswith(f"{MODELS_PATH}/")):
        pool = directory.find_key(parts[1], parts[2])
        if pool is None:
            raise model_not_found(f"{parts[1]}/{parts[2]}", directory.served_names)
        return Target(rest, pool)
    return Target(path, None)


def list_models(directory: Directory, chosen: Pool | None = None) -> dict[str, Any]:
    """All names of models that are ready, starting or scaled to zero; adapters under each model's first name and under
    their own names. `chosen`: None = of all models."""
    entries: dict[str, dict[str, Any]] = {}
    for pool in directory.pools if chosen is None else (chosen,):
        if pool.state == "failed":
            continue
        # At its own path or Host a model has its plain names, whoever else claims them.
        plain = [pool.model.served_name, *pool.model.aliases]
        names = plain if chosen is not None else directory.public_names(pool)
        served = dict.fromkeys(pool.adapters)
        adapters = [(with_adapter(names[0], adapter), adapter) for adapter in served]
        adapters += [(each.served_name, each.name) for each in pool.model.adapters if each.name in served]
        reached = [
            name
            for name, adapter in adapters
            if pool.model.split(name)[1] == adapter and (chosen is not None or directory.find(name) is pool)
        ]
        entries |= {name: _entry(name, pool) for name in (*names, *reached)}
    return {"object": "list", "data": list(entries.values())}


def find_model(directory: Directory, name: str, chosen: Pool | None = None) -> dict[str, Any] | None:
    """The entry of one name; None = unknown, or cannot be served."""
    pool = directory.find(name) if chosen is None else chosen
    if pool is None or pool.state == "failed" or not answers_to(pool, name):
        return None
    adapter = pool.model.split(name)[1]
    return None if adapter is not None and adapter not in pool.adapters else _entry(name, pool)


def _entry(name: str, pool: Pool) -> dict[str, Any]:
    model = pool.model
    limits = [replica.limits for replica in pool.replicas if replica.limits is not None]
    lengths = [limit.max_model_len for limit in limits if limit.max_model_len is not None]
    entry: dict[str, Any] = {"id": name, "object": "model", "created": int(model.created), "owned_by": model.namespace}
    entry["state"] = pool.state
    base, adapter = model.split(name)
    if base != model.served_name:
        entry["root"] = model.served_name
    if adapter is not None:
        entry["parent"] = base
        if name in model.adapter_names:
            entry["root"] = with_adapter(model.served_name, adapter)
        if pool.state == "ready" and not any(adapter in replica.adapters for replica in pool.replicas):
            entry["state"] = "starting"
    if lengths:
        entry["max_model_len"] = min(lengths)
    if pool.capabilities:
        entry["capabilities"] = list(pool.capabilities)
    return entry


PATH_DOCUMENT = "/openapi.json"
FILE = Path(__file__).with_name("openapi.json")


async def document() -> bytes:
    """The document, as it is stored."""
    return await asyncio.to_thread(FILE.read_bytes)
