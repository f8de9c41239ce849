"""What a download tells of itself: rate and rest by a clock that the test winds, and the line for a terminal."""

import pytest

from fairlead_common.wire.downloads import DownloadStage
from fairlead_engine.sources.reporting import Reporter, bar, line, size_text


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rate_and_rest_are_of_the_last_seconds() -> None:
    clock = Clock()
    reporter = Reporter("hf://a/b", clock)
    reporter.stage(DownloadStage.DOWNLOADING)
    reporter.expect(10_000)
    reporter.have(1000)  # of an earlier run, which says nothing of this one's rate
    assert reporter.progress().bytes_per_second == 0 and reporter.progress().remaining_seconds is None
    reporter.begin("model.safetensors")
    for _ in range(10):
        clock.now += 1
        reporter.fetched(100)
    progress = reporter.progress()
    assert progress.bytes == 2000 and progress.file == "model.safetensors"
    assert progress.bytes_per_second == pytest.approx(100) and progress.remaining_seconds == pytest.approx(80)
    clock.now += 60
    assert reporter.progress().bytes_per_second < 5
    reporter.stage(DownloadStage.DONE)
    assert reporter.progress().remaining_seconds == 0


def test_the_bar() -> None:
    clock = Clock()
    reporter = Reporter("hf://a/b", clock)
    reporter.stage(DownloadStage.DOWNLOADING)
    reporter.expect(4_000_000_000)
    clock.now += 4
    reporter.fetched(1_000_000_000)
    plain = " 25%  1.0 GB of 4.0 GB, 250.0 MB/s, 12 s left"
    assert bar(reporter.progress(), 120) == f"downloading ███████······················· {plain}"
    assert bar(reporter.progress(), 80) == f"downloading █████················ {plain}"
    assert line(reporter.progress()) == bar(reporter.progress(), 60) == f"downloading {plain}"
    for columns in range(1, 130):
        assert len(bar(reporter.progress(), columns)) < columns
    nothing = Reporter("hf://a/b", clock).progress()
    assert line(nothing) == bar(nothing, 80) == "listing …"
    reporter.expect(None)
    assert "1.0 GB, 250.0 MB/s" in bar(reporter.progress(), 120)


@pytest.mark.parametrize(("size", "text"), [(12, "12 B"), (1500, "1.5 kB"), (2.5e12, "2.50 TB")])
def test_sizes(size: float, text: str) -> None:
    assert size_text(size) == text
