"""Hangs: which of a model's replicas are in a step that will hardly end; a line in the log when it begins and ends.

What that means for requests is decided by the router (`routing/replica_state.py`). Who calls it: the model's pool, with
every load line and whenever its replicas change.
"""

import logging
from collections.abc import Sequence

from fairlead.routing.replica import Load, Replica
from fairlead.routing.replica_state import is_hanging

logger = logging.getLogger(__name__)


class Hangs:
    """Of one LLMDeployment."""

    def __init__(self, model: str) -> None:
        """`model`: its `namespace/name`."""
        self._model = model
        self._names: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        """How long the step of each that hangs has been running, as last told, by uid."""

    def keep(self, replicas: Sequence[Replica]) -> None:
        """These are all there are."""
        present = {replica.uid: replica.name for replica in replicas}
        for uid in self._seconds.keys() - present.keys():
            self._end(uid, "it is not ready any more")
        self._names = present

    def told(self, uid: str, load: Load | None) -> None:
        """A replica has told its load; None: what it told does not hold any more."""
        if load is not None and is_hanging(load):
            is_new = uid not in self._seconds
            self._seconds[uid] = load.step_age_seconds
            if is_new:
                self._log(logging.WARNING, uid, "a replica hangs in a step: it gets nothing new while another is well")
        elif uid in self._seconds:
            self._end(uid, "its load is not known any more" if load is None else "it went on")

    def _end(self, uid: str, why: str) -> None:
        self._log(logging.INFO, uid, f"a replica hangs no longer: {why}")
        del self._seconds[uid]

    def _log(self, level: int, uid: str, message: str) -> None:
        name, seconds = self._names.get(uid, uid), round(self._seconds[uid], 1)
        logger.log(level, message, extra={"model": self._model, "replica": name, "step_seconds": seconds})
