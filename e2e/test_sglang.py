"""SGLang's server behind one CR: a fake of it stands in for the image, and everything else is real."""

from collections.abc import Iterator

import pytest
from other_servers import DINGHY, cached_tokens_are_as_predicted, of_the_guide, scale_down_and_rollout_drop_nothing

BLOCK = 16

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]


@pytest.fixture(scope="module")
def model(fleet, shared_name: str) -> Iterator[str]:
    """The guide's, but for where the model is and what the machine has."""
    if fleet.home != "local":
        pytest.skip("SGLang's own image is larger than these nodes")
    fleet.apply(of_the_guide("sglang.md", "SGLang", shared_name, DINGHY, replicas=2, autoscaling=None))
    fleet.wait_ready(shared_name, 2)
    yield shared_name
    fleet.delete("llm", shared_name)


def test_cached_tokens_are_as_predicted(fleet, model: str) -> None:
    cached_tokens_are_as_predicted(fleet, model, BLOCK, is_salted=True)


@pytest.mark.long
def test_a_scale_down_and_a_rollout_drop_nothing(fleet, model: str) -> None:
    scale_down_and_rollout_drop_nothing(fleet, model, max_num_seqs=24)
