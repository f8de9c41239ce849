"""Hosts and ports as URLs have them."""


def authority(host: str, port: int | str) -> str:
    """`host:port`, with an IPv6 address in the brackets that tell its colons from the port's."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
