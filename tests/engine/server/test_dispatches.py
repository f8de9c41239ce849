"""Which of a gateway's numbered requests the engine's load includes."""

import logging

import pytest

from fairlead_engine.host.dispatches import MAX_GATEWAYS, Dispatches


def test_a_request_counts_from_the_first_load_that_includes_it() -> None:
    dispatches = Dispatches()
    with dispatches.arrived("gw:1") as dispatch:
        dispatches.obeyed(7)
        dispatch.command = 8
        assert dispatches.seen == {}
        dispatches.obeyed(7)
        assert dispatches.seen == {}
        dispatches.obeyed(8)
        assert dispatches.seen == {"gw": 1}
    assert dispatches.seen == {"gw": 1}


def test_a_request_that_was_refused_counts_at_once() -> None:
    dispatches = Dispatches()
    with pytest.raises(ValueError), dispatches.arrived("gw:3"):
        assert dispatches.seen == {}
        raise ValueError
    assert dispatches.seen == {"gw": 3}


def test_a_client_that_left_counts_when_the_core_has_heard_of_it() -> None:
    dispatches = Dispatches()
    with dispatches.arrived("gw:1") as dispatch:
        dispatch.command = 2
    assert dispatches.seen == {}
    dispatches.obeyed(2)
    assert dispatches.seen == {"gw": 1}


def test_the_highest_number_counts_and_gateways_are_apart() -> None:
    dispatches = Dispatches()
    for header in ("a:2", "a:5", "b:1", "a:4", "pod/with:colons:9"):
        with dispatches.arrived(header):
            pass
    assert dispatches.seen == {"a": 5, "b": 1, "pod/with:colons": 9}


@pytest.mark.parametrize(
    "header", ["", "gw", "gw:", ":1", "gw:0", "gw:-1", "gw:01", "gw:1.5", "gw:1 ", "g w:1", "gw:" + "9" * 16, "ä:1"]
)
def test_a_header_that_cannot_be_read_is_ignored_and_said_once(header: str, caplog: pytest.LogCaptureFixture) -> None:
    dispatches = Dispatches()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with dispatches.arrived(header) as dispatch:
                dispatch.command = 1
    dispatches.obeyed(1)
    assert dispatches.seen == {}
    assert dispatches.num_malformed == 3
    assert caplog.text.count("malformed dispatch header") == 1


def test_a_request_without_the_header_is_nobodys() -> None:
    dispatches = Dispatches()
    with dispatches.arrived(None):
        pass
    assert (dispatches.seen, dispatches.num_malformed) == ({}, 0)


def test_only_so_many_gateways_are_remembered_the_most_recent_ones() -> None:
    dispatches = Dispatches()
    for number in range(MAX_GATEWAYS):
        with dispatches.arrived(f"gw-{number}:1"):
            pass
    with dispatches.arrived("gw-0:2"):
        pass
    with dispatches.arrived("new:1"):
        pass
    assert len(dispatches.seen) == MAX_GATEWAYS
    assert dispatches.seen["gw-0"] == 2
    assert "gw-1" not in dispatches.seen


def test_what_another_process_sent_counts_from_the_report_that_includes_it() -> None:
    dispatches = Dispatches()
    dispatches.reported(4)
    dispatches.seen_elsewhere("gw", 7, 6)
    dispatches.seen_elsewhere("gw", 6, 5)
    dispatches.reported(4)
    assert dispatches.seen == {}
    dispatches.reported(5)
    assert dispatches.seen == {"gw": 6}
    with dispatches.arrived("gw:3"):
        pass
    dispatches.reported(9)
    assert dispatches.seen == {"gw": 7}


def test_each_number_that_counts_is_told() -> None:
    dispatches, told = Dispatches(), []
    dispatches.on_seen = lambda gateway, number: told.append((gateway, number))
    with dispatches.arrived("gw:1") as dispatch:
        dispatch.command = 2
    dispatches.obeyed(1)
    assert told == []
    dispatches.obeyed(2)
    assert told == [("gw", 1)]
