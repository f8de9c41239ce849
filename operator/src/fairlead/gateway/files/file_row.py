"""One file, as the database has it; without the database's libraries, which gateways without a store do not load."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileRow:
    """One file. Times are Unix times."""

    id: str
    owner: str
    purpose: str
    filename: str
    num_bytes: int
    created_at: float
    expires_at: float
