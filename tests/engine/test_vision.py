"""The engine sees what transformers' models see: pixels, vectors of images, and every token behind them."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import ConfigError, ModelLoadError, RequestError
from fairlead_engine.images.image_decoding import fit
from fairlead_engine.llm import LLM
from fairlead_engine.model.vision_tower import patches
from fairlead_engine.runner import image_vectors, model_part
from fairlead_engine.types import FinishReason, SamplingParams
from fairlead_engine_testing.adapters import write_random_soft_prompt
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.device_meter import GIB, DeviceMeter
from fairlead_engine_testing.greedy_answers import engine_of_blocks, small_config, small_engine
from fairlead_engine_testing.launches import CPUGraphs
from fairlead_engine_testing.model_runners import loaded_runner
from fairlead_engine_testing.scenes import ReferenceScene, serve, serve_checked, words
from fairlead_engine_testing.tiny_families.dense import llama_fields
from fairlead_engine_testing.vision_checkpoints import (
    MOST_TOKENS,
    PAD,
    START,
    STOP,
    VISION_KINDS,
    VOCAB_SIZE,
    noise,
    seeing_class,
    write_vision_model,
    write_vision_tokenizer,
)

pytestmark = pytest.mark.matrix

SIZES = [(64, 64), (101, 57), (33, 90), (9, 140), (300, 200), (3, 3)]
"""Width and height: windows that fit and that do not, less than one, enlarged and made smaller."""
CAPTURED = ("qwen2_5_vl", "qwen3_vl", "qwen3_5_vl")
"""On a CPU the host looks where experts are."""


@pytest.fixture(scope="module", params=VISION_KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory) -> Path:
    return write_vision_model(tmp_path_factory.mktemp("vision"), kind)


@pytest.fixture(scope="module")
def reference(kind, folder):
    return seeing_class(kind).from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def processor(folder):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil.from_pretrained(folder)


@pytest.fixture(scope="module")
def engine(folder) -> Engine:
    return make_engine(folder)


@pytest.fixture
def graphs(monkeypatch) -> list[CPUGraphs]:
    """What steps are captured with, once there is an engine."""
    made: list[CPUGraphs] = []

    def choose(*args, enforce_eager: bool) -> CPUGraphs:
        made.append(CPUGraphs())
        return made[-1]

    monkeypatch.setattr(model_part, "choose_recorder", choose)
    return made


def make_engine(folder: Path, **settings) -> Engine:
    return small_engine(folder, **{"kv_cache_memory": 2**20, "max_num_queued_tokens": 5000, **settings})


def settings_of(engine: Engine):
    return engine.runner.model_config.task.images


class Scene(ReferenceScene):
    around, within = (START, STOP), PAD

    def seen(self, processor, ids):
        if not self.pictures:
            return {}
        return {**processor(self.pictures, return_tensors="pt"), "mm_token_type_ids": (ids == PAD).int()}


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_pixels_are_those_of_the_processor(width, height, engine, processor):
    picture, settings = noise(width, height), settings_of(engine)
    expected = processor([picture], return_tensors="pt")
    image = fit(picture, settings)
    _, rows, columns = expected["image_grid_thw"][0].tolist()
    assert (image.rows * 2, image.columns * 2) == (rows, columns)
    shape = image.rows * settings.factor, image.columns * settings.factor, 3
    found = patches(torch.frombuffer(bytearray(image.pixels), dtype=torch.uint8).view(shape), settings)
    assert (found - expected["pixel_values"]).abs().max() <= 1e-5


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_tower_makes_the_references_vectors(width, height, engine, reference, processor):
    seen = processor([noise(width, height)], return_tensors="pt")
    with torch.inference_mode():
        told = reference.model.get_image_features(seen["pixel_values"], seen["image_grid_thw"])
        deep = getattr(told, "deepstack_features", None) or ()
        expected = torch.cat((told.pooler_output[0], *(of_images[0] for of_images in deep)), dim=1)
        image, settings = fit(noise(width, height), settings_of(engine)), settings_of(engine)
        shape = image.rows * settings.factor, image.columns * settings.factor, 3
        pixels = torch.frombuffer(bytearray(image.pixels), dtype=torch.uint8).view(shape)
        found = engine.runner._part.model.vision(pixels, settings)
    assert (found - expected).abs().max() <= 1e-4


def test_logits_of_every_token_of_a_prompt_are_the_references(engine, reference, processor):
    scene = Scene(engine, words(1), noise(60, 90, 1), words(2), noise(40, 20, 2), words(3, 3))
    scene.check_scores(engine, reference, processor)


@pytest.mark.parametrize("kind", ["qwen3_vl_moe"], indirect=True)
def test_experts_whose_rows_are_inputs_are_turned(folder, reference, processor, tmp_path):
    """As the published files have them; transformers writes rows of outputs."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    tensors = {
        name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    engine = make_engine(tmp_path)
    Scene(engine, words(1), noise(60, 90, 1), words(2)).check_scores(engine, reference, processor)


