"""DNS messages as bytes, held to an independent implementation (dnspython) and to RFC 1035 worked out by hand."""

import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import pytest
from cluster import dns_packets
from cluster.dns_names import Lookup, Outcome, Record

NAME = "web.default.svc.cluster.local"


def ask(name: str, kind: str = "A", **options: object) -> dns_packets.Query:
    return dns_packets.parse(dns.message.make_query(name, kind, **options).to_wire())  # type: ignore[arg-type]


def addresses(count: int) -> Lookup:
    return Lookup(Outcome.NO_ERROR, tuple(Record(NAME, "A", f"10.245.0.{number}") for number in range(1, count + 1)))


def test_a_query_by_hand() -> None:
    wire = bytes.fromhex("abcd 0100 0001 0000 0000 0000") + b"\x03web\x02ns\x00" + bytes.fromhex("0001 0001")
    query = dns_packets.parse(wire)
    assert (query.identity, query.name, query.kind, query.udp_limit) == (0xABCD, "web.ns", "A", None)
    assert query.recursion_desired


def test_an_answer_by_hand() -> None:
    question = b"\x03web\x02ns\x00" + bytes.fromhex("0001 0001")
    query = dns_packets.parse(bytes.fromhex("abcd 0100 0001 0000 0000 0000") + question)
    reply = dns_packets.answer(query, Lookup(Outcome.NO_ERROR, (Record("web.ns", "A", "10.97.0.20"),)), over_udp=True)
    header = bytes.fromhex("abcd 8580 0001 0001 0000 0000")
    record = bytes.fromhex("c00c 0001 0001 00000005 0004 0a610014")
    assert reply == header + question + record


def test_an_alias_and_its_target_decode_as_what_they_are() -> None:
    message = dns.message.make_query("alias.default.svc.cluster.local", "A")
    lookup = Lookup(
        Outcome.NO_ERROR, (Record("alias.default.svc.cluster.local", "CNAME", NAME), Record(NAME, "A", "10.97.0.20"))
    )
    reply = dns.message.from_wire(dns_packets.answer(dns_packets.parse(message.to_wire()), lookup, over_udp=True))
    assert message.is_response(reply)
    assert [str(answer) for answer in reply.answer] == [
        f"alias.default.svc.cluster.local. 5 IN CNAME {NAME}.",
        f"{NAME}. 5 IN A 10.97.0.20",
    ]
    assert isinstance(reply, dns.message.QueryMessage)
    assert str(reply.resolve_chaining().canonical_name) == f"{NAME}."


def test_the_question_comes_back_in_the_letters_it_was_asked_in() -> None:
    query = ask("WeB.Default.svc.cluster.local")
    reply = dns_packets.answer(query, addresses(1), over_udp=True)
    assert query.question in reply
    assert len(dns.message.from_wire(reply).answer) == 1


@pytest.mark.parametrize(
    ("outcome", "code"), [(Outcome.NAME_ERROR, dns.rcode.NXDOMAIN), (Outcome.NO_ERROR, dns.rcode.NOERROR)]
)
def test_response_codes(outcome: Outcome, code: dns.rcode.Rcode) -> None:
    reply = dns.message.from_wire(dns_packets.answer(ask("x.y"), Lookup(outcome), over_udp=True))
    assert reply.rcode() == code
    assert reply.answer == []
    assert reply.flags & (dns.flags.QR | dns.flags.AA | dns.flags.RA | dns.flags.RD) == 0x8580


def test_a_failure_names_the_question() -> None:
    reply = dns.message.from_wire(dns_packets.failure(ask(NAME)))
    assert reply.rcode() == dns.rcode.SERVFAIL
    assert str(reply.question[0].name) == f"{NAME}."


def test_what_does_not_fit_a_datagram_is_cut_off_and_whole_over_tcp() -> None:
    many = addresses(60)
    cut = dns.message.from_wire(dns_packets.answer(ask(NAME), many, over_udp=True))
    assert cut.flags & dns.flags.TC
    assert cut.answer == []
    whole = dns.message.from_wire(dns_packets.answer(ask(NAME), many, over_udp=False))
    assert not whole.flags & dns.flags.TC
    assert len(whole.answer[0]) == 60


def test_an_asker_that_takes_larger_datagrams_gets_them_with_an_option_of_ours() -> None:
    query = ask(NAME, use_edns=0, payload=4096)
    assert query.udp_limit == 4096
    wire = dns_packets.answer(query, addresses(40), over_udp=True)
    assert dns_packets.UDP_LIMIT_BYTES < len(wire) <= dns_packets.OWN_UDP_LIMIT_BYTES
    reply = dns.message.from_wire(wire)
    assert (reply.edns, reply.payload) == (0, dns_packets.OWN_UDP_LIMIT_BYTES)
    assert len(reply.answer[0]) == 40


def test_an_asker_without_the_option_gets_none() -> None:
    assert dns.message.from_wire(dns_packets.answer(ask(NAME), addresses(1), over_udp=True)).edns == -1


@pytest.mark.parametrize(
    "wire",
    [
        bytes.fromhex("abcd 0100 0001 0000 0000 0000"),  # no question though it says one
        bytes.fromhex("abcd 0100 0002 0000 0000 0000") + b"\x01a\0\0\1\0\1" * 2,
        bytes.fromhex("abcd 0100 0001 0000 0000 0000") + b"\xc0\x0c\0\1\0\1",  # a name that points at itself
        bytes.fromhex("abcd 0100 0001 0000 0000 0000") + b"\x3fshort\0",
    ],
)
def test_a_malformed_query_is_told_so(wire: bytes) -> None:
    with pytest.raises(dns_packets.BadQuery) as caught:
        dns_packets.parse(wire)
    assert caught.value.reply is not None
    reply = dns.message.from_wire(caught.value.reply)
    assert (reply.id, reply.rcode()) == (0xABCD, dns.rcode.FORMERR)


def test_other_operations_are_not_implemented() -> None:
    update = dns.message.make_query(NAME, "A")
    update.set_opcode(dns.opcode.STATUS)
    with pytest.raises(dns_packets.BadQuery) as caught:
        dns_packets.parse(update.to_wire())
    assert caught.value.reply is not None
    assert dns.message.from_wire(caught.value.reply).rcode() == dns.rcode.NOTIMP


@pytest.mark.parametrize(
    "wire", [b"", b"\0" * 11, dns_packets.failure(ask(NAME))], ids=["nothing", "too short", "an answer"]
)
def test_what_is_no_query_gets_no_answer(wire: bytes) -> None:
    """An answer to an answer could go back and forth for ever."""
    with pytest.raises(dns_packets.BadQuery) as caught:
        dns_packets.parse(wire)
    assert caught.value.reply is None
