"""Whatever adapters come, go and are asked for: each answer is that of its own, and nobody waits for ever."""

import random
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead_engine.core.adapter_places import folder_below
from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import AdapterError
from fairlead_engine.types import FinishReason, HeldPrompt
from fairlead_engine_testing import FakeClock, FakeModelConfig, FakeRunner, make_request
from fairlead_engine_testing.fake_engine import fake_config

MODEL = FakeModelConfig(vocab_size=8, max_position_embeddings=40, eos_token_ids=(0,))
NAMES = "abcdef"


def make(
    num_slots: int, modules: str = "", clock: FakeClock | None = None, **settings: Any
) -> tuple[Engine, FakeRunner]:
    runner = FakeRunner(MODEL, block_size=settings.get("block_size", 4), num_adapter_slots=num_slots)
    config = fake_config(lora_modules=modules or None, max_loras=num_slots, **settings)
    return Engine(config, runner, clock), runner


def load(engine: Engine, name: str, folder: str) -> None:
    ended: list[AdapterError | None] = []
    engine.load_adapter(name, Path(folder), ended.append)
    engine.adapters.settle()
    assert ended == [None]


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(n, marks=pytest.mark.compute) for n in range(20, 60))])
def test_each_answer_is_that_of_its_own_adapter(seed: int) -> None:
    draw = random.Random(seed)
    num_slots, size = draw.choice([1, 1, 2, 3]), draw.choice([1, 2, 4])
    engine, runner = make(
        num_slots, ",".join(f"{name}=/{name}0" for name in NAMES[:4]), num_blocks=-(-40 // size) + draw.choice([0, 8]),
        block_size=size, max_model_len=40, max_num_seqs=draw.choice([1, 2, 4, 8]), async_scheduling=draw.random() < 0.5,
        max_num_batched_tokens=draw.choice([8, 12, 32]), max_cpu_loras=draw.choice([1, 2, 6]),
        max_num_queued_tokens=10**6,
    )  # fmt: skip
    folders = {name: f"{name}0" for name in NAMES[:4]}
    holds: dict[str, tuple[str, str, list[int]]] = {}
    """Adapters, each with its folder when it was taken hold of, and the beginning of prompts."""
    wanted: dict[str, list[int]] = {}
    got: dict[str, list[int]] = {}
    gone: set[str] = set()
    shared = [draw.randrange(1, 8) for _ in range(20)]

    def step() -> None:
        for output in engine.step():
            assert output.request_id not in gone
            got[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                assert output.finish_reason is FinishReason.LENGTH
                gone.add(output.request_id)
        engine.check()
        in_use = {each.adapter.key for each in engine.scheduler.running if each.adapter is not None}
        assert len(in_use) <= num_slots

    for index in range(draw.randint(10, 40)):
        match draw.choice(["add", "add", "add", "step", "step", "abort", "reload", "hold", "release"]):
            case "hold":
                name = draw.choice([*folders])
                begin = shared[: draw.randint(0, 16)]
                engine.hold(f"hold {index}", HeldPrompt(prompt_token_ids=begin, adapter=name))
                holds[f"hold {index}"] = name, folders[name], begin
            case "release" if holds:
                engine.abort(hold := draw.choice([*holds]))
                del holds[hold]
            case "add":
                name, adapter, hold = str(index), draw.choice([None, *folders]), draw.choice([None, *holds])
                folder = None if adapter is None else folders[adapter]
                prompt = shared[: draw.randint(0, 20)] + [draw.randrange(1, 8) for _ in range(draw.randint(1, 8))]
                rest = prompt[-8:]
                if hold is not None:
                    adapter, folder, begin = holds[hold]
                    prompt = begin + rest
                most = draw.randint(1, 40 - len(prompt))
                request = make_request(
                    name, rest if hold else prompt, adapter=adapter, max_tokens=most, ignore_eos=True,
                    arrival_time=float(index), priority=draw.choice([0, 0, 0, 1]),
                )  # fmt: skip
                assert engine.add(msgspec.structs.replace(request, hold=hold)) is None
                wanted[name] = runner.generate(prompt, most, folder=folder)
                got[name] = []
            case "step":
                for _ in range(draw.randint(1, 5)):
                    if engine.has_work():
                        step()
            case "abort":
                name = str(draw.randrange(index + 1))
                engine.abort(name)
                gone.add(name)
                wanted.pop(name, None)
                engine.check()
            case "reload":
                name = draw.choice([*folders])
                engine.unload_adapter(name)
                engine.check()
                if draw.random() < 0.8:
                    folders[name] = f"{name}{index}"
                    load(engine, name, f"/{folders[name]}")
                elif len(folders) > 1:
                    del folders[name]
                else:
                    load(engine, name, f"/{folders[name]}")
    num_steps = 0
    while engine.has_work():
        step()
        num_steps += 1
        assert num_steps < 10_000, "somebody waits for ever"
    assert {name: got[name] for name in wanted} == wanted
    assert engine.load.adapters.keys() == folders.keys()
    for name in folders:
        engine.unload_adapter(name)
    for hold in holds:
        engine.abort(hold)
    assert not runner.host_adapters and not engine.load.num_adapters_on_device


@pytest.mark.parametrize("num_slots", [1, 2, 3])
def test_a_stream_of_others_keeps_nobody_from_a_place(num_slots: int) -> None:
    """Those whose adapters are in place come without end; one of another adapter still gets its turn, and who has no
    adapter never waits for any of them."""
    engine, _ = make(num_slots, ",".join(f"{name}=/{name}" for name in NAMES), max_num_seqs=6, num_blocks=64)
    common = NAMES[:num_slots]
    number, waited_for = 0, "late"
    ended: list[str] = []
    for index in range(400):
        while len(engine.scheduler.sequences()) < 6:
            request = make_request(
                str(number), [1 + number % 7] * 3, adapter=common[number % num_slots], max_tokens=5 + number % 9,
                ignore_eos=True, arrival_time=float(number),
            )  # fmt: skip
            assert engine.add(request) is None
            number += 1
        if index == 20:
            late = make_request("late", [2, 3], adapter="f", max_tokens=2, ignore_eos=True, arrival_time=float(number))
            plain = make_request("plain", [2, 3], max_tokens=2, ignore_eos=True, arrival_time=float(number))
            assert engine.add(late) is None and engine.add(plain) is None
        ended += [output.request_id for output in engine.step() if output.finish_reason is not None]
        engine.check()
        if waited_for in ended:
            break
    assert waited_for in ended and "plain" in ended
    assert index < 80


def test_what_is_told_of_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = make(1, "a=/a,b=/b,c=/c", max_cpu_loras=2)
    seconds = engine.load.adapters
    assert list(seconds) == ["a", "b", "c"] == list(engine.info.adapters)
    assert seconds["a"] == 0.0, "it is in place, as there was room"
    assert 0.0 < seconds["b"] < 1.0
    assert engine.load.num_adapters_on_device == engine.load.num_adapters_placed == 1
    assert (engine.load.num_adapters_read, engine.load.adapter_read_seconds > 0) == (3, True)
    assert engine.add(make_request("r", adapter="b", max_tokens=2)) is None
    while engine.has_work():
        engine.step()
    assert engine.load.adapters["b"] == 0.0 < engine.load.adapters["a"]
    assert engine.load.adapters is engine.load.adapters, "nothing is counted anew while nothing changes"


def run_while_b_fails(most: int) -> tuple[Engine, dict[str, tuple[FinishReason, str | None]], list[float]]:
    """Of three requests, one of an adapter that cannot be read again so many times: how they end, and when it is tried
    again."""
    clock = FakeClock(0.0)
    engine, runner = make(1, "a=/a,b=/b,c=/c", clock, max_cpu_loras=1)
    for name in "bac":
        assert engine.add(make_request(name, adapter=name, max_tokens=3)) is None
    read, tried_at = runner.read_adapter, list[float]()

    def fail(key: int, folder: Path) -> "Future[int]":
        if folder.name != "b":
            return read(key, folder)
        tried_at.append(clock.now())
        return read(key, Path("/broken") if len(tried_at) <= most else folder)

    runner.read_adapter = fail  # type: ignore[method-assign]
    ended = {}
    while engine.has_work():
        for output in engine.step():
            if output.finish_reason is not None:
                ended[output.request_id] = (output.finish_reason, output.message)
        engine.check()
        clock.advance(0.125)
    return engine, ended, tried_at


def test_an_adapter_that_cannot_be_read_for_a_moment_is_not_lost() -> None:
    engine, ended, tried_at = run_while_b_fails(3)
    assert {reason for reason, _ in ended.values()} == {FinishReason.LENGTH}
    assert set(engine.load.adapters) == {"a", "b", "c"}
    waits = [after - before for before, after in pairwise(tried_at)]
    assert waits == pytest.approx([0.25, 0.5, 1.0], abs=0.2)
    assert not engine.adapters.is_awaited


def test_who_leaves_takes_what_is_to_be_read_along() -> None:
    engine, runner = make(1, "a=/a,b=/b", max_cpu_loras=1)
    read = runner.read_adapter
    runner.read_adapter = lambda key, folder: read(key, Path("/broken"))  # type: ignore[method-assign]
    name = next(name for name in "ab" if not engine.adapters._by_name[name].is_in_host)
    other = "ab".replace(name, "")
    assert engine.add(make_request("r", adapter=name, max_tokens=3)) is None
    while not engine.adapters._retries:
        engine.step()
    engine.abort("r")
    engine.check()
    assert not engine.adapters.is_awaited and not engine.has_work()
    assert set(engine.load.adapters) == {name, other}


def test_an_adapter_that_can_be_read_no_more_ends_its_requests_alone() -> None:
    engine, ended, tried_at = run_while_b_fails(100)
    assert len(tried_at) == 6
    assert ended["b"] == (FinishReason.ERROR, "its adapter cannot be read any more: /broken is broken")
    assert {ended[name][0] for name in "ac"} == {FinishReason.LENGTH}
    assert set(engine.load.adapters) == {"a", "c"}
    load(engine, "b", "/b2")


def test_nobody_shares_what_was_computed_before_an_adapter_of_that_name_was_lost() -> None:
    clock, prompt = FakeClock(0.0), [1, 2, 3, 4, 5, 6, 7, 1, 2]
    engine, runner = make(1, "a=/a,b=/b", clock, max_cpu_loras=1)

    def ask(name: str) -> tuple[list[int], FinishReason | None]:
        request = make_request(name, prompt, adapter=name, max_tokens=3, ignore_eos=True)
        assert engine.add(request) is None
        token_ids, reason = list[int](), None
        while engine.has_work():
            for output in engine.step():
                token_ids, reason = token_ids + output.new_token_ids, output.finish_reason
            engine.check()
            clock.advance(1.0)
        return token_ids, reason

    for name in "ba":
        assert ask(name) == (runner.generate(prompt, 3, folder=name), FinishReason.LENGTH)
    read = runner.read_adapter
    runner.read_adapter = lambda key, folder: read(key, Path("/broken"))  # type: ignore[method-assign]
    assert ask("b") == ([], FinishReason.ERROR)
    runner.read_adapter = read  # type: ignore[method-assign]
    load(engine, "b", "/b2")
    assert ask("b") == (runner.generate(prompt, 3, folder="b2"), FinishReason.LENGTH)


def test_what_cannot_be_loaded_is_refused() -> None:
    engine, _ = make(1, "a=/a")
    for name, said in (("a", "'a' is there already"), ("", "1 to 256 printable"), ("x\n", "1 to 256 printable")):
        with pytest.raises(AdapterError, match=said):
            engine.load_adapter(name, Path("/x"), lambda error: None)
    ended: list[AdapterError | None] = []
    engine.load_adapter("x", Path("/broken"), ended.append)
    engine.adapters.settle()
    assert [str(each) for each in ended] == ["/broken is broken"]
    engine.load_adapter("x", Path("/x"), ended.append)
    engine.adapters.settle()
    with pytest.raises(AdapterError, match="'x' is there already"):
        engine.load_adapter("x", Path("/x"), ended.append)
    with pytest.raises(AdapterError, match="no adapter 'y' is loaded"):
        engine.unload_adapter("y")
    none, _ = make(0)
    with pytest.raises(AdapterError, match="start it with --max-loras"):
        none.load_adapter("x", Path("/x"), ended.append)


def test_who_asks_for_what_is_being_loaded_is_told_with_who_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waited first may have gone, as an operator that is restarted."""
    engine, runner = make(1)
    under_way: list[tuple[Future[Any], Future[Any]]] = []
    read = runner.read_adapter

    def slowly(key: int, folder: Path) -> Future[Any]:
        under_way.append((read(key, folder), Future()))
        return under_way[-1][1]

    monkeypatch.setattr(runner, "read_adapter", slowly)
    told: list[tuple[str, AdapterError | None]] = []
    for who in ("first", "second"):
        engine.load_adapter("a", Path("/a0"), lambda error, who=who: told.append((who, error)))  # type: ignore[misc]
    with pytest.raises(AdapterError, match="is being read from another folder"):
        engine.load_adapter("a", Path("/a1"), lambda error: told.append(("third", error)))
    engine.adapters.settle()
    assert (len(under_way), told) == (1, [])
    ((real, promised),) = under_way
    promised.set_result(real.result())
    engine.adapters.settle()
    assert told == [("first", None), ("second", None)]
    with pytest.raises(AdapterError, match="unload it first"):
        engine.load_adapter("a", Path("/a0"), lambda error: None)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_links_to_files_outside_of_the_adapter_folder_are_refused(tmp_path: Path, name: str) -> None:
    """Links within it are how download caches lay files out."""
    root, secret = tmp_path / "adapters", tmp_path / "secret"
    blob, folder, linked = root / "blobs" / "x", root / "good", root / "bad"
    for each in (blob.parent, folder, linked):
        each.mkdir(parents=True)
    for each in (secret, blob):
        each.write_text("{}")
    (folder / name).symlink_to(blob)
    assert folder_below(str(root), "good") == folder
    (linked / name).symlink_to(secret)
    with pytest.raises(AdapterError, match=r"files of lora_path must be below --adapter-folder"):
        folder_below(str(root), "bad")
    (root / "away").symlink_to(tmp_path)
    with pytest.raises(AdapterError, match=r"must be a folder below"):
        folder_below(str(root), "away")
