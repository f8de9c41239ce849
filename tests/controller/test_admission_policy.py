"""The operator under an admission policy, against local mode's API server: what is not allowed is told and not made,
and what serves goes on."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crd.author_cases import POLICY

from fairlead.api.admission_policy import AdmissionPolicy
from fairlead.api.schema import decode
from fairlead.kube.resources import CONFIGMAPS, DEPLOYMENTS, SERVICES
from fairlead_testing.operators import (
    READY,
    SCHEDULED,
    SETTINGS,
    Fleet,
    bare_api_server,
    condition,
    fleet_at,
    running_operator,
)

GUARDED = replace(SETTINGS, admission_policy=decode(AdmissionPolicy, POLICY))


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Fleet]:
    """An API with the CRD, no controllers and no operator."""
    async with bare_api_server(tmp_path) as kubeconfig, fleet_at(kubeconfig) as fleet:
        yield fleet


HOST: dict[str, Any] = {"template": {"spec": {"hostNetwork": True}}}


async def test_what_is_not_allowed_is_told_by_field_and_setting_and_nothing_is_made(api: Fleet) -> None:
    async with running_operator(api, GUARDED):
        await api.create(**HOST, engine={"image": "busybox"})
        ready = await api.until_reason("NotPermitted")
        assert "spec.template.spec: 'hostNetwork'" in ready["message"]
        assert "spec.engine.image: 'busybox'" in ready["message"] and "admissionPolicy.images" in ready["message"]
        assert (await api.until_reason("NotPermitted", "Degraded"))["status"] == "True"
        for resource in (DEPLOYMENTS, CONFIGMAPS, SERVICES):
            assert await api.names(resource) == []
        await api.edit(template=None, engine=None)
        await api.until_reason("Reconciling")
        assert await api.names(DEPLOYMENTS) == ["dinghy-engine"]


async def test_a_change_that_is_not_allowed_leaves_what_serves(api: Fleet) -> None:
    async with running_operator(api, GUARDED):
        await api.create()
        await api.pod("p", SCHEDULED, READY)
        await api.until_reason("ReplicasReady")
        before = await api.get(DEPLOYMENTS, "dinghy-engine")
        await api.edit(**HOST)
        assert (await api.until_reason("NotPermitted"))["message"].startswith("1 replica still serving")
        assert (await api.get(DEPLOYMENTS, "dinghy-engine"))["spec"] == before["spec"]


async def test_what_was_there_before_the_policy_goes_on_serving(api: Fleet) -> None:
    async with running_operator(api):
        await api.create(**HOST)
        await api.pod("p", SCHEDULED, READY)
        await api.until_reason("ReplicasReady")
        before = await api.get(DEPLOYMENTS, "dinghy-engine")
    async with running_operator(api, GUARDED):
        assert (await api.until_reason("NotPermitted"))["message"].startswith("1 replica still serving")
        assert (await api.get(DEPLOYMENTS, "dinghy-engine"))["spec"] == before["spec"]


async def test_without_a_policy_anything_is_made(api: Fleet) -> None:
    async with running_operator(api):
        await api.create(**HOST, engine={"image": "busybox"})
        await api.until_reason("Reconciling")
        pod = (await api.get(DEPLOYMENTS, "dinghy-engine"))["spec"]["template"]["spec"]
        assert pod["hostNetwork"] is True


async def test_the_autoscaler_leaves_what_is_refused_alone(api: Fleet) -> None:
    async with running_operator(api, GUARDED):
        await api.create(**HOST, autoscaling={"maxReplicas": 3})
        scaling = await api.until_reason("NotPermitted", "ScalingActive")
        assert scaling["message"].startswith("spec.replicas stays as it is: ")
        status = await api.until(lambda status: bool(status.get("conditions")))
        assert condition(status, "Fits")["status"] == "Unknown"
