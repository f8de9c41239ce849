"""The limit of open files follows the connections that a program may have, as far as the system lets it."""

import logging
import resource

import pytest

from fairlead_common.http.connections import SPARE, allow_descriptors, listening_socket

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "expected", "warning"),
    [
        (1024, 1_048_576, 1000 * 2 + SPARE, ""),
        (1024, UNLIMITED, 1000 * 2 + SPARE, ""),
        (5000, 1_048_576, None, ""),
        (UNLIMITED, UNLIMITED, None, ""),
        (1024, 1256, 1256, "1256 open files are enough for 500 connections"),
        (100, 100, None, "100 open files are enough for 0 connections"),
    ],
)
def test_the_limit_is_raised_as_far_as_it_is_needed_and_allowed(
    monkeypatch, caplog, soft: int, hard: int, expected: int | None, warning: str
) -> None:
    chosen = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: chosen.append(limits))
    allow_descriptors(1000, per_connection=2)
    assert chosen == ([] if expected is None else [(expected, hard)])
    assert (warning in caplog.text) if warning else not caplog.text


def test_a_system_that_says_no_is_no_reason_not_to_start(monkeypatch, caplog) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, UNLIMITED))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    allow_descriptors(1000, per_connection=2)
    assert "the limit of open files stays at 1024" in caplog.text
    assert "1024 open files are enough for 384 connections" in caplog.text


@pytest.mark.parametrize("host", ["a" * 300, "a..b", "\udcff", "no.such.host.invalid"])
def test_a_host_that_cannot_be_listened_on_is_named(host: str) -> None:
    with pytest.raises(OSError, match=r"cannot listen on .*:80: ."):
        listening_socket(host, 80)
