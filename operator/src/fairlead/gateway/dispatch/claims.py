"""What those who wait ahead in line are waiting for, so that who stands behind them passes them only beside it.

Made for one look along a line, from its head. It knows neither tickets nor who is let go; `ModelPool` does.
"""

from fairlead.routing.prompt import Prompt
from fairlead.routing.router import Router


class Claims:
    """Replicas that nobody behind may take: whoever waits has a claim to each that may serve it, full or not.

    So nobody starves: the room that comes free goes to the first in line who can use it. And nobody is held up by one
    who waits for other replicas than it could use itself: those that hold an adapter, or the only ones that are large
    enough for a prompt.
    """

    def __init__(self, router: Router, now: float) -> None:
        self._router = router
        self._now = now
        self._holders: dict[str | None, frozenset[str]] = {}
        self._all = router.holders(None)
        self.replicas: set[str] = set()
        """By uid."""
        self.is_crowded = False
        """A suspect is kept apart from others: all other suspects behind it are, too."""

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left for whoever stands behind."""
        return len(self.replicas) >= len(self._all)

    def leaves_nothing(self, adapter: str | None) -> bool:
        """For a request that asks for this adapter."""
        return self._held(adapter) <= self.replicas

    def wait(self, adapter: str | None, prompt: Prompt | None) -> None:
        """Somebody waits. `prompt`: None = it has not been read, so that every replica with the adapter may serve
        it."""
        if not self.leaves_nothing(adapter):
            self.replicas |= self._held(adapter) if prompt is None else self._router.usable(prompt, self._now)

    def _held(self, adapter: str | None) -> frozenset[str]:
        if adapter not in self._holders:
            self._holders[adapter] = self._router.holders(adapter)
        return self._holders[adapter]
