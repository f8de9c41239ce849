"""What is held of each kernel in Triton, whoever wrote it: its counts on paper, its twin, and who tries it on a GPU."""

import ast
import re
from pathlib import Path

import pytest

import fairlead_engine.kernels

KERNELS = Path(fairlead_engine.kernels.__file__).parent
TESTS = Path(__file__).parents[1]
IN_TRITON = sorted(path for path in KERNELS.rglob("*.py") if "@triton.jit" in path.read_text())
TWINS = {
    "draw_kernel": "runner/drawing.py",
    "paged_attention": "kernels/attention/block_tables.py",
    "penalise_kernel": "runner/logit_changes.py",
}
"""Where not beside it under the same name."""
of_each = pytest.mark.parametrize("path", IN_TRITON, ids=lambda path: path.stem)


def test_kernels_are_found_under_their_names():
    assert {path.stem for path in IN_TRITON} >= {path.stem for path in KERNELS.rglob("*_kernel.py")} > {"gates_kernel"}


@of_each
def test_bytes_and_operations_are_counted_beside_it(path):
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    for count in ("Bytes", "Operations"):
        found = re.search(rf"\b{count}: [^.]*\S", text)
        assert found, f"{path.name}: its docstring says nothing of '{count}: …'"


@of_each
def test_it_has_a_twin_in_plain_torch(path):
    twin = KERNELS.parent / TWINS.get(path.stem, f"{path.relative_to(KERNELS.parent)}".replace("_kernel.py", ".py"))
    assert twin != path and twin.is_file()
    assert "import triton" not in twin.read_text()


@of_each
def test_it_is_tried_by_interpreter_and_gpu_and_compiled_for_one_that_is_not_there(path):
    sources = {test.name: test.read_text() for test in TESTS.rglob("test_*.py") if test != Path(__file__)}
    trying = {name: text for name, text in sources.items() if re.search(rf"\b{path.stem}\b", text)}
    assert [name for name, text in trying.items() if "on_each_device\n" in text or "INTERPRETED, NEEDS_CUDA" in text]
    assert [name for name, text in trying.items() if "compile_for_gpu" in text]
