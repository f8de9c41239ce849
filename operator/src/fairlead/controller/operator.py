"""The operator process, `fairlead operator`: everything is wired here, and runs only while the Lease is ours.

kopf watches and fills the indexes; our queue and reconciler do the work, and the autoscaler ticks beside them. When the
Lease is lost the process ends, so that a second operator can never act at the same time.
"""

import argparse
import asyncio
import logging
import secrets
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import kopf

from fairlead.api import names
from fairlead.controller.adapter_loader import AdapterLoader
from fairlead.controller.applier import Applier
from fairlead.controller.autoscale import Autoscaler
from fairlead.controller.capabilities import Capabilities, MissingRights, check_rights, in_words, is_served, look
from fairlead.controller.device_look import DeviceLook
from fairlead.controller.downloads import DownloadWatch
from fairlead.controller.events import EventRecorder
from fairlead.controller.handlers import build_registry, kopf_settings
from fairlead.controller.observe import Cluster, HangWatch, TokenizerWatch
from fairlead.controller.operator_metrics import OperatorMetrics, serve_health
from fairlead.controller.reconcile import ReconcileOutcome, Reconciler
from fairlead.controller.scaling import SubresourceWriter
from fairlead.controller.worker import Key, WorkQueue
from fairlead.fleet.gateways import GatewayFollower
from fairlead.kube.client import RECURSION_LIMIT, KubeClient, KubeError
from fairlead.kube.kubeconfig import KubeConfigError
from fairlead.kube.lease import PRESENCE_LABELS, Lease, Presence
from fairlead.kube.resources import LLMDEPLOYMENTS
from fairlead.operator_settings import OperatorSettings, SettingsError
from fairlead_common.logs import configure_logging

logger = logging.getLogger(__name__)

T = TypeVar("T")
KOPF_END_SECONDS = 15.0
"""Longest time for kopf to end its watches."""
PAUSE_SECONDS = 2.0
"""Between questions to an API server that is away, or does not serve LLMDeployments."""
LOST_PAUSE_SECONDS = 30.0
"""Between checks for returned namespaces."""


class LeaseLost(Exception):
    """Another operator may be active: this process must not act any more."""


class WatchFailed(Exception):
    """The API server no longer shows what it showed at the start; the message quotes it."""


class _EveryTask(frozenset["asyncio.Task[object]"]):
    """Keeps kopf from cancelling tasks when it ends: kopf takes every task younger than itself for its own."""

    def __contains__(self, task: object) -> bool:
        return True


