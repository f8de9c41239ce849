"""HangWatch: since when which engines hang in a step, from what gateways say; has whom it concerns looked at.

A time rather than a duration, so that a status that says it does not have to be written every second.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta

from fairlead.controller.worker import Key
from fairlead.fleet.gateways import Hanging

LOOK_SECONDS = 1.0
"""As often as gateways speak."""


class HangWatch:
    """`run` it as a task; `since` says what is known at any time."""

    def __init__(
        self,
        hanging: Callable[[], Mapping[str, Hanging]],
        on_change: Callable[[Iterable[Key]], None],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`hanging`: the engines that hang now, by their pods' uids. `on_change`: told of each LLMDeployment of which a
        replica begins or ends to hang."""
        self._hanging = hanging
        self._on_change = on_change
        self._now = now
        self._models: dict[str, str] = {}
        """The LLMDeployment of each that hangs, by uid."""
        self.since: dict[str, str] = {}
        """When the step began that each hangs in (RFC 3339), by the pod's uid."""

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Compares what hangs with what did."""
        hanging, before = self._hanging(), self._models
        self._models = {uid: each.model for uid, each in hanging.items()}
        changed = self._models.keys() ^ before.keys()
        if not changed:
            return
        self.since = {
            uid: self.since.get(uid) or (self._now() - timedelta(seconds=each.seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
            for uid, each in hanging.items()
        }
        models = (self._models.get(uid) or before[uid] for uid in changed)
        self._on_change({(namespace, name) for namespace, _, name in (model.partition("/") for model in models)})
