"""Schemas of the other kinds of the core group, of coordination.k8s.io and of apiextensions.k8s.io."""

from fairlead_local.apiserver.schemas.pods import RESOURCES
from fairlead_local.apiserver.schemas.schema import (
    BOOLEAN,
    CONDITIONS,
    INT32,
    INT_OR_STRING,
    INTEGER,
    LABEL_SELECTOR,
    OBJECT_REFERENCE,
    OPEN,
    QUANTITY,
    STRING,
    TIME,
    array,
    atomic,
    choice,
    default,
    keyed,
    mapping,
    struct,
    top_level,
    unique,
)

NAMESPACE = top_level(
    spec=struct(finalizers=array(STRING)),
    status=struct(phase=STRING, conditions=CONDITIONS),
)

CONFIG_MAP = top_level(data=mapping(STRING), binaryData=mapping(STRING), immutable=BOOLEAN)

SECRET = top_level(data=mapping(STRING), stringData=mapping(STRING), type=default(STRING, "Opaque"), immutable=BOOLEAN)

SERVICE = top_level(
    spec=struct(
        type=default(choice("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"), "ClusterIP"),
        selector=atomic(mapping(STRING)),
        ports=keyed(
            struct(
                "port",
                port=INT32,
                protocol=default(STRING, "TCP"),
                name=STRING,
                targetPort=INT_OR_STRING,
                nodePort=INT32,
                appProtocol=STRING,
            ),
            "port",
            "protocol",
        ),
        externalName=STRING,
        clusterIP=STRING,
        clusterIPs=array(STRING),
        externalIPs=array(STRING),
        sessionAffinity=default(STRING, "None"),
        sessionAffinityConfig=OPEN,
        loadBalancerIP=STRING,
        loadBalancerClass=STRING,
        loadBalancerSourceRanges=array(STRING),
        allocateLoadBalancerNodePorts=BOOLEAN,
        externalTrafficPolicy=STRING,
        internalTrafficPolicy=STRING,
        trafficDistribution=STRING,
        healthCheckNodePort=INT32,
        publishNotReadyAddresses=BOOLEAN,
        ipFamilies=array(STRING),
        ipFamilyPolicy=STRING,
    ),
    status=struct(loadBalancer=OPEN, conditions=CONDITIONS),
)

EVENT = top_level(
    involvedObject=OBJECT_REFERENCE,
    related=OBJECT_REFERENCE,
    reason=STRING,
    message=STRING,
    type=STRING,
    action=STRING,
    source=struct(component=STRING, host=STRING),
    firstTimestamp=TIME,
    lastTimestamp=TIME,
    eventTime=TIME,
    count=INT32,
    series=struct(count=INT32, lastObservedTime=TIME),
    reportingComponent=STRING,
    reportingInstance=STRING,
)

SERVICE_ACCOUNT = top_level(
    secrets=keyed(OBJECT_REFERENCE, "name"),
    imagePullSecrets=array(struct(name=STRING)),
    automountServiceAccountToken=BOOLEAN,
)

PERSISTENT_VOLUME_CLAIM = top_level(
    spec=struct(
        accessModes=array(STRING),
        selector=LABEL_SELECTOR,
        resources=RESOURCES,
        volumeName=STRING,
        storageClassName=STRING,
        volumeMode=default(STRING, "Filesystem"),
        volumeAttributesClassName=STRING,
        dataSource=OPEN,
        dataSourceRef=OPEN,
    ),
    status=struct(phase=STRING, accessModes=array(STRING), capacity=mapping(QUANTITY), conditions=CONDITIONS),
)

NODE = top_level(
    spec=struct(
        podCIDR=STRING,
        podCIDRs=unique(STRING),
        providerID=STRING,
        unschedulable=BOOLEAN,
        taints=array(struct("key", "effect", key=STRING, value=STRING, effect=STRING, timeAdded=TIME)),
    ),
    status=struct(
        capacity=mapping(QUANTITY),
        allocatable=mapping(QUANTITY),
        conditions=CONDITIONS,
        addresses=keyed(struct("type", "address", type=STRING, address=STRING), "type"),
        nodeInfo=mapping(STRING),
        phase=STRING,
        images=array(OPEN),
        daemonEndpoints=OPEN,
    ),
)

_ENDPOINT_ADDRESS = struct("ip", ip=STRING, hostname=STRING, nodeName=STRING, targetRef=OBJECT_REFERENCE)
ENDPOINTS = top_level(
    subsets=array(
        struct(
            addresses=array(_ENDPOINT_ADDRESS),
            notReadyAddresses=array(_ENDPOINT_ADDRESS),
            ports=array(struct("port", port=INT32, protocol=STRING, name=STRING, appProtocol=STRING)),
        )
    )
)

LEASE = top_level(
    spec=struct(
        holderIdentity=STRING,
        leaseDurationSeconds=INT32,
        leaseTransitions=INT32,
        acquireTime=TIME,
        renewTime=TIME,
        strategy=STRING,
        preferredHolder=STRING,
    )
)

CUSTOM_RESOURCE_DEFINITION = top_level(
    spec=struct(
        "group",
        "names",
        "scope",
        "versions",
        group=STRING,
        names=struct(
            "plural",
            "kind",
            plural=STRING,
            singular=STRING,
            kind=STRING,
            listKind=STRING,
            shortNames=array(STRING),
            categories=array(STRING),
        ),
        scope=choice("Namespaced", "Cluster"),
        conversion=OPEN,
        preserveUnknownFields=BOOLEAN,
        versions=array(
            struct(
                "name",
                "served",
                "storage",
                name=STRING,
                served=BOOLEAN,
                storage=BOOLEAN,
                deprecated=BOOLEAN,
                deprecationWarning=STRING,
                schema=struct(openAPIV3Schema=OPEN),
                subresources=struct(
                    status=OPEN,
                    scale=struct(
                        "specReplicasPath",
                        "statusReplicasPath",
                        specReplicasPath=STRING,
                        statusReplicasPath=STRING,
                        labelSelectorPath=STRING,
                    ),
                ),
                additionalPrinterColumns=array(
                    struct(
                        "name",
                        "type",
                        "jsonPath",
                        name=STRING,
                        type=STRING,
                        jsonPath=STRING,
                        description=STRING,
                        format=STRING,
                        priority=INTEGER,
                    )
                ),
                selectableFields=array(struct("jsonPath", jsonPath=STRING)),
            )
        ),
    ),
    status=struct(
        conditions=CONDITIONS,
        acceptedNames=OPEN,
        storedVersions=array(STRING),
        observedGeneration=INTEGER,
    ),
)
