"""The benchmark of the core's own Python goes through an engine as it is."""

import json
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parents[3] / "engine" / "benchmarks" / "core_steps.py"


def test_it_measures_every_part_of_a_step() -> None:
    small = ("--seqs", "4", "--blocks", "200", "--prompt", "32", "--output", "8", "--steps", "30", "--json")
    done = subprocess.run([sys.executable, str(FILE), *small], capture_output=True, text=True, check=True)
    parts = json.loads(done.stdout)["parts"]
    assert {"schedule", "prepare", "commit", "outputs", "send", "python"} <= parts.keys()
    assert all(row["p50_ms"] > 0 for row in parts.values())