@pytest.mark.parametrize("budget", [9, 64, 512])
@pytest.mark.parametrize("backend", ["cpu_spans", "block_tables"])
def test_mixed_batches_give_the_references_tokens(budget, backend, folder, reference, processor):
    """Several images, text between them, none at all; chunks that end within images; asynchronous scheduling too."""
    engine = make_engine(
        folder, attention_backend=backend, max_num_batched_tokens=budget, max_num_seqs=6,
        async_scheduling=budget == 64,
    )  # fmt: skip
    scenes = [Scene(engine, words(seed), noise(*size, seed), words(seed + 50)) for seed, size in enumerate(SIZES)]
    scenes += [
        Scene(engine, words(20), noise(64, 30, 7), words(21), noise(20, 70, 8), words(22)),
        Scene(engine, noise(50, 50, 9), noise(8, 160, 10), words(23)),
        Scene(engine, words(24, 40)),
        Scene(engine, words(25, 3)),
    ]
    serve_checked(engine, scenes, 6, reference, processor, per_step=2)


def test_what_differs_in_the_image_alone_differs_in_its_answer(engine, reference, processor):
    """Else comparing with the reference would prove little."""
    scenes = [Scene(engine, words(1), noise(64, 64, seed), words(2)) for seed in range(3)]
    outputs = serve(engine, scenes, 8)
    assert len({tuple(output) for output in outputs}) > 1


def test_a_step_that_saw_an_image_teaches_no_step_cost_though_its_prompt_was_given_up(folder, monkeypatch):
    engine, learnt = make_engine(folder, async_scheduling=True), []
    monkeypatch.setattr(engine.step_cost, "observe", lambda batch, seconds, *, learns: learnt.append(learns))
    assert engine.add(Scene(engine, words(1), noise(64, 64, 1), words(2)).request("r", 4)) is None
    engine.step()
    engine.abort("r")
    while engine.has_work():
        engine.step()
    assert learnt == [False]


def test_the_same_image_is_shared_and_another_is_not(folder, reference, processor):
    engine = make_engine(folder, max_num_batched_tokens=512)
    seen = engine.runner._part.images
    one, same, other = (
        Scene(engine, words(1), noise(64, 64, seed), words(tail, 20)) for seed, tail in ((1, 2), (1, 2), (2, 2))
    )
    [first] = serve(engine, [one], 4)
    assert (seen.num_computed, engine.load.prefix_hit_tokens) == (1, 0)
    [again] = serve(engine, [same], 4)
    assert again == first
    assert engine.load.prefix_hit_tokens == (len(one.token_ids) - 1) // 8 * 8
    assert seen.num_computed == 1, "an image whose tokens are all cached was computed"
    [third] = serve(engine, [other], 4)
    begun = 0 if engine.runner.state_bytes else one.images[0].start // 8 * 8  # a state is kept of a prompt's end alone
    assert engine.load.prefix_hit_tokens == (len(one.token_ids) - 1) // 8 * 8 + begun
    other.check(reference, processor, third)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"], indirect=True)
