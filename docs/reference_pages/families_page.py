"""The page of families of models, from what was tried of each."""

import json
from collections.abc import Iterator
from pathlib import Path

from fairlead_common.models.families.registry import ARCHITECTURES
from reference_pages.tables import table

_LINKS = {
    "images": "../api.md#images",
    "indexer": "../guides/first-model.md#indexers",
    "mtp": "../guides/speculative-decoding.md",
    "state": "../guides/first-model.md#layers-that-keep-a-state",
}
"""What the descriptions of models link to."""
TRIED = Path(__file__).parents[1] / "families_tried.json"


def families() -> str:
    """The page of what families of models can do, from the record of what was tried."""
    record = json.loads(TRIED.read_text(encoding="utf-8"))
    columns = list(dict.fromkeys(column for each in record.values() for column in each["found"]))
    rows = []
    refused: dict[tuple[int, str], dict[str, list[str]]] = {}
    for each in record.values():
        name, cells = f"`{each['architecture']}`", ["not tried"] * len(columns)
        for column, found in each["found"].items():
            place = columns.index(column)
            cells[place] = ", ".join(way for way, refusal in found.items() if refusal is None) or "no"
            for way, refusal in found.items():
                if refusal is not None:
                    refused.setdefault((place, refusal), {}).setdefault(name, []).append(way)
        rows.append([f"{name} {each.get('stands_for', '')}".strip(), *cells])
    refusals = []
    for (place, sentence), of in sorted(refused.items(), key=lambda item: item[0][0]):
        by = "; ".join(f"{', '.join(names)}: {', '.join(ways)}" for ways, names in _by_ways(of))
        refusals.append([columns[place], by, sentence])
    models = [[f"`{name}`", family.models] for name, family in sorted(ARCHITECTURES.items())]
    return "\n\n".join((
        "Generating models, by `architectures` in `config.json`. [Encoders and classifiers](../guides/first-model.md"
        "#encoders), [other decoders](../guides/first-model.md#other-decoders).",
        table(["Architecture", "Models"], models),
        "\n".join(f"[{name}]: {place}" for name, place in _LINKS.items()),
        "## What was tried",
        "Every cell was found by doing it, on a CPU, with a tiny model of random weights in Hugging Face's layout; "
        "tests do it again and compare. `make families` tries all of it and notes it in `docs/families_tried.json`.",
        "- *Number formats*: `float32` tells transformers' log-probabilities; in another format the mean error is at "
        "most twice the one that transformers has in it. `float16` is computed on GPUs alone.\n"
        "- *LoRA*: an adapter of those layers tells what a model tells that has it merged into its weights.\n"
        "- *Tools*: a call that is written as the chat templates of the family's models write it is told from the "
        "text, by the format of this name, which such a template selects. `--tool-call-parser` sets another. "
        "`instructed`: for a template without a place for tools a [message](../api.md#tools-and-reasoning) tells of "
        "them.\n"
        "- *Speculative*: guesses by n-grams, a draft model, Medusa's heads and an EAGLE-3 head leave greedy answers "
        "as they are; so do those of the layer for multi-token prediction (`mtp`) in checkpoints of families with it.\n"
        "- *Quantised*: formats that weights are rounded to while they are loaded; errors stay within bounds.",
        table(["Architecture", *columns], rows),
        "## What is refused", "Nothing of this is ignored in silence: it ends with this sentence.",
        table(["Of", "By", "What the engine says"], refusals),
        "The same architectures with a classifier (`…ForSequenceClassification`), stored quantised, or in GGUF files: "
        "[Serve your own model](../guides/first-model.md).",
    ))  # fmt: skip


def _by_ways(found: dict[str, list[str]]) -> Iterator[tuple[list[str], list[str]]]:
    """Ways, and those that have all of them."""
    by_ways: dict[tuple[str, ...], list[str]] = {}
    for name, ways in found.items():
        by_ways.setdefault(tuple(ways), []).append(name)
    yield from ((list(ways), names) for ways, names in by_ways.items())
