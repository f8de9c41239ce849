"""The picture: what it shows of any load, and a clear word where it cannot be drawn."""

import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.client.load_generator import LoadSample
from fairlead.client.openai import ChatAnswer, RequestFailed
from fairlead.client.plot import Panel, PlotUnavailable, cached_tokens, draw, first_tokens, picture, sliced

PNG = b"\x89PNG\r\n\x1a\n"


def answered(due: float, ttft: float, cached: int = 0) -> LoadSample:
    answer = ChatAnswer(ttft_seconds=ttft, num_prompt_tokens=10, num_cached_tokens=cached)
    return LoadSample(due, sent=due, ended=due + ttft + 1.0, completion=answer)


def samples() -> list[LoadSample]:
    answers = [answered(float(second), 0.1 * (second + 1), second) for second in range(5)]
    return [*answers, LoadSample(2.5, ended=2.6, error=RequestFailed(429, "full")), LoadSample(4.0)]


def load_panels(load: list[LoadSample], target: float | None = None) -> list[Panel]:
    """As `fairlead bench` draws them."""
    return [lambda axis: first_tokens(axis, load, target), lambda axis: cached_tokens(axis, load)]


def panels(load: list[LoadSample], target: float | None = None) -> list[Any]:
    pytest.importorskip("matplotlib")
    figure = picture(load_panels(load, target), title="a load")
    figure.canvas.draw()
    return list(figure.axes)


def named(panel: Any) -> list[str]:
    """What the legend names."""
    legend = panel.get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend is not None else []


def ticks(panel: Any) -> list[str]:
    return [label.get_text() for label in [*panel.get_yticklabels(), *panel.get_yticklabels(minor=True)]]


def test_a_load_is_drawn_into_a_new_folder(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(tmp_path / "new" / "load.png", load_panels(samples()), title="a load")
    draw(tmp_path / "low.png", load_panels(samples())[:1])
    alone, low = (tmp_path / "new" / "load.png").read_bytes(), (tmp_path / "low.png").read_bytes()
    assert alone.startswith(PNG) and low.startswith(PNG)
    assert height(alone) > height(low)


def test_legends_lie_beside_the_panels() -> None:
    tokens = panels(samples(), 2.0)[0]
    assert "target 2 s" in named(tokens)
    assert tokens.get_legend().get_window_extent().x0 >= tokens.get_window_extent().x1


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([0.065, 0.09], ["50 ms", "100 ms"]),
        ([0.06, 0.6], ["50 ms", "100 ms", "200 ms", "500 ms", "1 s"]),
        ([0.012, 12.0], ["10 ms", "100 ms", "1 s", "10 s"]),
        ([1.0], ["1 s", "2 s"]),
        ([0.0004, 0.0], ["0.001 ms", "0.01 ms", "0.1 ms"]),
    ],
)
def test_durations_are_named_in_plain_words(durations: list[float], expected: list[str]) -> None:
    load = [answered(float(index), ttft) for index, ttft in enumerate(durations)]
    tokens = panels(load)[0]
    assert ticks(tokens) == expected
    low, high = tokens.get_ylim()
    assert all(low <= max(ttft, 1e-6) <= high for ttft in durations)


@pytest.mark.parametrize("target", [0.01, 80.0])
def test_the_target_has_room_however_far_it_is(target: float) -> None:
    low, high = panels(samples(), target)[0].get_ylim()
    assert low < target < high


def test_what_was_lost_is_named_with_its_number() -> None:
    tokens = panels(samples())[0]
    assert "rejected or failed (1)" in named(tokens) and "one request (5)" in named(tokens)
    assert tokens.get_title().endswith("1 rejected or failed")
    assert "rejected or failed" not in " ".join(named(panels([answered(1.0, 0.1)])[0]))


def test_a_load_without_any_answer_is_drawn_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    failed = [LoadSample(0.0, ended=0.1, error=RequestFailed(500, "broken"))]
    draw(tmp_path / "none.png", load_panels([]))
    draw(tmp_path / "failed.png", load_panels(failed))
    draw(tmp_path / "target.png", load_panels(failed, 2.0))
    assert all(path.read_bytes().startswith(PNG) for path in tmp_path.iterdir())


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotUnavailable, match=r"pip install 'fairlead\[plot\]'"):
        draw(tmp_path / "load.png", load_panels(samples()))
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


@pytest.mark.parametrize(("number", "slices"), [(1, 1), (15, 1), (80, 10), (10_000, 60)])
def test_there_are_as_many_slices_as_the_requests_are_enough_for(number: int, slices: int) -> None:
    assert len(sliced([(float(each), 1.0) for each in range(number)])) == slices


def height(png: bytes) -> int:
    return int.from_bytes(png[20:24], "big")
