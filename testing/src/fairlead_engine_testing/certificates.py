"""A certificate for servers on this machine, and the authority that signed it, made with openssl."""

import ipaddress
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificate:
    """Files in PEM."""

    authority: Path
    """Who trusts it trusts the server."""
    own: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """For the server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.own, self.key)
        return context


def make_certificate(folder: Path, *addresses: str) -> Certificate:
    """For two days, in `folder`. `addresses`: IP addresses and names of the server."""
    authority, authority_key, own, key = (folder / name for name in ("ca.crt", "ca.key", "tls.crt", "tls.key"))
    request, extensions = folder / "request", folder / "extensions"
    names = ",".join(f"{'IP' if _is_ip(address) else 'DNS'}:{address}" for address in addresses)
    extensions.write_text(f"subjectAltName={names}\nbasicConstraints=CA:FALSE\n")
    subject = ["-subj", "/CN=authority of tests"]
    _openssl("req", "-x509", *_NEW_KEY, "-days", "2", *subject, "-keyout", authority_key, "-out", authority)
    _openssl("req", *_NEW_KEY, "-subj", "/CN=server of tests", "-keyout", key, "-out", request)
    _openssl(
        "x509", "-req", "-in", request, "-days", "2", "-CA", authority, "-CAkey", authority_key, "-CAcreateserial",
        "-extfile", extensions, "-out", own,
    )  # fmt: skip
    return Certificate(authority, own, key)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True
