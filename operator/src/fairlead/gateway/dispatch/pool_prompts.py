"""Has the prompts of one model's requests read with the tokenizers of the model's replicas."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fairlead.gateway.dispatch.ticket import RequestTicket
from fairlead.gateway.prompts.prompt_jobs import Engines, engines_of
from fairlead.gateway.prompts.reader import PromptReader, Tokenizers
from fairlead.routing.replica import Replica

logger = logging.getLogger(__name__)

MAX_DIGESTS = 4
"""Tokenizers per model, by number of replicas: a rollout has two, each of two processes. Replicas with other tokenizers
tokenise by themselves."""


@dataclass(eq=False)
class PoolPrompts:
    """Each tokenizer reads a prompt once: when the request arrives, or in line when the tokenizer becomes known later.

    `line`: waiting tickets, first one first. `affinity_length`: characters of `Prompt.affinity`. `on_read`: called when
    the prompt of a ticket in line has been read.
    """

    reader: PromptReader
    tokenizers: Tokenizers
    line: Iterable[RequestTicket]
    affinity_length: Callable[[], int]
    on_read: Callable[[], object]

    def __post_init__(self) -> None:
        self.digests: frozenset[str] = frozenset()
        """Digests of the tokenizers of the model's replicas; without replicas, of the last ones."""
        self.engines: Mapping[str, Engines] = {}
        """What the model's replicas say about prompts, by digest."""
        self._reading: asyncio.Task[None] | None = None
        """The task that reads unread prompts in line; None = all are read."""

    def problem(self, replicas: Iterable[Replica]) -> str | None:
        """Why the prompts for some of these replicas are not tokenised in the gateway; None = all are."""
        problems = (self.tokenizers.problem(digest) for digest in {each.digest for each in replicas})
        return next(filter(None, problems), None)

    def set_replicas(self, replicas: Iterable[Replica], told: Iterable[Replica]) -> None:
        """`replicas`: the model's ready ones. `told`: replicas with known limits, including warming ones."""
        counts = Counter(each.digest for each in replicas if self.tokenizers.get(each.digest) is not None)
        self.digests = frozenset(digest for digest, _ in counts.most_common(MAX_DIGESTS))
        self.engines = engines_of(told)
        self.read_line()

    async def read(self, ticket: RequestTicket) -> None:
        """Has the prompt read with each of the replicas' tokenizers not tried yet."""
        missing = self.digests - ticket.digests_read
        known = ticket.prompt if ticket.is_read else None
        try:
            ticket.prompt = await self.reader.read(
                ticket.request, missing, known, affinity_length=self.affinity_length(), engines=self.engines
            )
        finally:  # not before: until then it must not be let go; also after an error, which would come again
            ticket.digests_read |= missing
        ticket.is_read = True

    def has_read(self, ticket: RequestTicket) -> bool:
        """Whether all tokenizers of the replicas have been tried on the prompt."""
        return self.digests <= ticket.digests_read

    def read_line(self) -> None:
        """Starts reading the prompts in line, if any is unread."""
        if self._reading is None and not all(map(self.has_read, self.line)):
            self._reading = asyncio.get_running_loop().create_task(self._read_line())

    async def _read_line(self) -> None:
        try:
            while (ticket := next((each for each in self.line if not self.has_read(each)), None)) is not None:
                try:
                    await self.read(ticket)
                except Exception:
                    logger.exception("a prompt that waits could not be tokenised")  # its engine will do it
                self.on_read()
                await asyncio.sleep(0)  # short prompts are read on the loop
        finally:
            self._reading = None
