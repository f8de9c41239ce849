"""An adapter as scheduling knows it: a name, a folder, and where it is. No tensors, no I/O.

`core.adapter_places` makes and moves them; sequences have one; the runner reads in which slot of the device it is.
"""

from dataclasses import dataclass
from pathlib import Path

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
"""What is read of a folder."""
NOT_PLACED = -1
"""In place of a slot."""


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What reading a folder has told of an adapter."""

    num_bytes: int
    """That it takes in the memory of the host."""
    num_virtual_tokens: int = 0
    """Of a soft prompt; others have none."""
    digest: bytes = b""
    """Of its numbers: keys and values that it has computed fit no other's."""


@dataclass(slots=True, eq=False)
class Adapter:
    """What one loading of a folder has brought. A name that is loaded again is another adapter."""

    key: int
    """By which the runner knows it."""
    name: str
    folder: Path
    num_bytes: int = 0
    """In the memory of the host."""
    num_virtual_tokens: int = 0
    """Of a soft prompt: they stand before the prompts of all that ask for it."""
    digest: bytes = b""
    """Of its numbers, when it was loaded."""
    slot: int = NOT_PLACED
    """Of the device, where it is placed."""
    is_in_host: bool = False
    """Whether the memory of the host has it."""
    is_leaving: bool = False
    """Nobody may ask for it any more; who has asked is served."""
    num_sequences: int = 0
    """That wait or run with it."""
    num_holds: int = 0
    """Of those who will ask for it again, whatever has its name then."""
    num_running: int = 0
    begun_at: int = 0
    """When the first of those that run now began, among all that ever began; of one without, when the last ended."""
    read_seconds: float = 0.0
    """What it took to read its folder."""
