"""Python's searches for garbage in circles, at the two times at which they find none worth the time: while a program
imports its modules, and while it ends."""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unsearched() -> Iterator[None]:
    """No search inside: imports make objects that live as long as the process, and hardly any garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def end_unsearched() -> None:
    """Exempts every object from the searches at Python's end, when the process's memory is given back as a whole."""
    atexit.unregister(gc.freeze)  # registered once, however often a command runs in one process
    atexit.register(gc.freeze)
