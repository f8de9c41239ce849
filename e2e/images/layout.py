"""Where images and what they are made from are kept, outside the checkout."""

from dataclasses import dataclass
from pathlib import Path

from caches import cache

REPOSITORY = Path(__file__).resolve().parents[2]
"""The top of the checkout: the build context."""


@dataclass(frozen=True)
class Layout:
    """The files below one cache folder. Removing it loses nothing but time."""

    cache: Path

    @classmethod
    def default(cls) -> "Layout":
        """`images/` in `$FAIRLEAD_CACHE`, else in ~/.cache/fairlead."""
        return cls(cache("images"))

    @property
    def storage(self) -> Path:
        """buildah's layers; nobody else's storage is read or written."""
        return self.cache / "storage"

    @property
    def bases(self) -> Path:
        """Root file systems of base images that were made here."""
        return self.cache / "bases"

    @property
    def archives(self) -> Path:
        """Finished images, named by what they were built from."""
        return self.cache / "archives"

    @property
    def out(self) -> Path:
        """Where NAME.tar goes when nobody says."""
        return self.cache / "out"

    @property
    def lock(self) -> Path:
        return self.cache / "lock"
