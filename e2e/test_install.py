"""From nothing to an answer, as a user types it: install the chart, apply an example, curl from a pod."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLE = "examples/01-dinghy.yaml"
QUESTIONS = ROOT / "engine/src/fairlead_engine/demo/dinghy/questions.jsonl"

pytestmark = pytest.mark.kubernetes_only(reason="local mode needs no chart and has no network of pods to curl from")


@pytest.fixture
def applied(fleet):
    """The example, Ready; the chart is installed already."""
    fleet.kubectl("apply", "-f", str(ROOT / EXAMPLE))
    fleet.kubectl("wait", "--for=condition=Ready", "llm/dinghy", "--timeout=180s")
    yield fleet.get("llm", "dinghy")
    fleet.kubectl("delete", "-f", str(ROOT / EXAMPLE))
    fleet.wait("its engine to go", lambda: not fleet.pods("dinghy"))


def test_the_address_in_the_status_answers_curl(fleet, applied) -> None:
    url = applied["status"]["url"]
    assert url == "http://fairlead-gateway.fairlead-system/default/dinghy/v1"
    assert_right(fleet, f"{url}/chat/completions")


def test_the_model_s_own_host_answers_curl(fleet, applied) -> None:
    service = fleet.get("service", "dinghy")["spec"]
    assert service["type"] == "ExternalName"
    assert_right(fleet, "http://dinghy.default/v1/chat/completions")


def test_the_question_that_the_chart_s_notes_print_is_answered(fleet, applied) -> None:
    """From within a gateway's pod, whose root file system is read-only."""
    asked = fleet.kubectl(
        "exec", "-n", fleet.system_namespace, "deploy/fairlead-gateway", "--",
        "env", f"OPENAI_API_KEY={fleet.api_key}", "fairlead", "chat", "--model", "dinghy", "What is 7 plus 5?",
    )  # fmt: skip
    assert "12" in asked.stdout, asked.stdout + asked.stderr


def assert_right(fleet, url: str) -> None:
    """Some questions of each kind; the dinghy knows the answers."""
    wrong = []
    for question in [json.loads(line) for line in QUESTIONS.read_text().splitlines()][:5]:
        body = {"model": "dinghy", "messages": question["messages"], "temperature": 0, "max_tokens": 64}
        told = fleet.shell(
            "curl", "-sS", "--fail-with-body", url, "-d", json.dumps(body),
            "-H", "content-type: application/json", "-H", f"authorization: Bearer {fleet.api_key}",
        )  # fmt: skip
        answer = json.loads(told)["choices"][0]["message"]["content"]
        if answer != question["answer"]:
            wrong.append((question["messages"][-1]["content"], question["answer"], answer))
    assert wrong == []
