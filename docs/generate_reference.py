"""Writes `docs/reference/` from the code: flags, settings, fields, conditions, metrics and endpoints, as they are.

`make reference` calls it, and `tests/test_reference.py` compares. Every text has its one source beside what it
describes (a field's docstring, a metric's help); anything without a text is refused by name, so nothing can go
undocumented. This and `generate_openapi.py` are the only code that imports both the control plane and the engine.
"""

import argparse
import asyncio
import textwrap
from collections.abc import Sequence
from pathlib import Path

from reference_pages.chart_page import chart_values
from reference_pages.families_page import families
from reference_pages.flag_pages import (
    commands_besides,
    engine_commands,
    engine_flags,
    gateway_flags,
    request_parameters,
    simulation_flags,
)
from reference_pages.http_page import http_endpoints
from reference_pages.metrics_page import metrics
from reference_pages.schema_pages import conditions, llmdeployment, settings

FOLDER = Path(__file__).parent / "reference"
CHART = Path(__file__).parent.parent / "charts" / "fairlead"


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes every page into the folder that the command line names. Raises SystemExit for help and wrong usage."""
    parser = argparse.ArgumentParser(description="Writes the reference pages from the code.", allow_abbrev=False)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help="default: docs/reference")
    folder: Path = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """File name → its text. Raises Undocumented."""
    chart = (CHART / "values.yaml").read_text(encoding="utf-8")
    subjects = {
        "llmdeployment.md": (
            "LLMDeployment",
            "every field, its default, and the rules between fields",
            llmdeployment(),
        ),
        "conditions.md": ("Conditions", "what `status.conditions` can say, and why", conditions()),
        "engine-flags.md": (
            "Engine flags",
            "`fairlead-engine serve` and `fairlead-engine characterise`",
            engine_flags(),
        ),
        "engine-commands.md": (
            "Commands of the engine",
            "flags of " + ", ".join(f"`{name}`" for name in commands_besides()),
            engine_commands(),
        ),
        "gateway-flags.md": ("Gateway flags", "`fairlead gateway`", gateway_flags()),
        "simulation-flags.md": ("Flags of the simulation", "`fairlead simulate autoscaling`", simulation_flags()),
        "operator-settings.md": ("Operator settings", "the file of `fairlead operator --settings FILE`", settings()),
        "chart-values.md": ("Values of the chart", "what `helm install --set` can say", chart_values(chart)),
        "request-parameters.md": (
            "Request parameters",
            "every field of a request, its bounds and default, and who acts on it",
            request_parameters(),
        ),
        "families.md": ("Families", "what was tried of each family of models, and what is refused", families()),
        "metrics.md": ("Metrics", "of engine, gateway and operator", asyncio.run(metrics())),
        "http.md": ("HTTP endpoints", "of gateway, engine and operator, and how requests end", http_endpoints()),
    }
    note = "*Generated from the code by `make reference`; do not edit.*"
    index = "\n".join(f"- [{title}]({name}): {summary}" for name, (title, summary, _) in subjects.items())
    texts = {name: f"# {title}\n\n{note}\n\n{body}\n" for name, (title, _, body) in subjects.items()}
    return {
        name: _wrapped(text) for name, text in {"README.md": f"# Reference\n\n{note}\n\n{index}\n", **texts}.items()
    }


def _wrapped(text: str) -> str:
    """With prose of at most 120 columns; a row of a table has to be one line."""

    def lines(line: str) -> list[str]:
        return [line] if line.startswith("|") or not line else textwrap.wrap(line, 120, break_on_hyphens=False)

    return "\n".join(part for line in text.split("\n") for part in lines(line))


if __name__ == "__main__":
    main()
