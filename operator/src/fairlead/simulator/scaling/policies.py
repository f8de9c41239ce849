"""The catalogue of policies: Fairlead's, formulas of other autoscalers, and those that know the load."""

import math
from collections.abc import Callable, Mapping

from fairlead.api.llmdeployment import Autoscaling
from fairlead.api.scaling_policy import fewest_replicas, most_replicas
from fairlead.autoscaler.history import History
from fairlead.autoscaler.recommend import recommend
from fairlead.autoscaler.recommendation import Recommendation
from fairlead.demand.signals import Signals
from fairlead.simulator.scaled_fleet import Decide
from fairlead.simulator.scaling.in_flight_policies import HPA, KPA, KubeAI
from fairlead.simulator.scaling.loads import Trace
from fairlead.simulator.scaling.planner_policies import AtOnce, Dynamo, DynamoLoad, DynamoThroughput, Oracle, Static
from fairlead.simulator.scaling.saturation_policies import WVA, EppSaturation, Llumnix

OURS = "Fairlead"
ORACLE = "oracle, 0.8"
STATIC, AT_ONCE = "static", "all at once"
KNOWING = (STATIC, ORACLE, AT_ONCE)
"""Policies that know the load without counting requests, and are no rivals."""

Formula = Callable[[Signals], float]
"""The number of replicas by the signals of this second, before bounds."""


def follow(formula: Formula) -> Decide:
    """The policy that asks for the number of a formula, within the bounds of the spec."""

    def decide(signals: Signals, spec: Autoscaling, history: History) -> Recommendation:
        number = max(fewest_replicas(spec), min(most_replicas(spec), math.ceil(formula(signals))))
        return Recommendation(replicas=number, reason="", wanted=number)

    return decide


def _formulas(trace: Trace) -> Mapping[str, Callable[[], Formula]]:
    slots, target = trace.machine.slots, trace.machine.target
    return {
        "KubeAI 10 min, 0.7": lambda: KubeAI(0.7 * slots, 600.0),
        "KubeAI 1 min, 0.6": lambda: KubeAI(0.6 * slots, 60.0),
        "HPA 5 min, 0.7": lambda: HPA(0.7 * slots, 300.0),
        "HPA 1 min, 0.6": lambda: HPA(0.6 * slots, 60.0),
        "KPA, 0.6": lambda: KPA(0.6 * slots),
        "KPA, 0.8": lambda: KPA(0.8 * slots),
        "AIBrix KPA, 0.7": lambda: KPA(0.7 * slots, 180.0, 60.0, delay=300.0, most_growth=2.0),
        "WVA": WVA,
        "epp-saturation 60 s": lambda: EppSaturation(target),
        "epp-saturation 15 s": lambda: EppSaturation(target, cycle=15.0, up_window=0.0),
        "Dynamo load, 0.7": lambda: DynamoLoad(slots, target),
        "Dynamo throughput, 0.7": lambda: DynamoThroughput(slots),
        "Dynamo both, 0.7": lambda: Dynamo(DynamoLoad(slots, target), DynamoThroughput(slots)),
        "Llumnix": Llumnix,
        STATIC: lambda: Static.of(trace),
        ORACLE: lambda: Oracle(trace, 0.8),
        AT_ONCE: lambda: AtOnce(trace),
    }


def policy(name: str, trace: Trace) -> Decide:
    """A fresh policy of the catalogue for one run. Raises KeyError."""
    return recommend if name == OURS else follow(_formulas(trace)[name]())


RIVALS = tuple(name for name in _formulas(Trace(name="", load=lambda _: 0.0, seconds=0.0)) if name not in KNOWING)
"""Formulas of other autoscalers. A number is the share of the slots meant to be taken, a time how far a formula looks
back."""
POLICIES = (OURS, *RIVALS, *KNOWING)
