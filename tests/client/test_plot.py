"""The picture: a PNG for any load, and a clear word where it cannot be drawn."""

import sys
from pathlib import Path

import pytest

from fairlead.client.load import Sample
from fairlead.client.openai import ApiError, Completion
from fairlead.client.plot import Moment, PlotUnavailable, draw, sliced

PNG = b"\x89PNG\r\n\x1a\n"


def samples() -> list[Sample]:
    answers = [
        Sample(
            float(second),
            sent=float(second),
            ended=second + 1.0,
            completion=Completion(ttft_seconds=0.1 * (second + 1), num_prompt_tokens=10, num_cached_tokens=second),
        )
        for second in range(5)
    ]
    return [*answers, Sample(2.5, ended=2.6, error=ApiError(429, "full")), Sample(4.0)]


def test_a_load_alone_and_with_its_fleet(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    moments = [Moment(time=-1.0, ready=1), Moment(time=2.0, ready=1, starting=1, waiting=5), Moment(time=4.0, ready=2)]
    draw(tmp_path / "new" / "load.png", samples(), title="a load")
    draw(tmp_path / "fleet.png", samples(), moments)
    alone, fleet = (tmp_path / "new" / "load.png").read_bytes(), (tmp_path / "fleet.png").read_bytes()
    assert alone.startswith(PNG) and fleet.startswith(PNG)
    assert height(fleet) > height(alone)


def test_a_load_without_any_answer_is_drawn_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(tmp_path / "none.png", [])
    draw(tmp_path / "failed.png", [Sample(0.0, ended=0.1, error=ApiError(500, "broken"))])
    assert (tmp_path / "none.png").stat().st_size and (tmp_path / "failed.png").stat().st_size


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotUnavailable, match=r"pip install 'fairlead\[plot\]'"):
        draw(tmp_path / "load.png", samples())
    assert not (tmp_path / "load.png").exists()


def test_importing_the_client_does_not_import_matplotlib() -> None:
    import subprocess

    code = "import fairlead.client.plot, fairlead.cli.bench, sys; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_slices_of_time_keep_every_value() -> None:
    assert sliced([(0.0, 1.0), (1.0, 2.0), (9.9, 3.0), (10.0, 4.0)], 10) == [
        (0.5, [1.0]),
        (1.5, [2.0]),
        (9.5, [3.0, 4.0]),
    ]
    assert sliced([(3.0, 1.0), (3.0, 2.0)], 10) == [(3.5, [1.0, 2.0])]


def height(png: bytes) -> int:
    return int.from_bytes(png[20:24], "big")
