"""What a download tells of itself: rate and rest by a clock that the test winds, and the line for a terminal."""

import re

import pytest

from fairlead_common.wire.downloads import DownloadStage
from fairlead_engine.sources.reporting import Reporter, bar, line, size_text, told


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
    clock.now += 9
    assert reporter.progress().bytes_per_second is None and reporter.progress().remaining_seconds is None
    reporter.stage(DownloadStage.DOWNLOADING)
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


def test_the_first_bytes_have_no_rate() -> None:
    clock = Clock()
    reporter = Reporter("hf://a/b", clock)
    clock.now += 30  # the source is asked for long
    reporter.stage(DownloadStage.DOWNLOADING)
    reporter.expect(4_000_000_000)
    for _ in range(2):
        clock.now += 0.2
        reporter.fetched(8_000_000)
        assert line(reporter.progress()) in (
            "downloading   0%  8.0 MB of 4.0 GB",
            "downloading   0%  16.0 MB of 4.0 GB",
        )
    clock.now += 1.2
    assert "16.0 MB of 4.0 GB, 10.0 MB/s" in line(reporter.progress())
    for _ in range(3):  # large pieces that come seldom
        clock.now += 6
        reporter.fetched(6_000_000)
        assert reporter.progress().bytes_per_second == pytest.approx(1_000_000, rel=0.8)


@pytest.mark.parametrize("is_terminal", [False, True])
async def test_what_is_already_there_ends_with_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    reporter = Reporter("hf://a/b")
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    async with told(reporter, host="", port=None, attended=True):
        reporter.expect(1_000_000)
        reporter.have(1_000_000)
        reporter.stage(DownloadStage.DONE)
    assert capsys.readouterr().err.split("\033[K")[-1] == "hf://a/b is already there: 1.0 MB\n"
    reporter.fetched(500_000)
    async with told(reporter, host="", port=None, attended=True):
        pass
    assert re.fullmatch(r"done +(█* )?1.5 MB\n", capsys.readouterr().err.split("\033[K")[-1])


@pytest.mark.parametrize(("size", "text"), [(12, "12 B"), (1500, "1.5 kB"), (2.5e12, "2.50 TB")])
def test_sizes(size: float, text: str) -> None:
    assert size_text(size) == text
