"""Routes of tokens to experts in one launch: Triton.

A program is for one expert. For every token, it finds the expert's place among the token's logits: the number of
experts that are better, or equal and earlier. One of the first places makes the token the expert's, and the place is
the index of the token's pair. No program needs another's results, pairs are in order without a sort, and a token has
exactly the intended number of experts whatever its logits are: NaN counts as the best. Further programs, one for each
token, find the largest magnitudes of rows to be rounded.

Bytes: the logits once for each expert, 2 x tokens x experts² in 16 bits, all but the first time from the L2 cache: 2
MiB for 64 tokens and 128 experts; 16 bytes a pair are written; rows once if rounded. Operations: about six for each of
these logits, 6 million in the example, and twenty with groups of experts: three a byte, i.e. one launch's time up to
thousands of tokens.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairlead_engine.kernels.routes import ExpertRouting, Routes

_FEW_TOKENS, _MANY_TOKENS = 16, 64
"""Of a tile."""
_MOST_LOGITS = 8192
FEW_WARPS, MANY_WARPS = 4, 8
_TILE_COLUMNS = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _group_merits(merit, e, GROUP_SIZE: tl.constexpr, NUM_COUNTED: tl.constexpr, group: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of a group's best expert, or its best two together [tokens]."""
    of_group = tl.where((e // GROUP_SIZE == group)[None, :], merit, float("-inf"))
    best = tl.max(of_group, 1)
    if NUM_COUNTED == 2 and GROUP_SIZE > 1:
        first = tl.min(tl.where(of_group == best[:, None], e[None, :], 1 << 30), 1)
        best += tl.max(tl.where(e[None, :] == first[:, None], float("-inf"), of_group), 1)
    return best


@triton.jit(do_not_specialize=["num_tokens"])  # type: ignore[untyped-decorator]
def routes_kernel(  # type: ignore[no-untyped-def]
    experts,
    scores,
    order,
    counts,
    largest,
    largest_within,
    logits,
    bias,
    x,
    num_tokens,
    logits_stride,
    x_stride,
    ROW_SIZE,
    EACH: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    PADDED_EXPERTS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    PADDED_GROUPS: tl.constexpr,
    NUM_CHOSEN_GROUPS: tl.constexpr,
    NUM_COUNTED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_SOFTMAX: tl.constexpr,
    ROUNDS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    """Program (expert, or behind the experts a token whose row is rounded)."""
    mine = tl.program_id(0)
    if mine < NUM_EXPERTS:
        e, g = tl.arange(0, PADDED_EXPERTS), tl.arange(0, PADDED_GROUPS)
        is_expert, is_before = (e < NUM_EXPERTS)[None, :], (e < mine)[None, :]
        count = 0
        for start in range(0, num_tokens, TILE_TOKENS):
            token = start + tl.arange(0, TILE_TOKENS)
            is_token = token < num_tokens
            place = logits + token.to(tl.int64)[:, None] * logits_stride + e[None, :]
            logit = tl.load(place, mask=is_token[:, None] & is_expert, other=0.0).to(tl.float32)
            own = tl.sum(tl.where(e[None, :] == mine, logit, 0.0), 1)
            merit = logit
            if IS_SOFTMAX:
                logit = tl.where(is_expert, logit, float("-inf"))
                peak = tl.max(logit, 1)
                total = tl.sum(tl.exp(logit - peak[:, None]), 1)
                score = tl.exp(own - peak) / total
                if HAS_BIAS:
                    merit = tl.exp(logit - peak[:, None]) / total[:, None]
            else:
                score, merit = tl.sigmoid(own), tl.sigmoid(logit)
            if HAS_BIAS:
                merit += tl.load(bias + e, mask=e < NUM_EXPERTS, other=0.0)[None, :]
            merit = tl.where(merit == merit, merit, float("inf"))
            merit = tl.where(is_expert, merit, float("-inf"))
            if NUM_GROUPS > 1:
                SIZE: tl.constexpr = NUM_EXPERTS // NUM_GROUPS
                of_groups = tl.full([TILE_TOKENS, PADDED_GROUPS], float("-inf"), tl.float32)
                for group in tl.static_range(NUM_GROUPS):
                    found = _group_merits(merit, e, SIZE, NUM_COUNTED, group)
                    of_groups = tl.where(g[None, :] == group, found[:, None], of_groups)
                for group in tl.static_range(NUM_GROUPS):
                    found = tl.sum(tl.where(g[None, :] == group, of_groups, 0.0), 1)[:, None]
                    is_better = (of_groups > found) | ((of_groups == found) & (g < group)[None, :])
                    is_out = tl.sum(is_better.to(tl.int32), 1) >= NUM_CHOSEN_GROUPS
                    is_of_group = (e // SIZE == group)[None, :]
                    merit = tl.where(is_of_group & is_out[:, None], float("-inf"), merit)
            own_merit = tl.sum(tl.where(e[None, :] == mine, merit, 0.0), 1)[:, None]
            is_better = (merit > own_merit) | ((merit == own_merit) & is_before)
            rank = tl.sum(is_better.to(tl.int32), 1)
            is_chosen = is_token & (rank < EACH)
            pair = token * EACH + rank
            tl.store(experts + pair, mine, mask=is_chosen)
            tl.store(scores + pair, score, mask=is_chosen)
            if ROUNDS:
                tl.store(largest_within + pair, 0.0, mask=is_chosen)
            chosen = is_chosen.to(tl.int32)
            behind = count + tl.cumsum(chosen, 0) - 1
            tl.store(order + mine.to(tl.int64) * num_tokens + behind, pair, mask=is_chosen)
            count += tl.sum(chosen, 0)
        tl.store(counts + mine, count)
    elif ROUNDS:
        row = (mine - NUM_EXPERTS).to(tl.int64)
        column = tl.arange(0, TILE_COLUMNS)
        highest = tl.zeros([TILE_COLUMNS], tl.float32)
        for at in range(0, ROW_SIZE, TILE_COLUMNS):
            some = tl.load(x + row * x_stride + at + column, mask=at + column < ROW_SIZE, other=0.0)
            highest = tl.maximum(highest, tl.abs(some.to(tl.float32)))
        tl.store(largest + row, tl.max(highest, 0))


def find_routes(logits: Tensor, routing: ExpertRouting, x: Tensor, rounds: bool = False) -> Routes:
    (num_tokens, num_experts), each = logits.shape, routing.num_chosen

    def numbers(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    routes = Routes(
        experts=numbers(num_tokens, each),
        scores=numbers(num_tokens, each, dtype=torch.float32),
        order=numbers(num_experts, num_tokens),
        counts=numbers(num_experts),
        largest=numbers(num_tokens, dtype=torch.float32) if rounds else None,
        largest_within=numbers(num_tokens * each, dtype=torch.float32) if rounds else None,
    )
    padded = triton.next_power_of_2(num_experts)
    most = max(1, min(_MANY_TOKENS, _MOST_LOGITS // padded))
    num_groups = routing.num_groups if routing.num_chosen_groups < routing.num_groups else 1
    routes_kernel[(num_experts + num_tokens * rounds,)](
        routes.experts,
        routes.scores,
        routes.order,
        routes.counts,
        routes.scores if routes.largest is None else routes.largest,
        routes.scores if routes.largest_within is None else routes.largest_within,
        logits,
        routes.scores if routing.bias is None else routing.bias,
        x,
        num_tokens,
        logits.stride(0) if num_tokens > 1 else num_experts,  # that of a single row may be anything
        x.stride(0) if num_tokens > 1 else x.shape[1],
        x.shape[1],
        EACH=each,
        NUM_EXPERTS=num_experts,
        PADDED_EXPERTS=padded,
        NUM_GROUPS=num_groups,
        PADDED_GROUPS=triton.next_power_of_2(num_groups),
        NUM_CHOSEN_GROUPS=routing.num_chosen_groups,
        NUM_COUNTED=routing.num_counted,
        HAS_BIAS=routing.bias is not None,
        IS_SOFTMAX=routing.bias is None or routing.is_softmax,
        ROUNDS=rounds,
        TILE_TOKENS=min(most, _FEW_TOKENS) if num_tokens <= _FEW_TOKENS else most,
        TILE_COLUMNS=_TILE_COLUMNS,
        num_warps=FEW_WARPS if num_tokens <= _FEW_TOKENS else MANY_WARPS,
    )
    return routes
