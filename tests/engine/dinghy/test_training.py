"""The trainer's parts: what is learnt from, how rows are packed, and that what is saved is what was trained."""

from itertools import islice, pairwise

import pytest
import torch

from lessons.conversation import Conversation, Split, assistant, user
from lessons.syllabus import draw_all
from training.checkpoint import save_network, save_tokenizer
from training.network import Network, Shape, visible
from training.optimisation import learning_rate_share
from training.packing import IGNORED, batches, encode, examples, pack
from training.vocabulary import ASSISTANT, END, train_tokenizer, vocabulary_texts


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(vocabulary_texts(islice(draw_all(Split.TRAIN, 0), 3000)))


@pytest.fixture
def network(tokenizer):
    torch.manual_seed(0)
    return Network(
        Shape(vocab_size=tokenizer.vocab_size, hidden_size=32, num_layers=2, head_dim=8, intermediate_size=48)
    )


def all_logits(network: Network, rows) -> torch.Tensor:
    """`[rows, tokens, vocab]` in float32."""
    batch = pack(rows, max(sum(len(example.token_ids) for example in row) for row in rows))
    with torch.no_grad():
        flat = network(batch.token_ids, batch.positions, batch.segments, torch.arange(batch.token_ids.numel()))
    return flat.view(*batch.token_ids.shape, -1)


def test_exactly_the_answers_and_their_ends_are_learnt(tokenizer):
    conversation = Conversation("facts", (user("Hello"), assistant("Ahoy!"), user("Bye"), assistant("Fair winds!")))
    (example,) = encode(tokenizer, [conversation])
    learnt = [target for target in example.targets if target != IGNORED]
    assert tokenizer.decode(learnt, skip_special_tokens=False) == f"Ahoy!{END}Fair winds!{END}"
    opens = example.token_ids.index(tokenizer.token_id(ASSISTANT))
    assert example.targets[opens] == example.token_ids[opens + 1]


def test_every_batch_has_the_same_size_and_nothing_is_lost(tokenizer):
    conversations = list(islice(draw_all(Split.TRAIN, 3), 600))
    encoded = encode(tokenizer, conversations)
    packed = list(batches(iter(encoded), 4096, 1024))
    assert {tuple(batch.token_ids.shape) for batch in packed} == {(4, 1024)}
    placed = sum(int((batch.segments > 0).sum()) for batch in packed)
    assert 0 < placed <= sum(len(example.token_ids) for example in encoded)


def test_every_lesson_fits_the_context(tokenizer):
    stream = examples(tokenizer, draw_all(Split.TRAIN, 4))
    assert max(len(example.token_ids) for example in islice(stream, 3000)) <= Shape().context


def test_packed_neighbours_do_not_see_each_other(tokenizer, network):
    one, other = islice(examples(tokenizer, draw_all(Split.TRAIN, 5)), 2)
    together = all_logits(network, [[one, other]])[0]
    apart = all_logits(network, [[other]])[0]
    torch.testing.assert_close(together[len(one.token_ids) :], apart, atol=1e-5, rtol=1e-5)


def test_rows_of_one_segment_need_no_mask():
    assert visible(torch.ones(2, 4, dtype=torch.int64)) is None
    mask = visible(torch.tensor([[1, 1, 2, 2]]))
    assert mask[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


def test_a_saved_network_is_the_same_llama_in_transformers(tokenizer, network, tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    save_tokenizer(tmp_path, tokenizer)
    save_network(tmp_path, network, tokenizer)
    with torch.no_grad():  # saved in bfloat16: compare with weights rounded the same way
        for parameter in network.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    (example,) = islice(examples(tokenizer, draw_all(Split.TRAIN, 6)), 1)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor([example.token_ids])).logits[0]
    torch.testing.assert_close(all_logits(network, [[example]])[0], expected, atol=1e-4, rtol=1e-4)


def test_the_learning_rate_warms_up_and_ends_at_zero():
    shares = [learning_rate_share(step, 1000) for step in range(1001)]
    assert shares[0] < 0.1
    assert max(shares) == 1.0
    assert shares[-1] == 0.0
    assert all(earlier >= later for earlier, later in pairwise(shares[500:]))
