"""`fairlead local up | down | status | logs`: arguments in, words and exit status out."""

import argparse
import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from fairlead.api.conditions import ConditionType, find_condition, wrong_condition
from fairlead.api.names import GATEWAY_NAME, LABEL_NAME, OPERATOR_NAME, PLURAL, SYSTEM_NAMESPACE
from fairlead.cli.options import completed, tell
from fairlead.kube.client import KubeClient
from fairlead.kube.kubeconfig import load
from fairlead.kube.resources import DEPLOYMENTS
from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.times import conditions_of
from fairlead_local.applying import ApiReader, FileManifest, apply_manifest, read_manifests
from fairlead_local.detaching import start_detached
from fairlead_local.fleet_state import (
    FleetError,
    FleetFolder,
    FleetPhase,
    FleetState,
    default_folder,
    read_state,
    running_fleet,
)
from fairlead_local.kubelet.process_table import ProcessRecords, stop

DEFAULT_API_PORT = 7443
DEFAULT_GATEWAY_PORT = 8080
_SUPERVISOR_GRACE_SECONDS = 20.0
_LEFTOVER_GRACE_SECONDS = 3.0
_SYSTEM_PROGRAMS = {"operator": OPERATOR_NAME, "gateway": GATEWAY_NAME}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fairlead local`."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    up = verbs.add_parser("up", help="start a fleet: a Kubernetes API, the operator, the gateway")
    applied = "apply this file; also to a fleet that is running"
    up.add_argument("-f", "--file", action="append", default=[], type=Path, metavar="FILE", help=applied)
    up.add_argument("--api-port", type=_port, metavar="N", help=f"default: {DEFAULT_API_PORT}")
    up.add_argument("--gateway-port", type=_port, metavar="N", help=f"default: {DEFAULT_GATEWAY_PORT}")
    up.add_argument("--gateways", type=_positive, metavar="N", help="gateways behind that port (default: 1)")
    runs = "what containers of an image that is not ours run on this machine, such as vllm/vllm-openai=vllm"
    up.add_argument("--stand-in", action="append", default=[], type=_stand_in, metavar="IMAGE=COMMAND", help=runs)
    up.add_argument("--detach", action="store_true", help="return once the fleet is ready, and leave it running")
    up.add_argument("--detached", type=int, metavar="LOCK", help=argparse.SUPPRESS)
    down = verbs.add_parser("down", help="stop the fleet and everything it started; its objects are kept")
    status = verbs.add_parser("status", help="say what runs")
    status.add_argument("-o", "--output", choices=("json",), help="json: for programs")
    logs = verbs.add_parser("logs", help="show what a pod, the operator or the gateway wrote")
    target = logs.add_argument("target", nargs="?", metavar="POD|operator|gateway", help="default: the fleet's own log")
    completed(target, _targets)
    logs.add_argument("-f", "--follow", action="store_true", help="go on until it ends")
    for verb in (up, down, status, logs):
        text = "the fleet's folder (default: $FAIRLEAD_DATA_DIR, else ~/.fairlead/local)"
        verb.add_argument("--data-dir", type=Path, metavar="DIR", help=text)


def run(args: argparse.Namespace) -> int:
    """0 when done as asked, 1 on failure or when nothing runs."""
    folder = FleetFolder(args.data_dir.expanduser().absolute() if args.data_dir else default_folder())
    try:
        match args.verb:
            case "up":
                return _up(folder, args)
            case "down":
                return _down(folder)
            case "status":
                return _status(folder, args.output)
            case _:
                return _logs(folder, args.target, follow=args.follow)
    except FleetError as error:
        tell(error)
        return 1


def _up(folder: FleetFolder, args: argparse.Namespace) -> int:
    manifests, running = read_manifests(args.file), running_fleet(folder)
    if manifests and running is not None and running.phase is FleetPhase.READY:
        return asyncio.run(_apply_to_running(folder, running, manifests, args))
    args.api_port = DEFAULT_API_PORT if args.api_port is None else args.api_port
    args.gateway_port = DEFAULT_GATEWAY_PORT if args.gateway_port is None else args.gateway_port
    args.gateways = args.gateways or 1
    if args.detach:
        arguments = [
            f"--api-port={args.api_port}",
            f"--gateway-port={args.gateway_port}",
            f"--gateways={args.gateways}",
        ]
        arguments += [f"--file={file.absolute()}" for file in args.file]
        arguments += [f"--stand-in={text}" for text in args.stand_in]
        status = start_detached(folder, arguments, lambda text: _say(text, end=""))
        if status == 0 and (state := read_state(folder)) is not None:
            _say_next(folder, state)
        return status
    from fairlead_local.kubelet.environment import stand_in
    from fairlead_local.supervisor import FleetOptions, run_fleet  # the API server, which other verbs need not load

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    options = FleetOptions(
        folder=folder,
        api_port=args.api_port,
        gateway_port=args.gateway_port,
        num_gateways=args.gateways,
        stand_ins=dict(stand_in(text) for text in args.stand_in),
        manifests=tuple(manifests),
        lifeline=None if args.detached is None else sys.stdin.fileno(),
        lock=args.detached,
    )
    started = time.monotonic()

    def announce(fleet: FleetState) -> None:
        _say(f"ready after {time.monotonic() - started:.1f} s")
        if args.detached is None:  # else whoever has started this says what comes next
            _say_next(folder, fleet, ", or Ctrl-C here")

    asyncio.run(run_fleet(options, _say, announce))
    return 0


def _say_next(folder: FleetFolder, fleet: FleetState, or_here: str = "") -> None:
    _say(f"""
The gateway is at {fleet.gateway}, for a browser too. In a terminal:

  export KUBECONFIG={folder.kubeconfig}
  kubectl apply -f examples/01-dinghy.yaml
  kubectl get llm --watch
  curl {fleet.gateway}/v1/models

Stop it with `{folder.command("down")}`{or_here}.""")


async def _apply_to_running(
    folder: FleetFolder, running: FleetState, manifests: Sequence[FileManifest], args: argparse.Namespace
) -> int:
    """`up -f` with a running fleet applies the files. Raises FleetError for arguments of another fleet."""
    async with KubeClient(load(folder.kubeconfig)) as client:
        gateways = (await client.get(DEPLOYMENTS, GATEWAY_NAME, SYSTEM_NAMESPACE))["spec"]["replicas"]
        has = {
            "--api-port": urlsplit(running.api).port,
            "--gateway-port": urlsplit(running.gateway).port,
            "--gateways": gateways,
        }
        wanted = {"--api-port": args.api_port, "--gateway-port": args.gateway_port, "--gateways": args.gateways}
        for flag, value in wanted.items():
            if value not in (None, has[flag]) and (value or flag == "--gateways"):  # port 0 = any
                text = f"{flag} {value}: the fleet that is running in {folder.path} has {has[flag]}"
                raise FleetError(f"{text}: leave {flag} out, or stop it first with `{folder.command('down')}`")
        for manifest in manifests:
            await apply_manifest(client, manifest)
            _say(f"applied {manifest.readable} to the running fleet")
    return 0


def _down(folder: FleetFolder) -> int:
    """Stops the supervisor, which stops the rest in order; then leftovers."""
    state = running_fleet(folder)
    if state:
        stop([state.supervisor], _SUPERVISOR_GRACE_SECONDS)
    leftovers = ProcessRecords(folder.records).stop_all(_LEFTOVER_GRACE_SECONDS) if folder.records.is_dir() else 0
    folder.description.unlink(missing_ok=True)
    if leftovers:
        _say(f"stopped {leftovers} processes that had lost their fleet")
    _say(f"stopped the fleet in {folder.path}" if state or leftovers else f"no fleet is running in {folder.path}")
    return 0


def _status(folder: FleetFolder, output: str | None) -> int:
    found = _described(folder)
    if output == "json":
        _say(json.dumps(found, indent=1))
    elif found["running"]:
        _say_status(found)
    else:
        failure = f"; the last one failed: {found['message']}" if found["message"] else ""
        _say(f"no fleet is running in {folder.path}{failure}")
    return 0 if found["running"] else 1


def _described(folder: FleetFolder) -> Json:
    """The running fleet as JSON: models with conditions, and pods."""
    state, last = running_fleet(folder), read_state(folder)
    found: Json = {"folder": str(folder.path), "running": state is not None, "message": last.message if last else ""}
    if state is None:
        return found
    found |= {"phase": str(state.phase), "pid": state.pid, "api": state.api, "gateway": state.gateway}
    found |= {"kubeconfig": str(folder.kubeconfig), "models": [], "pods": []}
    if state.api:
        from fairlead_local.apiserver.replies import pod_reason

        reader = ApiReader(folder.kubeconfig)
        for obj in reader.objects(f"/apis/fairlead.dev/v1alpha1/{PLURAL}"):
            found["models"].append({"name": _full_name(obj), "conditions": conditions_of(obj)})
        for pod in reader.objects("/api/v1/pods"):
            address = (pod.get("status") or {}).get("podIP", "")
            found["pods"].append({"name": _full_name(pod), "reason": pod_reason(pod), "address": address})
    return found


def _say_status(found: Json) -> None:
    _say(f"fleet in {found['folder']}: {found['phase']} (process {found['pid']})")
    if found["api"]:
        _say(f"  API         {found['api']}  (export KUBECONFIG={found['kubeconfig']})")
        _say(f"  gateway     {found['gateway']}")
    for model in found["models"]:
        ready = find_condition(model, ConditionType.READY) or {"status": "Unknown"}
        why = wrong_condition(model) if ready["status"] == "True" else ready if "reason" in ready else {}
        sentence = f"  {why['reason']}: {why.get('message', '')}" if why else ""
        _say(f"  model       {model['name']}  Ready={ready['status']}{sentence}")
    for pod in found["pods"]:
        _say(f"  pod         {pod['name']}  {pod['reason']}  {pod['address']}")


def _logs(folder: FleetFolder, target: str | None, *, follow: bool) -> int:
    if target is None:
        return _own_log(folder, follow=follow)
    if running_fleet(folder) is None:
        raise FleetError(f"no fleet is running in {folder.path}, and logs of pods go with it")
    reader = ApiReader(folder.kubeconfig)
    metadata = _find_pod(reader, target)["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
    _write(reader.text(path, **({"follow": "true"} if follow else {})))
    return 0


def _targets(args: argparse.Namespace) -> Iterable[str]:
    """Of what there are logs."""
    folder = FleetFolder(args.data_dir.expanduser().absolute() if args.data_dir else default_folder())
    pods = ApiReader(folder.kubeconfig).objects("/api/v1/pods")
    return (*_SYSTEM_PROGRAMS, *(pod["metadata"]["name"] for pod in pods))


def _find_pod(reader: ApiReader, target: str) -> Json:
    """By name, by unique beginning of a name, or `operator` and `gateway`."""
    if program := _SYSTEM_PROGRAMS.get(target):
        pods = reader.objects(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods", labelSelector=f"{LABEL_NAME}={program}")
    else:
        every = reader.objects("/api/v1/pods")
        pods = [pod for pod in every if pod["metadata"]["name"] == target]
        pods = pods or [pod for pod in every if pod["metadata"]["name"].startswith(target)]
    if len(pods) == 1 or (pods and target in _SYSTEM_PROGRAMS):
        return pods[-1]
    names = ", ".join(_full_name(pod) for pod in pods)
    raise FleetError(f"{target!r} may be any of {names}" if pods else f"there is no pod {target!r}")


def _own_log(folder: FleetFolder, *, follow: bool) -> int:
    """The output of a detached supervisor, from the file."""
    if not folder.log.exists():
        if running_fleet(folder) is None:
            raise FleetError(f"no fleet is running in {folder.path}, and none has left a log there")
        raise FleetError(f"there is no {folder.log}: the fleet wrote to the terminal it was started in")
    with folder.log.open("rb") as log:
        while True:
            running = follow and running_fleet(folder) is not None
            _write(iter(lambda: log.read(65_536), b""))
            if not running:
                return 0
            time.sleep(0.2)


def _full_name(obj: Json) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a number up to 65535, 0 for any free one")
    return int(text)


def _stand_in(text: str) -> str:
    from fairlead_local.kubelet.environment import stand_in

    try:
        stand_in(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _positive(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 16")
    return int(text)


def _say(line: str, end: str = "\n") -> None:
    """To the terminal. A fleet does not end when readers have read enough (`| head`)."""
    try:
        print(line, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(chunks: Iterable[bytes]) -> None:
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
