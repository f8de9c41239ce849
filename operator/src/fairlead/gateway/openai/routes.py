"""Paths and Host headers → what is asked for. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.api.signals_message import PATH_SIGNALS
from fairlead.fleet.directory import Directory, Pool
from fairlead.gateway.openai.errors import model_not_found

EMBEDDINGS_PATH = "/v1/embeddings"
INFERENCE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", EMBEDDINGS_PATH, "/tokenize", "/detokenize"})
"""Forwarded to engines, by POST; the same paths as there."""
MODELS_PATH = "/v1/models"
PROBES: Mapping[str, str] = {
    "/health": "200 while the process lives.",
    "/ready": "200 when clients should be sent here; 503 before the models are known, and while draining.",
}
"""On both ports, path → what it answers."""
CONTROL_PATHS: Mapping[str, str] = {
    **PROBES,
    "/metrics": "Metrics in Prometheus' text format.",
    PATH_SIGNALS: "What the operator scales by: a JSON object per line, every second, until the gateway ends.",
}
"""All of the control port, path → what it answers."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is for."""

    path: str
    """Without the canonical path's beginning."""
    chosen: Pool | None
    """The pool that path or Host say; None = the body's `model` decides."""


def find_target(path: str, host: str, directory: Directory) -> Target:
    """`/<namespace>/<name>/v1/…` and `Host: <name>.<namespace>` choose a pool; the path goes before the Host.

    Raises OpenAIError (404) for a canonical path of an LLMDeployment that does not exist.
    """
    if path in INFERENCE_PATHS or path.startswith("/v1/"):
        return Target(path, directory.find_host(host))
    parts = path.split("/", 3)
    rest = f"/{parts[-1]}"
    if len(parts) == 4 and (rest in INFERENCE_PATHS or f"{rest}/".startswith(f"{MODELS_PATH}/")):
        pool = directory.find_key(parts[1], parts[2])
        if pool is None:
            raise model_not_found(f"{parts[1]}/{parts[2]}")
        return Target(rest, pool)
    return Target(path, None)
