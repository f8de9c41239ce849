"""The shell blocks of the documentation run as they stand, against a fleet of this machine; others are marked.

A mark is a comment right before the block, `<!-- not run: why -->`: a registry, a cluster, a GPU, minutes. What a page
shows right beneath a block begins as what the block prints, unless `<!-- not compared: why -->` stands between them.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from cluster import kubectl

from fairlead_engine.demo import resolve_model
from fairlead_engine_testing.loopback_hub import HubModel, LoopbackHub, loopback_hub
from fairlead_local.detaching import owned_fleet
from fairlead_testing.documents import PAGES, ROOT, Block, shell_blocks
from fairlead_testing.measured_profiles import measured_profile

PAGE_SECONDS = 240


@dataclass(frozen=True)
class Reader:
    """Somebody who has read a page up to its first block."""

    has_done: str = ""
    """In a shell, by what the page or those that it names have said."""
    means: Mapping[str, str] = field(default_factory=dict)
    """What stands in the page → what this reader types."""


DINGHY = "kubectl apply -f examples/01-dinghy.yaml; kubectl wait llm dinghy --for=condition=Ready --timeout=2m"
LIKE_DINGHY = {"by-ttft": "dinghy", "examples/03-routing-policies.yaml": "examples/01-dinghy.yaml"}
"""A fleet of the same model with the same policy, which needs no engines of its own."""
BARGE = "kubectl apply -f examples/08-model-from-a-hub.yaml"
KEYS = "kubectl create secret generic -n fairlead-system fairlead-api-keys --from-literal default=x"
SKIPPER = "kubectl apply -f skipper.yaml; kubectl wait llm skipper --for=jsonpath={.status.observedGeneration}=1"
READERS = {
    "docs/local-mode.md": Reader(),
    "docs/guides/clients.md": Reader(DINGHY),
    "docs/guides/asynchronous-tools.md": Reader(DINGHY, {"localhost:8000": "$GATEWAY", '"qwen"': '"dinghy"'}),
    "docs/guides/measuring.md": Reader(DINGHY),
    "docs/guides/monitoring.md": Reader(DINGHY, {"NAME": "dinghy"}),
    "docs/guides/troubleshooting.md": Reader(DINGHY, {"NAME": "dinghy"}),
    "docs/guides/routing.md": Reader(means=LIKE_DINGHY),
    "docs/guides/operations.md": Reader(means=LIKE_DINGHY),
    "docs/kubernetes.md": Reader(f"{BARGE}; {KEYS}; PASSWORD=x"),
    "docs/security.md": Reader(means={"NAMESPACE": "default"}),
    "docs/guides/batches.md": Reader(),
    "charts/fairlead/README.md": Reader(),
    "docs/guides/fits.md": Reader(
        means={
            "fairlead check -f - <<'EOF'": "! cat <<'EOF' | tee skipper.yaml | fairlead check -f -",
            "kubectl get llm skipper": f"{SKIPPER}; kubectl get llm skipper",
        }
    ),
    "docs/guides/autoscaling.md": Reader(
        DINGHY,
        {
            "kubectl get llm ferry -o yaml": "kubectl create --dry-run=server -f examples/02-autoscaling.yaml -o yaml",
            "kubectl get llm ferry": "kubectl get llm dinghy",
        },
    ),
    "docs/guides/first-model.md": Reader("cp cutter.yaml model.yaml"),
    "docs/guides/model-sources.md": Reader(
        means={"SOURCE": "hf://models/barge", "barge --watch": "barge; kubectl delete llm barge"}
    ),
    "README.md": Reader(means={"kubectl apply": "kubectl apply --dry-run=server", "--replicas 2": "--replicas 1"}),
}
"""Of each page with blocks that run. An engine costs seconds of a core: the dinghy serves where any model does."""
ELSEWHERE = ("docs/guides/adapters.md",)
"""Pages whose blocks tests/engine/server/test_documented_programs.py runs."""
MEANT = {
    "make setup && . .venv/bin/activate": ":",
    "fairlead local down": ":",
    "fairlead top": "fairlead top --once",
    " --watch": "",
    "http://127.0.0.1:8080": "$GATEWAY",
    "export HF_TOKEN=hf_…": "export HF_TOKEN=hf_x",
    "HF_TOKEN=hf_…": "HF_TOKEN=hf_x --from-literal HF_ENDPOINT=$HF_ENDPOINT",
    "=…": "=x",
    "--slots 32": "--slots 32 --seeds 1 --policies HPA",
    "--duration 30s": "--duration 2s",
    "--num-requests 200": "--num-requests 16",
    "2@10s,8@40s,1@10s": "2@1s,8@1s,1@1s",
}
"""What every reader types for what stands in the pages, and for what would take long. All share one fleet;
tests/local/test_fleet_command.py takes fleets down as readers do."""
PRELUDE = """
set -euo pipefail
curl() { command curl --fail-with-body "$@"; }
helm() { python -m fairlead_testing.helm_program "$@"; }
"""
"""An error is a failure of curl, too; charts are rendered by Helm's SDK, and go to no cluster."""
CLEAN = """
kubectl get llm -o name | { grep -v /dinghy$ || true; } | xargs -r kubectl delete --wait=false
kubectl delete secret --all
"""
"""The dinghy stays: most pages ask it."""

