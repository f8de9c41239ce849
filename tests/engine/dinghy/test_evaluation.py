"""The examination that the dinghy passes, through our own engine and with the figures that its README reports."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.compute
def test_the_bundled_dinghy_passes_the_examination_with_the_figures_of_its_readme() -> None:
    completed = subprocess.run(
        [sys.executable, "engine/dinghy/evaluate.py", "--dtype", "float32"], cwd=ROOT, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    overall = re.search(r"overall +(\d+)/(\d+)", completed.stdout)
    assert overall is not None
    assert f"**{overall.group(1)} of {overall.group(2)}**" in (ROOT / "engine/dinghy/README.md").read_text()
