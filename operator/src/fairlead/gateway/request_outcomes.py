"""How requests end, beside the queue's own outcomes (`dispatch/refusals.py`): a closed set of metric labels."""

from enum import StrEnum


class RequestOutcome(StrEnum):
    """How a request ended, beside the queue's own outcomes; the values are metric labels."""

    COMPLETED = "completed"
    """The client has the whole answer."""
    CLIENT_ERROR = "client_error"
    """Refused as the client's mistake, by the gateway or by an engine."""
    UNAUTHORIZED = "unauthorized"
    """Refused for want of a valid API key."""
    OVERLOADED = "overloaded"
    """Refused because this gateway has more connections, or partly received bodies, than it takes."""
    ENGINE_ERROR = "engine_error"
    """An engine answered with an error of its own."""
    REPLICA_FAILED = "replica_failed"
    """Replicas broke down on it."""
    REPLICA_TIMEOUT = "replica_timeout"
    """A replica took it and then kept silent."""
    DISCONNECTED = "disconnected"
    """The client went away first."""
    STARTING = "starting"
    """This gateway did not know the models yet."""
    CUT = "cut"
    """This gateway was shut down before it was finished."""
    INTERNAL_ERROR = "internal_error"
    """A defect of the gateway."""
