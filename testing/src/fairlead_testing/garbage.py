"""What only Python's garbage collector frees: objects in a circle, which searches for them would have to find."""

import gc
from collections.abc import Awaitable, Callable


async def kinds_left_behind(act: Callable[[], Awaitable[object]]) -> set[str]:
    """Names of the classes of such objects, that `act` leaves when it is done once more."""
    await act()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await act()
        gc.collect()
        return {type(each).__name__ for each in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
