"""Logs: one dialect in two formats, and how many lines strangers may cause."""

import json
import logging

from hypothesis import given
from hypothesis import strategies as st

from fairlead_common.logs import JsonFormatter, LineBudget, LogfmtFormatter


def test_lines_beyond_the_budget_are_counted_and_told_with_the_next() -> None:
    budget = LineBudget(burst=2, per_second=0.5)
    assert [budget.take(0.0) for _ in range(5)] == [0, 0, None, None, None]
    assert budget.take(1.9) is None
    assert budget.take(2.0) == 4
    assert budget.take(2.0) is None
    assert [budget.take(1000.0) for _ in range(3)] == [1, 0, None]


@given(
    st.integers(1, 5),
    st.sampled_from([0.5, 1.0, 4.0]),
    st.lists(st.integers(0, 64).map(lambda eighths: eighths / 8), max_size=60),
)
def test_no_more_lines_than_allowed_and_every_one_accounted_for(
    burst: int, per_second: float, pauses: list[float]
) -> None:
    budget, now, told = LineBudget(burst=burst, per_second=per_second), 0.0, []
    for pause in pauses:
        now += pause
        told.append(budget.take(now))
    lines = [left_out for left_out in told if left_out is not None]
    assert len(lines) <= burst + now * per_second
    untold = 0
    for left_out in reversed(told):
        if left_out is not None:
            break
        untold += 1
    assert len(lines) + sum(lines) + untold == len(told)


def record(msg: str = "request", **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {"name": "fairlead.x", "levelname": "INFO", "msg": msg, "created": 1.25, "msecs": 250.0}
    )
    vars(made).update(extra)
    return made


def test_both_formats_say_the_same() -> None:
    made = record(path='/a "b"\n', status=200, ratio=0.5, stream=True, replica=None)
    assert LogfmtFormatter().format(made) == (
        'ts=1970-01-01T00:00:01.250Z level=info logger=fairlead.x msg=request path="/a \\"b\\"\\n" status=200 '
        "ratio=0.5 stream=True"
    )
    assert json.loads(JsonFormatter().format(made)) == {
        "ts": "1970-01-01T00:00:01.250Z", "level": "info", "logger": "fairlead.x", "msg": "request", "path": '/a "b"\n',
        "status": 200, "ratio": 0.5, "stream": True,
    }  # fmt: skip


@given(st.text(), st.text())
def test_nothing_that_strangers_write_starts_a_line(msg: str, path: str) -> None:
    for formatter in (LogfmtFormatter(), JsonFormatter()):
        assert len(formatter.format(record(msg.replace("%", ""), path=path)).splitlines()) == 1
