"""The settings of `fairlead-engine front`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fairlead_common.http.origin import Origin
from fairlead_common.logs import LogFormat
from fairlead_common.settings import BYTES, SECONDS
from fairlead_engine.config import LOG_LEVELS
from fairlead_engine.errors import ConfigError

_ADDRESS = re.compile(r"tcp://[^/]+:[0-9]+|ipc://.+")
ENGINES = ("vllm", "llama-cpp", "sglang")
"""Those of `KINDS` in `front_process.py`, which imports what each needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontConfig:
    """What the front stands before, and how it behaves. Raises `ConfigError`, naming the field, for a value that does
    not fit."""

    engine: str = "vllm"
    """Which server it stands before: vllm, llama-cpp or sglang."""
    upstream_host: str | None = None
    """Address that the server listens on. None = the same as this one's `host`."""
    upstream_port: int = 8001
    """TCP port that it listens on. Nobody else should reach it."""
    events: str | None = None
    """Where it publishes its KV events, as tcp://HOST:PORT, ipc://PATH or ipc://@NAME. None = it does not: what it
    holds is approximated."""
    replay: str | None = None
    """Where it tells KV events again that were missed, written in the same ways. None = it does not."""
    enable_prefix_caching: bool = True
    """Whether the server keeps what it has computed for other prompts with the same beginning, as it was told."""
    block_size: int = 16
    """Tokens that gateways count as one in caches that have no blocks: llama-cpp's. Others say themselves."""
    model: str
    """Folder of the model, or its GGUF file, for its tokenizer and chat template."""
    chat_template: str | None = None
    """Chat template in Jinja, or a file with a template: the server's. None = the model's own."""
    served_name: str | None = None
    """Name of the model, as the server was told it. None = the last part of `model`."""
    max_num_seqs: int = 256
    """Most sequences of one step, as the server was told."""
    max_num_batched_tokens: int = 8192
    """Most tokens of one step, as the server was told."""
    max_num_queued_tokens: int | None = None
    """Prompt tokens that may wait in the server; more are answered with 429, and gateways send them elsewhere. None =
    two steps of prefill."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 = all."""
    port: int = 8000
    """TCP port; 0 = any free one, which the start-up log line names."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_format: str = "text"
    """text (logfmt) or json: an object a line, with the same keys."""
    drain_grace: Annotated[float, SECONDS] = 3.0
    """Seconds (also as 500ms, 3s) that a draining front still takes requests, for clients that do not yet know."""
    drain_timeout: Annotated[float, SECONDS] = 900.0
    """Seconds (also as 15m, 1h30m) that running requests get to finish when draining; then they are aborted."""
    max_connections: int = 4096
    """Most connections at once. More are answered with 429 and closed, except for the probes and metrics."""
    max_body_bytes: Annotated[int, BYTES] = 16 * 2**20
    """Largest request body (also as 16Mi); a larger one is answered with 413."""
    max_reply_bytes: Annotated[int, BYTES] = 256 * 2**20
    """Largest answer (also as 256Mi) that is not streamed."""
    body_timeout: Annotated[float, SECONDS] = 30.0
    """Seconds (also as 500ms, 30s) a request's body may take to arrive; then it is answered with 408."""
    step_timeout: Annotated[float, SECONDS] = 120.0
    """Seconds without any token, while requests run, before `/ready` says that the server hangs."""
    warm_up: bool = True
    """Whether the server is asked a few short things of the front's own before it counts as ready: what they take is
    the first that is known of its steps."""

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ConfigError("engine", f"is {self.engine!r}", f"use one of {', '.join(ENGINES)}")
        if not self.served_name and not Path(self.model).name:
            raise ConfigError("served_name", "is not given", "name the model as the server does")
        for field in (
            "max_num_seqs", "max_num_batched_tokens", "max_connections", "block_size", "max_num_queued_tokens",
        ):  # fmt: skip
            if (value := getattr(self, field)) is not None and value < 1:
                raise ConfigError(field, f"is {value}", "use 1 or more")
        for field in ("events", "replay"):
            if (address := getattr(self, field)) is not None and not _ADDRESS.fullmatch(address):
                raise ConfigError(field, f"is {address!r}", "write tcp://HOST:PORT, ipc://PATH or ipc://@NAME")
        if self.log_level not in LOG_LEVELS:
            raise ConfigError("log_level", f"is {self.log_level!r}", f"use one of {', '.join(LOG_LEVELS)}")
        if self.log_format not in tuple(LogFormat):
            raise ConfigError("log_format", f"is {self.log_format!r}", f"use one of {', '.join(LogFormat)}")

    @property
    def name(self) -> str:
        """What clients write in `model`."""
        return self.served_name or Path(self.model).name

    @property
    def origin(self) -> Origin:
        """Where the server listens."""
        return Origin(self.upstream_host or self.host, self.upstream_port)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that may wait."""
        return self.max_num_queued_tokens or 2 * self.max_num_batched_tokens
