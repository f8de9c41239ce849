"""Scale-down as a whole, with the real plan and the real ReplicaSet's order: in whatever order operator, ReplicaSet and
kubelets act, with an operator that dies half-way or looks at an old picture, nothing goes that need not go.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.controller.desired import desired
from fairlead.controller.observe import Observed
from fairlead.controller.plan import Plan, key_of, make_plan, mark
from fairlead.fleet.pods import is_active, is_marked
from fairlead.kube.client import JsonObject
from fairlead.operator_settings import OperatorSettings
from fairlead_local.controllers import replicasets
from fairlead_testing.fleet_objects import stored as body

SETTINGS = OperatorSettings()
NOW = "2026-06-01T00:00:00Z"
READY = {"type": "Ready", "status": "True", "lastTransitionTime": NOW}


@dataclass
class World:
    """One LLMDeployment with its Deployment and pods, and everybody who acts on them."""

    body: JsonObject
    children: dict[tuple[str, str], JsonObject]
    pods: list[JsonObject] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    """What the operator's process remembers."""
    running: dict[str, int] = field(default_factory=dict)
    hanging: dict[str, str] = field(default_factory=dict)
    num_made: int = 0
    num_deleted: int = 0

    @classmethod
    def at_rest(cls, replicas: int) -> "World":
        made = body(replicas=replicas)
        world = cls(made, {key_of(child): child for child in desired(Observed(body=made), SETTINGS).children})
        world.replica_set()
        world.kubelets()
        world.replica_set()
        return world

    @property
    def engine(self) -> JsonObject:
        return self.children["Deployment", "dinghy-engine"]

    @property
    def active(self) -> list[JsonObject]:
        return [pod for pod in self.pods if is_active(pod)]

    def scale(self, replicas: int) -> None:
        """A person, or an autoscaler."""
        self.body["spec"]["replicas"] = replicas

    def seen(self) -> Observed:
        pods, running, hanging = tuple(self.pods), self.running, self.hanging
        return deepcopy(Observed(body=self.body, children=self.children, pods=pods, running=running, hanging=hanging))

    def operator(self, observed: Observed | None = None, *, steps: int = 3) -> Plan:
        """One reconciliation, which may rest on an old picture and get only so many steps far."""
        observed = observed or self.seen()
        plan = make_plan(desired(observed, SETTINGS), observed, {}, self.asked)
        by_uid = {pod["metadata"]["uid"]: pod for pod in self.pods}
        if steps > 0:
            for victim in plan.drain:
                by_uid[victim.uid]["metadata"]["annotations"] = mark(NOW)
                self.asked.add(victim.uid)
        if steps > 1:
            for child in plan.apply:
                known = self.children.get(key_of(child), child)
                generation, status = (known["metadata"].get("generation") or 1) + 1, known.get("status")
                self.children[key_of(child)] = deepcopy(child)
                self.children[key_of(child)]["metadata"]["generation"] = generation
                self.children[key_of(child)]["status"] = status
        if steps > 2:
            for victim in plan.replace:
                self.delete(by_uid[victim.uid])
        return plan

    def restart_operator(self) -> None:
        self.asked.clear()

    def replica_set(self) -> None:
        """Deployment and ReplicaSet controller: the count first, then the status."""
        missing = self.engine["spec"]["replicas"] - len(self.active)
        for pod in replicasets.victims(self.active, -missing):
            self.delete(pod)
        for _ in range(missing):
            self.num_made += 1
            name = f"p{self.num_made}"
            metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "creationTimestamp": NOW}
            self.pods.append({"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": "Pending"}})
        generation = self.engine["metadata"].get("generation") or 0
        num = len(self.active)
        self.engine["status"] = {"observedGeneration": generation, "replicas": num, "updatedReplicas": num}

    def kubelets(self) -> None:
        """What starts is ready, and what was to go is gone."""
        self.pods = [pod for pod in self.pods if not pod["metadata"].get("deletionTimestamp")]
        for pod in self.pods:
            pod["status"] = {"phase": "Running", "conditions": [READY]}

    def crash(self, number: int) -> None:
        """A container that ends and starts again."""
        if self.pods:
            pod = self.pods[number % len(self.pods)]
            pod["status"] = {"phase": "Running", "conditions": [READY | {"status": "False"}]}

    def delete(self, pod: JsonObject) -> None:
        if not pod["metadata"].get("deletionTimestamp"):
            self.num_deleted += 1
            pod["metadata"]["deletionTimestamp"] = NOW

    def settle(self) -> None:
        for _ in range(4):
            self.operator()
            self.replica_set()
            self.kubelets()


def test_three_to_one_marks_two_lowers_the_count_and_loses_no_other() -> None:
    world = World.at_rest(3)
    world.running = {"uid-p1": 5, "uid-p2": 1, "uid-p3": 2}
    world.scale(1)
    plan = world.operator()
    assert [victim.name for victim in plan.drain] == ["p2", "p3"]
    assert [child["spec"]["replicas"] for child in plan.apply] == [1]
    world.settle()
    assert [pod["metadata"]["name"] for pod in world.pods] == ["p1"]
    assert world.operator() == Plan()


def test_one_that_hangs_goes_before_the_well_one_that_has_less_to_do() -> None:
    world = World.at_rest(3)
    world.running = {"uid-p1": 1, "uid-p2": 5, "uid-p3": 2}
    world.hanging = {"uid-p2": NOW}
    world.scale(2)
    assert [victim.name for victim in world.operator().drain] == ["p2"]
    world.settle()
    assert [pod["metadata"]["name"] for pod in world.pods] == ["p1", "p3"]


