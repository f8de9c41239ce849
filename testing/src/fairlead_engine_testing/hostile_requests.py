"""Requests by chance for an engine under attack: every parameter with every other, in bounds and out of them, and bytes
that are no requests. Pure: a `random.Random` in, a request out."""

import json
import random
from dataclasses import dataclass
from typing import Any

from fairlead_engine_testing.json_schemas import UNSUPPORTED, random_schema

CHAT, COMPLETION, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
_WORDS = ("the", "fox", "day", "is", "Monday", "{", "}", '"', "\n", "é", "日本", "\U0001f600", "a", "0", "  ")
_GRAMMARS = (
    "start: /[a-e]{2,30}X?/", 'start: "x" start "y" | "z"', "start: " + "a? " * 2500 + '\na: "a" | "b"',
    "start: nowhere", 'root ::= "yes" | "no"', "nonsense ::=", "start: start", 'start: "a"~1000000', 'start: ""', "",
)  # fmt: skip
_PATTERNS = ("(fox|dog)( fox){0,9}", "(a*)*b", "a{1000}{1000}", "[", "", ".*", "(?=a)b", "\\p{L}+", "é|日")
_NUMBERS: tuple[Any, ...] = (
    0,
    1,
    -1,
    2,
    0.5,
    1e-320,
    1e308,
    2**31,
    2**63,
    2**64,
    -(2**63) - 1,
    10**400,
    "7",
    True,
    None,
    [],
    {},
)
_TOOL = {"type": "function", "function": {"name": "tide", "parameters": {
    "type": "object", "properties": {"port": {"enum": ["Oslo", "Brest"]}}, "required": ["port"],
}}}  # fmt: skip
_ODD_TEXTS = ("\0", "\ud800", "\udfff\ud800", "‮", "<|end|>", "{{ 7 * 7 }}", "x" * 5000, "", " ", "🏴" * 40)


@dataclass(frozen=True, slots=True)
class Hostile:
    """One request."""

    path: str
    body: bytes
    leaves_after: float | None = None
    """Seconds after which its client is gone; None = it waits for the answer."""

    def __str__(self) -> str:
        return f"{self.path} {self.body[:2000].decode(errors='replace')}"


def hostile_request(draw: random.Random, model: str, adapters: list[str]) -> Hostile:
    """`adapters`: names that may be loaded now, and folders that may be asked for."""
    leaves_after = draw.choice([None, None, None, draw.uniform(0, 0.02), draw.uniform(0, 0.5)])
    kind = draw.choices(["generate", "bytes", "adapter", "other"], [20, 3, 2, 2])[0]
    if kind == "adapter":
        name = draw.choice(adapters)
        if draw.random() < 0.6:
            path = draw.choice([name, name, "../" + name, "/etc", "", "\0", name + "/x"])
            return Hostile(LOAD, _encoded(draw, {"lora_name": name, "lora_path": path}), leaves_after)
        return Hostile(UNLOAD, _encoded(draw, {"lora_name": name}), leaves_after)
    if draw.random() < 0.15:
        model = f"{model}:{draw.choice(adapters)}"
    if kind == "other":
        path = draw.choice([EMBED, TOKENIZE, DETOKENIZE])
        fields: dict[str, Any] = {
            EMBED: {"input": _prompt(draw), "pooling": draw.choice(["last", "mean", "max", "cls", None])},
            TOKENIZE: {"prompt": _text(draw)},
            DETOKENIZE: {"tokens": [draw.randrange(-2, 400) for _ in range(draw.randint(0, 50))]},
        }[path]
        return Hostile(path, _encoded(draw, {"model": model, **fields}), leaves_after)
    path = draw.choice([CHAT, COMPLETION])
    body = _body(draw, model, path)
    if kind == "bytes":
        return Hostile(path, _spoilt(draw, _encoded(draw, body)), leaves_after)
    return Hostile(path, _encoded(draw, body), leaves_after)


def requests_for_each_grammar(model: str) -> list[Hostile]:
    """One for each pattern and grammar that is drawn from."""
    kept_to = [{"guided_regex": each} for each in _PATTERNS] + [{"guided_grammar": each} for each in _GRAMMARS]
    bodies = [{"model": model, "prompt": "the fox", "max_tokens": 2, **each} for each in kept_to]
    return [Hostile(COMPLETION, json.dumps(body).encode(), None) for body in bodies]


