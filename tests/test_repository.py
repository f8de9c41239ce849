"""The repository's own rules: layout, versions, and that what is generated matches what it is generated from."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOP_LEVEL = {"operator", "engine", "common", "charts", "crds", "tests", "e2e", "docs", "examples", "requirements",
             "local", "testing"}  # fmt: skip
DISTRIBUTIONS = ("operator", "engine", "common", "local", "testing")


def tracked() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [Path(line) for line in listing.stdout.splitlines()]


def pyproject(folder: str) -> dict:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("folder", [*DISTRIBUTIONS, "tests", "e2e"])
def test_no_init_file_turns_a_top_folder_into_a_package(folder: str) -> None:
    """`operator/__init__.py` would shadow the standard library's operator module for everybody."""
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_test_or_conftest_lies_below_the_distributions() -> None:
    """pytest would import it as `operator.…` and so replace the standard library's module for the session."""
    strays = [
        path
        for path in tracked()
        if path.parts[0] in DISTRIBUTIONS
        and (path.name == "conftest.py" or re.fullmatch(r"test_.*\.py|.*_test\.py", path.name))
    ]
    assert strays == []


def test_the_standard_library_operator_module_is_the_real_one() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", "import operator; print(operator.__file__)"], cwd=ROOT, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stderr
    assert not completed.stdout.startswith(str(ROOT))


def test_the_top_level_holds_only_what_the_design_names() -> None:
    folders = {path.parts[0] for path in tracked() if len(path.parts) > 1 and not path.parts[0].startswith(".")}
    assert folders <= TOP_LEVEL


def test_the_distributions_have_one_version() -> None:
    versions = {folder: pyproject(folder)["version"] for folder in DISTRIBUTIONS}
    assert len(set(versions.values())) == 1, versions
    version = versions["common"]
    for module in ("fairlead", "fairlead_engine", "fairlead_common", "fairlead_local"):
        assert __import__(module).__version__ == version
    for folder in ("operator", "engine"):
        assert f"fairlead-common=={version}" in pyproject(folder)["dependencies"]


@pytest.mark.parametrize(
    ("folder", "package"),
    [("operator", "fairlead"), ("engine", "fairlead_engine"), ("common", "fairlead_common"),
     ("local", "fairlead_local")],
)  # fmt: skip
def test_a_product_wheel_has_one_package_and_no_fakes(folder: str, package: str) -> None:
    build = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build == {"targets": {"wheel": {"packages": [f"src/{package}"]}}}
    source = [path for path in tracked() if path.parts[:2] == (folder, "src") and (ROOT / path).exists()]
    assert {path.parts[2] for path in source} == {package}
    assert [path for path in source if {"testing", "local"} & set(path.parts[3:-1]) or "fake" in path.name] == []


