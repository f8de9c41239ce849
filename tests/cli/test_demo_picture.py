"""The demo's picture: target, replicas, decisions and the request from zero, each where it can be read."""

from pathlib import Path
from typing import Any

import pytest

from fairlead.client.load_generator import LoadSample
from fairlead.client.openai import ChatAnswer, RequestFailed
from fairlead.client.plot import draw, picture
from fairlead_local.demo.picture import Scene, panels
from fairlead_local.demo.recorder import Moment


def answered(due: float, ttft: float) -> LoadSample:
    answer = ChatAnswer(ttft_seconds=ttft, num_prompt_tokens=10)
    return LoadSample(due, sent=due, ended=due + ttft + 1.0, completion=answer)


def demo() -> Scene:
    """1 → 2 → 1 → 0, and from zero one request more."""
    course = [(-20, 1, 1), (0, 1, 1), (4, 1, 2), (9, 2, 2), (60, 1, 1), (120, 0, 0), (122, 0, 1), (125, 1, 1)]
    moments = [Moment(time=float(time), ready=ready, wanted=wanted) for time, ready, wanted in course]
    load = [answered(second * 0.6, 0.03 + 0.7 * (second % 9 == 0)) for second in range(186)]
    return Scene(samples=load, moments=moments, target_seconds=2.0, from_zero=answered(121.8, 3.26))


def drawn(scene: Scene) -> list[Any]:
    pytest.importorskip("matplotlib")
    figure = picture(panels(scene), title="the demo")
    figure.canvas.draw()
    return list(figure.axes)


def line(panel: Any, label: str) -> list[tuple[float, float]]:
    found = next(each for each in panel.get_lines() if each.get_label() == label)
    return list(zip(found.get_xdata(), found.get_ydata(), strict=True))


def words(panel: Any) -> list[str]:
    return [text.get_text() for text in panel.texts]


def ticks(panel: Any) -> list[str]:
    return [label.get_text() for label in panel.get_yticklabels()]


def test_the_demo_shows_target_decisions_and_the_request_from_zero() -> None:
    tokens, replicas, requests, _ = drawn(demo())
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
    replicas = drawn(scene)[1]
    boxes = [text.get_bbox_patch().get_window_extent() for text in replicas.texts]
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])
        bottom, top = (replicas.transData.inverted().transform((0, edge))[1] for edge in (box.y0, box.y1))
        assert bottom > 2.0, "the most replicas there were"
        assert top < replicas.get_ylim()[1]


def test_legends_lie_beside_the_panels() -> None:
    for panel in drawn(demo())[:3]:
        assert panel.get_legend().get_texts()
        assert panel.get_legend().get_window_extent().x0 >= panel.get_window_extent().x1


def test_target_and_request_from_zero_have_room_however_far_they_are() -> None:
    scene = Scene(
        samples=[answered(1.0, 0.5)],
        moments=[Moment(time=0.0, ready=1)],
        target_seconds=0.01,
        from_zero=answered(9.0, 80.0),
    )
    low, high = drawn(scene)[0].get_ylim()
    assert low < 0.01 and high > 80.0


def test_a_load_without_any_answer_is_drawn_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    failed = [LoadSample(0.0, ended=0.1, error=RequestFailed(500, "broken"))]
    moments = [Moment(time=-9.0, ready=0)]
    draw(tmp_path / "none.png", panels(Scene(samples=[], moments=moments)))
    draw(
        tmp_path / "failed.png",
        panels(Scene(samples=failed, moments=moments, target_seconds=2.0, from_zero=LoadSample(3.0))),
    )
    assert all(path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") for path in tmp_path.iterdir())
