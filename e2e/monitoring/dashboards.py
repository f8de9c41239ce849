"""Reads Grafana's dashboards: their panels, and the expressions that these ask for. Knows no Prometheus."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHART = Path(__file__).parents[2] / "charts" / "fairlead"
DASHBOARDS = tuple(sorted((CHART / "files" / "dashboards").glob("*.json")))
ALERTS = tuple(sorted((CHART / "files" / "alerts").glob("*.yaml")))

_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")
_LEGEND_LABEL = re.compile(r"{{\s*(\w+)\s*}}")


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of a panel (or of an annotation)."""

    dashboard: str
    panel: str
    expression: str
    """As Grafana has it, with its variables."""
    legend: str = ""

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel}: {self.expression}"

    @property
    def legend_labels(self) -> set[str]:
        """Labels that the legend shows."""
        return set(_LEGEND_LABEL.findall(self.legend))

    def filled_in(self, values: Mapping[str, str]) -> str:
        """With Grafana's variables replaced. Raises KeyError for a variable that has no value."""
        return _VARIABLE.sub(lambda found: values[found[1]], self.expression)


def load(path: Path) -> dict[str, Any]:
    """A dashboard."""
    board: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return board


def panels(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All panels but the rows that they stand in."""
    inner = [panel for row in board["panels"] for panel in row.get("panels", [])]
    return [panel for panel in (*board["panels"], *inner) if panel["type"] != "row"]


def queries(path: Path) -> Iterator[Query]:
    """Everything that a dashboard asks Prometheus, but for its variables."""
    board = load(path)
    for panel in panels(board):
        for target in panel["targets"]:
            yield Query(path.stem, panel["title"], target["expr"], target.get("legendFormat", ""))
    for annotation in board["annotations"]["list"]:
        if "expr" in annotation:
            yield Query(path.stem, annotation["name"], annotation["expr"], annotation["titleFormat"])
