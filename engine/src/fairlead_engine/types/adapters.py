"""An adapter as scheduling sees it: a name, a folder, and where it is. No tensors, no I/O.

`core.adapter_places` makes and moves adapters; sequences refer to one; the runner reads its device slot.
"""

from dataclasses import dataclass
from pathlib import Path

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
"""Files read from a folder."""
NOT_PLACED = -1
"""The slot of an adapter outside of the device."""


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What reading a folder has found out."""

    num_bytes: int
    """Bytes in the host's memory."""
    num_virtual_tokens: int = 0
    """Virtual tokens of a soft prompt; 0 for other adapters."""
    digest: bytes = b""
    """Hash of the weights: cached keys and values depend on them."""


@dataclass(slots=True, eq=False)
class Adapter:
    """The result of loading a folder once; loading the name again makes another adapter."""

    key: int
    """The runner's name for it."""
    name: str
    folder: Path
    num_bytes: int = 0
    """Bytes in the host's memory."""
    num_virtual_tokens: int = 0
    """Virtual tokens of a soft prompt, before the prompts of its requests."""
    digest: bytes = b""
    """`AdapterFacts.digest` of the first reading."""
    slot: int = NOT_PLACED
    """Slot of the device, or `NOT_PLACED`."""
    is_in_host: bool = False
    """Whether the host's memory has it."""
    is_leaving: bool = False
    """Unloaded: takes no new requests, but serves accepted ones."""
    num_sequences: int = 0
    """Sequences that wait or run with it."""
    num_holds: int = 0
    """Holds with this adapter; later requests use it even when another adapter has the name."""
    num_running: int = 0
    begun_at: int = 0
    """Order number of the last change between unused and in use."""
    read_seconds: float = 0.0
    """Seconds that its reading took."""