class Operator:
    """`run()` returns when `stop` is set and raises LeaseLost when another process may have taken over."""

    def __init__(self, client: KubeClient, settings: OperatorSettings) -> None:
        self.client = client
        self.settings = settings
        self.stop = asyncio.Event()
        self._takes_signals = False
        self.metrics = OperatorMetrics()
        self.gateways = GatewayFollower(
            client, namespace=settings.gateway_namespace, selector=settings.gateway_selector
        )
        self.queue = WorkQueue(self._work, num_workers=settings.workers)
        self.hangs = HangWatch(self.gateways.hanging, self.queue.add_all)
        self.tokenizers = TokenizerWatch(self.gateways.tokenizer_problems, self.queue.add_all)
        self.cluster = Cluster(
            client,
            self.gateways.running,
            lambda: self.hangs.since,
            lambda: self.downloads.known,
            lambda: self.tokenizers.known,
        )
        self.downloads = DownloadWatch(self.cluster.pods, self.queue.add_all)
        host = socket.gethostname()
        self.lease = Lease(
            client,
            settings.lease_namespace,
            settings.lease_name,
            f"{host}_{secrets.token_hex(4)}",
            duration_seconds=settings.lease_duration,
            labels=PRESENCE_LABELS,
            annotations=lambda: self._presence.annotations,
        )
        recorder = EventRecorder(client, host)
        self._is_served = partial(is_served, client, LLMDEPLOYMENTS)
        self._look = partial(look, client, settings)
        self.capabilities = Capabilities()
        """Of the API server, as last seen."""
        self._kinds_changed = asyncio.Event()
        self._adapters = AdapterLoader(self.queue.add_after)
        self._reconciler = Reconciler(
            self.cluster,
            Applier(client),
            recorder,
            settings,
            adapters=self._adapters,
            capabilities=lambda: self.capabilities,
            devices=DeviceLook(client),
        )
        self._autoscaler = Autoscaler(
            self.cluster,
            self.gateways,
            SubresourceWriter(client),
            recorder,
            self.metrics,
            settings=settings,
        )
        self.metrics.waiting.set_function(lambda: self.queue.num_waiting)
        self.metrics.watch_fleet(self.cluster)

    @property
    def _presence(self) -> Presence:
        """What this operator looks after now: without the namespaces that it may not watch."""
        watched, lost = self.settings.watch_namespaces, self.capabilities.lost
        return Presence(
            namespaces=None if watched is None else tuple(each for each in watched if each not in lost),
            gateway_namespace=self.settings.gateway_namespace,
            gateway_selector=self.settings.gateway_selector,
        )

    def install_signal_handlers(self) -> None:
        """From now on SIGTERM and SIGINT end the operator, however often they come. kopf replaces the handlers whenever
        it starts."""
        self._takes_signals = True
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop.set)

    async def run(self) -> None:
        """Serves health, waits for the Lease, works until told to stop, and gives the Lease back."""
        async with serve_health(self.metrics, self.settings.host, self.settings.port):
            acquired, _ = await _until_first_ends(self.lease.acquire(), self.stop.wait())
            if isinstance(acquired, asyncio.CancelledError):
                return  # told to stop before we had it
            if isinstance(acquired, Exception):
                raise acquired
            logger.info("acquired the lease %s/%s", self.settings.lease_namespace, self.settings.lease_name)
            self.metrics.leader.set(1)
            try:
                await self._lead()
            finally:
                self.metrics.leader.set(0)
                await self.lease.release()

    async def _lead(self) -> None:
        """Whatever ends first ends the rest."""
        resync_interval = self.settings.resync_interval
        results = await _until_first_ends(
            self.lease.hold(),
            self._watch(),
            self.queue.run(),
            self._autoscaler.run(),
            self.hangs.run(),
            self.tokenizers.run(),
            self.downloads.run(),
            self._look_again(every=resync_interval, at_everything=True),
            self._look_again(every=min(LOST_PAUSE_SECONDS, resync_interval), at_everything=False),
            self.stop.wait(),
        )
        await self._adapters.close()
        if self.lease.lost.is_set():
            raise LeaseLost(f"lost the lease {self.settings.lease_namespace}/{self.settings.lease_name}")
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _watch(self) -> None:
        """Watches once LLMDeployments are served, and begins anew with other kinds or namespaces. Raises MissingRights
        or WatchFailed."""
        while True:
            while not await self._persistently(self._is_served):  # the CRD may be installed after us
                if not self.cluster.is_bound:
                    crd = names.CRD_NAME
                    logger.warning("the API server does not serve %s: waiting until the CRD is installed", crd)
                    self.cluster.bind({})  # there is none
                await asyncio.sleep(PAUSE_SECONDS)
            self._take(await self._persistently(self._look))
            self._kinds_changed.clear()
            namespaces = self.capabilities.namespaces
            if missing := await self._persistently(partial(check_rights, self.client, self.settings, namespaces)):
                logger.error("the operator's ServiceAccount lacks the right to %s", in_words(missing))
            if not await self._watch_kinds(self.capabilities):
                return
            self.queue.add_all(self.cluster.keys())  # whatever has gone meanwhile is noticed
            self.cluster.unbind()

    async def _watch_kinds(self, seen: Capabilities) -> bool:
        """Until there are other kinds or namespaces to watch; False = kopf was told to end. Raises MissingRights and
        WatchFailed."""
        result, _ = await _until_first_ends(self._run_kopf(seen), self._kinds_changed.wait())
        if self._kinds_changed.is_set():
            return True
        if not isinstance(result, Exception):
            return False
        is_there = await self._persistently(self._is_served)
        if is_there and (await self._persistently(self._look)).watched == seen.watched:
            raise WatchFailed(f"watching has failed: {result}") from result
        logger.warning("watching begins anew, because the API server shows other things than before: %s", result)
        return True

    async def _persistently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer, asked for until there is one. Raises KubeError for a refusal."""
        while True:
            try:
                return await ask()
            except KubeError as e:
                if not e.may_pass:
                    raise
                logger.warning("the API server cannot be asked: %s; again in %g s", e, PAUSE_SECONDS)
            await asyncio.sleep(PAUSE_SECONDS)

    def _take(self, seen: Capabilities) -> None:
        """From now on decisions rest on these capabilities; what is new about them is logged."""
        before, self.capabilities = self.capabilities, seen
        for sentence in seen.done_without:
            if sentence not in before.done_without:
                logger.info("%s", sentence)
        if seen.unanswered is not None and before.unanswered is None:
            logger.info("%s", seen.unanswered)
        for namespace in seen.lost.keys() - before.lost.keys():
            logger.warning("%s", seen.lost[namespace])
        for namespace in before.lost.keys() - seen.lost.keys():
            logger.info("the namespace %s can be watched again", namespace)
        if seen.watched != before.watched:
            self._kinds_changed.set()

    async def _run_kopf(self, seen: Capabilities) -> None:
        """kopf: fills the indexes and puts keys into the queue. When cancelled, lets kopf end in its own order."""
        stop = asyncio.Event()
        tasks = await kopf.spawn_tasks(
            registry=build_registry(self.cluster, self.queue, self.client.config, seen.kinds),
            settings=kopf_settings(),
            standalone=True,
            clusterwide=seen.namespaces is None,
            namespaces=seen.namespaces or (),
            stop_flag=stop,
        )
        if self._takes_signals:
            self.install_signal_handlers()
        running = asyncio.create_task(kopf.run_tasks(tasks, ignored=_EveryTask()))
        try:
            # Not `running` itself: where a watch fails for good, kopf may never be done with ending the others.
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for failure in (task.exception() for task in ended if not task.cancelled()):
                if failure is not None:
                    raise failure
        finally:
            stop.set()
            _, unfinished = await asyncio.wait([running], timeout=KOPF_END_SECONDS)
            for task in unfinished:
                logger.warning("kopf has not ended within %g s", KOPF_END_SECONDS)
                task.cancel()

    async def _work(self, key: Key) -> float | None:
        started = time.monotonic()
        with self.metrics.errors.count_exceptions():
            outcome = await self._reconciler.reconcile(key)
        seconds = time.monotonic() - started
        self.metrics.observe(outcome, seconds)
        level = logging.DEBUG if outcome is ReconcileOutcome.UNCHANGED else logging.INFO
        fields = {"llmdeployment": "/".join(key), "outcome": str(outcome), "seconds": round(seconds, 3)}
        logger.log(level, "reconciled", extra=fields)
        return self._reconciler.recheck_after(key, outcome)

    async def _look_again(self, *, every: float, at_everything: bool) -> None:
        """Looks at intervals, without events: at everything, or at whether lost namespaces are back. While watches go
        on, errors only cost a log line."""
        while True:
            await asyncio.sleep(every)
            if at_everything or self.capabilities.lost:
                try:
                    self._take(await self._look())
                except (KubeError, MissingRights) as e:
                    logger.warning("what there is to watch cannot be asked for: %s", e)
            if at_everything:
                self.queue.add_all(self.cluster.keys())


async def _until_first_ends(*parts: Coroutine[Any, Any, Any]) -> list[Any]:
    """Whatever ends first ends the rest; the result or the exception of each."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    return results


