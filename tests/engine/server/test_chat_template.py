"""`--chat-template`: a template in place of the model's own."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from fairlead_common.wire.messages import PATH_MODEL
from fairlead_engine.demo import resolve_model
from fairlead_engine.errors import ConfigError, ModelLoadError
from fairlead_engine.model.tokenizer_files import read_tokenizer, template_text

from .conftest import EngineProcess

TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
CHAT = [{"role": "user", "content": "What is 2 + 3?"}]
DINGHY = resolve_model("demo://dinghy")


def test_chats_are_rendered_with_the_given_template(serve_folder: Callable[..., EngineProcess], tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE)
    engine = serve_folder("demo://dinghy", "--chat-template", str(file))
    with httpx.Client(base_url=engine.url, timeout=60) as client:
        tokens = client.post("/tokenize", json={"messages": CHAT}).json()["tokens"]
        told = client.get(PATH_MODEL).json()
        answer = client.post("/v1/chat/completions", json={"model": "tiny", "messages": CHAT, "max_tokens": 2}).json()
    wanted = read_tokenizer(DINGHY, TEMPLATE).encode("[user] What is 2 + 3?\n", add_special_tokens=False)
    assert tokens == wanted and told["chat_template"] == TEMPLATE
    assert answer["usage"]["prompt_tokens"] == len(wanted)


def test_a_template_is_written_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE)
    assert template_text(str(file)) == template_text(TEMPLATE) == TEMPLATE and template_text(None) is None
    with pytest.raises(ConfigError, match=r"chat-template: is no template, and names no file .*missing\.jinja"):
        template_text("missing.jinja")


def test_a_template_that_does_not_compile_is_refused_at_the_start() -> None:
    with pytest.raises(ModelLoadError, match="does not compile: expected token 'in'"):
        read_tokenizer(DINGHY, "{% for m messages %}")
    assert read_tokenizer(DINGHY).digest != read_tokenizer(DINGHY, TEMPLATE).digest
