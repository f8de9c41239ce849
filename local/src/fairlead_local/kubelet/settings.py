"""How the kubelet behaves where a real one has constants or flags: shorter waits, because this is somebody's laptop."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    """Seconds everywhere."""

    first_back_off: float = 1.0
    """Wait before the second restart of a container that keeps ending (the first is immediate); doubles each time."""
    longest_back_off: float = 30.0
    """The most that wait grows to."""
    back_off_reset: float = 120.0
    """A container that ran for this long starts over with `first_back_off` when it ends."""
    retry_interval: float = 1.0
    """Between attempts at what may come to exist: a volume's ConfigMap, a key of an environment variable."""
    shutdown_grace: float = 10.0
    """How long containers have to end when the whole fleet is stopped, whatever their pods say."""


DEFAULT_SETTINGS = KubeletSettings()
