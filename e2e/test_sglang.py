"""SGLang's server behind one CR: a fake of it stands in for the image, and everything else is real."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from other_servers import cached_tokens_are_as_predicted, scale_down_and_rollout_drop_nothing

import fairlead_engine.demo

DINGHY = Path(fairlead_engine.demo.__file__).parent / "dinghy"
"""For its tokenizer: the fake has no model."""
GUIDE = Path(__file__).parent.parent / "docs/guides/sglang.md"
BLOCK = 16

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]


@pytest.fixture(scope="module")
def model(fleet, shared_name: str) -> Iterator[str]:
    """The guide's, but for where the model is and what the machine has."""
    if fleet.home != "local":
        pytest.skip("SGLang's own image is larger than these nodes")
    found = re.search(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    body: Any = yaml.safe_load(found[1])
    assert body["spec"]["engine"]["type"] == "SGLang"
    body["metadata"]["name"] = shared_name
    body["spec"]["model"] = {"source": f"file://{DINGHY}"}
    body["spec"]["resources"] = {"profile": "cpu-small"}
    body["spec"]["engine"]["maxModelLen"] = 2048
    body["spec"]["replicas"] = 2
    del body["spec"]["autoscaling"]
    fleet.apply(body)
    fleet.wait_ready(shared_name, 2)
    yield shared_name
    fleet.delete("llm", shared_name)


def test_cached_tokens_are_as_predicted(fleet, model: str) -> None:
    cached_tokens_are_as_predicted(fleet, model, BLOCK, is_salted=True)


def test_a_scale_down_and_a_rollout_drop_nothing(fleet, model: str) -> None:
    scale_down_and_rollout_drop_nothing(fleet, model, max_num_seqs=24)
