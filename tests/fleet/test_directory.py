"""Names, canonical paths and Hosts → pools; conflicts go to the older LLMDeployment."""

from fairlead.fleet.directory import Directory, Pool, ServedAdapter, answers_to
from fairlead_testing.gateways import make_pool


def key(pool: Pool | None) -> str | None:
    return None if pool is None else pool.model.key


def test_a_model_is_found_by_served_name_alias_and_both_with_namespace() -> None:
    pool = make_pool(name="dinghy", namespace="prod", served_name="small", aliases=("tiny", "gpt"))
    directory = Directory([pool])
    for name in ("small", "tiny", "gpt", "prod/small", "prod/dinghy"):
        assert directory.find(name) is pool, name
    for name in ("dinghy", "other/small", "prod", "Small", ""):
        assert directory.find(name) is None, name


def test_the_older_object_gets_a_shared_name_whatever_the_order() -> None:
    old = make_pool(name="a", namespace="one", served_name="m", created=1.0)
    new = make_pool(name="b", namespace="two", served_name="m", created=2.0)
    for pools in ([old, new], [new, old]):
        directory = Directory(pools)
        assert key(directory.find("m")) == "one/a"
        assert key(directory.find("two/m")) == "two/b"
        assert directory.public_names(old) == ["m"]
        assert directory.public_names(new) == ["two/m"]


def test_of_two_created_in_the_same_second_the_first_by_namespace_and_name_wins() -> None:
    first = make_pool(name="b", namespace="a", served_name="m", created=1.0)
    second = make_pool(name="a", namespace="b", served_name="m", created=1.0)
    for pools in ([first, second], [second, first]):
        assert Directory(pools).find("m") is first


def test_an_older_alias_goes_before_a_younger_served_name() -> None:
    old = make_pool(name="old", aliases=("gpt",), created=1.0)
    new = make_pool(name="gpt", created=2.0)
    directory = Directory([new, old])
    assert directory.find("gpt") is old
    assert directory.public_names(new) == ["default/gpt"]
    assert directory.public_names(old) == ["old", "gpt"]


def test_a_name_with_a_namespace_is_that_namespaces_whoever_was_first() -> None:
    """API servers refuse such names now; objects from before may still have them."""
    thief = make_pool(
        name="thief", namespace="evil", served_name="default/later", aliases=("default/gone",), created=1.0
    )
    later = make_pool(name="later", namespace="default", served_name="m", created=2.0)
    directory = Directory([thief, later])
    assert key(directory.find("default/later")) == "default/later"
    assert directory.find("default/gone") is None, "its namespace may have it back any time"
    assert directory.public_names(thief) == ["evil/default/later"]


def test_the_name_of_one_is_not_given_to_another_of_the_same_namespace_that_is_served_under_it() -> None:
    old = make_pool(name="a", served_name="b", aliases=("default/b",), created=1.0)
    new = make_pool(name="b", served_name="c", created=2.0)
    directory = Directory([old, new])
    assert directory.find("default/b") is new
    assert directory.find("b") is directory.find("default/a") is old


def test_when_the_older_object_goes_the_younger_gets_the_name() -> None:
    new = make_pool(name="b", namespace="two", served_name="m", created=2.0)
    assert Directory([new]).find("m") is new


def test_host_names_of_the_cluster_choose_a_pool() -> None:
    pool = make_pool(name="dinghy", namespace="prod")
    directory = Directory([pool])
    for host in (
        "dinghy.prod",
        "DINGHY.prod:8080",
        "dinghy.prod.svc",
        "dinghy.prod.svc.cluster.local.",
        "dinghy.prod:80",
    ):
        assert directory.find_host(host) is pool, host
    for host in ("", "dinghy", "127.0.0.1:8080", "localhost", "dinghy.prod.example.com", "prod.dinghy", "[::1]:80"):
        assert directory.find_host(host) is None, host


def test_a_pool_answers_to_its_own_names_even_where_another_won_them() -> None:
    loser = make_pool(name="b", served_name="m", created=2.0)
    assert answers_to(loser, "m")
    assert not answers_to(loser, "other")


def test_an_adapters_own_name_is_a_name_like_others_and_goes_to_the_older() -> None:
    old = make_pool(name="old", adapters=(ServedAdapter("pirate", "m"), ServedAdapter("poet", "old")), created=1.0)
    new = make_pool(name="m", adapters=(ServedAdapter("pirate", "redbeard"),), created=2.0)
    directory = Directory([new, old])
    assert directory.find("m") is old and old.model.split("m") == ("old", "pirate")
    assert directory.find("default/m") is new, "the name of one is its own"
    assert directory.find("redbeard") is new and new.model.split("redbeard") == ("m", "pirate")
    assert old.model.split("old") == ("old", None), "its own name is the model's"
    assert directory.find("redbeard:pirate") is None and directory.find("m:pirate") is None
    assert answers_to(new, "redbeard") and not answers_to(new, "old:pirate")