def test_every_dependency_is_pinned() -> None:
    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    pinned = {
        normal(line.split("==")[0])
        for line in (ROOT / "requirements" / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    wanted = {
        normal(re.split(r"[\s\[<>=!~;#]", requirement)[0])
        for folder in DISTRIBUTIONS
        for requirement in pyproject(folder)["dependencies"]
    }
    wanted |= {
        normal(line.split()[0])
        for line in (ROOT / "requirements" / "dev.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    wanted = {name for name in wanted if not name.startswith("fairlead")}
    assert wanted - pinned == set()


def test_the_control_plane_does_not_import_torch() -> None:
    code = (
        "import sys, fairlead.controller.operator, fairlead.gateway.gateway_command, fairlead_local.command\n"
        "heavy = {'torch', 'transformers', 'openai', 'fairlead_engine'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else None)"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr


def test_make_help_lists_every_public_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    helped = set(re.findall(r"^([a-z0-9-]+):.*## ", text, re.MULTILINE))
    assert set(phony.group(1).split()) == helped


def test_links_between_documents_lead_somewhere() -> None:
    """To a file that is there, and to a heading in it."""
    broken = []
    for path in tracked():
        if path.suffix != ".md":
            continue
        for target, place in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", (ROOT / path).read_text()):
            if re.match(r"[a-z]+:", target):
                continue
            page = ROOT / path.parent / target if target else ROOT / path
            if not page.exists() or (place and place not in anchors(page)):
                broken.append(f"{path}: {target}#{place}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_of_the_documentation_leads_to_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", index.read_text())}
    generated = [ROOT / "docs" / part / "README.md" for part in ("reference", "adr")]
    pages = [*index.parent.glob("*.md"), *index.parent.glob("guides/*.md"), *generated]
    assert [str(page.relative_to(ROOT)) for page in pages if page.resolve() not in linked | {index}] == []


def linked(pages: set[Path]) -> set[Path]:
    return {
        (page.parent / to).resolve() for page in pages for to in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text())
    }


def test_every_page_is_within_two_clicks_of_the_readme() -> None:
    first = linked({ROOT / "README.md"})
    reached = first | linked({page for page in first if page.exists()})
    pages = {path for path in tracked() if path.parts[0] in ("docs", "charts") and path.suffix == ".md"}
    assert [str(page) for page in sorted(pages) if (ROOT / page).resolve() not in reached] == []


def test_the_numbers_of_the_readme_are_those_of_the_pages_that_they_name() -> None:
    rows = re.findall(r"^\| .*?\]\((docs/benchmarks/[^)]+)\).* \| `make (bench-[a-z]+)", readme(), re.MULTILINE)
    lines = [line for line in readme().splitlines() if "](docs/benchmarks/" in line and line.startswith("|")]
    assert len(rows) == 3
    for line, (page, target) in zip(lines, rows, strict=False):
        text = (ROOT / page).read_text()
        numbers = re.findall(r"\*\*([\d.]+)\*\*|router (\d+)", line)
        assert numbers and [each for pair in numbers for each in pair if not re.search(rf"\b{each or 1}\b", text)] == []
        assert target in (ROOT / "Makefile").read_text()


def readme() -> str:
    return (ROOT / "README.md").read_text()


def test_no_line_of_the_documentation_is_wider_than_120_columns() -> None:
    """But for rows of tables, and JSON in code: Markdown and the protocol want each of these in one line. The
    changelog, which everybody adds to, is left out."""
    wide = []
    for path in tracked():
        if path.suffix != ".md" or path.name == "CHANGELOG.md":
            continue
        is_code = False
        for number, line in enumerate((ROOT / path).read_text().splitlines(), start=1):
            is_code ^= line.lstrip().startswith("```")
            is_one_line = line.lstrip().startswith("{" if is_code else "|")
            if len(line) > 120 and not is_one_line:
                wide.append(f"{path}:{number}")
    assert wide == [], "run `python docs/wrap.py`; shorten code by hand"


TROUBLESHOOTING = ROOT / "docs" / "guides" / "troubleshooting.md"
FINE = {
    *("ReplicasReady", "ScaledToZero", "ModelLoaded", "Complete", "AsExpected"),
    *("Reconciling", "RollingOut", "Scaling", "NotLoadedYet", "ScalingActive"),
    *("AdapterLoaded", "AdapterLoading", "Fits"),
}
"""Reasons that say that nothing is wrong, or that it comes by itself."""


def test_every_sentence_that_the_troubleshooting_quotes_is_printed_somewhere() -> None:
    source = "".join(
        (ROOT / path).read_text()
        for path in tracked()
        if path.suffix in (".py", ".tpl") and "src" in path.parts + ("src",) * (path.parts[0] == "charts")
    )
    printed = re.sub(r'"\s+f?"', "", source).replace('\\"', '"')
    first_cells = [line.split(" | ")[0] for line in TROUBLESHOOTING.read_text().splitlines() if line.startswith("| ")]
    sentences = [text for cell in first_cells for text in re.findall(r'"([^"]+)"', cell)]
    quoted = [piece.strip() for text in sentences for piece in text.split("…") if piece.strip(" .")]
    assert len(quoted) > 60
    assert [piece for piece in quoted if piece not in printed] == []


def test_the_troubleshooting_has_every_reason_and_code_that_means_trouble() -> None:
    import fairlead.gateway
    from fairlead.api.conditions import Reason
    from fairlead.gateway.openai.errors import QueueOutcome
    from fairlead_common.wire.downloads import DownloadFailure
    from fairlead_engine.errors import ModelLoadReason

    words = {str(reason) for reason in (*Reason, *ModelLoadReason, *DownloadFailure)} - FINE
    words |= {outcome.label for outcome in QueueOutcome}
    gateway = "".join(path.read_text() for path in Path(fairlead.gateway.__file__).parent.rglob("*.py"))
    words |= set(re.findall(r'code="(\w+)"', gateway))
    text = TROUBLESHOOTING.read_text()
    assert sorted(word for word in words if f"`{word}`" not in text) == []


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_is_named_exists(page: str) -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text()))
    files = {str(path) for path in tracked()}
    assert named
    assert [name for name in sorted(named) if not any(f"/{path}".endswith(f"/{name}") for path in files)] == []


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("engine/src/fairlead_engine/core/engine.py", "step"),
        ("operator/src/fairlead/gateway/director.py", "handle"),
        ("operator/src/fairlead/controller/reconcile.py", "reconcile"),
        ("operator/src/fairlead/controller/autoscale.py", "tick"),
        ("operator/src/fairlead/controller/autoscale.py", "look"),
    ],
)
def test_each_story_is_one_method_on_one_screen(path: str, name: str) -> None:
    methods = [
        node
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    assert len(methods) == 1
    assert methods[0].end_lineno - methods[0].lineno < 30


@pytest.mark.xdist_group("alone")
def test_tests_of_one_group_share_a_process(request: pytest.FixtureRequest) -> None:
    """pytest-xdist finds the group in the name, and without a word in none, where pytest keeps names another way."""
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("tests are not distributed by groups here; `make test` does")
    assert request.node.nodeid.endswith("@alone"), "choose versions of pytest and pytest-xdist that fit"
