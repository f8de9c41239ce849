"""A pytest plugin: collecting tests makes millions of objects that live as long as the process, and no garbage.

Python's garbage collector looks at them again and again while they come (7 CPU seconds of 39 for all tests), and pytest
has it look five times at the end (1.8 seconds each). Here it waits until all tests are collected, and then leaves out
what there is. Tests make few circles and many objects: the collector looks at what they make less often than Python's
own thresholds have it look, which took every twelfth CPU second of the gateway's tests.
"""

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest

GC_THRESHOLDS = (5_000, 10, 5)
"""Of `gc.set_threshold`, for the tests. Everything that tests have made is looked at once for 250,000 new objects, so
that no gigabytes of models wait in circles; Python's own would be 70,000."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()


def lies_below(item: pytest.Item, folder: Path) -> bool:
    """Whether the test's file is in the folder or below. Asked of each of 27,000 tests by several folders, and so by
    text: `item.path.parents` makes a path for each level."""
    return str(item.path).startswith(f"{folder}{os.sep}")