def test_a_hit_may_end_within_an_image(folder, reference, processor):
    """The second prompt differs behind its image, in a block that has the image's last tokens."""
    engine = make_engine(folder, max_num_batched_tokens=24)
    scenes = [Scene(engine, words(1, 3), noise(64, 64, 3), words(tail, 9)) for tail in (2, 3)]
    assert scenes[0].images[0].end % 8 != 0
    outputs = [*serve(engine, scenes[:1], 5), *serve(engine, scenes[1:], 5)]
    assert engine.load.prefix_hit_tokens == scenes[0].images[0].end // 8 * 8
    assert engine.runner._part.images.num_computed == 2
    for scene, output in zip(scenes, outputs, strict=True):
        scene.check(reference, processor, output)


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_preempted_prompts_see_their_images_again(prefix_caching, folder, reference, processor):
    config = small_config(
        folder, max_model_len=120, max_num_batched_tokens=40, max_num_queued_tokens=5000,
        enable_prefix_caching=prefix_caching,
    )  # fmt: skip
    engine = engine_of_blocks(config, 18)
    scenes = [Scene(engine, words(seed, 3), noise(48, 40, seed), words(seed + 9, 4)) for seed in range(5)]
    serve_checked(engine, scenes, 30, reference, processor, per_step=5)
    assert engine.load.num_preemptions > 0


@pytest.mark.parametrize("most", [0, 3000])
def test_of_many_images_few_are_kept_and_others_seen_again(most, folder, reference, processor, monkeypatch):
    """Every prompt's image is seen in several steps, in which the others' are seen as well."""
    monkeypatch.setattr(image_vectors, "_MOST_BYTES", most)
    engine = make_engine(folder, max_num_batched_tokens=24, max_num_seqs=6)
    kept, seen = [], engine.runner._part.images
    scenes = [Scene(engine, words(seed, 3), noise(64, 60, seed), words(seed + 9, 4)) for seed in range(5)]
    for index, scene in enumerate(scenes):
        assert engine.add(scene.request(str(index), 6)) is None
    outputs = {str(index): [] for index in range(len(scenes))}
    while engine.has_work():
        for output in engine.step():
            outputs[output.request_id] += output.new_token_ids
        kept.append(seen.num_bytes)
    width = 1 + len(engine.runner._part.model.vision.deep_mergers)
    largest = max(image.num_tokens for scene in scenes for image in scene.images) * width * 4 * 32  # float32, hidden
    assert largest <= max(kept) <= most + largest and kept[-1] == 0
    for scene, output in zip(scenes, outputs.values(), strict=True):
        scene.check(reference, processor, output)


