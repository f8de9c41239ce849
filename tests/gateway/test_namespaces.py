"""`fairlead gateway --namespace`: one namespace, several, or every one."""

import argparse

from fairlead.gateway.command import add_arguments


def namespaces(*arguments: str) -> list[str] | None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parsed: list[str] | None = parser.parse_args(arguments).namespace
    return parsed


def test_the_flag_may_be_repeated_and_without_it_every_namespace_is_followed() -> None:
    assert namespaces() is None
    assert namespaces("--namespace", "a") == ["a"]
    assert namespaces("--namespace", "a", "--namespace", "b") == ["a", "b"]
