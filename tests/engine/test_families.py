"""What `docs/reference/families.md` says of each family is so: every row is tried again, and none is missing."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fairlead_common.models.families.registry import ARCHITECTURES
from fairlead_engine.model.encoders import ENCODERS
from fairlead_engine_testing import family_trials
from fairlead_engine_testing.family_trials import COLUMNS, ROWS, try_family

DOCS = Path(__file__).parents[2] / "docs"
RECORD: dict[str, Any] = json.loads((DOCS / "families_tried.json").read_text(encoding="utf-8"))
QUICK = ("llama", "mixtral", "bert")
"""One of each kind; trying them all takes a minute."""


def test_every_family_is_tried_and_noted() -> None:
    """A family that is in the registry and not here is an entry of `tiny_families`, or of
    `family_trials.OTHERS`; then `make families` notes it."""
    made = {*ARCHITECTURES, *(name for name in ENCODERS if name.endswith("Model"))}
    assert made <= {row.architecture for row in ROWS.values()}
    assert {name: each["architecture"] for name, each in RECORD.items()} == {
        name: row.architecture for name, row in ROWS.items()
    }, "run `make families`"
    assert list(RECORD) == list(ROWS)
    assert all(list(each["found"]) == list(COLUMNS) for each in RECORD.values())


@pytest.mark.matrix
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.compute) for name in ROWS]
)
def test_what_was_noted_is_so(name: str, column: str, tmp_path: Path) -> None:
    assert try_family(name, column, tmp_path) == RECORD[name]["found"][column], "run `make families`"


def test_what_is_done_wrong_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family_trials, "_merge", lambda *_: None)
    with pytest.raises(AssertionError):
        try_family("llama", "LoRA", tmp_path / "lora")
    monkeypatch.setattr(family_trials, "_QUANTISED", dict.fromkeys(family_trials._QUANTISED, 1e-9))
    with pytest.raises(AssertionError, match="int8 of LlamaForCausalLM is"):
        try_family("llama", "Quantised", tmp_path / "quantised")
    exact = family_trials._reference
    monkeypatch.setattr(family_trials, "_reference", lambda *of: exact(*of).roll(1, 0))
    with pytest.raises(AssertionError):
        try_family("llama", "Number formats", tmp_path / "precision")


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("try_families", DOCS / "try_families.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_who_is_not_tried_keeps_what_is_known(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    known = {"llama": {"architecture": "LlamaForCausalLM", "found": {}}, "gone": {"architecture": "x", "found": {}}}
    path.write_text(json.dumps(known))
    monkeypatch.setattr(program, "RECORD", path)
    monkeypatch.setattr(program, "_try", lambda name, column: {f"{name} {column}": None})
    program.main(["bert"])
    written = json.loads(path.read_text())
    assert list(written) == ["llama", "bert"]
    assert written["llama"] == known["llama"]
    assert written["bert"]["found"]["LoRA"] == {"bert LoRA": None}
    with pytest.raises(SystemExit):
        program.main(["nobody"])
