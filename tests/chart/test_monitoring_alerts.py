"""The chart's alerts: promtool takes them, each fires when it must and stays quiet when it must, and each tells what to
do. The cases are in `alert_cases.yaml`."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring.dashboards import ALERTS
from monitoring.prometheus import MISSING, find, promtool
from monitoring.scraping import scrape_configs

CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "alert_cases.yaml").read_text(encoding="utf-8"))
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "monitoring.md"
GROUPS = [group for path in ALERTS for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]
RULES = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}

needs_promtool = pytest.mark.skipif(find("promtool") is None, reason=MISSING)


def alert_test(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """A case as promtool wants it. An alert that fires says all of its sentences."""
    expected = []
    if "summary" in case:
        rule = RULES[name]
        annotations = rule["annotations"] | {"summary": case["summary"]}
        expected = [{"exp_labels": case["labels"] | rule["labels"], "exp_annotations": annotations}]
    return {
        "name": case.get("because", "fires"),
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in case["series"].items()],
        "alert_rule_test": [{"alertname": name, "eval_time": case["at"], "exp_alerts": expected}],
    }


@needs_promtool
@pytest.mark.parametrize("path", ALERTS, ids=lambda path: path.name)
def test_promtool_takes_the_rules(path: Path, tmp_path: Path) -> None:
    checked = promtool("check", "rules", path, folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{sum(len(group['rules']) for group in GROUPS)} rules found" in checked.stdout


@needs_promtool
@pytest.mark.parametrize("case", CASES, ids=[case["alert"] for case in CASES])
def test_an_alert_fires_when_it_must_and_only_then(case: dict[str, Any], tmp_path: Path) -> None:
    name = case["alert"]  # promtool evaluates all it is given
    groups = [{**each, "rules": [rule for rule in each["rules"] if rule.get("alert", name) == name]} for each in GROUPS]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    spec = {"rule_files": ["rules.yaml"], "tests": [alert_test(name, one) for one in (*case["fires"], *case["quiet"])]}
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    tested = promtool("test", "rules", "cases.yaml", folder=tmp_path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_cases_of_both_kinds() -> None:
    assert [case["alert"] for case in CASES] == list(RULES)
    assert all(case["fires"] and case["quiet"] for case in CASES)
    assert all("summary" in case for each in CASES for case in each["fires"])
    assert all("because" in case for each in CASES for case in each["quiet"])


@pytest.mark.parametrize("name", RULES)
def test_every_alert_says_what_is_wrong_and_what_to_do(name: str) -> None:
    rule = RULES[name]
    assert name.startswith("Fairlead")
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert "for" in rule, "an alert that fires at the first sample cries wolf"
    for text in (rule["annotations"]["description"], rule["annotations"]["runbook"]):
        assert text.endswith((".", "?")), text
        assert "{{" not in text


def test_the_guide_has_a_section_for_every_alert() -> None:
    sections = GUIDE.read_text(encoding="utf-8").split("\n### ")[1:]
    found = {name: text.strip() for name, _, text in (section.partition("\n") for section in sections)}
    assert list(found) == list(RULES)
    for name, text in found.items():
        assert text.startswith(f"*{RULES[name]['labels']['severity']}, {in_words(RULES[name]['for'])}.*"), name


def in_words(duration: str) -> str:
    number, unit = int(duration[:-1]), {"s": "second", "m": "minute", "h": "hour"}[duration[-1]]
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def test_the_guide_scrapes_as_the_tests_do() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    told = next(yaml.safe_load(block) for block in blocks if "scrape_configs" in block)
    assert told["scrape_configs"] == scrape_configs(kubernetes_sd_configs=[{"role": "pod"}])
    assert told["rule_files"] == [path.name for path in ALERTS]
