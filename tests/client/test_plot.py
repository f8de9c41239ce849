"""The picture: what it shows of any load, and a clear word where it cannot be drawn."""

import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.client.load_generator import Sample
from fairlead.client.openai import ApiError, Completion
from fairlead.client.plot import PlotUnavailable, Scene, draw, picture, sliced
from fairlead.client.timeline import Moment

PNG = b"\x89PNG\r\n\x1a\n"


def answered(due: float, ttft: float, cached: int = 0) -> Sample:
    answer = Completion(ttft_seconds=ttft, num_prompt_tokens=10, num_cached_tokens=cached)
    return Sample(due, sent=due, ended=due + ttft + 1.0, completion=answer)


def samples() -> list[Sample]:
    answers = [answered(float(second), 0.1 * (second + 1), second) for second in range(5)]
    return [*answers, Sample(2.5, ended=2.6, error=ApiError(429, "full")), Sample(4.0)]


def demo() -> Scene:
    """1 → 2 → 1 → 0, and from zero one request more."""
    course = [(-20, 1, 1), (0, 1, 1), (4, 1, 2), (9, 2, 2), (60, 1, 1), (120, 0, 0), (122, 0, 1), (125, 1, 1)]
    moments = [Moment(time=float(time), ready=ready, wanted=wanted) for time, ready, wanted in course]
    load = [answered(second * 0.6, 0.03 + 0.7 * (second % 9 == 0)) for second in range(186)]
    return Scene(samples=load, moments=moments, target_seconds=2.0, from_zero=answered(121.8, 3.26))


def panels(scene: Scene) -> list[Any]:
    pytest.importorskip("matplotlib")
    figure = picture(scene, title="a load")
    figure.canvas.draw()
    return list(figure.axes)


def named(panel: Any) -> list[str]:
    """What the legend names."""
    legend = panel.get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend is not None else []


def ticks(panel: Any) -> list[str]:
    return [label.get_text() for label in [*panel.get_yticklabels(), *panel.get_yticklabels(minor=True)]]


def line(panel: Any, label: str) -> list[tuple[float, float]]:
    found = next(each for each in panel.get_lines() if each.get_label() == label)
    return list(zip(found.get_xdata(), found.get_ydata(), strict=True))


def words(panel: Any) -> list[str]:
    return [text.get_text() for text in panel.texts]


def test_a_load_alone_and_with_its_fleet(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    moments = [Moment(time=-1.0, ready=1), Moment(time=2.0, ready=1, starting=1, waiting=5), Moment(time=4.0, ready=2)]
    draw(tmp_path / "new" / "load.png", Scene(samples=samples()), title="a load")
    draw(tmp_path / "fleet.png", Scene(samples=samples(), moments=moments))
    alone, fleet = (tmp_path / "new" / "load.png").read_bytes(), (tmp_path / "fleet.png").read_bytes()
    assert alone.startswith(PNG) and fleet.startswith(PNG)
    assert height(fleet) > height(alone)


def test_the_demo_shows_target_decisions_and_the_request_from_zero() -> None:
    tokens, replicas, requests, _ = panels(demo())
    assert [y for _, y in line(tokens, "target 2 s")] == [2.0, 2.0]
    assert line(tokens, "request from zero") == [(121.8, 3.26)]
    assert words(tokens) == ["from zero: 3.3 s"]
    assert words(replicas) == ["1 → 2", "2 → 1", "1 → 0", "0 → 1"]
    assert [text.get_position()[0] for text in replicas.texts] == [4.0, 60.0, 120.0, 122.0]
    for panel in (tokens, replicas, requests):
        marked = [each.get_xdata()[0] for each in panel.get_lines() if each.get_linestyle() == ":"]
        assert marked == [4.0, 60.0, 120.0, 122.0], "the decisions go through all panels"
    assert ticks(replicas) == ["0", "1", "2"], "there are no halves of replicas"
    assert replicas.get_xlim()[0] == -5.0, "what was before the load is left out"
    assert replicas.get_xlim()[1] > 125.0


def test_no_label_covers_another_or_a_bar() -> None:
    scene = demo()
    replicas = panels(scene)[1]
    boxes = [text.get_bbox_patch().get_window_extent() for text in replicas.texts]
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])
        bottom, top = (replicas.transData.inverted().transform((0, edge))[1] for edge in (box.y0, box.y1))
        assert bottom > 2.0, "the most replicas there were"
        assert top < replicas.get_ylim()[1]


def test_legends_lie_beside_the_panels() -> None:
    for panel in panels(demo())[:3]:
        assert named(panel)
        assert panel.get_legend().get_window_extent().x0 >= panel.get_window_extent().x1


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
    tokens = panels(Scene(samples=load))[0]
    assert ticks(tokens) == expected
    low, high = tokens.get_ylim()
    assert all(low <= max(ttft, 1e-6) <= high for ttft in durations)


def test_target_and_request_from_zero_have_room_however_far_they_are() -> None:
    scene = Scene(samples=samples(), target_seconds=0.01, from_zero=answered(9.0, 80.0))
    low, high = panels(scene)[0].get_ylim()
    assert low < 0.01 and high > 80.0


def test_what_was_lost_is_named_with_its_number() -> None:
    tokens = panels(Scene(samples=samples()))[0]
    assert "rejected or failed (1)" in named(tokens) and "one request (5)" in named(tokens)
    assert tokens.get_title().endswith("1 rejected or failed")
    assert "rejected or failed" not in " ".join(named(panels(demo())[0]))


def test_a_load_without_any_answer_is_drawn_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    failed = [Sample(0.0, ended=0.1, error=ApiError(500, "broken"))]
    draw(tmp_path / "none.png", Scene(samples=[]))
    draw(tmp_path / "failed.png", Scene(samples=failed))
    draw(tmp_path / "target.png", Scene(samples=failed, target_seconds=2.0, from_zero=Sample(3.0)))
    draw(tmp_path / "fleet.png", Scene(samples=[], moments=[Moment(time=-9.0, ready=0)]))
    assert all(path.read_bytes().startswith(PNG) for path in tmp_path.iterdir())


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotUnavailable, match=r"pip install 'fairlead\[plot\]'"):
        draw(tmp_path / "load.png", Scene(samples=samples()))
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
