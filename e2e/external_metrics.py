"""A stand-in for a metrics adapter: serves external.metrics.k8s.io from what the gateways measure.

In production Prometheus and an adapter (prometheus-adapter, KEDA's) stand here. A genuine HorizontalPodAutoscaler asks
this one just as it asks those: `/apis/external.metrics.k8s.io/v1beta1/namespaces/NS/METRIC?labelSelector=…`, through
the API server. One series for each different set of labels, summed over the gateways.

It needs nothing but Python: on a cluster this very file runs in a pod, as `python -c FILE HOST PORT GATEWAY…`.
"""

import json
import os
import re
import ssl
import sys
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

CERTIFICATE_VARIABLE = "CERTIFICATE"
"""Environment variable: the server's certificate and its key, as PEM."""
GROUP_VERSION = "external.metrics.k8s.io/v1beta1"
NAMESPACE_LABEL = "llmdeployment_namespace"
"""The label that says which namespace's HPAs a series is for."""
_SERIES = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Series = tuple[Mapping[str, str], float]


def series_of(text: str, metric: str) -> Iterable[Series]:
    """Labels and value of each series of that metric, in Prometheus' text format."""
    for line in text.splitlines():
        found = _SERIES.fullmatch(line)
        if found and found["name"] == metric:
            yield dict(_LABEL.findall(found["labels"] or "")), float(found["value"])


def selected(labels: Mapping[str, str], selector: str) -> bool:
    """Whether labels fit a selector of the kind `key=value,other=value`."""
    pairs = (part.partition("=") for part in selector.split(",") if part)
    return all(labels.get(key) == value for key, _, value in pairs)


def summed(pages: Iterable[str], metric: str, namespace: str, selector: str) -> list[Series]:
    """The selected series of a namespace, each the sum over all pages."""
    sums: dict[tuple[tuple[str, str], ...], float] = defaultdict(float)
    for page in pages:
        for labels, value in series_of(page, metric):
            if labels.get(NAMESPACE_LABEL) == namespace and selected(labels, selector):
                sums[tuple(sorted(labels.items()))] += value
    return [(dict(labels), value) for labels, value in sums.items()]


def value_list(metric: str, series: Iterable[Series], time: str) -> dict[str, Any]:
    """An ExternalMetricValueList. Values are quantities: thousandths, so that nothing is rounded away."""
    items = [
        {"metricName": metric, "metricLabels": labels, "timestamp": time, "value": f"{round(value * 1000)}m"}
        for labels, value in series
    ]
    return {"kind": "ExternalMetricValueList", "apiVersion": GROUP_VERSION, "metadata": {}, "items": items}


class Adapter(ThreadingHTTPServer):
    """Serves over TLS; the API server in front checks who asks."""

    request_queue_size = 128
    """Connections that may wait: API server, kubelet and HPA come at the same time."""

    def __init__(self, host: str, port: int, gateways: list[str], certificate: str) -> None:
        """`gateways`: base URLs of their control ports. `certificate`: with its key, as PEM."""
        super().__init__((host, port), _Handler)
        self.gateways = gateways
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile("w") as file:  # the ssl module reads certificates from files only
            file.write(certificate)
            file.flush()
            context.load_cert_chain(file.name)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def pages(self) -> list[str]:
        """What each gateway measures at this moment. Raises OSError where one does not answer."""
        return [_read(f"{gateway}/metrics") for gateway in self.gateways]


class _Handler(BaseHTTPRequestHandler):
    server: Adapter
    protocol_version = "HTTP/1.1"
    """Connections are kept: each new one costs a TLS handshake."""
    timeout = 60
    """Seconds until a silent connection is closed."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if parts == ["apis", *GROUP_VERSION.split("/")]:
            return self._answer(200, {"kind": "APIResourceList", "groupVersion": GROUP_VERSION, "resources": []})
        if len(parts) != 6 or parts[:4] != ["apis", *GROUP_VERSION.split("/"), "namespaces"]:
            return self._answer(404, {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404})
        namespace, metric = parts[4:]
        selector = parse_qs(url.query).get("labelSelector", [""])[0]
        try:
            series = summed(self.server.pages(), metric, namespace, selector)
        except OSError as error:
            return self._answer(503, {"kind": "Status", "status": "Failure", "message": str(error), "code": 503})
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self._answer(200, value_list(metric, series, time))

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as reply:
        text: str = reply.read().decode()
        return text


if __name__ == "__main__":
    listen_at, listen_on, *gateway_urls = sys.argv[1:]
    Adapter(listen_at, int(listen_on), gateway_urls, os.environ[CERTIFICATE_VARIABLE]).serve_forever()
