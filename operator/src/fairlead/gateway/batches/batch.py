"""One batch: its states, as the database and as clients have it. Without the database's libraries."""

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from fairlead.gateway.stored.errors import Json

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages")
"""What lines may ask for."""


class BatchApi(StrEnum):
    """Whose clients made a batch: how its id begins."""

    OPENAI = "batch_"
    MESSAGES = "msgbatch_"


class BatchStatus(StrEnum):
    """In the order in which a batch goes through them."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    """Its input file is wrong; no line was run."""
    EXPIRED = "expired"
    CANCELLED = "cancelled"


ENDED = frozenset({BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED})
ACTIVE = tuple(sorted(frozenset(BatchStatus) - ENDED))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """Times are Unix times; None = not reached."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: str | None
    """JSON; None = null."""
    output_seconds: float | None
    """For which the files with answers are kept; None = the retention."""
    created_at: float
    expires_at: float
    status: str = BatchStatus.VALIDATING
    errors: str | None = None
    """JSON: a list of what is wrong with the input file."""
    total: int = 0
    """Lines; known once they have been validated."""
    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: float | None = None
    finalizing_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    expired_at: float | None = None
    cancelling_at: float | None = None
    cancelled_at: float | None = None

    @property
    def api(self) -> BatchApi:
        return BatchApi.MESSAGES if self.id.startswith(BatchApi.MESSAGES) else BatchApi.OPENAI

    @property
    def ends_as(self) -> BatchStatus:
        """Once it is finalized."""
        if self.cancelling_at is not None:
            return BatchStatus.CANCELLED
        return BatchStatus.COMPLETED if self.completed + self.failed >= self.total else BatchStatus.EXPIRED


def shown(row: BatchRow) -> Json:
    """The batch as clients know it. Files with answers are named once they are whole."""
    times = (
        "created_at", "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at",
        "cancelling_at", "cancelled_at",
    )  # fmt: skip
    has_ended = row.status in ENDED
    return {
        "id": row.id,
        "object": "batch",
        "endpoint": row.endpoint,
        "errors": None if row.errors is None else {"object": "list", "data": msgspec.json.decode(row.errors)},
        "input_file_id": row.input_file_id,
        "completion_window": row.completion_window,
        "status": row.status,
        "output_file_id": row.output_file_id if has_ended else None,
        "error_file_id": row.error_file_id if has_ended else None,
        **{name: None if (time := getattr(row, name)) is None else int(time) for name in times},
        "request_counts": {"total": row.total, "completed": row.completed, "failed": row.failed},
        "metadata": None if row.metadata is None else msgspec.json.decode(row.metadata),
    }
