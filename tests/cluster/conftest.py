"""What tests of the test node's programs share."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from cluster.processes import Process


@pytest.fixture
def process() -> Iterator[Process]:
    """A process that stands for a component, or for all of the node's."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = Process.of(child.pid)
        assert found is not None
        yield found
        child.kill()
