"""`python -m fairlead_engine_testing.attack --minutes 60`: attacks an engine, waits for silence, looks at its books.

Lives of an engine, each with settings drawn anew: blocks of one to four tokens, a cache that holds little more than one
sequence, budgets of one. In each come bursts of hostile requests and silences between them, after which every block is
free, nobody waits, no check has failed, and nothing has grown. Exit status 1: something was wrong.
"""

import argparse
import asyncio
import base64
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from fairlead_common.workers.limits import cpu_seconds
from fairlead_engine.demo import resolve_model
from fairlead_engine.model.loading import read_config
from fairlead_engine_testing import hostile_authors
from fairlead_engine_testing.adapters import write_random_adapter
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.hostile_authors import hostile_author
from fairlead_engine_testing.hostile_images import hostile_images
from fairlead_engine_testing.hostile_models import hostile_model
from fairlead_engine_testing.hostile_requests import (
    CHAT,
    COMPLETION,
    TOKENIZE,
    Hostile,
    hostile_request,
    requests_for_each_grammar,
)
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_engine_testing.vision_checkpoints import write_vision_model

_LIFE_SECONDS = 180.0
_BURST_SECONDS = 12.0
_SILENCE_SECONDS = 60.0
"""After which a silent engine must be idle."""
_ANSWER_SECONDS = 120.0
_NUM_ATTACKERS = 16
_MODELS_PER_LIFE = 3
"""That are none, and loaded after it; and as many that mean harm."""
_NUM_QUESTIONS = 12
"""To each that means harm, at once."""
_PROBE_SECONDS = 10.0
"""In which an engine answers a probe, whatever its model is at."""
_MOST_TOLD = 2000
"""Characters of a problem; bodies may have megabytes."""
_MOST_GROWTH_BY_HARM = 200 * 2**20
_MOST_GROWTH = 64 * 2**20
"""Bytes by which a process may be larger at the end of a life than after its first half,"""
_MOST_GROWTH_OF_CORE = 192 * 2**20
"""and the core, which compiles large grammars anew when others have taken their place: that alone is 100 MiB up and
down."""
_FINE = frozenset({200, 400, 404, 413, 422, 429, 503})
_WRONG_LINES = re.compile(r"Traceback|level=(error|critical)|Task exception|never awaited|Segmentation")
_FAMILIES = ("llama", "llama", "qwen3_5", "granite_hybrid", "falcon_h1", "nemotron_h", "lfm2_moe", "lfm3")
"""Of the engines that are attacked: most keep a state of each sequence beside its blocks, or in place of them."""
_NAMES = ("a", "b", "c")
_SPOILT = ("truncated", "wrong-shape", "nan", "deep", "empty", "pipe")


@dataclass
class Report:
    """What was sent, and what was wrong."""

    statuses: Counter[int] = field(default_factory=Counter)
    num_left: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        sent = ", ".join(f"{status} {number}" for status, number in sorted(self.statuses.items()))
        return "\n".join([f"answers: {sent}; left early: {self.num_left}", *self.problems[:50]])


