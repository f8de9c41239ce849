"""A short form of `make fuzz`: hostile requests at one engine with a tiny cache, and a model that is none."""

from pathlib import Path

import pytest

from fairlead_engine_testing.attack import Attack


@pytest.mark.long
def test_an_engine_survives_whatever_it_is_sent(tmp_path: Path) -> None:
    report = Attack(tmp_path, seed=3).play(45.0)
    assert not report.problems, "\n".join(report.problems)
    assert report.statuses[200] > 20 and report.statuses[400] > 20 and report.num_left > 20
