"""The schema of a Pod: every field of the v1 API is accepted; those the kubelet cannot honour it refuses, by name."""

from fairlead_local.apiserver.schemas.schema import (
    BOOLEAN,
    CONDITIONS,
    INT32,
    INT_OR_STRING,
    INTEGER,
    LABEL_SELECTOR,
    OBJECT_META,
    OPEN,
    QUANTITY,
    STRING,
    TIME,
    array,
    atomic,
    choice,
    default,
    described,
    keyed,
    mapping,
    struct,
    top_level,
)

_KEY_REFERENCE = atomic(struct("key", name=STRING, key=STRING, optional=BOOLEAN))
_FIELD_REFERENCE = atomic(struct("fieldPath", apiVersion=default(STRING, "v1"), fieldPath=STRING))
_RESOURCE_REFERENCE = atomic(struct("resource", containerName=STRING, resource=STRING, divisor=QUANTITY))
_NAMED_SOURCE = struct(name=STRING, optional=BOOLEAN)

ENVIRONMENT = keyed(
    struct(
        "name",
        name=STRING,
        value=STRING,
        valueFrom=struct(
            configMapKeyRef=_KEY_REFERENCE,
            secretKeyRef=_KEY_REFERENCE,
            fieldRef=_FIELD_REFERENCE,
            resourceFieldRef=_RESOURCE_REFERENCE,
        ),
    ),
    "name",
)

_HTTP_GET = struct(
    "port",
    path=default(STRING, "/"),
    port=INT_OR_STRING,
    host=STRING,
    scheme=default(choice("HTTP", "HTTPS"), "HTTP"),
    httpHeaders=array(struct("name", "value", name=STRING, value=STRING)),
)
_HANDLER = {
    "exec_": struct(command=array(STRING)),
    "httpGet": _HTTP_GET,
    "tcpSocket": struct("port", port=INT_OR_STRING, host=STRING),
}
PROBE = struct(
    **_HANDLER,
    grpc=struct("port", port=INT32, service=STRING),
    initialDelaySeconds=INT32,
    periodSeconds=default(INT32, 10),
    timeoutSeconds=default(INT32, 1),
    successThreshold=default(INT32, 1),
    failureThreshold=default(INT32, 3),
    terminationGracePeriodSeconds=INTEGER,
)
_LIFECYCLE_HANDLER = struct(**_HANDLER, sleep=struct("seconds", seconds=INTEGER))

RESOURCES = struct(
    limits=mapping(QUANTITY),
    requests=mapping(QUANTITY),
    claims=keyed(struct("name", name=STRING, request=STRING), "name"),
)

CONTAINER = struct(
    "name",
    name=described(STRING, "Name of the container, unique within the pod."),
    image=described(STRING, "Local mode runs Fairlead's own images only."),
    imagePullPolicy=choice("Always", "IfNotPresent", "Never"),
    command=array(STRING),
    args=array(STRING),
    workingDir=STRING,
    env=ENVIRONMENT,
    envFrom=array(struct(prefix=STRING, configMapRef=_NAMED_SOURCE, secretRef=_NAMED_SOURCE)),
    ports=keyed(
        struct(
            "containerPort",
            containerPort=INT32,
            protocol=default(STRING, "TCP"),
            name=STRING,
            hostPort=INT32,
            hostIP=STRING,
        ),
        "containerPort",
        "protocol",
    ),
    resources=default(RESOURCES, {}),
    resizePolicy=array(OPEN),
    volumeMounts=keyed(
        struct(
            "name",
            "mountPath",
            name=STRING,
            mountPath=STRING,
            subPath=STRING,
            subPathExpr=STRING,
            readOnly=BOOLEAN,
            recursiveReadOnly=STRING,
            mountPropagation=STRING,
        ),
        "mountPath",
    ),
    volumeDevices=keyed(struct("name", "devicePath", name=STRING, devicePath=STRING), "devicePath"),
    startupProbe=PROBE,
    readinessProbe=PROBE,
    livenessProbe=PROBE,
    lifecycle=struct(postStart=_LIFECYCLE_HANDLER, preStop=_LIFECYCLE_HANDLER, stopSignal=STRING),
    restartPolicy=STRING,
    restartPolicyRules=array(OPEN),
    securityContext=OPEN,
    stdin=BOOLEAN,
    stdinOnce=BOOLEAN,
    tty=BOOLEAN,
    terminationMessagePath=default(STRING, "/dev/termination-log"),
    terminationMessagePolicy=default(choice("File", "FallbackToLogsOnError"), "File"),
)

