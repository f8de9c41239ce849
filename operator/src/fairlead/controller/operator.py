"""The operator process: everything is wired here, and runs only while the Lease is ours.

kopf watches and fills the indexes; our queue and reconciler do the work, and the autoscaler ticks beside them. When the
Lease is lost the process ends, so that a second operator can never act at the same time.
"""

import asyncio
import logging
import secrets
import socket
import time

import kopf

from fairlead.controller.apply import Applier
from fairlead.controller.autoscale import Autoscaler
from fairlead.controller.events import EventRecorder
from fairlead.controller.handlers import build_registry, kopf_settings
from fairlead.controller.health import serve_health
from fairlead.controller.metrics import OperatorMetrics
from fairlead.controller.observe import Cluster
from fairlead.controller.reconcile import ReconcileOutcome, Reconciler, recheck_after
from fairlead.controller.scaling import ScaleWriter
from fairlead.controller.worker import Key, WorkQueue
from fairlead.fleet.gateways import GatewayFollower
from fairlead.kube.client import KubeClient
from fairlead.kube.lease import Lease
from fairlead.settings import OperatorSettings

logger = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Another operator may be active: this process must not act any more."""


class _EveryTask(frozenset["asyncio.Task[object]"]):
    """Tasks that kopf must not cancel when it ends: it takes every task that is younger than itself for its own."""

    def __contains__(self, task: object) -> bool:
        return True


class Operator:
    """`run()` returns when `stop` is set and raises LeaseLost when another process may have taken over."""

    def __init__(self, client: KubeClient, settings: OperatorSettings) -> None:
        self.client = client
        self.settings = settings
        self.stop = asyncio.Event()
        self.metrics = OperatorMetrics()
        self.gateways = GatewayFollower(
            client, namespace=settings.gateway_namespace, selector=settings.gateway_selector
        )
        self.cluster = Cluster(client, self.gateways.running)
        self.queue = WorkQueue(self._work, num_workers=settings.workers)
        host = socket.gethostname()
        self.lease = Lease(
            client,
            settings.lease_namespace,
            settings.lease_name,
            f"{host}_{secrets.token_hex(4)}",
            duration_seconds=settings.lease_duration,
        )
        recorder = EventRecorder(client, host)
        self._reconciler = Reconciler(self.cluster, Applier(client), recorder, settings)
        self._autoscaler = Autoscaler(
            self.cluster,
            self.gateways,
            ScaleWriter(client),
            recorder,
            self.metrics,
            interval=settings.autoscaler_interval,
        )
        self.metrics.watch_queue(lambda: self.queue.num_waiting)

    async def run(self) -> None:
        """Serves health, waits for the Lease, works until told to stop, and gives the Lease back."""
        async with serve_health(self.metrics, self.settings.host, self.settings.port):
            if not await self._acquire():
                return
            logger.info("acquired the lease %s/%s", self.settings.lease_namespace, self.settings.lease_name)
            self.metrics.set_leader(True)
            try:
                await self._lead()
            finally:
                self.metrics.set_leader(False)
                await self.lease.release()

    async def _lead(self) -> None:
        """Whatever ends first ends the rest."""
        parts = [
            asyncio.create_task(part)
            for part in (
                self.lease.hold(),
                self._watch(),
                self.queue.run(),
                self._autoscaler.run(),
                self._resync(),
                self._told_to_stop(),
            )
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            results = await asyncio.gather(*parts, return_exceptions=True)
        if self.lease.lost.is_set():
            raise LeaseLost(f"lost the lease {self.settings.lease_namespace}/{self.settings.lease_name}")
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _watch(self) -> None:
        """kopf: fills the indexes and puts keys into the queue. When cancelled, lets kopf end in its own order."""
        namespaces, stop = self.settings.watch_namespaces, asyncio.Event()
        tasks = await kopf.spawn_tasks(
            registry=build_registry(self.cluster, self.queue, self.client.config),
            settings=kopf_settings(),
            standalone=True,
            clusterwide=namespaces is None,
            namespaces=namespaces or (),
            stop_flag=stop,
        )
        running = asyncio.create_task(kopf.run_tasks(tasks, ignored=_EveryTask()))
        try:
            await asyncio.shield(running)
        finally:
            stop.set()
            await running

    async def _work(self, key: Key) -> float | None:
        started = time.monotonic()
        try:
            outcome = await self._reconciler.reconcile(key)
        except Exception:
            self.metrics.count_error()
            raise
        seconds = time.monotonic() - started
        self.metrics.observe(outcome, seconds)
        level = logging.DEBUG if outcome is ReconcileOutcome.UNCHANGED else logging.INFO
        fields = {"llmdeployment": "/".join(key), "outcome": str(outcome), "seconds": round(seconds, 3)}
        logger.log(level, "reconciled", extra=fields)
        return recheck_after(outcome)

    async def _resync(self) -> None:
        """Looks at everything again from time to time, whether or not an event came."""
        while True:
            await asyncio.sleep(self.settings.resync_interval)
            self.queue.add_all(self.cluster.keys())

    async def _acquire(self) -> bool:
        """True with the Lease, False when we were told to stop before we had it."""
        acquiring, stopped = asyncio.create_task(self.lease.acquire()), asyncio.create_task(self._told_to_stop())
        try:
            await asyncio.wait((acquiring, stopped), return_when=asyncio.FIRST_COMPLETED)
            if acquiring.done():
                await acquiring
                return True
            return False
        finally:
            acquiring.cancel()
            stopped.cancel()

    async def _told_to_stop(self) -> None:
        await self.stop.wait()