def test_drafts_behind_an_image_stand_where_the_reference_chooses_them(folder, reference, processor):
    engine = make_engine(folder, speculative_method="ngram", prompt_lookup_min=1)
    scene = Scene(engine, words(1) * 3, noise(50, 50, 1), words(1) * 2)
    serve_checked(engine, [scene], 40, reference, processor)
    assert engine.load.num_draft_tokens > 0


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "qwen3_5_vl"], indirect=True)
def test_a_model_that_sees_nothing_may_guess(folder, reference, processor, tmp_path):
    """It has the token that stands for a patch in place of the image."""
    drafts = write_random_checkpoint(tmp_path, llama_fields(vocab_size=VOCAB_SIZE))
    write_vision_tokenizer(drafts)
    check_guesses(folder, reference, processor, speculative_method="draft", speculative_model=str(drafts))


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"], indirect=True)
def test_a_tree_of_guesses_stands_behind_its_images(folder, reference, processor, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    [table] = [tensor for name, tensor in tensors.items() if name.endswith("embed_tokens.weight")]
    save_file({f"{head}.0.weight": table.clone() for head in range(3)}, tmp_path / "medusa_lm_head.safetensors")
    settings = {"speculative_method": "medusa", "speculative_model": str(tmp_path), "speculative_tree": "3x9"}
    check_guesses(folder, reference, processor, **settings)


def check_guesses(folder: Path, reference, processor, **settings) -> None:
    engine = make_engine(folder, num_speculative_tokens=3, max_num_batched_tokens=40, **settings)
    scenes = [Scene(engine, words(1), noise(50, 50, 1), words(2), noise(30, 20, 3)), Scene(engine, words(3))]
    serve_checked(engine, scenes, 20, reference, processor)
    assert engine.load.num_draft_tokens > 0


@pytest.mark.parametrize("kind", ["qwen3_5_vl"], indirect=True)
def test_a_layer_of_the_checkpoint_may_guess(folder, reference, processor, tmp_path):
    fields = json.loads((folder / "config.json").read_text())
    own = fields["text_config"]
    own["mtp_num_hidden_layers"] = 1
    text = write_random_checkpoint(tmp_path / "text", {**own, "architectures": ["Qwen3_5ForCausalLM"]})
    layer = {name: each for name, each in load_file(text / "model.safetensors").items() if name.startswith("mtp.")}
    whole = shutil.copytree(folder, tmp_path / "whole")
    (whole / "config.json").write_text(json.dumps(fields))
    tensors = load_file(folder / "model.safetensors") | layer
    save_file(tensors, whole / "model.safetensors", metadata={"format": "pt"})
    check_guesses(whole, reference, processor, speculative_method="mtp")


@pytest.mark.parametrize(
    "kind",
    ["qwen3_vl", *(pytest.param(kind, marks=pytest.mark.compute) for kind in ("qwen2_5_vl", "qwen3_vl_moe"))],
    indirect=True,
)
def test_every_rank_sees_the_image(kind, folder, reference, processor):
    engine = make_engine(folder, tensor_parallel_size=2, max_num_batched_tokens=24)
    with closing(engine.runner):
        scenes = [Scene(engine, words(seed), noise(50, 60, seed), words(seed + 9)) for seed in range(3)]
        serve_checked(engine, scenes, 6, reference, processor, per_step=2)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"], indirect=True)
def test_a_step_may_have_images_and_soft_prompts(folder, reference, processor, tmp_path):
    """The one has vectors for later layers, the other has none."""
    prompt = write_random_soft_prompt(tmp_path, folder)
    engine = make_engine(folder, lora_modules=f"soft={prompt}", max_num_batched_tokens=512)
    scene, other = Scene(engine, words(1), noise(50, 50, 1), words(2)), Scene(engine, words(3, 12))
    adapted = msgspec.structs.replace(other.request("adapted", 6), adapter="soft")
    found = answered(engine, [scene.request("seen", 6), adapted])
    scene.check(reference, processor, found["seen"].new_token_ids)
    again = msgspec.structs.replace(adapted, request_id="again")
    alone = answered(make_engine(folder, lora_modules=f"soft={prompt}"), [again])["again"].new_token_ids
    assert (
        found["adapted"].new_token_ids == alone != answered(engine, [other.request("plain", 6)])["plain"].new_token_ids
    )


def test_several_answers_see_one_image_once(engine):
    scene = Scene(engine, words(30), noise(64, 60, 30), words(31))
    before = engine.runner._part.images.num_computed
    requests = [scene.request(f"part-{index}", 3) for index in range(3)]
    answered(engine, [msgspec.structs.replace(request, part_of="one") for request in requests])
    assert engine.runner._part.images.num_computed == before + 1


@pytest.mark.parametrize("kind", CAPTURED, indirect=True)
def test_captured_decodes_turn_by_their_shifted_places(folder, reference, processor, graphs):
    """Beside a sequence without images, whose places are its positions."""
    engine = make_engine(folder, attention_backend="block_tables", max_num_seqs=4, max_num_batched_tokens=80)
    scenes = [Scene(engine, words(1), noise(64, 64, 1), words(2)), Scene(engine, words(3, 20))]
    serve_checked(engine, scenes, 10, reference, processor, per_step=2)
    assert graphs[0].num_replays > 0


@pytest.mark.parametrize("kind", CAPTURED, indirect=True)
def test_captured_steps_turn_single_tokens_before_images_by_their_own_places(folder, reference, processor, graphs):
    """Of a prompt that is computed token by token, beside a sequence that takes the rest of each step."""
    engine = make_engine(folder, attention_backend="block_tables", max_num_seqs=2, max_num_batched_tokens=2)
    scene = Scene(engine, words(1, 3), noise(24, 24, 1), words(2, 3), noise(16, 32, 2), words(3, 3))
    engine.add(Scene(engine, words(4, 2)).request("beside", len(scene.token_ids) + 4))
    scene.check_scores(engine, reference, processor)
    assert graphs[0].num_replays > 0


def test_memory_is_measured_beside_what_the_largest_image_takes(folder, monkeypatch):
    runner = loaded_runner(folder, dtype="float32", device="cpu", block_size=8, num_threads=1)
    runner._part.meter = meter = DeviceMeter(5 * GIB)
    images = runner._part.images
    largest = images.largest

    def noted() -> tuple[torch.Tensor, torch.Tensor]:
        vectors, beside = largest()
        meter.notes.append(f"{len(vectors)} tokens beside {beside.nbytes} bytes")
        return vectors, beside

    monkeypatch.setattr(images, "largest", noted)
    runner.memory_for_cache(0.9, 2, 64, 128)
    assert meter.notes == ["begin", f"{MOST_TOKENS} tokens beside {image_vectors._MOST_BYTES} bytes", "read"]


def test_no_image_is_larger_than_is_said(folder):
    engine = make_engine(folder, max_image_pixels=16 * 64)
    image = fit(noise(300, 200), settings_of(engine))
    assert image.rows * image.columns <= 16
    with pytest.raises(ConfigError, match="max-image-pixels: 200 is below the 256 pixels of the smallest image"):
        make_engine(folder, max_image_pixels=200)


def test_what_does_not_go_with_seeing_is_refused_by_name(folder, tmp_path):
    llama = write_random_checkpoint(tmp_path / "llama", llama_fields())
    with pytest.raises(ConfigError, match="max-image-pixels: is set, and this model sees no images"):
        make_engine(llama, max_image_pixels=1000)


def test_an_engine_refuses_images_that_are_not_as_its_model_takes_them(engine):
    scene = Scene(engine, words(1), noise(64, 64))
    [image] = scene.images
    for wrong in (
        msgspec.structs.replace(image, pixels=image.pixels[:-1]),
        msgspec.structs.replace(image, start=len(scene.token_ids) - 1),
        msgspec.structs.replace(image, rows=-1, columns=-1),
    ):
        refused = engine.add(msgspec.structs.replace(scene.request("wrong", 1), images=(wrong,)))
        assert refused is not None and refused.finish_reason is FinishReason.ERROR
    assert not engine.has_work()


def test_the_library_takes_no_images(folder):
    model = LLM(str(folder), device="cpu", num_threads=1)
    assert model.chat([{"role": "user", "content": "no image"}], SamplingParams(max_tokens=2)).token_ids
    part = {"type": "image_url", "image_url": {"url": "data:"}}
    with pytest.raises(RequestError, match=r"messages\[0\]\.content\[0\]\.image_url is an image"):
        model.chat([{"role": "user", "content": [part]}])


def test_a_folder_without_a_processor_is_refused(folder, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(folder, copied)
    (copied / "preprocessor_config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"has no preprocessor_config\.json"):
        make_engine(copied)
    (copied / "preprocessor_config.json").write_text('{"patch_size": 14, "merge_size": 2}')
    with pytest.raises(ModelLoadError, match="the processor's patch_size is 14, and that of vision_config"):
        make_engine(copied)
