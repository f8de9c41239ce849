"""What those who wait ahead in line are waiting for, so that who stands behind them passes them only beside it.

Made for one look along a line, from its head. It knows neither tickets nor who is let go; `ModelPool` does.
"""

from fairlead.routing.prompt import Prompt
from fairlead.routing.router import Router

MOST_FITTED = 16
"""So many waiting prompts are each held against all replicas in one look; further ones count as if they fitted wherever
their adapter is. Else a look at a long line, in a fleet whose replicas take prompts of different lengths, took long."""


class Claims:
    """Replicas that nobody behind may take: whoever waits has a claim to each that may serve it, full or not.

    So nobody starves: the room that comes free goes to the first in line who can use it. And nobody is held up by one
    who waits for other replicas than it could use itself: those that hold an adapter, or the only ones that are large
    enough for a prompt.
    """

    def __init__(self, router: Router, now: float) -> None:
        self._router = router
        self._now = now
        self._all = router.holders(None)
        self._num_fitted = 0
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
        return self._router.holders(adapter) <= self.replicas

    def wait(self, adapter: str | None, prompt: Prompt | None) -> None:
        """Somebody waits. `prompt`: None = it has not been read, so that every replica with the adapter may serve
        it."""
        if self.leaves_nothing(adapter):
            return
        if prompt is None or self._num_fitted == MOST_FITTED:
            self.replicas |= self._router.holders(adapter)
            return
        self._num_fitted += 1
        self.replicas |= self._router.usable(prompt, self._now)
