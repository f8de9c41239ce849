"""Every LLMDeployment that a page shows is one that the API takes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.api.llmdeployment import LLMDeploymentSpec, broken_rules
from fairlead.api.schema import decode

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown(page: Path) -> list[dict[str, Any]]:
    """Whole objects; parts of one, and ones with `...` for a part, are left out."""
    found = []
    for block in re.findall(r"^ *```yaml\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE):
        if "kind: LLMDeployment" in block and "…" not in block:
            found += [each for each in yaml.safe_load_all(block) if each and each.get("kind") == "LLMDeployment"]
    return [each for each in found if "apiVersion" in each]


WITH_OBJECTS = [page for page in PAGES if shown(page)]


def test_pages_show_objects() -> None:
    assert {"README.md", "vllm.md", "from-vllm.md"} <= {page.name for page in WITH_OBJECTS}


@pytest.mark.parametrize("page", WITH_OBJECTS, ids=lambda page: page.name)
def test_what_a_page_shows_is_taken(page: Path) -> None:
    for body in shown(page):
        assert decode(LLMDeploymentSpec, body["spec"], strict=True)
        assert broken_rules(body) == [], body
