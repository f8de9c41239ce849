"""Certificates for one run of the oracle: an authority, the server's, an administrator's. Made by openssl."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_DAYS = "7"
_EXTENSIONS = {
    "server": "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\n",
    "administrator": "extendedKeyUsage=clientAuth\n",
}


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """What server and client need to know each other."""

    authority: Path
    """The certificate that both trust."""
    server: KeyPair
    """For 127.0.0.1."""
    administrator: KeyPair
    """A member of system:masters, who may do everything."""


def make_certificates(folder: Path) -> Certificates:
    """Writes new certificates into a folder; they are good for a week. The authority's key does not outlive this call.

    Raises FileNotFoundError where there is no openssl, CalledProcessError where it fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority = KeyPair(folder / "authority.crt", folder / "authority.key")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-subj", "/CN=oracle authority", "-days", _DAYS]
    _openssl("req", "-x509", *new_key, *subject, "-keyout", str(authority.key), "-out", str(authority.certificate))
    server = _issue(folder, authority, "server", "/CN=oracle")
    administrator = _issue(folder, authority, "administrator", "/O=system:masters/CN=administrator")
    authority.key.unlink()
    return Certificates(authority.certificate, server, administrator)


def _issue(folder: Path, authority: KeyPair, name: str, subject: str) -> KeyPair:
    issued = KeyPair(folder / f"{name}.crt", folder / f"{name}.key")
    request, extensions = folder / f"{name}.csr", folder / f"{name}.extensions"
    extensions.write_text(_EXTENSIONS[name])
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    _openssl("req", *new_key, "-subj", subject, "-keyout", str(issued.key), "-out", str(request))
    signer = ["-CA", str(authority.certificate), "-CAkey", str(authority.key), "-CAcreateserial", "-days", _DAYS]
    asked = ["-in", str(request), "-extfile", str(extensions), "-out", str(issued.certificate)]
    _openssl("x509", "-req", *signer, *asked)
    for scrap in (request, extensions):
        scrap.unlink()
    return issued


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=True)