def _body(draw: random.Random, model: str, path: str) -> dict[str, Any]:
    """Mostly one that is served, and sometimes with a field that is not."""
    most = draw.choice([0, 1, 2, 5, 12, 30, 80])
    body: dict[str, Any] = {"model": model, "max_tokens": most, "temperature": draw.choice([0, 0, 1, 1.5])}
    is_chat = path == CHAT
    if is_chat:
        roles = draw.choice([("user",), ("system", "user"), ("user", "assistant", "user"), ("tool",), ("assistant",)])
        body["messages"] = [{"role": role, "content": _text(draw)} for role in roles]
    else:
        body["prompt"] = _prompt(draw)
    optional: dict[str, Any] = {
        "stream": True, "n": draw.choice([2, 3, 9]), "seed": draw.choice([0, -5, 2**63 - 1]), "top_p": 0.5,
        "top_k": draw.choice([1, 5, -1]), "min_p": 0.1, "presence_penalty": draw.choice([-2, 1.5]),
        "frequency_penalty": 2, "repetition_penalty": draw.choice([5e-324, 0.5, 100]),
        "logit_bias": {str(draw.randrange(300)): draw.choice([-100, 100, 5]) for _ in range(3)},
        "allowed_token_ids": [draw.randrange(300) for _ in range(draw.choice([1, 3, 40]))],
        "bad_words": draw.sample(_WORDS, 3), "dry_multiplier": draw.choice([0.5, 100]), "dry_base": 10,
        "dry_allowed_length": 0, "top_n_sigma": draw.choice([1e-30, 1.0]), "xtc_probability": 1.0, "xtc_threshold": 0.0,
        "min_tokens": draw.randint(0, max(1, most)), "stop": draw.sample(_WORDS, 2), "ignore_eos": True,
        "stop_token_ids": [draw.randrange(300)], "include_stop_str_in_output": True,
        "prompt_logprobs": draw.choice([0, 20]), "use_beam_search": True,
        "skip_special_tokens": False, "return_token_ids": True, "priority": draw.choice([-5, 9]),
        "cache_salt": draw.choice(["a", "b"]), "return_tokens_as_token_ids": True,
    }  # fmt: skip
    kept_to: dict[str, Any] = {
        "guided_regex": draw.choice(_PATTERNS), "guided_choice": ["yes", "no", "yes no"],
        "guided_grammar": draw.choice(_GRAMMARS), "guided_json": _schema(draw),
        "response_format": {"type": "json_schema", "json_schema": {"schema": _schema(draw)}},
    }  # fmt: skip
    if is_chat:
        optional |= {
            "logprobs": True, "tools": [_TOOL] * draw.choice([1, 2]),
            "tool_choice": draw.choice(["auto", "required", "none"]),
            "parallel_tool_calls": False, "chat_template_kwargs": {"x": [[]] * 9}, "thinking_token_budget": 3,
            "continue_final_message": True, "add_generation_prompt": False,
        }  # fmt: skip
    else:
        optional |= {"logprobs": draw.choice([0, 20]), "echo": True, "best_of": draw.choice([2, 5])}
    for name in draw.sample(sorted(optional), draw.choice([0, 1, 2, 4, 8])):
        body[name] = optional[name]
    if draw.random() < 0.05:  # which goes with few others
        plain = {name: body[name] for name in ("model", "messages", "prompt", "max_tokens") if name in body}
        return plain | {"use_beam_search": True, "n": draw.choice([1, 2, 5]), "early_stopping": draw.random() < 0.5}
    if draw.random() < 0.25:
        name = draw.choice(sorted(kept_to))
        body[name] = kept_to[name]
    if draw.random() < 0.15:
        body[draw.choice(sorted({*body, *optional, "unknown"}))] = draw.choice(_NUMBERS)
    return body


def _schema(draw: random.Random) -> Any:
    found = random_schema(draw)
    match draw.randrange(6):
        case 0:
            return draw.choice([*UNSUPPORTED.values()])
        case 1:
            return {"$ref": "#"}
        case 2:
            return {"type": "array", "items": {"$ref": "#"}, "minItems": 10**6}
        case _:
            return found


def _prompt(draw: random.Random) -> Any:
    match draw.randrange(6):
        case 0:
            return [draw.randrange(300) for _ in range(draw.randint(1, 90))]
        case 1:
            return [_text(draw) for _ in range(draw.randint(1, 5))]
        case 2:
            return [[draw.randrange(-1, 320) for _ in range(draw.randint(0, 9))] for _ in range(draw.randint(1, 4))]
        case _:
            return _text(draw)


def _text(draw: random.Random) -> str:
    """Often with a beginning that others have, too."""
    if draw.random() < 0.08:
        return draw.choice(_ODD_TEXTS)
    words = [*_WORDS, *_WORDS][: draw.choice([0, 10, 20])] if draw.random() < 0.6 else []
    return " ".join([*words, *(draw.choice(_WORDS) for _ in range(draw.randint(1, 12)))])


def _encoded(draw: random.Random, body: dict[str, Any]) -> bytes:
    """JSON as Python writes it, lone surrogates and infinite numbers and all."""
    if draw.random() < 0.03:
        body = {**body, draw.choice(["temperature", "top_p", "logit_bias"]): draw.choice([float("nan"), float("inf")])}
    return json.dumps(body).encode()


def _spoilt(draw: random.Random, body: bytes) -> bytes:
    """Bytes that are no JSON, or not what they seem."""
    match draw.randrange(7):
        case 0:
            return body[: draw.randrange(len(body))]
        case 1:
            place = draw.randrange(len(body))
            return body[:place] + bytes([draw.randrange(256)]) + body[place + 1 :]
        case 2:
            return body.replace(b'"model"', b'"model":"x","model"', 1)
        case 3:
            depth = draw.choice([50, 600, 100_000])
            return body[:-1] + b',"metadata":{"a":' + b"[" * depth + b"]" * depth + b"}}"
        case 4:
            return body[:-1] + b',"max_tokens":' + b"9" * draw.choice([20, 5000]) + b"}"
        case 5:
            return body[:-1] + b',"user":"\\ud800\\udc00\\ud800"}'
        case _:
            return draw.randbytes(draw.randrange(200))