EXIT_FAILED, EXIT_USAGE = 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fairlead operator`."""
    parser.add_argument("--settings", type=Path, metavar="FILE", help="YAML file with the operator's settings")
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="default: $KUBECONFIG, the pod's, ~/.kube/config"
    )
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig; default: its current one")
    parser.add_argument(
        "--namespace", action="append", metavar="NAME", help="look after this namespace only; may be repeated"
    )


def run(args: argparse.Namespace) -> int:
    """0 after a signal, 1 when the operator cannot go on, 2 for settings that cannot be used."""
    try:
        settings = OperatorSettings() if args.settings is None else OperatorSettings.from_file(args.settings)
    except SettingsError as e:
        print(f"fairlead operator: {e}", file=sys.stderr)
        return EXIT_USAGE
    if args.namespace:
        settings = replace(settings, watch_namespaces=tuple(args.namespace))
    configure_logging(settings.log_level, settings.log_format)
    sys.setrecursionlimit(RECURSION_LIMIT)  # kopf decodes objects of any depth, and one must not end its watch
    try:
        asyncio.run(_run(settings, args.kubeconfig, args.context))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the loop no longer hears them, and the exit status stays as it is
    except (KubeConfigError, KubeError, LeaseLost, MissingRights, OSError, WatchFailed) as e:
        print(f"fairlead operator: {e}", file=sys.stderr)
        return EXIT_USAGE if isinstance(e, KubeConfigError) else EXIT_FAILED
    return 0


async def _run(settings: OperatorSettings, kubeconfig: Path | None, context: str | None) -> None:
    async with await KubeClient.from_environment(kubeconfig, context) as client:
        operator = Operator(client, settings)
        operator.install_signal_handlers()
        await operator.run()
