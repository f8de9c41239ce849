"""A runner without a model, whose every token depends on the KV it finds where the block tables point.

It keeps a store indexed by physical slot, as a real cache is. Each slot holds a digest of all tokens up to its
position, as a real key does implicitly. So a wrong block table, a block shared or freed too early, a skipped token or a
cached prefix of another prompt changes the output or fails an assertion, never passes unseen.
"""

import hashlib
import random
import struct
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Tokens
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from fairlead_engine.errors import AdapterError
from fairlead_engine.kernels.attention.block_allocator import BlockAllocator, ConsecutiveBlocks
from fairlead_engine.speculative.drafting import verified
from fairlead_engine.types import GENERATES, ModelTask, TokenLogprobs
from fairlead_engine.types.adapters import AdapterFacts
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import NO_TOKEN, SampledToken, ScheduledSequence, Sequence

BYTES_PER_SLOT = 64
"""What one token is said to take in the cache."""

_EMPTY = b"\0" * 8
NO_BIAS: Mapping[int, float] = {}


@dataclass(frozen=True)
class FakeModelConfig:
    """What the engine asks of a model's configuration."""

    architecture: str = "FakeForCausalLM"
    vocab_size: int = 64
    vector_size: int = 16
    max_position_embeddings: int = 128
    eos_token_ids: tuple[int, ...] = (0,)
    task: ModelTask = GENERATES


