"""The metrics that engine, gateway and operator export, with their labels: scraped from the programs' own classes."""

import asyncio
from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families
from reference_pages.metrics_page import engine_scrape, operator_scrape
from reference_pages.metrics_page import gateway_scrape as gateway_of_pages

from fairlead_engine.host.metrics import OURS

TARGET_LABELS = frozenset({"job", "instance", "namespace", "pod"})
"""What a PodMonitor, or the scrape configuration of docs/guides/monitoring.md, adds to everything."""
ENGINE_LABEL = "fairlead_dev_llmdeployment"
"""What the engines' PodMonitor adds beside."""


def exported() -> Mapping[str, frozenset[str]]:
    """Name of each series → its labels, those of the scrape included."""
    found = {"up": TARGET_LABELS | {ENGINE_LABEL}}
    for text in _scrapes():
        for name, labels in _series(text):
            of_target = TARGET_LABELS | ({ENGINE_LABEL} if name.startswith(OURS) else frozenset())
            found[name] = found.get(name, frozenset()) | labels | of_target
    return found


def gateway_scrape() -> str:
    """What a gateway that has done a little of all answers at /metrics."""
    return _scrapes()[1]


def _scrapes() -> list[str]:
    """The scrapes that docs/reference/metrics.md is made from: of engine, gateway and operator."""

    async def scrape() -> list[str]:
        return [engine_scrape(), gateway_of_pages(), operator_scrape()]

    return asyncio.run(scrape())


def _series(text: str) -> Iterator[tuple[str, frozenset[str]]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, frozenset(sample.labels)
