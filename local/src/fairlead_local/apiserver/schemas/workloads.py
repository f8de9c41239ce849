"""Schemas of apps/v1: Deployment and ReplicaSet."""

from fairlead_local.apiserver.schemas.pods import POD_TEMPLATE
from fairlead_local.apiserver.schemas.schema import (
    BOOLEAN,
    CONDITIONS,
    INT32,
    INT_OR_STRING,
    INTEGER,
    LABEL_SELECTOR,
    choice,
    default,
    described,
    struct,
    top_level,
)

DEPLOYMENT = top_level(
    spec=struct(
        "selector",
        "template",
        replicas=described(default(INT32, 1), "Number of pods wanted."),
        selector=LABEL_SELECTOR,
        template=POD_TEMPLATE,
        strategy=struct(
            type=default(choice("RollingUpdate", "Recreate"), "RollingUpdate"),
            rollingUpdate=struct(maxSurge=INT_OR_STRING, maxUnavailable=INT_OR_STRING),
        ),
        minReadySeconds=INT32,
        revisionHistoryLimit=default(INT32, 10),
        progressDeadlineSeconds=default(INT32, 600),
        paused=BOOLEAN,
    ),
    status=struct(
        observedGeneration=INTEGER,
        replicas=INT32,
        updatedReplicas=INT32,
        readyReplicas=INT32,
        availableReplicas=INT32,
        unavailableReplicas=INT32,
        terminatingReplicas=INT32,
        collisionCount=INT32,
        conditions=CONDITIONS,
    ),
)

REPLICA_SET = top_level(
    spec=struct(
        "selector",
        replicas=default(INT32, 1),
        minReadySeconds=INT32,
        selector=LABEL_SELECTOR,
        template=POD_TEMPLATE,
    ),
    status=struct(
        replicas=INT32,
        fullyLabeledReplicas=INT32,
        readyReplicas=INT32,
        availableReplicas=INT32,
        terminatingReplicas=INT32,
        observedGeneration=INTEGER,
        conditions=CONDITIONS,
    ),
)
