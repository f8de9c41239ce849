"""The engine sees what transformers' Gemma 3 sees: pixels, vectors of images whose tokens see each other, and every
token behind them, whatever the steps."""

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fairlead.fit.fit_check import read_shape
from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import ConfigError, ModelLoadError
from fairlead_engine.images.image_decoding import fit
from fairlead_engine.model.loading import read_config
from fairlead_engine.model.vision_tower import patches
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.devices import INTERPRETED
from fairlead_engine_testing.gemma_checkpoints import (
    BEGIN_IMAGE,
    END_IMAGE,
    IMAGE_SIZE,
    SIDE,
    SOFT,
    write_gemma_tokenizer,
    write_seeing_gemma,
)
from fairlead_engine_testing.greedy_answers import small_engine
from fairlead_engine_testing.scenes import ReferenceScene, serve, serve_checked, words
from fairlead_engine_testing.tiny_families.dense import llama_fields
from fairlead_engine_testing.vision_checkpoints import noise

pytestmark = pytest.mark.matrix

SIZES = [(24, 24), (101, 57), (9, 140), (3, 3)]
BACKENDS = ["cpu_spans", "block_tables", pytest.param("triton", marks=(INTERPRETED, pytest.mark.compute))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_seeing_gemma(tmp_path_factory.mktemp("gemma"))


@pytest.fixture(scope="module")
def reference(folder):
    import transformers

    return transformers.Gemma3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def processor(folder):
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    return Gemma3ImageProcessorPil.from_pretrained(folder)


@pytest.fixture(scope="module")
def engine(folder) -> Engine:
    return make_engine(folder)


def make_engine(folder: Path, **settings) -> Engine:
    return small_engine(folder, **{"kv_cache_memory": 2**21, "max_num_queued_tokens": 5000, **settings})


class Scene(ReferenceScene):
    """Without the token of an image in its answer, for which the reference would want one."""

    around, within, unwanted = (BEGIN_IMAGE, END_IMAGE), SOFT, (SOFT,)

    def seen(self, processor, ids):
        types = torch.zeros_like(ids)
        types[0, : len(self.token_ids)] = (ids[0, : len(self.token_ids)] == SOFT).int()
        if not self.pictures:
            return {"token_type_ids": types}
        pixels = np.stack(processor(self.pictures, return_tensors="np")["pixel_values"])
        return {"token_type_ids": types, "pixel_values": torch.as_tensor(pixels)}


def many(engine: Engine) -> list[Scene]:
    """Of images alone, several with text between them, images at both ends, and none."""
    scenes = [Scene(engine, words(seed), noise(*size, seed), words(seed + 50)) for seed, size in enumerate(SIZES)]
    return [
        *scenes,
        Scene(engine, words(20, 3), noise(64, 30, 7), words(21, 2), noise(20, 70, 8), words(22)),
        Scene(engine, noise(50, 50, 9), noise(8, 160, 10), noise(24, 24, 11)),
        Scene(engine, words(24, 40)),
        Scene(engine, words(25, 3)),
    ]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_pixels_and_vectors_are_the_references(width, height, engine, reference, processor):
    picture, settings = noise(width, height), engine.runner.model_config.task.images
    expected = torch.as_tensor(np.stack(processor([picture], return_tensors="np")["pixel_values"]))
    image = fit(picture, settings)
    assert (image.rows, image.columns) == (SIDE, SIDE)
    pixels = torch.frombuffer(bytearray(image.pixels), dtype=torch.uint8).view(IMAGE_SIZE, IMAGE_SIZE, 3)
    merge, patch = settings.merge_size, settings.patch_size
    cut = expected[0].view(3, SIDE, merge, patch, SIDE, merge, patch).permute(1, 4, 2, 5, 0, 3, 6).reshape(36, -1)
    assert (patches(pixels, settings) - cut).abs().max() <= 1e-5
    with torch.inference_mode():
        wanted = reference.model.get_image_features(expected).pooler_output[0]
        found = engine.runner._part.model.vision(pixels, settings)
    assert (found - wanted).abs().max() <= 1e-4


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_of_every_token_of_a_prompt_are_the_references(backend, folder, reference, processor):
    engine = make_engine(folder, attention_backend=backend)
    scene = Scene(engine, words(1), noise(60, 90, 1), words(2), noise(40, 20, 2), words(3, 3))
    scene.check_scores(engine, reference, processor)


@pytest.mark.parametrize("budget", [14, 25, 512])
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_step_ends_within_an_image(budget, backend, folder, reference, processor, monkeypatch):
    """Mixed batches, of the smallest budget too: whole images, or nothing of them; asynchronous scheduling as well."""
    engine = make_engine(
        folder, attention_backend=backend, max_num_batched_tokens=budget, max_num_seqs=6,
        async_scheduling=budget == 25,
    )  # fmt: skip
    scenes, plan, cut = many(engine), engine.scheduler._plan_chunk, []

    def planned(sequence, num_tokens):
        item = plan(sequence, num_tokens)
        cut.extend(image for image in sequence.images if image.start < item.end < image.end)
        return item

    monkeypatch.setattr(engine.scheduler, "_plan_chunk", planned)
    serve_checked(engine, scenes, 6, reference, processor, per_step=2)
    assert not cut


def test_what_differs_in_the_image_alone_differs_in_its_answer(engine):
    """Else comparing with the reference would prove little."""
    scenes = [Scene(engine, words(1), noise(24, 24, seed), words(2)) for seed in range(3)]
    outputs = serve(engine, scenes, 8)
    assert len({tuple(output) for output in outputs}) > 1


def test_a_hit_may_end_within_an_image(folder, reference, processor):
    """What is cached of an image has seen all of it; the rest is computed in one step."""
    engine = make_engine(folder, max_num_batched_tokens=24)
    scenes = [Scene(engine, words(1, 3), noise(64, 64, 3), words(tail, 20)) for tail in (2, 3)]
    assert scenes[0].images[0].end % 8 != 0
    outputs = [*serve(engine, scenes[:1], 5), *serve(engine, scenes[1:], 5)]
    assert engine.load.prefix_hit_tokens == scenes[0].images[0].end // 8 * 8
    [other] = [Scene(engine, words(1, 3), noise(64, 64, 4), words(2, 20))]
    outputs += serve(engine, [other], 5)
    assert engine.load.prefix_hit_tokens == scenes[0].images[0].end // 8 * 8, "another image's blocks were shared"
    for scene, output in zip([*scenes, other], outputs, strict=True):
        scene.check(reference, processor, output)


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_preempted_prompts_see_their_images_again(prefix_caching, folder, reference, processor):
    engine = make_engine(
        folder, kv_cache_memory=18 * make_engine(folder).runner.kv_bytes_per_block(), max_model_len=120,
        max_num_batched_tokens=40, enable_prefix_caching=prefix_caching,
    )  # fmt: skip
    scenes = [Scene(engine, words(seed, 3), noise(48, 40, seed), words(seed + 9, 4)) for seed in range(5)]
    serve_checked(engine, scenes, 30, reference, processor, per_step=5)
    assert engine.load.num_preemptions > 0


def test_drafts_behind_an_image_are_the_references_choice(folder, reference, processor):
    engine = make_engine(folder, speculative_method="ngram", prompt_lookup_min=1)
    scenes = [Scene(engine, words(1) * 3, noise(50, 50, seed), words(1) * 2) for seed in range(3)]
    serve_checked(engine, scenes, 40, reference, processor)
    assert engine.load.num_draft_tokens > 0


@pytest.mark.compute
def test_every_rank_sees_the_images(folder, reference, processor):
    engine = make_engine(folder, tensor_parallel_size=2, max_num_batched_tokens=40)
    with closing(engine.runner):
        scenes = many(engine)[:5]
        serve_checked(engine, scenes, 4, reference, processor, per_step=2)


@pytest.mark.parametrize("method", ["draft", "smaller", "medusa"])
def test_what_guesses_sees_nothing_and_changes_no_answer(method, folder, reference, processor, tmp_path):
    """A Gemma that sees, another model without the image's token, and heads with a tree, beside steps of images."""
    settings: dict[str, Any] = {"speculative_method": "draft", "speculative_model": str(folder)}
    if method == "smaller":
        drafts = write_random_checkpoint(tmp_path, llama_fields(vocab_size=SOFT))
        write_gemma_tokenizer(drafts)
        settings["speculative_model"] = str(drafts)
    if method == "medusa":
        tensors = load_file(folder / "model.safetensors")
        [table] = [tensor for name, tensor in tensors.items() if name.endswith("embed_tokens.weight")]
        save_file({f"{head}.0.weight": table.clone() for head in range(3)}, tmp_path / "medusa_lm_head.safetensors")
        settings = {"speculative_method": "medusa", "speculative_model": str(tmp_path), "speculative_tree": "3x9"}
    engine = make_engine(folder, num_speculative_tokens=3, max_num_batched_tokens=40, **settings)
    scenes = many(engine)
    serve_checked(engine, scenes, 20, reference, processor, per_step=2)
    assert engine.load.num_draft_tokens > 0


def test_older_files_name_the_tower_differently(folder, engine, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(folder, copied)
    tensors = load_file(copied / "model.safetensors")
    renamed = {name.replace("vision_tower.", "vision_tower.vision_model."): each for name, each in tensors.items()}
    save_file(renamed, copied / "model.safetensors", metadata={"format": "pt"})
    scenes = [Scene(engine, words(1, 3), noise(24, 24, 3), words(2, 3))]
    assert serve(make_engine(copied), scenes, 4) == serve(engine, scenes, 4)


def test_a_step_without_room_for_an_image_is_refused(folder):
    with pytest.raises(ConfigError, match=r"max-num-batched-tokens: is 13, and an image's 9 tokens.* raise it to 14"):
        make_engine(folder, max_num_batched_tokens=13, max_num_seqs=6)


@pytest.mark.parametrize(
    ("file", "changes", "problem"),
    [
        ("preprocessor_config.json", {"do_pan_and_scan": True}, "do_pan_and_scan is true"),
        ("preprocessor_config.json", {"size": {"height": 28, "width": 24}}, "size is 28 x 24, and .* image_size .* 24"),
        ("preprocessor_config.json", {"resample": 3}, "resized with the bilinear filter"),
        ("config.json", {"mm_tokens_per_image": 16}, "mm_tokens_per_image is 16.* divides the 6 patches"),
        ("config.json", {"image_token_index": 1000}, "image_token_index is 1000 but must be below vocab_size"),
        ("config.json", {"vision_config": None}, "vision_config is missing"),
    ],
)
def test_files_that_ask_for_something_else_are_refused(file, changes, problem, folder, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(folder, copied)
    (copied / file).write_text(json.dumps({**json.loads((copied / file).read_text()), **changes}))
    with pytest.raises(ModelLoadError, match=problem):
        make_engine(copied)


def test_the_size_reckoned_is_that_of_the_weights(folder, engine):
    shape = read_shape(json.loads((folder / "config.json").read_text()))
    assert shape.vision == read_config(folder).vision
    reckoned = sum(part.weights + part.biases for part in shape.parts())
    assert reckoned == engine.runner._part.model.num_parameters
