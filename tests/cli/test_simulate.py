"""`fairlead simulate autoscaling` as it is typed: a recording, an LLMDeployment, other settings, tables, pictures."""

from pathlib import Path

import pytest
import yaml

COLUMNS = "TIMESTAMP,ContextTokens,GeneratedTokens"
AUTOSCALING = {
    "minReplicas": 1,
    "maxReplicas": 4,
    "targets": {"queueDepth": 4, "timeToFirstToken": "2s"},
    "schedules": [{"name": "morning", "start": "08:00", "end": "09:00", "minReplicas": 3}],
}
SMALL = ("--step-cost", "base=0.01,prefill_token=1e-5,decode_seq=0.005", "--start-seconds", "3", "--seeds", "2")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Forty seconds: one request a second, then six, over what a replica of four slots does."""
    times = [*range(10), *(10 + each / 6 for each in range(180))]
    rows = [f"2026-01-05 08:59:{time + 15:09.6f},100,40" for time in times]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return path


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    spec = {"model": {"source": "hf://some/model"}, "engine": {"maxNumSeqs": 4}, "autoscaling": AUTOSCALING}
    body = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "LLMDeployment", "metadata": {"name": "mine"}, "spec": spec}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


async def test_a_persons_settings_follow_a_recording_beside_others(
    fairlead, trace: Path, deployment: Path, tmp_path: Path
) -> None:
    """In two processes; with a schedule, which ends 45 s before the recording does."""
    plot = tmp_path / "mine.svg"
    ended = await fairlead(
        "simulate", "autoscaling", "--trace", str(trace), "--begin", "2026-01-05T08:59:15", "-f", str(deployment),
        "--try", "schedules=[],maxReplicas=1", "--policies", "KubeAI 1 min", "oracle", *SMALL, "--processes", "2",
        "--format", "json", "--plot", str(plot),
    )  # fmt: skip
    assert ended.status == 0, ended.err
    assert "trace.csv: 190 requests in 41s, on average 100 prompt tokens" in ended.err
    found = {each["policy"]: each for each in ended.json["results"]}
    assert list(found) == ["mine", "mine, schedules=[],maxReplicas=1", "KubeAI 1 min, 0.6", "oracle, 0.8"]
    mine, other, *_ = found.values()
    assert [each["replicas"][0] for each in mine["seeds"]] == [[0.0, 3], [0.0, 3]]
    assert [each["replicas"] for each in other["seeds"]] == [[[0.0, 1]], [[0.0, 1]]]
    assert other["attained"]["mean"] < mine["attained"]["mean"] and other["attained"]["half"] is not None
    assert other["seeds"][0]["replica_seconds"] == pytest.approx(41.0, abs=0.2)
    assert plot.read_text().startswith("<?xml")


def test_tables_say_where_a_rival_wins(asked, tmp_path: Path, trace: Path, deployment: Path) -> None:
    arguments = (
        "simulate", "autoscaling", "--trace", str(trace), "--for", "10s", "-f", str(deployment),
        "--try", "schedules=[]", "--policies", "static", *SMALL, "--processes", "1",
    )  # fmt: skip
    ended = asked(*arguments)
    assert ended.status == 0, ended.err
    assert all(word in ended.out for word in ("within target", "beside mine", "static", "wins: +0.000 for 67 % less"))
    table = tmp_path / "table.md"
    assert asked(*arguments, "--format", "markdown", "--output", str(table)).status == 0
    head, _, mine, *_ = table.read_text().splitlines()[2:]
    assert head == (
        "| policy | within target | replica-seconds | over oracle, 0.8 | changes | first token, p90 | beside mine |"
    )
    assert mine.startswith("| mine | 1.000 ± 0.000 | ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--loads", "nothing like it"), "--loads nothing like it: no load has such a name"),
        (("--trace", "/nowhere.csv"), "--trace /nowhere.csv cannot be read: No such file"),
        (("--trace", "TRACE", "--from", "1h"), "has no requests in this part: the last one comes 40 s after"),
        (("--trace", "TRACE", "--held-out"), "--trace is a load by itself"),
        (("--for", "1h"), "--for is about a recording"),
        (("--try", "maxReplicas=2"), "--try changes an LLMDeployment"),
        (("-f", "MINE", "--try", "targets.queueDeep=2"), "spec.autoscaling.targets.queueDeep"),
        (("-f", "MINE", "--try", "maxReplicas=0"), "spec.autoscaling.maxReplicas"),
        (("-f", "MINE", "--try", "maxReplicas"), "'maxReplicas' is no FIELD=VALUE"),
        (("--step-cost", "bass=1"), "'bass' is no cost of a step"),
        (("--plot", "here.gif"), "--plot here.gif is neither an SVG nor a PNG"),
        (("--policies", "nobody"), "no policy is called anything like 'nobody'"),
    ],
)
def test_wrong_arguments_end_with_2_and_a_sentence(
    asked, trace: Path, deployment: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    places = {"TRACE": str(trace), "MINE": str(deployment)}
    ended = asked("simulate", "autoscaling", *(places.get(each, each) for each in arguments))
    assert ended.status == 2 and sentence in " ".join(ended.err.split()), ended.err
