"""What holds of servers that are not ours behind a CR, whichever they are."""

import json
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml

import fairlead_engine.demo

_PEOPLE = ("Ann", "Ben", "Cid", "Dan", "Eve", "Fay", "Gil", "Hal")
_TURNS = 5
_GUIDES = Path(__file__).parent.parent / "docs/guides"
DINGHY = Path(fairlead_engine.demo.__file__).parent / "dinghy"
"""For its tokenizer: most fakes have no model."""


def of_the_guide(guide: str, kind: str, name: str, model: Path, **spec: Any) -> dict[str, Any]:
    """The manifest of a guide in docs/guides, but for where the model is and what the machine has. `kind`: the server's
    type. `spec`: fields to replace; None = to leave out."""
    found = re.search(r"```yaml\n(.*?)```", (_GUIDES / guide).read_text(), re.DOTALL)
    assert found is not None
    body: dict[str, Any] = yaml.safe_load(found[1])
    assert body["spec"]["engine"]["type"] == kind
    body["metadata"]["name"] = name
    changes = {"model": {"source": f"file://{model}"}, "resources": {"profile": "cpu-small"}, **spec}
    body["spec"] = {key: value for key, value in (body["spec"] | changes).items() if value is not None}
    if kind != "llama.cpp":  # which reads the length from its file
        body["spec"]["engine"]["maxModelLen"] = 2048
    return body


def cached_tokens_are_as_predicted(fleet: Any, model: str, block_size: int, *, is_salted: bool = False) -> None:
    """Conversations that grow, one after another: within a block for 95 % of the requests, as is asked of vLLM's. A
    gateway may be asked before it has heard that the request before is over, and a place that computes serves nobody:
    so they pause, as people do, until it has heard. `is_salted`: they share nothing, not even their first words."""
    seen = []
    fleet.wait("the gateway to read the model's prompts", lambda: _ask(fleet, model, "Ahoy")[0] is not None)
    for name in _PEOPLE:
        prompt = f"My name is {name}, and I want to know what is on the shelf. "
        for turn in range(_TURNS):
            prompt += f"In place {turn} there is a box with a lid, two ropes and a lamp that {name} has left there. "
            seen.append(_ask(fleet, model, prompt, **({"cache_salt": name} if is_salted else {})))
            time.sleep(0.2)
            fleet.wait("the gateway to hear of an idle replica", lambda: _is_idle(fleet, model))
    near = [predicted is not None and abs(predicted - actual) <= block_size for predicted, actual in seen]
    assert sum(near) >= 0.95 * len(seen), seen
    assert sum(actual for _, actual in seen) > 40 * len(seen), seen


def _ask(fleet: Any, model: str, prompt: str, **fields: str) -> tuple[int | None, int]:
    """Cached tokens, predicted and as the engine counts; a gateway without the model's tokenizer predicts None."""
    body = {"model": model, "prompt": prompt, "max_tokens": 4, **fields}
    with urllib.request.urlopen(fleet.request(f"{fleet.gateway}/v1/completions", body), timeout=60) as reply:
        predicted = reply.headers["x-fairlead-predicted-cached-tokens"]
        cached = json.load(reply)["usage"]["prompt_tokens_details"]["cached_tokens"]
        return None if predicted is None else int(predicted), cached


def _is_idle(fleet: Any, model: str) -> bool:
    """Whether no replica runs anything, as the gateway that answers has heard."""
    url = f"{fleet.gateway}/fairlead/v1/models/{fleet.namespace}/{model}"
    with urllib.request.urlopen(urllib.request.Request(url, headers=fleet.headers), timeout=60) as told:
        return all(each["running"] == 0 for each in json.load(told)["replicas"])


def scale_down_and_rollout_drop_nothing(fleet: Any, model: str, max_num_seqs: int) -> None:
    """From two replicas. `max_num_seqs`: another than it has."""
    with fleet.steady_load(model) as load:
        fleet.wait_for_answers(load)
        fleet.kubectl("scale", "llm", model, "--replicas=1")
        fleet.wait("one pod to be left", lambda: len(fleet.pods(model)) == 1)
        fleet.wait_for_answers(load)
        before = set(fleet.pods(model))
        fleet.merge(model, {"engine": {"maxNumSeqs": max_num_seqs}})
        fleet.wait("the old pod to be gone", lambda: not before & set(fleet.pods(model)))
        fleet.wait_ready(model, 1)
        fleet.wait_for_answers(load)
    assert load.verdict == (0, 0, 0), load.problems
