"""What tokenises for an engine's HTTP process, without processes: in the one that asks."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from fairlead_common.openai.prompts import EncodedPrompt, PromptFields
from fairlead_common.workers.branch import WorkerError
from fairlead_common.workers.process import Handler
from fairlead_engine.api.prompt_program import make_plain
from fairlead_engine.api.prompts import checked_prompts, fitting, given_prompts
from fairlead_engine.api.schemas import PromptRequest
from fairlead_engine.api.served_model import ServedModel
from fairlead_engine.images.image import DecodedImage

Request = TypeVar("Request", bound=PromptRequest)


def prompts_here(
    request: Request,
    model: ServedModel,
    fields_of: Callable[[Request], PromptFields],
    images: Sequence[DecodedImage] = (),
) -> list[EncodedPrompt]:
    """A request's prompts as an engine makes them. Raises `RequestError`."""
    fields = fields_of(request)
    fields, truncation = fitting(fields, request, model, images)
    given = given_prompts(fields, request, model, images, truncation)
    prompts = model.prompts(fields) if given is None else given
    return checked_prompts(prompts, fields, request, model, images)


class PromptsHere:
    """Stands in for `Workers`."""

    def __init__(self, payload: bytes, num_bytes: int) -> None:
        self._payload = payload
        self._handler: Handler | None = None

    async def load(self) -> bytes:
        told, self._handler = make_plain(self._payload)  # comparing with fastokens takes longer than most tests do
        return told

    async def loaded(self) -> None:
        if self._handler is None:
            await self.load()

    async def ask(self, job: bytes) -> bytes:
        assert self._handler is not None
        try:
            return self._handler(job, False)
        except Exception as error:
            raise WorkerError(str(error)) from error

    ask_beside = ask

    def close(self) -> None:
        pass
