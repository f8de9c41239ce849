"""The Helm SDK, as tests use it: lint and render `charts/fairlead`, and a Release of it on a cluster.

Wraps `helm-python-sdk` (requirements/kubernetes.txt), which is Helm's own Go code. Tests say
`pytest.importorskip("helm_python")` first. It knows nothing of pytest, and nothing of what the chart contains.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml
from helm_python import _native

CHART = Path(__file__).parent.parent / "charts" / "fairlead"
Values = Mapping[str, Any]
Manifest = dict[str, Any]
HelmError = helm_python.HelmError
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Ten times as fast where PyYAML has its C part."""


def lint(values: Values | None = None, chart: Path = CHART) -> list[str]:
    """What `helm lint --strict` finds, warnings and errors only."""
    report = helm_python.lint(chart, dict(values or {}), strict=True)
    return [*report["errors"], *(found["error"] for found in report["messages"] if found["severity"] > 1)]


def render(
    values: Values | None = None,
    *,
    name: str = "fairlead",
    namespace: str = "fairlead-system",
    kube_version: str | None = None,
    api_versions: Iterable[str] = (),
    is_upgrade: bool = False,
    chart: Path = CHART,
) -> dict[str, str]:
    """Template → its text, without a cluster (`lookup` finds nothing). Raises HelmError.

    `api_versions`: served beside Kubernetes' own, such as `monitoring.coreos.com/v1`.
    """
    options: dict[str, Any] = {"name": name, "namespace": namespace, "is_upgrade": is_upgrade}
    if kube_version is not None:
        options["kube_version"] = f"v{kube_version.removeprefix('v')}"
    if api_versions:
        options["api_versions"] = list(api_versions)
    with helm_python.Chart.load(chart) as loaded:
        # The wrapper's `render` does not pass on the versions that the library takes.
        text = _native.call_string("helm_render", loaded._raw(), json.dumps(dict(values or {})), json.dumps(options))
    return dict(json.loads(text))


def objects(rendered: Mapping[str, str]) -> list[Manifest]:
    """Every object of a rendering; notes are none."""
    texts = (text for name, text in rendered.items() if not name.endswith(".txt"))
    documents = (yaml.load_all(text, Loader=_Loader) for text in texts)
    return [found for document in documents for found in document if found]


def manifests(values: Values | None = None, **options: Any) -> list[Manifest]:
    """Every object of the rendering with these values; `options` are those of `render`."""
    return objects(render(values, **options))


class Release:
    """A release of the chart on the cluster of a kubeconfig: what a person does with `helm`."""

    def __init__(self, kubeconfig: Path, *, name: str = "fairlead", namespace: str = "fairlead-system") -> None:
        self.name = name
        self.namespace = namespace
        self._config = helm_python.Config(kubeconfig_path=kubeconfig, namespace=namespace)

    def __enter__(self) -> "Release":
        return self

    def __exit__(self, *_: object) -> None:
        self._config.close()

    def install(
        self, values: Values | None = None, *, wait: bool = True, timeout: int = 300, crds: bool = True
    ) -> None:
        """`helm install --create-namespace`. `timeout`: seconds. Raises HelmError.

        `crds=False` leaves `crds/` to the caller: API servers before 1.25 refuse Helm's server-side apply of a CRD with
        validation rules, though they take (and drop) the rules in a plain create.
        """
        self._deploy("helm_install", values, wait, timeout, {"create_namespace": True, "skip_crds": not crds})

    def upgrade(self, values: Values | None = None, *, wait: bool = True, timeout: int = 300) -> None:
        """`helm upgrade --reset-values`: these values and the chart's own, none of the last revision's."""
        self._deploy("helm_upgrade", values, wait, timeout, {"reset_values": True})

    def rollback(self, revision: int | None = None, *, wait: bool = True, timeout: int = 300) -> None:
        """`helm rollback`; None = to the revision before."""
        self._config.rollback(self.name, version=revision, wait=_waiting(wait), timeout=timeout)

    def uninstall(self, *, wait: bool = True, timeout: int = 300) -> None:
        """`helm uninstall`. Does nothing where there is no such release."""
        self._config.uninstall(self.name, ignore_not_found=True, wait=_waiting(wait), timeout=timeout)

    def test(self, timeout: int = 120) -> str:
        """`helm test --logs`: the logs of the test's pods. Raises HelmError when one fails."""
        return str(self._config.test(self.name, timeout=timeout, logs=True)["logs"])

    def history(self) -> list[tuple[int, str]]:
        """Revision and state of each revision, oldest first."""
        revisions = sorted(self._config.history(self.name), key=lambda revision: revision["revision"])
        return [(revision["revision"], revision["status"]) for revision in revisions]

    def _deploy(self, action: str, values: Values | None, wait: bool, timeout: int, more: Mapping[str, Any]) -> None:
        options = {"namespace": self.namespace, "wait": _waiting(wait), "timeout_seconds": timeout, **more}
        with helm_python.Chart.load(CHART) as chart:
            # The wrapper's methods do not pass on `skip_crds`.
            _native.call_string(
                action,
                self._config._raw(),
                self._config._context_arg(None),
                chart._raw(),
                None,
                self.name,
                json.dumps(dict(values or {})),
                json.dumps(options),
            )


def _waiting(wait: bool) -> str:
    return "watcher" if wait else "hookOnly"
