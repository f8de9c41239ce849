"""What `helm install NAME CHART` and `helm upgrade NAME CHART` render, without a cluster.

Helm's SDK (requirements/helm.txt) has no command line of its own. Of Helm's flags it knows `--namespace`, `--set`, and
those that say nothing about the rendering.
"""

import argparse
from typing import Any

import helm_python

WITHOUT_EFFECT = ("--create-namespace", "--reuse-values", "--reset-then-reuse-values")


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    for name, value in more.items():
        inner = values.get(name)
        values[name] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return values


def main() -> None:
    """Prints the names of the templates that made something."""
    parser = argparse.ArgumentParser(prog="helm")
    parser.add_argument("action", choices=("install", "upgrade"))
    parser.add_argument("name")
    parser.add_argument("chart")
    parser.add_argument("-n", "--namespace", default="default")
    parser.add_argument("--set", action="append", default=[])
    for flag in WITHOUT_EFFECT:
        parser.add_argument(flag, action="store_true")
    asked = parser.parse_args()
    values: dict[str, Any] = {}
    for expression in asked.set:
        merged(values, helm_python.parse_set_string(expression))
    is_upgrade = asked.action == "upgrade"
    with helm_python.Chart.load(asked.chart) as chart:
        rendered = chart.render(values, name=asked.name, namespace=asked.namespace, is_upgrade=is_upgrade)
    print(*(name for name, text in rendered.items() if text.strip()), sep="\n")


if __name__ == "__main__":
    main()
