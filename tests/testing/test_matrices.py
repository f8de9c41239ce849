"""Of a matrix of cases few are kept, with every value of every parameter; `--whole-matrices` keeps all."""

import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_testing.matrices import cover

CASES = st.lists(
    st.fixed_dictionaries({"family": st.sampled_from("abcd"), "size": st.integers(0, 3), "cache": st.booleans()}),
    min_size=1, max_size=40,
)  # fmt: skip
MODULE = """
import pytest
@pytest.mark.matrix
@pytest.mark.parametrize("family", ["llama", "qwen"])
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow), 3, 4])
def test_both(family, size): ...
@pytest.mark.matrix
def test_without_parameters(): ...
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("family", ["llama", "qwen"])
def test_no_matrix(family, size): ...
"""


@given(drawn=CASES, strength=st.sampled_from([1, 2, 3]))
def test_kept_cases_have_all_that_all_have(drawn: list[dict[str, object]], strength: int) -> None:
    cases = {str(index): values for index, values in enumerate(drawn)}

    def had(names: set[str]) -> set[object]:
        return {each for name in names for each in combinations(sorted(cases[name].items()), strength)}

    kept = cover(cases, strength)
    assert had(kept) == had({*cases})
    assert cover(dict(reversed(cases.items())), strength) == kept


def test_a_product_of_values_needs_as_many_cases_as_its_longest_list_has_values() -> None:
    cases = {f"{family}-{size}": {"family": family, "size": size} for family in "abc" for size in range(7)}
    assert len(cover(cases)) == 7
    assert len(cover(cases, 2)) == 21


@pytest.mark.parametrize(("options", "num_of_matrix"), [([], 5), (["--whole-matrices"], 8)])
def test_values_of_each_tier_occur_in_it(tmp_path: Path, options: list[str], num_of_matrix: int) -> None:
    """Two families of a slow size, and three sizes."""
    (tmp_path / "test_module.py").write_text(MODULE)
    plugins = ["-p", "fairlead_testing.matrices", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--collect-only", "-q", *plugins, *options, "."]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # which take longer to import than all else
    said = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True).stdout
    assert said.count("::test_both[") == num_of_matrix, said
    assert said.count("::test_no_matrix[") == 4
    assert "::test_without_parameters" in said
