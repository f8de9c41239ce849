"""A model's tokenizer and chat template as the program of a process (`fairlead_protocol.workers`)."""

from array import array

import msgspec

from fairlead.gateway.prompts.fields import raw_prompt
from fairlead.gateway.prompts.prefix_cache import CachingTokenizer, PrefixCache
from fairlead.gateway.prompts.prompt_jobs import EncodeJob, Outcome, ReadJob, ReadReply
from fairlead.gateway.prompts.tokenising import HashChains, LeftToEngine, Tokenising
from fairlead_protocol.messages import ModelInfo
from fairlead_protocol.prompts import PromptError, PromptTooLong, TooLong
from fairlead_protocol.tokenizing import PromptTokenizer, TokenizerError
from fairlead_protocol.workers.process import Handler

CACHE_BYTES = 48 * 2**20
"""Of texts and their ids."""
QUICK_CHARACTERS = 24 * 1024
"""Texts of this length are tokenised while others wait, in some ten milliseconds."""

_jobs = msgspec.msgpack.Decoder(ReadJob | EncodeJob)
_encode = msgspec.msgpack.Encoder().encode


def make(payload: bytes) -> tuple[bytes, Handler]:
    """Of a `ModelInfo` as its engine told it. Raises TokenizerError and ChatTemplateError."""
    return b"", PromptProgram(msgspec.json.decode(payload, type=ModelInfo), may_quicken=True)


def make_plain(payload: bytes) -> tuple[bytes, Handler]:
    """The same without fastokens."""
    return b"", PromptProgram(msgspec.json.decode(payload, type=ModelInfo), may_quicken=False)


class PromptProgram:
    """Reads prompts. Remembers texts and hashes for the next ones."""

    def __init__(self, info: ModelInfo, *, may_quicken: bool) -> None:
        tokenizer = PromptTokenizer(
            info.tokenizer_json,
            chat_template=info.chat_template,
            special_tokens=info.special_tokens,
            joins_pairs=info.joins_pairs,
            image_token=info.image_token,
        )
        if tokenizer.digest != info.digest:  # another version of this code, which may tokenise otherwise
            raise TokenizerError("its engine understands the same files differently")
        if may_quicken:
            tokenizer.quicken()
        self._tokenizer = CachingTokenizer(tokenizer, PrefixCache(CACHE_BYTES))
        tokenizer.forget_json()
        self._chains = HashChains()

    def __call__(self, message: bytes, takes_long: bool) -> bytes:
        job = _jobs.decode(message)
        if isinstance(job, EncodeJob):
            encoded = self._tokenizer.encoded(job.keys)
            return _encode([(key, ids.tobytes()) for key, ids in encoded.items()])
        return _encode(self.read(job, takes_long))

    def read(self, job: ReadJob, takes_long: bool) -> ReadReply:
        """`takes_long`: whether it may."""
        raw = raw_prompt(job.path, job.fields, job.adapter)
        affinity = raw.beginning(job.affinity_length)
        reply = ReadReply(raw.num_tokens, affinity, raw.least(), Outcome.UNREADABLE, raw.extra)
        max_model_len = job.engines.max_model_len
        if raw.fields is None:
            if raw.least_ids >= max_model_len:
                reply.error = _told(PromptTooLong(raw.field, raw.least_ids, max_model_len, or_more=True))
                reply.outcome = Outcome.TOO_LONG
            elif raw.well_formed:
                reply.outcome = Outcome.LEFT
            return reply
        work = Tokenising(raw, raw.fields, self._tokenizer, job.engines, self._chains)
        learnt = {key: array("I", ids) for key, ids in job.learnt}
        try:
            work.begin()
            if not takes_long and work.num_missing_characters - sum(len(text) for _, text in learnt) > QUICK_CHARACTERS:
                reply.missing = work.missing
                reply.outcome = Outcome.MISSING if reply.missing and not learnt else Outcome.TAKES_LONG
            else:
                work.finish(learnt)
                reply.outcome = Outcome.READ
                reply.prompts = work.prompts
                reply.num_cached_tokens = work.num_cached_tokens
        except LeftToEngine:
            reply.outcome = Outcome.LEFT
        except TooLong as error:
            reply.outcome, reply.error = Outcome.TOO_LONG, _told(error)
        except PromptError:
            pass
        reply.seconds = work.seconds
        return reply


def _told(error: PromptError) -> tuple[str, str]:
    return error.field, error.message
