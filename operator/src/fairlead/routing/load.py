"""A replica's load as its engine last told it. Plain data; `predictor.py` computes with it."""

from fairlead_protocol.messages import LoadLine


class Load(LoadLine, kw_only=True, frozen=True):
    """One load line, and when it came."""

    time: float
    """In seconds of the reader's monotonic clock."""
