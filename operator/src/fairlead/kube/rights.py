"""What an API server serves, and what we may do there. Asked of the server itself, never guessed from its version.

Who calls it: the operator, at its start and now and then. Every account has the right to these questions, unless
somebody took it away.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairlead.kube.client import KubeClient, KubeError
from fairlead.kube.resources import ACCESS_REVIEWS, Resource

QUESTIONS_AT_ONCE = 8
"""Questions about rights that are on their way at the same time; API servers ration a client's requests."""
ANSWER_SECONDS = 10.0
"""How long an answer to one may take."""
ATTEMPTS = 3
"""How often one is asked where the server fails, or is not there."""
PAUSE_SECONDS = 1.0
"""Between two of them."""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """What may be done to one kind of object in one namespace."""

    verb: str
    """As in a Role: get, list, watch, create, patch, delete."""
    group: str
    plural: str
    namespace: str
    """Empty = in all of them."""
    subresource: str = ""

    @property
    def sentence_part(self) -> str:
        """As people write it: `patch llmdeployments.fairlead.dev/scale in the namespace default`."""
        kind = f"{self.plural}.{self.group}" if self.group else self.plural
        kind = f"{kind}/{self.subresource}" if self.subresource else kind
        return f"{self.verb} {kind} in " + (f"the namespace {self.namespace}" if self.namespace else "all namespaces")


def rights(
    resource: Resource, verbs: Iterable[str], namespaces: Sequence[str] | None, subresource: str = ""
) -> list[Right]:
    """Each of the verbs in each of the namespaces; None = in all of them at once."""
    places = ("",) if namespaces is None else namespaces
    return [Right(verb, resource.group, resource.plural, place, subresource) for place in places for verb in verbs]


async def is_served(client: KubeClient, resource: Resource) -> bool:
    """Whether the API has this kind in this version. Raises KubeError for any answer but yes and no."""
    path = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    try:
        document = await client.request("GET", path)
    except KubeError as e:
        if e.status == 404:
            return False
        raise
    return any(entry.get("name") == resource.plural for entry in document.get("resources") or [])


class AccessReviews:
    """Asks the API server what we may do. Where it does not say, nothing counts as missing, and `refusal` says why:
    hardened clusters let nobody ask, and others serve no such question."""

    def __init__(self, client: KubeClient) -> None:
        """Asks nothing yet. Questions are put to whom `client` talks to, and about whoever it is there."""
        self._client = client
        self.refusal: str | None = None
        """Why the last questions have no answer; None = all had one. Nothing more is asked then."""

    async def missing(self, wanted: Iterable[Right]) -> list[Right]:
        """Those of the rights that we certainly do not have, in their order."""
        gate, asked = asyncio.Semaphore(QUESTIONS_AT_ONCE), list(wanted)

        async def lacks(right: Right) -> bool:
            async with gate:
                return self.refusal is None and not await self._is_allowed(right)

        answers = await asyncio.gather(*map(lacks, asked))
        return [right for right, is_missing in zip(asked, answers, strict=True) if is_missing]

    async def _is_allowed(self, right: Right) -> bool:
        """True too where there is no answer: who is not told what is missing finds out by trying."""
        attributes = {"verb": right.verb, "group": right.group, "resource": right.plural}
        attributes |= {"namespace": right.namespace, "subresource": right.subresource}
        review = {
            "apiVersion": ACCESS_REVIEWS.api_version,
            "kind": ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
        }
        path, num_left = ACCESS_REVIEWS.path(), ATTEMPTS
        while True:
            try:
                answer = await self._client.request("POST", path, body=review, timeout=ANSWER_SECONDS)
                return bool((answer.get("status") or {}).get("allowed"))
            except KubeError as e:
                num_left -= 1
                if not e.may_pass or not num_left:
                    self.refusal = f"{ACCESS_REVIEWS.api_version} is not served" if e.status == 404 else str(e)
                    return True
            await asyncio.sleep(PAUSE_SECONDS)


async def may_list(client: KubeClient, resource: Resource, namespace: str | None) -> bool:
    """False where a list of this kind is refused, found out by asking for one object; where there is no such kind,
    nothing is refused. `namespace`: None = all. Raises KubeError where the API server fails."""
    try:
        await client.request("GET", resource.path(namespace), params={"limit": "1"})
    except KubeError as e:
        if e.status not in (403, 404):
            raise
        return e.status == 404
    return True
