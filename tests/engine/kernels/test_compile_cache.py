"""Kernels are compiled once per folder, whatever has become of it, and whoever shares it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead_engine.errors import ConfigError
from fairlead_engine.kernels.compile_cache import use_compile_cache

COMPILE = """
import json, logging, os, shutil, sys
from pathlib import Path
from triton import knobs
from fairlead_engine.kernels.compile_cache import use_compile_cache
from fairlead_engine.kernels.gates_kernel import gate_kernel
from fairlead_engine_testing.gpu_code import compile_for_gpu

folder, told = Path(sys.argv[1]), []
logging.getLogger().addHandler(type("Told", (logging.Handler,), {"emit": lambda self, record: told.append(record)})())

def compiled(folder=folder):
    hits = []
    use_compile_cache(str(folder))
    knobs.compilation.listener = lambda **facts: hits.append(facts["cache_hit"])
    types = {name: "*bf16" if index < 2 else "i32" for index, name in enumerate(gate_kernel.arg_names)}
    constants = {p.name: 64 for p in gate_kernel.params if p.is_constexpr}
    compile_for_gpu(gate_kernel, types, constants)
    return hits[0]

def file(ending, folder=folder):
    (found,) = folder.rglob("gate_kernel" + ending)
    return found
"""
SPOILS = """
found = {"nothing": compiled(), "again": compiled()}
for name, spoil in {
    "cut binary": lambda: file(".cubin").write_bytes(file(".cubin").read_bytes()[:100]),
    "changed list": lambda: file(".json").write_text("{}"),
    "no binary": lambda: file(".cubin").unlink(),
    "changed digest": lambda: file(".cubin.sha256").write_bytes(bytes([255] * 8)),
    "cut group": lambda: next(folder.rglob("__grp__*.json")).write_text("{"),
}.items():
    spoil()
    found[name] = compiled()
    found[name + ", again"] = compiled()
shutil.move(folder, str(folder) + "-moved")
found["moved"] = compiled(Path(str(folder) + "-moved"))
print(json.dumps([found, [record.getMessage() for record in told]]))
"""


def start(script: str, folder: Path) -> "subprocess.Popen[str]":
    """In a process of its own, where kernels are not for Triton's interpreter."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], env=environment, stdout=subprocess.PIPE, text=True
    )


def ended(process: "subprocess.Popen[str]") -> Any:
    output, _ = process.communicate()
    assert process.returncode == 0
    return json.loads(output)


@pytest.mark.slow
def test_whatever_is_spoilt_is_compiled_again_and_said(tmp_path: Path) -> None:
    found, told = ended(start(COMPILE + SPOILS, tmp_path / "cache"))
    assert {name for name, is_hit in found.items() if is_hit} == {
        *("again", "moved"), *(name for name in found if name.endswith(", again"))
    }  # fmt: skip
    assert len(found) == 13
    assert [Path(line.split()[0]).name for line in told] == [
        "gate_kernel.cubin", "gate_kernel.json", "__grp__gate_kernel.json"
    ]  # fmt: skip
    assert all(line.endswith("is not what was written there: it is compiled again") for line in told)


@pytest.mark.slow
def test_two_engines_may_fill_one_folder_at_the_same_time(tmp_path: Path) -> None:
    script = COMPILE + "print(json.dumps([compiled(), compiled()]))"
    processes = [start(script, tmp_path / "cache") for _ in range(2)]
    assert [ended(process)[1] for process in processes] == [True, True]
    assert not list((tmp_path / "cache").rglob("tmp.*")), "something was left half written"


@pytest.mark.parametrize("name", ["file/below", "closed"])
def test_a_folder_that_cannot_be_written_is_refused_by_the_setting(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "closed").mkdir(mode=0o555)
    if name == "closed" and os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    with pytest.raises(ConfigError, match=r"compile-cache: .*name another"):
        use_compile_cache(str(tmp_path / name))
