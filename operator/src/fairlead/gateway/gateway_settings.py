"""The gateway's settings: frozen, each with unit, default and meaning; wrong values are refused by name."""

from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Annotated

from fairlead.api import names
from fairlead_common.http.root_path import check_root_path
from fairlead_common.openai.unknown_fields import Unknown
from fairlead_common.settings import BYTES, SECONDS, SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Everything that can be set about a gateway. Times are seconds (also as 500ms, 3s, 15m), sizes bytes (also as
    16Mi)."""

    host: str = "0.0.0.0"
    """Address to listen on for clients."""
    port: int = names.GATEWAY_PORT
    """Port for clients; 0 = any free one."""
    control_host: str | None = None
    """Address to listen on for metrics and probes; None = the same as `host`."""
    control_port: int = names.GATEWAY_CONTROL_PORT
    """Port for metrics and probes; 0 = any free one."""
    grpc_port: int | None = None
    """Port for clients of the Open Inference Protocol over gRPC, on the address `host`; 0 = any free one, None = the
    protocol is not served."""

    max_body_bytes: Annotated[int, BYTES] = 16 * 1024 * 1024
    """Largest request body; a larger one is answered 413. 16 MiB hold about four million tokens of text."""
    max_partial_body_bytes: Annotated[int, BYTES] = 64 * 1024 * 1024
    """Memory for all request bodies that are only partly here, or not decoded and tokenised yet; whoever sends more of
    one is answered 503."""
    max_header_bytes: Annotated[int, BYTES] = 64 * 1024
    """Largest request line and headers together; more is answered 431."""
    max_headers: int = 128
    """Most headers of a request; more are answered 431."""
    max_connections: int = 10_000
    """Most connections of clients at once; more are answered 503. Each takes a file descriptor, and another while its
    request is being served."""
    header_timeout: Annotated[float, SECONDS] = 20.0
    """Longest time for a client to send a request's headers; the connection is closed after it."""
    body_timeout: Annotated[float, SECONDS] = 60.0
    """Longest time for a client to send a request's body; after it, 408."""
    client_stall_timeout: Annotated[float, SECONDS] = 60.0
    """Longest time a client may leave its answer unread before it counts as gone."""
    keep_alive_timeout: Annotated[float, SECONDS] = 75.0
    """How long an idle client connection is kept open."""

    root_path: str = ""
    """Path before all paths, such as /llm where a proxy passes on what is below /llm; requests without it are served,
    too. Probes and metrics have none. A namespace of its name cannot be reached by /NAMESPACE/NAME."""
    allowed_origins: str = ""
    """Origins of web pages, as https://a.example,https://b.example, that may read answers (CORS); * = all. Empty =
    none. Preflights are answered without a key."""
    pages: bool = True
    """Whether browsers get pages: `/` and `/docs`. Pages are answered without a key and have no data: what they show
    they ask for with the key that a person types."""
    unknown_fields: str = "ignore"
    """What becomes of a request to /v1/messages or /v1/responses with fields that are not known: ignore = they are left
    out, with one line in the log for each name (of the first 100); refuse = 400, naming one. Of other requests the
    engine's setting of this name decides."""

    max_queue: int = 1000
    """Requests that may wait per model; one more is answered 429."""
    max_queue_bytes: Annotated[int, BYTES] = 64 * 1024 * 1024
    """Bytes of bodies that may wait per model; more is answered 429. An empty queue takes any one request."""
    max_attempts: int = 3
    """Replicas that may fail one request before it is answered 503. Refusals because an engine is full do not count. Of
    those that break down after they got the request two are enough, and the answer is a 502 that asks for no retry."""

    connect_timeout: Annotated[float, SECONDS] = 3.0
    """Longest time to connect to a replica."""
    first_byte_timeout: Annotated[float, SECONDS] = 120.0
    """Longest time from sending a streaming request to a replica to the first byte of its stream; after it, 504."""
    response_timeout: Annotated[float, SECONDS] = 900.0
    """The same where the answer is not streamed, so that its first byte comes when all is generated."""
    idle_timeout: Annotated[float, SECONDS] = 60.0
    """Longest silence of a replica once its answer has begun."""
    max_idle_connections: int = 64
    """Idle connections kept open per replica."""
    max_kv_blocks: int = 1_000_000
    """Most blocks that the KV index keeps of one replica, some 140 bytes each. An H200 has 50,000 blocks of 16 tokens
    for a model of 8 billion parameters, 700,000 for one of half a billion. A replica that tells of more, or of more
    than it says that it has, is followed no longer, and what it holds is approximated until it restarts."""
    max_reply_bytes: Annotated[int, BYTES] = 64 * 1024 * 1024
    """Largest answer that is not streamed. It is read whole, so that a replica's death is retried to its end."""

    response_store: str | None = None
    """Database of responses with `store`, which several gateways share: a SQLAlchemy URL such as
    postgresql://user:password@host/name, or sqlite:////var/lib/fairlead/responses.db for one gateway; @FILE = the URL
    is in this file. None = responses are not stored."""
    response_retention: Annotated[float, SECONDS] = 30 * 86400.0
    """How long a stored conversation is kept after its last turn."""

    file_store: str | None = None
    """Where files of /v1/files lie: the path of a folder that all gateways mount, or s3://bucket/folder, gs://… or
    az://…, with credentials in the environment. Needs `response_store`, whose database has the list of them. None = no
    files are taken."""
    file_retention: Annotated[float, SECONDS] = 30 * 86400.0
    """How long a file is kept whose upload does not say."""
    max_file_bytes: Annotated[int, BYTES] = 200 * 1024 * 1024
    """Largest file; a larger one is answered 413."""
    max_client_file_bytes: Annotated[int, BYTES] = 10 * 1024**3
    """Bytes of all files of one API key's client together, those with the answers of its batches included; a file more
    is answered 400."""

    drain_delay: Annotated[float, SECONDS] = 3.0
    """After SIGTERM, how long requests are still taken: until everybody knows that this gateway is going."""
    drain_timeout: Annotated[float, SECONDS] = 900.0
    """After that, how long running requests may take before they are cut."""

    def __post_init__(self) -> None:
        for name in ("port", "control_port", "grpc_port"):
            if not 0 <= (getattr(self, name) or 0) <= 65535:
                raise SettingError(name, f"must be between 0 and 65535, not {getattr(self, name)}")
        check_root_path(self.root_path)
        if self.unknown_fields not in tuple(Unknown):
            raise SettingError("unknown_fields", f"must be one of {', '.join(Unknown)}, not {self.unknown_fields!r}")
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise SettingError(name, f"must be above 0, not {getattr(self, name)}")
        for name in ("drain_delay", "drain_timeout", "max_idle_connections"):
            if not getattr(self, name) >= 0:
                raise SettingError(name, f"must not be negative, not {getattr(self, name)}")
        for name in ("max_partial_body_bytes", "max_queue_bytes"):
            if getattr(self, name) < self.max_body_bytes:
                below = f"{getattr(self, name)} is below --max-body-bytes {self.max_body_bytes}"
                raise SettingError(name, f"{below}: requests in between would be told to try again, for ever")
        if self.file_store is not None and self.response_store is None:
            raise SettingError("file_store", "needs --response-store, whose database has the list of files")
        if self.port == self.control_port != 0 and self.control_host in (None, self.host):
            raise SettingError("port", "and --control-port must differ: metrics are not for clients")
        if self.grpc_port and self.grpc_port in (self.port, self.control_port):
            raise SettingError("grpc_port", "must differ from --port and --control-port")
        if self.grpc_port is not None and find_spec("grpc") is None:
            raise SettingError("grpc_port", "needs packages that are not installed: pip install 'fairlead[grpc]'")


_TEXTS = {"host", "control_host", "root_path", "allowed_origins", "unknown_fields"}
_NOT_POSITIVE = _TEXTS | {"pages", "port", "control_port", "grpc_port", "drain_delay", "drain_timeout",
    "max_idle_connections", "response_store", "file_store",
}  # fmt: skip
_POSITIVE = tuple(field.name for field in fields(GatewaySettings) if field.name not in _NOT_POSITIVE)
