"""Models that keep states: what is reused of them, what routers are told, and what is refused by name."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.fit.fit_check import read_shape, undivided
from fairlead_common.wire.blocks import BlockHash, hash_blocks, state_hash
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.state_snapshots import StateSnapshots
from fairlead_engine.errors import ConfigError
from fairlead_engine.types import SequenceOutput
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.greedy_answers import engine_of_blocks, small_config, small_engine
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_engine_testing.tiny_families.recurrent import qwen3_5_fields

SIZE = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("models") / "qwen3_5", qwen3_5_fields())


class Told:
    """What a router knows of an engine's blocks."""

    def __init__(self, engine: Engine) -> None:
        self.known: set[BlockHash] = set()
        engine.blocks.listener = self

    def stored(self, parent: BlockHash, hashes: list[BlockHash]) -> None:
        assert self.known.isdisjoint(hashes)
        self.known.update(hashes)

    def removed(self, block_hash: BlockHash) -> None:
        self.known.remove(block_hash)

    def predicted(self, prompt: list[int]) -> int:
        """Tokens of a prompt that are cached, as far as is known."""
        number = 0
        for at, block_hash in enumerate(hash_blocks(prompt[:-1], SIZE), start=1):
            if block_hash not in self.known:
                break
            number = at if state_hash(block_hash) in self.known else number
        return number * SIZE


def asked(engine: Engine, prompt: list[int], max_tokens: int = 4) -> SequenceOutput:
    return answered(engine, [make_request("r", prompt, max_tokens=max_tokens, ignore_eos=True)])["r"]


def test_a_prompt_is_reused_to_its_last_whole_block_an_answer_to_its_last_and_a_branch_from_the_third_on(
    folder: Path,
) -> None:
    engine, draw = small_engine(folder), random.Random(0)
    told = Told(engine)
    tokens = [draw.randrange(2, 250) for _ in range(300)]
    first = tokens[:61]
    answer = asked(engine, first, 30)
    assert (answer.num_cached_tokens, told.predicted(first)) == (0, 56)
    assert asked(engine, first).num_cached_tokens == 56
    longer = [*first, *answer.new_token_ids, 7, 8, 9]
    assert told.predicted(longer) == 88  # 61 + 30 tokens, of which the last is not computed
    assert asked(engine, longer).num_cached_tokens == 88
    branches = [[*tokens[:42], *tokens[start : start + 40]] for start in (100, 150, 200)]
    assert [asked(engine, each).num_cached_tokens for each in branches] == [0, 40, 40]


@pytest.mark.parametrize("family", ["bamba", "falcon_h1", "granite_hybrid", "lfm2", "lfm2_moe", "lfm3", "nemotron_h"])
def test_reused_states_of_mamba_answer_as_computed_ones(family: str, tmp_path: Path) -> None:
    model = write_random_checkpoint(tmp_path, FAMILIES[family]())
    reusing, computing = small_engine(model), small_engine(model, enable_prefix_caching=False)
    draw = random.Random(1)
    talk = [draw.randrange(2, 250) for _ in range(61)]
    for turn in range(3):
        found, wanted = asked(reusing, talk, 20), asked(computing, talk, 20)
        assert found.new_token_ids == wanted.new_token_ids
        assert (found.num_cached_tokens > 50) == bool(turn)
        talk += [*found.new_token_ids, 7, 8, 9]


@pytest.mark.parametrize(("num_blocks", "num_turns"), [(150, 100), pytest.param(600, 200, marks=pytest.mark.compute)])
def test_routers_are_told_of_what_can_be_reused(folder: Path, num_blocks: int, num_turns: int) -> None:
    """Turns of conversations over a few system prompts, some taken back, in caches that hold some of them."""
    config = small_config(folder, max_model_len=400)
    engine, draw = engine_of_blocks(config, num_blocks), random.Random(num_blocks)
    told = Told(engine)
    systems = [[draw.randrange(2, 250) for _ in range(draw.randint(40, 90))] for _ in range(3)]
    talks = [[*draw.choice(systems)] for _ in range(12)]
    for _ in range(num_turns):
        number = draw.randrange(len(talks))
        talk = talks[number]
        if draw.random() < 0.2:
            del talk[draw.randint(20, len(talk)) :]
        talk += [draw.randrange(2, 250) for _ in range(draw.randint(1, 30))]
        predicted = told.predicted(talk)
        output = asked(engine, talk, draw.randint(1, 20))
        assert output.num_cached_tokens == predicted
        talk += output.new_token_ids
        if len(talk) > 330:
            talks[number] = [*draw.choice(systems)]
    engine.check()
    assert engine.load.prefix_hit_tokens > 0


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_place_has_one_state_and_is_named_once(data: st.DataObject) -> None:
    """Whatever is taken, named, lifted and dropped: what was said to be kept and lost is what is kept."""
    states = StateSnapshots(data.draw(st.integers(0, 4)))
    names = [bytes([number]) for number in range(5)]
    kept: set[bytes] = set()
    taken: list[int] = []
    for action in data.draw(st.lists(st.sampled_from(["take", "name", "lift", "drop", "give back"]), max_size=40)):
        name = data.draw(st.sampled_from(names))
        if action == "take":
            place, lost = states.take()
            taken += [] if place is None else [place]
            kept -= {lost}
        elif action == "lift" and (place := states.lift(name)) is not None:
            taken.append(place)
            kept.remove(name)
        elif action == "drop":
            assert states.drop(name) == (name in kept)
            kept.discard(name)
        elif taken and action == "name":
            assert states.name(name, taken.pop(), is_branch=data.draw(st.booleans())) == (name not in kept)
            kept.add(name)
        elif taken and action == "give back":
            states.give_back(taken.pop())
        assert kept == set(states)
        states.check()
        deepest = states.deepest(names, len(names))
        assert deepest == max((names.index(each) + 1 for each in kept), default=0)
        assert not deepest or states.use(names[deepest - 1]) not in taken


def test_the_tier_in_the_hosts_memory_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(ConfigError, match="Qwen3_5ForCausalLM") as refused:
        small_engine(folder, host_kv_cache_memory=2**20)
    assert str(refused.value).startswith("host-kv-cache-memory")


@pytest.mark.parametrize(
    ("family", "size", "changes", "said"),
    [
        ("qwen3_next", 4, {"linear_num_value_heads": 8}, "4 does not divide the model's linear_num_key_heads, 2"),
        ("granite_hybrid", 4, {"mamba_n_heads": 2, "mamba_d_head": 64}, "4 does not divide .* mamba_n_heads, 2"),
        ("bamba", 2, {"mamba_n_heads": 12, "mamba_n_groups": 3, "hidden_size": 96}, "2 .* mamba_n_groups, 3"),
        ("nemotron_h", 2, {"mamba_num_heads": 3, "n_groups": 1}, "2 does not divide the model's mamba_num_heads, 3"),
    ],
)
def test_heads_that_ranks_do_not_divide_are_refused_by_their_field(
    family: str, size: int, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    fields = FAMILIES[family](**changes)
    model = write_random_checkpoint(tmp_path, fields)
    with pytest.raises(ConfigError, match=f"tensor-parallel-size: {said}"):
        small_engine(model, tensor_parallel_size=size)
    assert re.search(said.removeprefix(f"{size} "), undivided(read_shape(fields), size))
