"""The files that the test node makes: certificates, kubeconfig, image archive, component settings."""

import hashlib
import io
import json
import shutil
import ssl
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml
from cluster import archive, control_plane, pki, worker
from cluster.api import Api
from cluster.control_plane import Endpoints
from cluster.layout import API_SERVICE_ADDRESS, Layout
from cluster.programs import PAUSE_IMAGE, Binaries
from images.archive import ImageArchive

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


def test_an_image_archive_is_what_its_own_digests_say(tmp_path: Path) -> None:
    program, target = tmp_path / "pause", tmp_path / "pause.tar"
    program.write_bytes(b"\x7fELF")
    archive.write_program_image(program, "local.test/pause:1", target, ["-P"])
    first = target.read_bytes()
    archive.write_program_image(program, "local.test/pause:1", target, ["-P"])
    assert target.read_bytes() == first
    with tarfile.open(target) as image:
        files = {entry.name: image.extractfile(entry).read() for entry in image}  # type: ignore[union-attr]
    (manifest,) = json.loads(files["manifest.json"])
    assert manifest["RepoTags"] == ["local.test/pause:1"]
    config = json.loads(files[manifest["Config"]])
    assert manifest["Config"] == f"{hashlib.sha256(files[manifest['Config']]).hexdigest()}.json"
    (layer,) = (files[name] for name in manifest["Layers"])
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as content:
        (entry,) = content
        assert (entry.name, entry.mode) == ("pause", 0o755)
    assert config["config"]["Entrypoint"] == ["/pause", "-P"]


def test_a_folder_becomes_an_image_of_its_files(tmp_path: Path) -> None:
    folder, target = tmp_path / "files", tmp_path / "files.tar"
    (folder / "more").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "more/weights").write_bytes(b"\0" * 10)
    archive.write_folder_image(folder, "model", "local.test/model:1", target)
    image = ImageArchive(target)
    assert image.tags == ["local.test/model:1"]
    assert sorted(image.entries) == ["model/config.json", "model/more/weights"]
    assert image.read("model/more/weights") == b"\0" * 10
    assert image.config == {}


@needs_openssl
def test_certificates_verify_and_carry_what_kubernetes_reads(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    control_plane.make_pki(layout, Endpoints("10.245.255.2"))

    def verify(name: str, purpose: str, authority: str = "ca", *more: str) -> int:
        words = ["openssl", "verify", "-CAfile", f"{tmp_path}/pki/{authority}.crt", "-purpose", purpose, *more]
        return subprocess.run([*words, f"{tmp_path}/pki/{name}.crt"], capture_output=True).returncode

    assert verify("apiserver", "sslserver", "ca", "-verify_ip", API_SERVICE_ADDRESS) == 0
    assert verify("apiserver", "sslserver", "ca", "-verify_hostname", "kubernetes.default.svc") == 0
    assert verify("apiserver", "sslserver", "ca", "-verify_ip", "192.0.2.9") != 0
    assert verify("kubelet-server", "sslserver", "ca", "-verify_ip", "10.245.255.2") == 0
    assert verify("admin", "sslclient") == 0
    assert verify("admin", "sslserver") != 0
    assert verify("front-proxy-client", "sslclient", "front-proxy-ca") == 0
    assert verify("front-proxy-client", "sslclient") != 0
    subject = subprocess.run(
        ["openssl", "x509", "-noout", "-subject", "-in", f"{tmp_path}/pki/kubelet.crt"], capture_output=True, text=True
    ).stdout
    assert "O = system:nodes, CN = system:node:fairlead-e2e" in subject
    assert "CA:TRUE" in _text(tmp_path / "pki/ca.crt")
    assert "CA:TRUE" not in _text(tmp_path / "pki/admin.crt")


def _text(certificate: Path) -> str:
    words = ["openssl", "x509", "-noout", "-text", "-in", str(certificate)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@needs_openssl
def test_a_kubeconfig_is_complete_in_itself_and_its_owners_alone(tmp_path: Path) -> None:
    authority = pki.Authority(tmp_path / "pki")
    authority.create()
    pair = authority.client("admin", "admin", "system:masters")
    target = tmp_path / "kubeconfig"
    pki.write_kubeconfig(target, "https://10.245.255.2:6443", authority, "admin", pair)
    shutil.rmtree(tmp_path / "pki")
    assert target.stat().st_mode & 0o777 == 0o600
    assert yaml.safe_load(target.read_text())["current-context"] == "fairlead-e2e"
    api = Api(target)
    assert (api.host, api.port) == ("10.245.255.2", 6443)
    assert api.tls.verify_mode is ssl.CERT_REQUIRED


@pytest.fixture
def binaries(tmp_path: Path) -> Binaries:
    folder = tmp_path / "1.37.2-key"
    programs = ("etcd", *control_plane.ORDER, "kubelet", "kube-proxy", "pause", "containerd")
    for file in (*(folder / "bin" / name for name in programs), folder / "debian/usr/sbin/runc"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return Binaries(folder)


def test_rbac_is_on_and_the_aggregation_layer_has_an_authority_of_its_own(tmp_path: Path, binaries: Binaries) -> None:
    words = control_plane.commands(Layout(tmp_path), binaries, Endpoints("127.0.0.1", 1, 2, 3))["kube-apiserver"]
    options = dict(str(word).removeprefix("--").split("=", 1) for word in words[1:])
    assert options["authorization-mode"] == "Node,RBAC"
    assert options["secure-port"] == "1"
    assert options["etcd-servers"] == "http://127.0.0.1:2"
    assert options["requestheader-client-ca-file"] != options["client-ca-file"]


def test_the_workers_settings_parse_and_agree_on_the_socket_and_the_pause_image(
    tmp_path: Path, binaries: Binaries
) -> None:
    layout = Layout(tmp_path / "state")
    worker.write_configuration(layout, binaries)
    containerd = tomllib.loads((layout.configuration / "containerd.toml").read_text())
    assert containerd["plugins"]["io.containerd.cri.v1.images"]["pinned_images"]["sandbox"] == PAUSE_IMAGE
    assert "--cgroup-root=/fairlead-e2e" in [str(word) for word in worker.commands(layout, binaries)["kubelet"]]
    kubelet = json.loads((layout.configuration / "kubelet.yaml").read_text())
    assert kubelet["containerRuntimeEndpoint"] == f"unix://{worker.CONTAINERD_SOCKET}"
    assert kubelet["authentication"]["anonymous"] == {"enabled": False}
    assert kubelet["imageGCHighThresholdPercent"] == 100