WITH_BLOCKS = [page for page in PAGES if shell_blocks(page)]


def is_run(block: Block) -> bool:
    return block.not_run is None


def test_each_block_is_run_or_marked_with_a_reason() -> None:
    blocks = [block for page in WITH_BLOCKS for block in shell_blocks(page)]
    assert len(blocks) > 80
    empty = [str(block) for block in blocks if block.not_run == ""]
    assert not empty, "`<!-- not run: … -->` without a reason"
    unread = [str(block) for block in blocks if is_run(block) and block.page not in (*READERS, *ELSEWHERE)]
    assert not unread, "neither marked nor run: mark them, or give their pages to READERS"
    assert [page for page in READERS if not any(map(is_run, shell_blocks(page)))] == []


def begins(text: str) -> list[str]:
    """What lines begin with, tables without their frames."""
    lines = filter(None, (line.strip(" │┌└├─┬┴┼┐┘┤") for line in text.splitlines()))
    return [" ".join(re.match(r"((Normal|Warning) +\w+|.*?(?=: | {2,}| │|:?$))", line)[0].split()) for line in lines]


def test_begins() -> None:
    event = "  Normal   Scaled   3s  fairlead  Scaled Deployment\n"
    assert begins(f"{event}┌────┬──┐\n│ memory   │ 2 GiB │\nx-request-id: 5\nwhat would fit:\n") == [
        "Normal Scaled", "memory", "x-request-id", "what would fit",
    ]  # fmt: skip


def test_the_log_that_is_shown_is_of_the_answer_that_is_shown() -> None:
    page = (ROOT / "docs/guides/routing.md").read_text()
    told = re.findall(r"cached[-_]tokens(?:=|: )(\d+)", page) + re.findall(r"(\d+) of \d+ tokens cached", page)
    assert len(set(told) - {"0"}) == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What readers have: the repository's files that blocks name, and files of their own that pages ask for."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "charts").symlink_to(ROOT / "charts")
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copytree(resolve_model("demo://dinghy"), folder / "cutter")
    (folder / "monday.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,20,8\n30,40,8\n61,20,8\n")
    for name in ("profile.json", "mine.json"):
        (folder / name).write_bytes(msgspec.json.encode(measured_profile()))
    (folder / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    text = (ROOT / "docs/guides/first-model.md").read_text()
    (folder / "cutter.yaml").write_text(re.search(r"^`model.yaml`:\n\n```yaml\n(.*?)^```", text, re.M | re.S)[1])
    return folder


@pytest.fixture(scope="module")
def shell(folder: Path) -> Iterator[Callable[[str], "subprocess.CompletedProcess[str]"]]:
    """Runs text in bash, in a folder and a home of the reader's, where a fleet runs."""
    program = kubectl.find()
    if program is None:
        pytest.skip(kubectl.EXPLAINED)
    data = folder / "home/.fairlead/local"
    data.mkdir(parents=True)
    files = {path.name: path.read_bytes() for path in (folder / "cutter").iterdir()}
    names = ("Qwen/Qwen2.5-0.5B-Instruct", "models/barge")
    hub = LoopbackHub({name: HubModel({"main": files}) for name in names}, token="hf_x")
    with owned_fleet(data, write=lambda _: None) as fleet, loopback_hub(hub):
        path = f"{Path(sys.executable).parent}:{Path(program).parent}:{os.environ['PATH']}"
        ours = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
        environment = ours | {
            "PATH": path, "HOME": str(folder / "home"), "KUBECONFIG": str(fleet.kubeconfig),
            "GATEWAY": fleet.gateway, "FAIRLEAD_GATEWAY": fleet.gateway,
            "HF_ENDPOINT": hub.endpoint, "OMP_NUM_THREADS": "1",
        }  # fmt: skip

        def run(text: str) -> "subprocess.CompletedProcess[str]":
            return subprocess.run(
                ["bash", "-c", PRELUDE + text], cwd=folder, env=environment, timeout=PAGE_SECONDS, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip

        yield run


def typed(block: Block, reader: Reader) -> str:
    text = block.text
    for written, meant in {**reader.means, **MEANT}.items():
        text = text.replace(written, meant)
    return text


@pytest.mark.slow
@pytest.mark.xdist_group("documented blocks")
@pytest.mark.parametrize("page", READERS)
def test_the_blocks_of_a_page_run(shell: Callable[[str], "subprocess.CompletedProcess[str]"], page: str) -> None:
    """One after the other, in one shell."""
    reader = READERS[page]
    blocks = [block for block in shell_blocks(page) if is_run(block)]
    if find_spec("helm_python") is None:
        blocks = [block for block in blocks if "helm " not in block.text]
    parts = [f"\necho; echo '@@@ {block}'\n{typed(block, reader)}" for block in blocks]
    done = shell(f"{reader.has_done}{''.join(parts)}")
    assert done.returncode == 0, done.stdout
    said = dict(part.split("\n", 1) for part in done.stdout.split("\n@@@ ")[1:])
    for block in blocks:
        lacking = set(begins(block.shown)) - set(begins(said[str(block)]))
        assert not lacking, f"{block} shows {lacking}:\n{said[str(block)]}"
    assert shell(CLEAN).returncode == 0
