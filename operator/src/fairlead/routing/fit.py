"""Whether a prompt fits a replica at all, however long it waits: its adapters, its model's context, and its whole KV
cache. Pure."""

from fairlead.routing.load import Load
from fairlead.routing.prompt import Prompt, block_size_of
from fairlead.routing.replica import Replica
from fairlead_protocol.adapters import UnknownAdapter
from fairlead_protocol.prompts import PromptError, PromptTooLong


def misfit(prompt: Prompt, replica: Replica, load: Load | None) -> PromptError | None:
    """Why this replica could never serve the prompt; None where it may, or where nobody can tell."""
    if prompt.adapter is not None and replica.limits is not None and not prompt.may_go_to(replica):
        return UnknownAdapter(prompt.adapter, replica.adapters)
    if (too_long := prompt.too_long.get(replica.digest)) is not None:
        return too_long
    num_tokens = max((len(each.token_ids) for each in prompt.tokens(replica) or ()), default=0)
    limit = replica.limits.max_model_len if replica.limits is not None else None
    if limit is not None and num_tokens >= limit:
        return PromptTooLong("prompt", num_tokens, limit)
    capacity = None if load is None else load.kv_blocks_total * block_size_of(replica)
    if capacity is not None and num_tokens > capacity:
        return PromptError(
            "prompt",
            f"The prompt has {num_tokens} tokens, but the KV cache of a replica holds only {capacity}; shorten it, or "
            "give the replicas more memory",
        )
    return None
