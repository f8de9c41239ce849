"""What a step did for each of its sequences, as their clients are told it."""

from fairlead_engine.core.grammars import Grammars
from fairlead_engine.core.injections import Injection
from fairlead_engine.core.request_refusal import Refusal, ended, no_choice
from fairlead_engine.types import FinishReason, Injected, SequenceOutput
from fairlead_engine.types.batch import Decodes
from fairlead_engine.types.sequences import SampledToken, ScheduledSequence, Sequence

_NO_TOKEN = "no next token could be chosen: the model computed logits that are not finite"


def outputs_of_decodes(
    decodes: Decodes, sampled: list[SampledToken | None], grammars: Grammars
) -> list[SequenceOutput]:
    """Of each; `sampled` begins with their tokens. Nearly all say no more than the next token."""
    return [
        SequenceOutput(
            request_id=sequence.request_id,
            new_token_ids=[token.token_id],
            num_cached_tokens=sequence.num_cached_tokens,
        )
        if sequence.finish_reason is None and token is not None and token.logprobs is None
        else output_of(sequence, token, None, grammars)
        for sequence, token in zip(decodes.sequences, sampled, strict=False)
    ]


def output_of(
    sequence: Sequence, token: SampledToken | None, item: ScheduledSequence | None, grammars: Grammars
) -> SequenceOutput:
    """What a step did for a sequence; `item`: its share, where that was not a decode. `grammars` know why one that
    keeps to a grammar cannot go on."""
    if sequence.finish_reason is FinishReason.INVALID:
        problem, grammar = grammars.problem(sequence), sequence.sampling.grammar
        if problem is not None and grammar is not None:
            refusal = Refusal(FinishReason.INVALID, f"{grammar.field} cannot be kept to: {problem}", grammar.field)
        else:
            refusal = no_choice(sequence)
        return ended(sequence.request_id, refusal)
    if sequence.finish_reason is FinishReason.ERROR:
        return ended(sequence.request_id, Refusal(FinishReason.ERROR, _NO_TOKEN))
    tokens = item.chosen if item is not None and item.drafts else [token] if token is not None else []
    is_first = item is not None and item.end == sequence.num_prompt_tokens
    return SequenceOutput(
        request_id=sequence.request_id,
        new_token_ids=[each.token_id for each in tokens],
        finish_reason=sequence.finish_reason,
        num_cached_tokens=sequence.num_cached_tokens,
        logprobs=[each.logprobs for each in tokens if each.logprobs is not None] or None,
        prompt_logprobs=item.prompt_logprobs or None if item is not None else None,
        embedding=item.embedding if item is not None else None,
        stop_token_id=tokens[-1].token_id if tokens and sequence.finish_reason is FinishReason.STOP else None,
        first_scheduled_time=sequence.first_scheduled_time if is_first else None,
    )


def told(sequence: Sequence, injection: Injection) -> SequenceOutput:
    """Of tokens that were put in, before all that is computed with them."""
    injection.done(None)
    return SequenceOutput(
        request_id=sequence.request_id,
        new_token_ids=[],
        injected=Injected(injection.mark, len(injection.token_ids)),
    )
