"""The collector's searches at a program's start and end."""

import gc
import subprocess
import sys

import pytest

from fairlead_common.garbage import unsearched

PROGRAM = """
import atexit, gc
from {module} import main
gc.unfreeze()
atexit.register(lambda: print(gc.get_freeze_count()))
main({arguments})
"""
NUM_OBJECTS = 10_000
"""The modules alone have more."""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("fairlead.cli.main", ["check", "--help"]), ("fairlead_engine.__main__", ["list-models", "--help"])],
)
def test_a_program_ends_without_a_search_through_its_modules(module: str, arguments: list[str]) -> None:
    text = PROGRAM.format(module=module, arguments=arguments)
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert int(ended.stdout.split()[-1]) > NUM_OBJECTS, ended


@pytest.mark.parametrize("enabled", [True, False])
def test_imports_are_not_searched_and_afterwards_all_is_as_before(enabled: bool) -> None:
    if not enabled:
        gc.disable()
    try:
        with pytest.raises(ImportError), unsearched():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
