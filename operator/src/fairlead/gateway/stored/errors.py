"""What a store tells of responses, without the database's libraries, which gateways without a store do not load."""

from typing import Any

Json = dict[str, Any]
RUNNING = ("queued", "in_progress")
"""States of a response that has not ended."""


class StoreError(Exception):
    """The database does not do what it is told; the text is for operators."""


class NotStored(Exception):
    """There is no such response of this owner. `id`: of the response that is missing."""

    def __init__(self, missing: str) -> None:
        super().__init__(missing)
        self.id = missing
