"""SGLang's server behind one CR: a fake of it stands in for the image, and everything else is real."""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    """Conversations that grow, one after another, of people who share nothing."""
    seen = []
    for name in ("Ann", "Ben", "Cid", "Dan", "Eve", "Fay", "Gil", "Hal"):
        prompt = f"My name is {name}, and I want to know what is on the shelf. "
        for turn in range(5):
            prompt += f"In place {turn} there is a box with a lid, two ropes and a lamp that {name} has left there. "
            body = {"model": model, "prompt": prompt, "max_tokens": 4, "cache_salt": name}
            with urllib.request.urlopen(fleet.request(f"{fleet.gateway}/v1/completions", body), timeout=60) as reply:
                usage = json.load(reply)["usage"]
                predicted = int(reply.headers["x-fairlead-predicted-cached-tokens"])
            seen.append((predicted, usage["prompt_tokens_details"]["cached_tokens"]))
    # The gateway may be asked before it has heard of the answer before.
    assert sum(abs(predicted - actual) <= BLOCK for predicted, actual in seen) >= 0.95 * len(seen), seen
    assert sum(actual for _, actual in seen) > 40 * len(seen), seen


def test_a_scale_down_and_a_rollout_drop_nothing(fleet, model: str) -> None:
    with fleet.steady_load(model) as load:
        fleet.wait_for_answers(load)
        fleet.kubectl("scale", "llm", model, "--replicas=1")
        fleet.wait("one pod to be left", lambda: len(fleet.pods(model)) == 1)
        before = set(fleet.pods(model))
        fleet.kubectl("patch", "llm", model, "--type=merge", "-p", '{"spec": {"engine": {"maxNumSeqs": 24}}}')
        fleet.wait("the old pod to be gone", lambda: not before & set(fleet.pods(model)))
        fleet.wait_ready(model, 1)
        fleet.wait_for_answers(load)
    assert load.verdict == (0, 0, 0), load.problems