_ITEMS = array(struct("key", "path", key=STRING, path=STRING, mode=INT32))
_OTHER_VOLUMES = (
    *("awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "csi", "ephemeral", "fc", "flexVolume"),
    *("flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "image", "iscsi", "nfs", "photonPersistentDisk"),
    *("portworxVolume", "quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume"),
)
VOLUME = struct(
    "name",
    name=STRING,
    emptyDir=struct(medium=STRING, sizeLimit=QUANTITY),
    configMap=struct(name=STRING, items=_ITEMS, defaultMode=default(INT32, 420), optional=BOOLEAN),
    secret=struct(secretName=STRING, items=_ITEMS, defaultMode=default(INT32, 420), optional=BOOLEAN),
    persistentVolumeClaim=struct("claimName", claimName=STRING, readOnly=BOOLEAN),
    hostPath=struct("path", path=STRING, type=STRING),
    downwardAPI=OPEN,
    projected=OPEN,
    **dict.fromkeys(_OTHER_VOLUMES, OPEN),
)

POD_SPEC = struct(
    "containers",
    containers=keyed(CONTAINER, "name"),
    initContainers=keyed(CONTAINER, "name"),
    ephemeralContainers=keyed(OPEN, "name"),
    volumes=keyed(VOLUME, "name"),
    restartPolicy=default(choice("Always", "OnFailure", "Never"), "Always"),
    terminationGracePeriodSeconds=default(INTEGER, 30),
    activeDeadlineSeconds=INTEGER,
    dnsPolicy=default(STRING, "ClusterFirst"),
    dnsConfig=OPEN,
    nodeSelector=atomic(mapping(STRING)),
    nodeName=STRING,
    serviceAccountName=STRING,
    serviceAccount=STRING,
    automountServiceAccountToken=BOOLEAN,
    hostNetwork=BOOLEAN,
    hostPID=BOOLEAN,
    hostIPC=BOOLEAN,
    hostUsers=BOOLEAN,
    hostname=STRING,
    hostnameOverride=STRING,
    subdomain=STRING,
    setHostnameAsFQDN=BOOLEAN,
    hostAliases=keyed(struct("ip", ip=STRING, hostnames=array(STRING)), "ip"),
    shareProcessNamespace=BOOLEAN,
    securityContext=default(OPEN, {}),
    imagePullSecrets=keyed(atomic(struct(name=STRING)), "name"),
    affinity=OPEN,
    tolerations=array(
        struct(key=STRING, operator=STRING, value=STRING, effect=STRING, tolerationSeconds=INTEGER),
    ),
    topologySpreadConstraints=keyed(
        struct(
            "maxSkew",
            "topologyKey",
            "whenUnsatisfiable",
            maxSkew=INT32,
            topologyKey=STRING,
            whenUnsatisfiable=STRING,
            labelSelector=LABEL_SELECTOR,
            minDomains=INT32,
            nodeAffinityPolicy=STRING,
            nodeTaintsPolicy=STRING,
            matchLabelKeys=array(STRING),
        ),
        "topologyKey",
        "whenUnsatisfiable",
    ),
    schedulerName=default(STRING, "default-scheduler"),
    schedulingGroup=OPEN,
    evictionResponders=array(OPEN),
    schedulingGates=keyed(struct("name", name=STRING), "name"),
    priorityClassName=STRING,
    priority=INT32,
    preemptionPolicy=STRING,
    runtimeClassName=STRING,
    overhead=mapping(QUANTITY),
    enableServiceLinks=BOOLEAN,
    readinessGates=array(struct("conditionType", conditionType=STRING)),
    os=struct("name", name=STRING),
    resources=RESOURCES,
    resourceClaims=keyed(OPEN, "name"),
)

POD_TEMPLATE = struct(metadata=OBJECT_META, spec=POD_SPEC)

_CONTAINER_STATE = struct(
    waiting=struct(reason=STRING, message=STRING),
    running=struct(startedAt=TIME),
    terminated=struct(
        "exitCode",
        exitCode=INT32,
        signal=INT32,
        reason=STRING,
        message=STRING,
        startedAt=TIME,
        finishedAt=TIME,
        containerID=STRING,
    ),
)
_CONTAINER_STATUS = struct(
    "name",
    name=STRING,
    state=_CONTAINER_STATE,
    lastState=_CONTAINER_STATE,
    ready=BOOLEAN,
    started=BOOLEAN,
    restartCount=INT32,
    image=STRING,
    imageID=STRING,
    containerID=STRING,
)

POD = top_level(
    spec=POD_SPEC,
    status=struct(
        phase=STRING,
        conditions=CONDITIONS,
        message=STRING,
        reason=STRING,
        nominatedNodeName=STRING,
        observedGeneration=INTEGER,
        hostIP=STRING,
        hostIPs=array(struct(ip=STRING)),
        podIP=STRING,
        podIPs=keyed(struct("ip", ip=STRING), "ip"),
        qosClass=STRING,
        startTime=TIME,
        containerStatuses=array(_CONTAINER_STATUS),
        initContainerStatuses=array(_CONTAINER_STATUS),
        ephemeralContainerStatuses=array(_CONTAINER_STATUS),
    ),
)
