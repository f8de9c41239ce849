"""PromptTokenizer: a folder's tokenizer and template, as transformers reads them."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from fairlead_common.openai.chat import ChatTemplateError
from fairlead_common.openai.prompts import Part, PromptError
from fairlead_common.tokens.tokenizing import PromptTokenizer, TokenizerError

TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m.content }}{{ eos_token }}{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["a fairlead guides each line to where it runs freely"] * 4, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": {"content": "<s>", "__type": "AddedToken"},
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_chat_ids_agree_with_transformers(folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    messages = [{"role": "user", "content": "each line ☸ runs"}]
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    assert PromptTokenizer.from_folder(folder).encode_chat(messages) == list(
        reference.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
    )


def test_text_survives_encoding_and_decoding(folder: Path) -> None:
    tokenizer = PromptTokenizer.from_folder(folder)
    assert tokenizer.decode(tokenizer.encode("lines ☸ 🚢 run")) == "lines ☸ 🚢 run"


def test_a_tokenizer_rebuilt_from_its_parts_has_the_same_digest(folder: Path) -> None:
    original = PromptTokenizer.from_folder(folder)
    copy = PromptTokenizer(
        original.tokenizer_json, chat_template=TEMPLATE, special_tokens={"bos_token": "<s>", "eos_token": "</s>"}
    )
    assert copy.digest == original.digest


def test_another_template_has_another_digest(folder: Path) -> None:
    original = PromptTokenizer.from_folder(folder)
    other = PromptTokenizer(
        original.tokenizer_json, chat_template=TEMPLATE + " ", special_tokens=original.special_tokens
    )
    assert other.digest != original.digest


def test_a_template_file_wins_over_the_one_in_the_configuration(folder: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert PromptTokenizer.from_folder(tmp_path).render_chat([]) == "from the file"


NAMED = {
    "default": "\n  {% for m in messages %}\n[{{ m.content }}]\n{% endfor %}\nend \n",
    "tool_use": "  {{ tools | length }} tools\n{%- for m in messages %}\n<{{ m.content }}>{% endfor %}\n\n",
    "rag": "documents",
}


@pytest.mark.parametrize("names", [["default", "tool_use", "rag"], ["default"]])
@pytest.mark.parametrize("layout", ["files", "configuration", "processor"])
def test_chats_with_tools_have_a_template_of_their_own(
    names: list[str], layout: str, folder: Path, tmp_path: Path
) -> None:
    from transformers import PreTrainedTokenizerFast

    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    reference.chat_template = {name: NAMED[name] for name in names}
    reference.save_pretrained(tmp_path, save_jinja_files=layout == "files")
    if layout == "processor":
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": config.pop("chat_template")}))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = PromptTokenizer.from_folder(tmp_path)
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    for tools in (None, [{"type": "function", "function": {"name": "f", "parameters": {}}}]):
        assert ours.render_chat(messages, tools=tools) == reference.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True
        )


def test_a_model_without_template_says_which_endpoint_to_use(folder: Path) -> None:
    tokenizer = PromptTokenizer(PromptTokenizer.from_folder(folder).tokenizer_json)
    with pytest.raises(ChatTemplateError, match="/v1/completions"):
        tokenizer.encode_chat([{"role": "user", "content": "x"}])


def test_a_folder_without_tokenizer_is_refused_by_file_name(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        PromptTokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_configuration_is_refused_by_file_name(folder: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
        PromptTokenizer.from_folder(tmp_path)


def test_a_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        PromptTokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_file_that_is_no_text_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "model"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / name).write_bytes(b"\xff")
    with pytest.raises(TokenizerError, match=f"{name} cannot be read"):
        PromptTokenizer.from_folder(copy)


@pytest.mark.parametrize("template", [5, {}, [{"name": "default", "template": 5}], "\ud800"])
def test_a_chat_template_that_is_no_text_is_refused(folder: Path, tmp_path: Path, template: object) -> None:
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": 5}))
    with pytest.raises(TokenizerError, match=r"chat_template (must be a|is no) text"):
        PromptTokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [1, {"name": "x"}], "eos_token": 5}))
    tokenizer = PromptTokenizer.from_folder(tmp_path)
    assert (tokenizer.chat_template, tokenizer.special_tokens) == (None, {})


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("{", "cannot be read"), ("[]", "must hold a JSON object"),
        ('{"prompts": {"query": "\\ud800"}}', "cannot be read"), ('{"prompts": ["query"]}', "prompts must be"),
        ('{"prompts": {"query": 5}}', "prompts must be"),
        ('{"prompts": {"query": "a"}, "default_prompt_name": "q"}', "default_prompt_name 'q' must be one of .*: query"),
        ('{"default_prompt_name": []}', "default_prompt_name"),
    ],
)  # fmt: skip
def test_prompts_of_another_shape_are_refused_by_file_and_field(
    folder: Path, tmp_path: Path, config: str, problem: str
) -> None:
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    (tmp_path / "config_sentence_transformers.json").write_text(config)
    with pytest.raises(TokenizerError, match=f"config_sentence_transformers.json.*{problem}"):
        PromptTokenizer.from_folder(tmp_path)


def test_a_panic_in_rust_is_an_error_that_names_the_field(folder: Path) -> None:
    parts = json.loads(PromptTokenizer.from_folder(folder).tokenizer_json)
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    tokenizer = PromptTokenizer(json.dumps({**parts, "pre_tokenizer": split}))
    with pytest.raises(TokenizerError, match="its tokenizer fails"):
        tokenizer.encode("a" * 25 + "!")
    with pytest.raises(PromptError, match=r"prompt\[3\] cannot be tokenised by this model"):
        Part("prompt[3]", "a" * 25 + "!").encoded(tokenizer, True)
    assert tokenizer.encode("ahoy"), "and it goes on"
