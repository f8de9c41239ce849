"""`/v1/responses/{id}`: what clients ask of stored responses."""

from contextlib import suppress
from urllib.parse import parse_qs

import msgspec

from fairlead.gateway.openai.errors import OpenAIError, bad_request, method_not_allowed
from fairlead.gateway.openai.query import number_in, page_json, page_of
from fairlead.gateway.request_client import Client, ClientGone
from fairlead.gateway.stored.errors import RUNNING, Json, NotStored, StoreError
from fairlead.gateway.stored.keeper import Keeper, unreachable
from fairlead_common.openai.translate.responses_answers import encoded_event, replayed

POLL_SECONDS = 0.5
"""Between two looks for more events of a response, or for its end."""
LATE_POLLS = 4
"""Looks for the last events of a response that has ended; then its gateway did not tell them."""
MAX_ITEMS = 100
_EVENTS = (b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")


async def answer(keeper: Keeper, method: str, rest: str, query: str, client: Client) -> None:
    """`rest`: the path below `/v1/responses/`. Raises OpenAIError."""
    response_id, _, action = rest.partition("/")
    owner = client.name or ""
    try:
        match method, action:
            case "POST", "cancel":
                await client.reply(200, msgspec.json.encode(await keeper.cancel(owner, response_id)))
            case "DELETE", "":
                await keeper.store.delete(owner, response_id)
                await client.reply(200, msgspec.json.encode({"id": response_id, "object": "response", "deleted": True}))
            case "GET", "input_items":
                await client.reply(200, msgspec.json.encode(await _input_items(keeper, owner, response_id, query)))
            case "GET", "":
                await _get(keeper, owner, response_id, query, client)
            case _:
                allowed = {"cancel": "POST", "input_items": "GET", "": "GET, DELETE"}.get(action, "GET, POST, DELETE")
                raise method_not_allowed(method, f"/v1/responses/{rest}", allowed)
    except NotStored as error:
        message = f"Response with id '{error.id}' not found."
        raise OpenAIError(404, message, code="response_not_found") from error
    except StoreError as error:
        raise unreachable(error) from error


async def stream(keeper: Keeper, owner: str, response_id: str, client: Client, *, after: int = -1) -> None:
    """Events of a response: as they come where they are logged, else when it has ended; comments before. `after`: the
    number of the last event that is not wanted. Raises NotStored and StoreError before the answer begins."""
    response = await keeper.store.get(owner, response_id)
    await client.start(200, _EVENTS)
    num_late = 0
    try:
        while True:
            events = await keeper.store.logged(response_id, after)
            wanted = [event for event in events or () if event.number > after]
            if wanted:
                await client.write(b"".join(event.data for event in wanted))
                after = wanted[-1].number
            if events and events[-1].is_last:
                await client.finish()
                return
            if response["status"] not in RUNNING:
                num_late += 1
                if events is None or num_late > LATE_POLLS:
                    break
            elif not wanted:
                await client.write(b": waiting\n\n")
            await keeper.news(response_id, POLL_SECONDS)
            response = await keeper.store.get(owner, response_id)
    except (StoreError, NotStored):
        await client.finish(OpenAIError(503, "The response is no longer in the store.").event())
        return
    told = list(replayed(response))
    if events is not None:  # what ended it is told by nobody else
        told = [told[-1] | {"sequence_number": events[-1].number + 1 if events else 0}]
    await client.finish(b"".join(encoded_event(event) for event in told if event["sequence_number"] > after))


async def _get(keeper: Keeper, owner: str, response_id: str, query: str, client: Client) -> None:
    asked = parse_qs(query)
    if asked.get("stream", ["false"])[-1] != "true":
        await client.reply(200, msgspec.json.encode(await keeper.store.get(owner, response_id)))
        return
    after = number_in(asked, "starting_after", -1, lambda number: True, "of an event")
    await client.read_nothing()
    with suppress(ClientGone):
        async with client.watch:
            await stream(keeper, owner, response_id, client, after=after)


async def _input_items(keeper: Keeper, owner: str, response_id: str, query: str) -> Json:
    """A page of the items that the response was made of, earlier turns included, the newest first."""
    asked = page_of(query, default_limit=20, max_limit=MAX_ITEMS)
    found = await keeper.history(owner, response_id)
    if asked.is_newest_first:
        found.reverse()
    if asked.after is not None:
        ids = [item["id"] for item in found]
        if asked.after not in ids:
            raise bad_request(f"after: there is no item {asked.after!r} of this response", param="after")
        found = found[ids.index(asked.after) + 1 :]
    return page_json(found[: asked.limit], has_more=len(found) > asked.limit)