class Engine:
    """`fairlead-engine serve` as a process, with what it holds."""

    def __init__(self, folder: Path, flags: list[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        self.log, self.last_words = folder / "engine.log", folder / "last-words"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "FAIRLEAD_TERMINATION_LOG": str(self.last_words)}
        command = [sys.executable, "-m", "fairlead_engine", "serve", "--port", str(port), *flags]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)

    def wait_ready(self) -> None:
        """Raises RuntimeError where it ends instead, stands still for a minute, or works for five without an end."""
        worked, worked_at = 0.0, time.monotonic()
        while self.process.poll() is None and worked < 300 and time.monotonic() < worked_at + 60:
            try:
                if httpx.get(self.url + "/ready", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            with suppress(OSError):  # one of them ends
                if (seconds := sum(map(cpu_seconds, self.pids()))) > worked:
                    worked, worked_at = seconds, time.monotonic()
            time.sleep(0.1)
        raise RuntimeError(f"the engine did not get ready:\n{self.log.read_text()[-3000:]}")

    def metrics(self) -> dict[str, float]:
        """By name, the sums of all samples."""
        found: dict[str, float] = {}
        for line in httpx.get(self.url + "/metrics", timeout=30).text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.split("{")[0].split(" ")[0], line.rsplit(" ", 1)[1]
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def pids(self) -> list[int]:
        """Of all its processes, the first one first."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [self.process.pid, *map(int, children)]

    def sizes(self) -> list[tuple[int, int, int]]:
        """Of each process its resident bytes, open files and threads."""
        found = []
        for pid in self.pids():
            status = Path(f"/proc/{pid}/status").read_text()
            kilobytes, threads = (re.search(rf"{name}:\s+(\d+)", status) for name in ("VmRSS", "Threads"))
            assert kilobytes and threads
            num_files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
            found.append((int(kilobytes[1]) * 1024, num_files, int(threads[1])))
        return found

    def close(self) -> None:
        """Ends it, whatever it is at."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Attack:
    """A life of one engine after the other, for some time."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], object] = print) -> None:
        self._folder = folder
        self._draw = random.Random(seed)
        self._say = say
        self._model = write_spoken_model(folder / "tiny", FAMILIES["llama"])
        self._sees = folder / "sees"
        self.report = Report()

    def play(self, seconds: float) -> Report:
        """Lives until the time is over."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 5.0 and len(self.report.problems) < 50:
            self._live(min(left, _LIFE_SECONDS))
            for _ in range(_MODELS_PER_LIFE if left > _LIFE_SECONDS else 1):
                self._load_hostile_model()
                self._serve_hostile_author()
            self._serve_hostile_images()
        return self.report

    def _live(self, seconds: float) -> None:
        family = self._draw.choice(_FAMILIES)
        flags = self._flags(self._folder / family, FAMILIES[family])
        self._say(f"a life of {family} " + " ".join(flags[4:]))
        engine = Engine(self._folder, flags)
        try:
            engine.wait_ready()
            first_pids, free = engine.pids(), engine.metrics()["fairlead_engine_kv_blocks_free"]
            asyncio.run(self._fill_caches(engine.url))
            begun, end = time.monotonic(), time.monotonic() + seconds
            half: list[tuple[int, int, int]] = []
            while time.monotonic() < end and engine.process.poll() is None:
                asyncio.run(self._burst(engine.url, min(_BURST_SECONDS, max(1.0, end - time.monotonic()))))
                if not self._is_silent(engine, free):
                    return
                if not half and time.monotonic() > begun + seconds / 2:
                    half = engine.sizes()
            self._judge(engine, first_pids, half)
        except (httpx.HTTPError, RuntimeError, OSError) as error:
            self._problem(engine, f"the engine is not there any more: {error!r}")
        finally:
            engine.close()

    def _load_hostile_model(self) -> None:
        """Which is served or refused with a reason, in good time."""
        target = self._folder / "hostile"
        shutil.rmtree(target, ignore_errors=True)
        what = hostile_model(self._draw, self._model, target)
        engine = Engine(self._folder, ["--model", str(target), "--kv-cache-memory", "4Mi", "--max-model-len", "100"])
        try:
            engine.wait_ready()
        except RuntimeError as error:
            status = engine.process.poll()
            last_words = engine.last_words.read_text() if engine.last_words.exists() else ""
            if status not in (1, 2) or '"reason"' not in last_words or "Traceback" in last_words:
                self._problem(engine, f"a model was not refused as it should ({what}), status {status}: {error}")
        finally:
            engine.close()
            engine.last_words.unlink(missing_ok=True)

    def _serve_hostile_author(self) -> None:
        """Its model may be refused when it is loaded; what is asked of it later stops neither server nor end."""
        target = self._folder / "harmful"
        shutil.rmtree(target, ignore_errors=True)
        what = hostile_author(self._draw, self._model, target)
        text = {"prompt": "a" * 40, "max_tokens": 3}
        self._serve_harm(target, what, [(CHAT, hostile_authors.CHAT), (COMPLETION, text), (TOKENIZE, text)])

    def _serve_hostile_images(self) -> None:
        """A model that sees images is shown such as nobody should unpack."""
        if not self._sees.exists():
            write_vision_model(self._sees)
        images = hostile_images()
        names = self._draw.sample(sorted(images), 4)
        self._serve_harm(self._sees, ", ".join(names), [(CHAT, _showing(images[name])) for name in names])

    def _serve_harm(self, model: Path, what: str, bodies: list[tuple[str, dict[str, Any]]]) -> None:
        """Probes are answered meanwhile, nothing grows by much, and SIGTERM ends it."""
        self._say(f"  serving {what[:150]}")
        flags = ["--model", str(model), "--served-name", "tiny", "--kv-cache-memory", "4Mi", "--max-model-len", "100"]
        engine = Engine(self._folder, flags)
        try:
            engine.wait_ready()
            first = dict(zip(engine.pids(), engine.sizes(), strict=False))
            asyncio.run(self._ask_for_harm(engine, what, bodies))
            for pid, (size, *_) in zip(engine.pids(), engine.sizes(), strict=False):
                if pid in first and size > first[pid][0] + _MOST_GROWTH_BY_HARM:
                    self._problem(engine, f"a process grew from {first[pid][0]} to {size} bytes ({what})")
            engine.process.terminate()
            engine.process.wait(20)
        except subprocess.TimeoutExpired:
            self._problem(engine, f"SIGTERM did not end an engine ({what})")
        except (RuntimeError, OSError, httpx.HTTPError) as error:
            if engine.process.poll() not in (1, 2) or not engine.last_words.exists():
                self._problem(engine, f"a harmful model ended its engine ({what}): {error!r}")
        finally:
            engine.close()
            engine.last_words.unlink(missing_ok=True)

    async def _ask_for_harm(self, engine: Engine, what: str, bodies: list[tuple[str, dict[str, Any]]]) -> None:
        """All of these at once, some by clients who leave."""
        async with httpx.AsyncClient(base_url=engine.url, timeout=_ANSWER_SECONDS) as client:
            questions = [
                Hostile(path, json.dumps({"model": "tiny", **body}).encode(), self._draw.choice([None, 0.1]))
                for path, body in bodies * (_NUM_QUESTIONS // len(bodies))
            ]
            asking = [asyncio.create_task(self._send(client, each)) for each in questions]
            while not all(each.done() for each in asking):
                try:
                    (await client.get("/health", timeout=_PROBE_SECONDS)).raise_for_status()
                except httpx.TimeoutException:
                    self._problem(engine, f"no probe was answered within {_PROBE_SECONDS} s ({what})")
                await asyncio.sleep(0.1)
            await asyncio.gather(*asking)

    def _flags(self, folder: Path, family: Callable[..., dict[str, Any]]) -> list[str]:
        """For a model of `family` in the folder, which is written where it is not there yet."""
        draw, model, adapters = self._draw, folder / "model", folder / "adapters"
        if not folder.exists():
            _write_adapters(adapters, write_spoken_model(model, family))
        config = read_config(model)
        token_bytes = 2 * 4 * sum(num_heads * size for num_heads, size in config.stored_kv())
        block_size, max_model_len = draw.randint(1, 4), draw.choice([60, 150, 300])
        num_seqs = draw.choice([1, 2, 5, 12])
        budget = num_seqs + draw.choice([0, 0, 1, 7, 40])
        num_blocks = -(-max_model_len // block_size) + draw.choice([0, 1, 5, 40])
        memory = num_blocks * block_size * token_bytes
        memory += (num_seqs + 1 + draw.choice([0, 1, 3, 20])) * config.state_bytes(4, 1)  # with snapshots, or none
        flags = ["--model", str(model), "--served-name", "tiny", "--dtype", "float32"]
        flags += ["--block-size", str(block_size), "--max-model-len", str(max_model_len)]
        flags += ["--max-num-seqs", str(num_seqs), "--max-num-batched-tokens", str(budget)]
        flags += ["--kv-cache-memory", str(memory), "--tool-call-parser", "hermes"]
        flags += ["--max-loras", str(draw.randint(1, 2)), "--max-cpu-loras", str(draw.randint(2, 3))]
        flags += ["--adapter-folder", str(adapters), "--max-lora-rank", "8"]
        flags += ["--api-servers", str(draw.choice([1, 1, 2])), "--max-queue-time", str(draw.choice([1, 60]))]
        if draw.random() < 0.5:
            flags += ["--speculative-method", "ngram", "--num-speculative-tokens", str(draw.randint(1, 5))]
        elif draw.random() < 0.5:
            flags += ["--async-scheduling"]
        return flags

    async def _fill_caches(self, url: str) -> None:
        """So that what is kept on purpose is no growth."""
        async with httpx.AsyncClient(base_url=url, timeout=_ANSWER_SECONDS) as client:
            for each in requests_for_each_grammar("tiny"):
                await self._send(client, each)

    async def _burst(self, url: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=_ANSWER_SECONDS, limits=limits) as client:
            await asyncio.gather(*(self._attack(client, end) for _ in range(_NUM_ATTACKERS)))

    async def _attack(self, client: httpx.AsyncClient, end: float) -> None:
        while time.monotonic() < end:
            await self._send(client, hostile_request(self._draw, "tiny", [*_NAMES, *_SPOILT]))

    async def _send(self, client: httpx.AsyncClient, hostile: Hostile) -> None:
        headers = {"content-type": "application/json"}
        try:
            async with asyncio.timeout(hostile.leaves_after):
                reply = await client.post(hostile.path, content=hostile.body, headers=headers)
        except TimeoutError:
            self.report.num_left += 1
            return
        except httpx.HTTPError as error:
            self.report.problems.append(f"no answer ({error!r}): {hostile}")
            return
        self.report.statuses[reply.status_code] += 1
        if reply.status_code not in _FINE:
            self.report.problems.append(f"{reply.status_code} {reply.text[:500]}: {hostile}")
        elif reply.status_code == 200 and b'"type":"server_error"' in reply.content:
            self.report.problems.append(f"a stream broke, {reply.text[-500:]}: {hostile}")

    def _is_silent(self, engine: Engine, free: float) -> bool:
        """Waits until nothing runs any more and every block is free."""
        deadline = time.monotonic() + _SILENCE_SECONDS
        names = ("fairlead_engine_num_requests_waiting", "fairlead_engine_num_requests_running")
        while True:
            metrics = engine.metrics()
            found = (*(metrics[name] for name in names), metrics["fairlead_engine_kv_blocks_free"])
            if found == (0.0, 0.0, free):
                break
            if time.monotonic() > deadline:
                self._problem(engine, f"not idle in silence: waiting, running, free are {found}, of {free} blocks")
                return False
            time.sleep(0.2)
        time.sleep(0.5)  # the idle engine looks at its books
        if metrics["fairlead_engine_failed_checks_total"] != 0.0:
            self._problem(engine, "the books were wrong")
        return True

    def _judge(self, engine: Engine, first_pids: list[int], half: list[tuple[int, int, int]]) -> None:
        """What is left of a life."""
        body = {"model": "tiny", "prompt": "the fox", "max_tokens": 3}
        reply = httpx.post(engine.url + "/v1/completions", json=body, timeout=30)
        if reply.status_code != 200:
            self._problem(engine, f"no answer in the end: {reply.status_code} {reply.text}")
        if engine.pids() != first_pids:
            self._problem(engine, "a process was replaced")
        sizes = engine.sizes()
        self._say(f"  MiB, files and threads: {[(size[0] >> 20, *size[1:]) for size in sizes]}; {self.report}"[:400])
        most = [_MOST_GROWTH_OF_CORE if _is_core(pid) else _MOST_GROWTH for pid in first_pids]
        for then, now, growth in zip(half, sizes, most, strict=False):
            if now[0] - then[0] > growth or now[1] > then[1] + 4 or now[2] > then[2] + 2:
                self._problem(engine, f"a process has grown: {half} → {sizes} (bytes, files, threads)")
                break
        for line in engine.log.read_text(errors="replace").splitlines():
            if _WRONG_LINES.search(line) and "can be read no more" not in line:
                self._problem(engine, f"in the log: {line[:1000]}")

    def _problem(self, engine: Engine, text: str) -> None:
        kept = self._folder / f"problem-{len(self.report.problems)}.log"
        shutil.copyfile(engine.log, kept)
        self.report.problems.append(f"{text[:_MOST_TOLD]} (log: {kept})")
        self._say("  " + self.report.problems[-1])


def _showing(image: bytes) -> dict[str, Any]:
    url = f"data:image/any;base64,{base64.b64encode(image).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "a"}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 2}


def _is_core(pid: int) -> bool:
    return b"fairlead_engine.core" in Path(f"/proc/{pid}/cmdline").read_bytes()


def write_spoken_model(folder: Path, family: Callable[..., dict[str, Any]]) -> Path:
    """Random weights of a tiny model of `family` (`FAMILIES`) below the dinghy's tokenizer and template."""
    dinghy = resolve_model("demo://dinghy")
    config = json.loads((dinghy / "config.json").read_text())
    fields = {name: config[name] for name in ("vocab_size", "eos_token_id")}
    write_random_checkpoint(folder, family(**fields, max_position_embeddings=512))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(dinghy / name, folder / name)
    return folder


def _write_adapters(folder: Path, model: Path) -> Path:
    """Sound ones, and some that must be refused."""
    for number, name in enumerate([*_NAMES, *_SPOILT]):
        write_random_adapter(folder / name, model, seed=number, rank=4)
    weights = folder / "truncated" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (folder / "empty" / "adapter_model.safetensors").write_bytes(b"")
    (folder / "deep" / "adapter_config.json").write_text('{"r":' + "[" * 100_000)
    config = folder / "wrong-shape" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "r": 7}))
    config = folder / "nan" / "adapter_config.json"
    config.write_text(config.read_text().replace('"lora_alpha": 16', '"lora_alpha": NaN'))
    config = folder / "pipe" / "adapter_config.json"
    config.unlink()
    os.mkfifo(config)
    return folder


def main() -> int:
    """0 when nothing was wrong."""
    parser = argparse.ArgumentParser(prog="python -m fairlead_engine_testing.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of everything drawn (default: the time)")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fairlead-attack-") as folder:
        report = Attack(Path(folder), args.seed, lambda line: print(line, flush=True)).play(args.minutes * 60)
        print(report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