class FakeRunner:
    """A deterministic stand-in for `ModelRunner`: the next token is a function of the tokens read through the table.

    It computes what is launched at once, as a device does one step after the other, and tells it when it is collected.
    `batches` keeps the shape of every step: (start, number of tokens) per item. `forgotten` lists the request ids it
    was told to forget. `block_allocator` places the tables. Where `is_spoilt` says so, a sequence's logits leave no
    choice.
    """

    device = "cpu"
    dtype = "float32"
    quantization: str | None = None
    attention_backend = "fake"
    kv_cache_dtype = "auto"
    num_parameters = 1000
    weight_bytes = 4000

    def __init__(
        self,
        model_config: FakeModelConfig | None = None,
        *,
        block_size: int = 4,
        block_allocator: Callable[[int], BlockAllocator] = ConsecutiveBlocks,
        num_adapter_slots: int = 0,
    ) -> None:
        self.model_config = model_config or FakeModelConfig()
        self.block_size = block_size
        self.block_allocator = block_allocator
        self.batches: list[list[tuple[int, int]]] = []
        self.forgotten: list[str] = []
        self.is_spoilt: Callable[[Sequence], bool] = lambda sequence: False
        self.num_adapter_slots = num_adapter_slots
        self.host_adapters: dict[int, str] = {}
        """By key, the names of the folders of those in the host's memory."""
        self.placed: dict[int, str] = {}
        """The same by slot of the device."""
        self.load_looks = 1
        """How often it is asked whether blocks were loaded until they are."""
        self._store: list[bytes | None] = []
        self._chosen: dict[int, int] = {}
        """By slot, the token that was chosen last: the next step may begin before anybody was told."""

    def kv_bytes_per_block(self) -> int:
        return BYTES_PER_SLOT * self.block_size

    def allocate_kv_cache(self, num_blocks: int, num_slots: int, blocks_per_slot: int) -> None:
        self._store = [None] * (num_blocks * self.block_size)

    state_bytes = 0

    def allocate_snapshots(self, num_slots: int, num_snapshots: int) -> None:
        self._states: list[tuple[int, ...]] = [()] * (num_slots + num_snapshots)

    def allocate_places(self, num_places: int) -> None:
        self._places: list[list[bytes | None]] = [[] for _ in range(num_places)]

    def save_blocks(self, blocks: list[int], places: list[int]) -> None:
        size = self.block_size
        for block, place in zip(blocks, places, strict=True):
            self._places[place] = self._store[block * size : (block + 1) * size]
            assert None not in self._places[place], "a block is saved that was never computed"

    def load_blocks(self, places: list[int], blocks: list[int]) -> Callable[[], bool]:
        """It takes `load_looks` looks until what was there at the first is there."""
        left = self.load_looks

        def is_over() -> bool:
            nonlocal left
            if left := left - 1:
                return left < 0
            for place, block in zip(places, blocks, strict=True):
                self._store[block * self.block_size : (block + 1) * self.block_size] = self._places[place]
            return True

        return is_over

    def memory_for_cache(
        self, utilization: float, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int
    ) -> int | None:
        return None

    def compile_steps(self, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int) -> None:
        """Nothing is."""

    def read_adapter(self, key: int, folder: Path) -> "Future[AdapterFacts]":
        """A folder that is called `broken` cannot be read."""
        facts: Future[AdapterFacts] = Future()
        if folder.name == "broken":
            facts.set_exception(AdapterError(f"{folder} is broken"))
        else:
            facts.set_result(AdapterFacts(1000))
        self.host_adapters[key] = folder.name
        return facts

    def place_adapter(self, key: int, slot: int) -> None:
        assert key in self.host_adapters, "an adapter is placed that was not read"
        self.placed[slot] = self.host_adapters[key]

    def forget_adapter(self, key: int) -> None:
        del self.host_adapters[key]

    def launch(self, batch: Batch) -> list[SampledToken | None]:
        """Writes all items' new slots, as a layer of attention does before it attends; then reads each item's whole
        table, and chooses tokens by what is there."""
        self.batches.append([(item.start, item.num_tokens) for item in batch.items])
        self._assert_no_slot_is_written_twice(batch)
        for item in batch.items:
            self._write(item)
        sampled = [self._sample(item) for item in batch.items]
        for item, token in zip(batch.items, sampled, strict=True):
            if item.drafts:
                item.chosen = verified(item.drafts, [each for each in self._choose_all(item) if each is not None])
                sampled[len(batch.decodes) + batch.chunks.index(item)] = item.chosen[0]
            elif token is not None:
                self._chosen[item.sequence.slot] = max(0, token.token_id)
        return sampled

    def is_over(self, launched: list[SampledToken | None]) -> bool:
        return True

    def collect(self, launched: list[SampledToken | None]) -> list[SampledToken | None]:
        return launched

    def forget(self, request_ids: Collection[str]) -> None:
        self.forgotten.extend(request_ids)

    def generate(
        self, prompt: Tokens[int], num_tokens: int, bias: Mapping[int, float] = NO_BIAS, folder: str | None = None
    ) -> list[int]:
        """The reference: what a prompt's output is, without any cache, end-of-sequence tokens included. `folder`: the
        name of that of its adapter."""
        digest = _begun(folder)
        for token_id in prompt:
            digest = _extend(digest, token_id)
        output: list[int] = []
        for _ in range(num_tokens):
            output.append(self._next_token(digest, bias))
            digest = _extend(digest, output[-1])
        return output

    def _beginning(self, item: ScheduledSequence) -> bytes:
        adapter = item.sequence.adapter
        return _begun(None if adapter is None else self.placed[adapter.slot])

    def _slot(self, item: ScheduledSequence, position: int) -> int:
        return item.sequence.block_table[position // self.block_size] * self.block_size + position % self.block_size

    def _assert_no_slot_is_written_twice(self, batch: Batch) -> None:
        slots = [self._slot(item, position) for item in batch.items for position in range(item.start, item.end)]
        assert len(slots) == len(set(slots)), "two sequences write the same slot in one step"

    def _token_id(self, item: ScheduledSequence, position: int) -> int:
        known = [*item.sequence.token_ids, *item.drafts]
        return known[position] if position < len(known) else self._chosen[item.sequence.slot]

    def _write(self, item: ScheduledSequence) -> None:
        digest = self._store[self._slot(item, item.start - 1)] if item.start else self._beginning(item)
        for position in range(item.start, item.end):
            assert digest is not None, f"token {position} of {item.sequence.request_id} follows one never computed"
            digest = _extend(digest, self._token_id(item, position))
            self._store[self._slot(item, position)] = digest

    def _sample(self, item: ScheduledSequence) -> SampledToken | None:
        expected = digest = self._beginning(item)
        for position in range(item.end):
            expected = _extend(expected, self._token_id(item, position))
            found = self._store[self._slot(item, position)]
            assert found == expected, f"slot of token {position} of {item.sequence.request_id} holds something else"
            digest = found
        if item.scores:
            ids = item.sequence.token_ids
            item.prompt_logprobs = [TokenLogprobs(ids[position], -float(position), []) for position in item.scores]
        if item.embeds and not self.is_spoilt(item.sequence):
            item.embedding = struct.pack(f"<{len(digest)}f", *digest)
        if not item.samples:
            return None
        if self.is_spoilt(item.sequence):
            return NO_TOKEN
        token_id = self._next_token(digest, item.sequence.sampling.logit_bias)
        if item.sequence.sampling.logprobs is None:
            return SampledToken(token_id)
        return SampledToken(token_id, TokenLogprobs(token_id, -1.0, [(token_id, -1.0)]))

    def _choose_all(self, item: ScheduledSequence) -> list[SampledToken | None]:
        """Behind its last known token and behind each draft."""
        return [
            self._sample(ScheduledSequence(item.sequence, 1 + count, drafts=item.drafts[:count]))
            for count in range(1 + len(item.drafts))
        ]

    def _next_token(self, digest: bytes, bias: Mapping[int, float]) -> int:
        """The likeliest of logits that are 1 for one token and 0 for all others, but for the bias."""
        likeliest = int(struct.unpack("<Q", digest)[0] % self.model_config.vocab_size)
        if not bias:
            return likeliest
        logits = [
            float(token_id == likeliest) + bias.get(token_id, 0) for token_id in range(self.model_config.vocab_size)
        ]
        return logits.index(max(logits))


class KnowingProposer:
    """Proposes what a fake runner will choose, but for a share `wrong` of the tokens."""

    def __init__(self, runner: FakeRunner, wrong: float, seed: int = 0) -> None:
        self.runner, self.wrong, self.draw = runner, wrong, random.Random(seed)
        self.num_forgotten = 0

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        right = self.runner.generate(sequence.token_ids, self.draw.randint(1, most))
        return [(token + (self.draw.random() < self.wrong)) % self.runner.model_config.vocab_size for token in right]

    def forget(self, sequences: Collection[Sequence]) -> None:
        self.num_forgotten += len(sequences)


def _begun(folder: str | None) -> bytes:
    return _EMPTY if folder is None else hashlib.blake2b(folder.encode(), digest_size=8).digest()


def _extend(digest: bytes, token_id: int) -> bytes:
    return hashlib.blake2b(struct.pack("<I", token_id), key=digest, digest_size=8).digest()
