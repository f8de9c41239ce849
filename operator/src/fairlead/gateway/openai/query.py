"""Values of a query string, such as those of a page: `limit`, `order`, `after`; and the page. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qs

from fairlead.gateway.openai.errors import bad_request

Asked = Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Which part of a list is asked for."""

    limit: int
    is_newest_first: bool
    after: str | None
    """The id of the last entry of the page before; None = the first page."""
    before: str | None = None
    """The id of the first entry of the page after."""


def page_of(query: str, *, default_limit: int, max_limit: int) -> ListQuery:
    """Raises OpenAIError (400)."""
    asked = parse_qs(query)
    limit = number_in(asked, "limit", default_limit, lambda number: 1 <= number <= max_limit, f"from 1 to {max_limit}")
    return ListQuery(limit, order_in(asked) == "desc", asked.get("after", [None])[-1])


def page_json(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Of entries with an `id` each. The ids of an empty page are empty: typed clients take no null for them."""
    first_id, last_id = (data[0]["id"], data[-1]["id"]) if data else ("", "")
    return {"object": "list", "data": data, "first_id": first_id, "last_id": last_id, "has_more": has_more}


def order_in(asked: Asked) -> Literal["asc", "desc"]:
    """Of a list by age. Raises OpenAIError (400)."""
    match asked.get("order", ["desc"])[-1]:
        case ("asc" | "desc") as order:
            return order
        case other:
            raise bad_request(f"order must be asc or desc, not {other!r}", param="order")


def number_in(asked: Asked, name: str, default: int, is_right: Callable[[int], bool], allowed: str) -> int:
    """`allowed`: which numbers are right, in words. Raises OpenAIError (400)."""
    text = asked.get(name, [str(default)])[-1]
    try:
        number = int(text)
    except ValueError:
        number = None
    if number is None or not is_right(number):
        raise bad_request(f"{name} must be a number {allowed}, not {text!r}", param=name)
    return number
