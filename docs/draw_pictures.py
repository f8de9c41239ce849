"""Draws the pictures of the docs: the demo's plot, and the gateway's page in front of a fleet under load.

`make pictures` calls it after `make demo`; it needs Chromium (apt-get install chromium), and takes three minutes more.
`--page` draws the page alone.
"""

import asyncio
import shutil
import sys
from pathlib import Path

import yaml
from picture_labels import ROOT, label
from playwright.async_api import async_playwright

from fairlead.client.load_generator import LoadGenerator
from fairlead.client.openai import OpenAIClient
from fairlead.client.workload import ArrivalPhase, WorkloadKind, WorkloadShape, arrival_times, conversations
from fairlead.kube.client import KubeClient
from fairlead.kube.kubeconfig import load
from fairlead.kube.resources import LLMDEPLOYMENTS
from fairlead_local.detaching import OwnedFleet, temporary_fleet

PICTURES = ROOT / "docs" / "pictures"
EXAMPLE = ROOT / "examples" / "02-autoscaling.yaml"
QUIET = ArrivalPhase(0.5, 30.0)
NUM_CLIENTS = 14
"""Who ask one request after the other between two quiet times: too many for one replica, on machines of any speed."""
SHAPE = WorkloadShape(prefix_tokens=200, output_tokens=32, ignore_eos=True)
QUESTION = "What is 7 plus 5?"
PAGE_SIZE = {"width": 1200, "height": 1500}


async def draw(fleet: OwnedFleet) -> None:
    """Applies the example, asks it for minutes, and takes the page's picture."""
    manifest = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    name = manifest["metadata"]["name"]
    manifest["metadata"]["namespace"] = "default"
    async with KubeClient(load(fleet.kubeconfig)) as kube:
        await kube.apply(LLMDEPLOYMENTS, manifest, "pictures")
    async with OpenAIClient(f"{fleet.gateway}/v1") as client:
        while name not in await client.models():
            await asyncio.sleep(0.5)
        print("a load of minutes is under way", file=sys.stderr, flush=True)
        talks = conversations(WorkloadKind.SHARED_PREFIX, SHAPE, seed=1)
        for quiet in (QUIET, None, QUIET):
            asking = LoadGenerator(client, name)
            if quiet is None:
                await asking.closed_loop(talks, concurrency=NUM_CLIENTS, seconds=40.0)
            else:
                await asking.open_loop(talks, arrival_times((quiet,), seed=1))
    await take(fleet.gateway, PICTURES / "page.png")


async def take(gateway: str, path: Path) -> None:
    """A chat's answer, the last hour, and where the answer's request went."""
    async with async_playwright() as started:
        browser = await started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = await (await browser.new_context(viewport=PAGE_SIZE, reduced_motion="reduce")).new_page()
        page.set_default_timeout(120_000)  # what is left of the load is answered first
        await page.goto(f"{gateway}/")
        await page.get_by_label("Message", exact=True).fill(QUESTION)
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Why there?").click()
        await page.locator("#request dl").wait_for()
        await page.locator(".state.ready").wait_for()
        await page.locator("#replicas tr").first.wait_for()
        await page.evaluate("window.scrollTo(0, 0)")
        await page.screenshot(path=path)
        await browser.close()


def main() -> None:
    """Raises SystemExit where Chromium or the demo's plot is missing."""
    if shutil.which("chromium") is None:
        raise SystemExit("chromium is not installed: apt-get install chromium")
    if "--page" not in sys.argv[1:]:
        demo = ROOT / "bench-out" / "demo.png"
        if not demo.exists():
            raise SystemExit("bench-out/demo.png is missing: make demo")
        shutil.copy(demo, PICTURES / "demo.png")
        label(PICTURES / "demo.png")
    with temporary_fleet("fairlead-pictures-", write=lambda _: None) as fleet:
        asyncio.run(draw(fleet))
    label(PICTURES / "page.png")


if __name__ == "__main__":
    main()
