"""llama.cpp's server behind one CR: a fake of it stands in for the image, and everything else is real."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_servers import cached_tokens_are_as_predicted, of_the_guide, scale_down_and_rollout_drop_nothing

from fairlead_engine_testing.gguf_files import write_dinghy

BLOCK = 16

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]


@pytest.fixture(scope="module")
def file() -> Iterator[Path]:
    """The dinghy's, below /tmp, of which pods have one of their own."""
    with tempfile.TemporaryDirectory() as folder:
        yield write_dinghy(Path(folder))


@pytest.fixture(scope="module")
def model(fleet, shared_name: str, file: Path) -> Iterator[str]:
    """The guide's, but for where the file is and what the machine has."""
    if fleet.home != "local":
        pytest.skip("llama.cpp's own image is not on these nodes")
    fleet.apply(of_the_guide("llama-cpp.md", "llama.cpp", shared_name, file, replicas=2))
    fleet.wait_ready(shared_name, 2)
    yield shared_name
    fleet.delete("llm", shared_name)


def test_cached_tokens_are_as_predicted(fleet, model: str) -> None:
    cached_tokens_are_as_predicted(fleet, model, BLOCK)


@pytest.mark.long
def test_a_scale_down_and_a_rollout_drop_nothing(fleet, model: str) -> None:
    scale_down_and_rollout_drop_nothing(fleet, model, max_num_seqs=6)
