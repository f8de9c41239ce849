"""Certificates for one run of the cluster, made afresh by openssl each time and never cached: they name addresses."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.commands import run

VALID_DAYS = 30


@dataclass(frozen=True)
class Authority:
    """A certificate authority of its own, in `folder`; `name` is its file's and its subject's name."""

    folder: Path
    name: str = "ca"

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.crt"

    @property
    def key(self) -> Path:
        return self.folder / f"{self.name}.key"

    def create(self) -> None:
        """Makes the authority's key and its self-signed certificate."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        usage = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"]
        _certificate(self.folder, self.name, f"fairlead-e2e-{self.name}", "", usage, signer=None)

    def client(self, name: str, common_name: str, organization: str = "") -> "Pair":
        """Issues a client certificate; Kubernetes reads the subject as user (CN) and group (O)."""
        usage = ["extendedKeyUsage=clientAuth", "keyUsage=digitalSignature"]
        return _certificate(self.folder, name, common_name, organization, usage, signer=self)

    def server(self, name: str, common_name: str, addresses: Sequence[str], names: Sequence[str]) -> "Pair":
        """Issues a certificate for a server that is reached under these addresses and DNS names."""
        alternatives = [f"IP:{address}" for address in addresses] + [f"DNS:{entry}" for entry in names]
        usage = [
            "extendedKeyUsage=serverAuth", "keyUsage=digitalSignature", f"subjectAltName={','.join(alternatives)}",
        ]  # fmt: skip
        return _certificate(self.folder, name, common_name, "", usage, signer=self)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


def _certificate(
    folder: Path, name: str, common_name: str, organization: str, extensions: Sequence[str], signer: Authority | None
) -> Pair:
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    settings = "".join(extension.replace("=", " = ", 1) + "\n" for extension in extensions)
    subject = "".join(f"{field} = {value}\n" for field, value in (("O", organization), ("CN", common_name)) if value)
    request = folder / f"{name}.cnf"
    request.write_text(
        "[req]\nprompt = no\ndistinguished_name = subject\nx509_extensions = extensions\n"
        f"[subject]\n{subject}[extensions]\n{settings}"
    )
    signing: list[str | Path] = [] if signer is None else ["-CA", signer.certificate, "-CAkey", signer.key]
    run(
        "openssl", "req", "-x509", "-config", request, *signing, "-days", str(VALID_DAYS), "-noenc",
        "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", pair.key, "-out", pair.certificate,
    )  # fmt: skip
    request.unlink()
    return pair


def signing_key(folder: Path, name: str) -> Path:
    """Makes a key pair that signs ServiceAccounts' tokens: NAME.key, its public half NAME.pub. Returns the key."""
    key = folder / f"{name}.key"
    run("openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", key)
    run("openssl", "pkey", "-in", key, "-pubout", "-out", folder / f"{name}.pub")
    return key


def write_kubeconfig(target: Path, server: str, authority: Authority, user: str, pair: Pair) -> None:
    """Writes a kubeconfig (as JSON, which is YAML) with everything inside, readable by its owner only."""

    def data(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode()

    cluster = {"server": server, "certificate-authority-data": data(authority.certificate)}
    credentials = {"client-certificate-data": data(pair.certificate), "client-key-data": data(pair.key)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fairlead-e2e", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "fairlead-e2e", "context": {"cluster": "fairlead-e2e", "user": user}}],
        "current-context": "fairlead-e2e",
    }
    target.touch(mode=0o600)
    target.write_text(json.dumps(content, indent=2) + "\n")