def test_to_zero_everything_is_asked_to_drain() -> None:
    world = World.at_rest(2)
    world.scale(0)
    assert len(world.operator().drain) == 2
    world.settle()
    assert world.pods == []


def test_an_operator_that_starts_after_the_marks_takes_the_marked_ones() -> None:
    world = World.at_rest(3)
    world.running = {"uid-p1": 1, "uid-p2": 2, "uid-p3": 3}
    world.scale(2)
    world.operator(steps=1)
    world.restart_operator()
    world.running = {"uid-p1": 9}
    assert [victim.name for victim in world.operator().drain] == ["p1"]
    world.settle()
    assert [pod["metadata"]["name"] for pod in world.pods] == ["p2", "p3"]


def test_a_second_look_before_the_watch_shows_the_marks_takes_no_second_victim() -> None:
    world = World.at_rest(3)
    world.scale(2)
    before = world.seen()
    [first] = world.operator().drain
    world.running = {first.uid: 9}
    old: Any = {"body": world.body, "children": before.children, "pods": before.pods, "running": world.running}
    [again] = world.operator(Observed(**old)).drain
    assert again.name == first.name
    world.settle()
    assert world.num_deleted == 1


def test_a_replica_that_was_asked_to_drain_and_is_wanted_after_all_is_replaced() -> None:
    world = World.at_rest(2)
    world.scale(1)
    world.operator(steps=1)
    [marked] = [pod["metadata"]["name"] for pod in world.pods if is_marked(pod)]
    world.scale(2)
    assert [victim.name for victim in world.operator().replace] == [marked]
    world.settle()
    assert len(world.pods) == 2
    assert marked not in [pod["metadata"]["name"] for pod in world.pods]


def test_more_replicas_and_other_changes_drain_nobody() -> None:
    world = World.at_rest(2)
    world.scale(3)
    assert world.operator().drain == ()
    world.settle()
    world.body["spec"]["engine"] = {"maxNumSeqs": 4}
    plan = world.operator()
    assert (plan.drain, plan.replace, len(plan.apply)) == ((), (), 2)


def test_in_the_middle_of_a_rollout_kubernetes_chooses() -> None:
    world = World.at_rest(3)
    world.engine["status"] |= {"updatedReplicas": 1}
    world.scale(2)
    plan = world.operator()
    assert plan.drain == ()
    assert [child["spec"]["replicas"] for child in plan.apply] == [2]


def test_pods_of_a_deployment_that_is_not_ours_are_left_alone() -> None:
    world = World.at_rest(3)
    world.engine["metadata"]["ownerReferences"] = [{"uid": "other", "controller": True}]
    world.scale(1)
    assert world.operator().drain == ()
    world.pods[0]["metadata"]["annotations"] = mark(NOW)
    world.scale(3)
    assert world.operator().replace == ()


ACTIONS = st.one_of(
    st.tuples(st.just("scale"), st.integers(0, 4)),
    st.tuples(st.just("operator"), st.integers(1, 3)),
    st.tuples(st.just("operator-with-old-picture"), st.integers(1, 3)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("replica-set"), st.just(0)),
    st.tuples(st.just("kubelets"), st.just(0)),
    st.tuples(st.just("load"), st.integers(0, 5)),
    st.tuples(st.just("crash"), st.integers(0, 5)),
)


def act(world: World, action: str, number: int, pictures: list[Observed]) -> None:
    """`pictures`: what was seen before each action since the operator's start; `number`: how many actions ago."""
    pictures.append(world.seen())
    if action == "scale":
        world.scale(number)
    elif action == "operator":
        world.operator(steps=number)
    elif action == "operator-with-old-picture":
        picture = pictures[-min(number + 1, len(pictures))]
        alive = {pod["metadata"]["uid"] for pod in world.pods}
        pods = tuple(pod for pod in picture.pods if pod["metadata"]["uid"] in alive)
        old: Any = {"body": world.body, "children": picture.children, "pods": pods, "running": world.running}
        world.operator(Observed(**old))
    elif action == "restart":
        world.restart_operator()
        pictures.clear()  # a new process lists before it acts
    elif action == "replica-set":
        world.replica_set()
    elif action == "kubelets":
        world.kubelets()
    elif action == "load":
        world.running = {f"uid-p{each}": (each * number) % 4 for each in range(world.num_made + 1)}
    elif action == "crash":
        world.crash(number)


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(st.integers(0, 4), st.lists(ACTIONS, max_size=14))
def test_whatever_happens_in_between_the_fleet_ends_as_wanted_with_nobody_marked(
    first: int, actions: list[tuple[str, int]]
) -> None:
    world = World.at_rest(first)
    pictures: list[Observed] = []
    for action, number in actions:
        act(world, action, number, pictures)
    world.settle()
    assert len(world.pods) == world.body["spec"]["replicas"]
    assert not any(is_marked(pod) for pod in world.pods)
    assert world.operator() == Plan()


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 5), st.integers(0, 4), st.lists(ACTIONS, max_size=10))
def test_one_step_down_takes_just_the_difference(first: int, wanted: int, actions: list[tuple[str, int]]) -> None:
    world = World.at_rest(first)
    world.scale(min(first, wanted))
    pictures: list[Observed] = []
    for action, number in actions:
        if action not in ("scale", "crash"):
            act(world, action, number, pictures)
        assert sum(is_marked(pod) for pod in world.active) <= first - min(first, wanted)
    world.settle()
    assert world.num_deleted == first - min(first, wanted)
    assert world.num_made == first
