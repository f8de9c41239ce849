"""What an engine tells of its load is the same in every message, from its core to the operator."""

import msgspec
import pytest

from fairlead.api.signals_message import ReplicaSignals
from fairlead.routing.replica import Load
from fairlead_common.wire.messages import LoadFigures, LoadLine, StepCost, StreamLine
from fairlead_engine.types import NO_LOAD


def test_every_figure_travels_from_core_to_operator() -> None:
    numbers = {name: number for number, name in enumerate(LoadFigures.__struct_fields__, start=1)}
    figures = numbers | {"step_cost": StepCost(base=0.5, residual=0.1), "step_age_seconds": 2.5, "draining": True}
    figures["adapters"] = {"pirate": 0.0, "poet": 0.25}
    core = msgspec.structs.replace(NO_LOAD, **figures)
    sent = msgspec.json.encode(StreamLine(load=LoadLine(**core.figures, seq=3, seen={"g": 4})))
    line = msgspec.json.decode(sent, type=StreamLine).load
    assert line is not None
    load = Load(time=9.0, **msgspec.structs.asdict(line))
    assert (load.time, load.seq, load.seen) == (9.0, 3, {"g": 4})
    signals = ReplicaSignals(name="pod", age_seconds=0.1, **load.figures)
    heard = msgspec.json.decode(msgspec.json.encode(signals), type=ReplicaSignals)
    assert heard.figures == figures
    assert heard.adapters == {"pirate": 0.0, "poet": 0.25}


def test_a_step_cost_is_a_map_of_names_and_empty_until_known() -> None:
    assert msgspec.json.encode(StepCost()) == b"{}"
    assert not msgspec.json.decode(b"{}", type=StepCost).is_known
    assert not StepCost(residual=0.1).is_known
    known = msgspec.json.decode(b'{"base": 0.25, "from_the_future": 13.0}', type=StepCost)
    assert known == StepCost(base=0.25)
    assert known.is_known


@pytest.mark.parametrize("line", [b"{}", b'{"waiting": 1}', b'{"step_cost": {"base": -1}}'])
def test_a_load_without_its_figures_or_with_an_impossible_one_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(line, type=LoadLine)
