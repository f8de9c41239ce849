"""What clients get whose requests no application hears of: faults of HTTP as errors in OpenAI's shape."""

from collections.abc import Callable

from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.openai.errors import OpenAIError, http_refusal
from fairlead_protocol.http.framing import Fault
from fairlead_protocol.http.limited import HttpLimits, LimitedProtocol, OnCut, WholeAnswer, make_protocol


def client_protocol(
    settings: GatewaySettings, on_refused: Callable[[OpenAIError, str], object], on_cut: OnCut
) -> type[LimitedProtocol]:
    """The connections of one server. `on_refused` is told what is wrong with a request, and its target as far as it has
    come."""

    def refuse(fault: Fault, sentence: str, target: str) -> WholeAnswer:
        error = http_refusal(fault, sentence, settings)
        on_refused(error, target)
        return WholeAnswer(error.status, error.headers, error.body())

    limits = HttpLimits(
        max_connections=settings.max_connections,
        max_header_bytes=settings.max_header_bytes,
        max_headers=settings.max_headers,
        header_timeout=settings.header_timeout,
        max_skipped_bytes=settings.max_body_bytes,
        skip_timeout=settings.body_timeout,
        unread_timeout=settings.client_stall_timeout,
    )
    return make_protocol(limits, refuse, on_cut)
