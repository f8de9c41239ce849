"""Tokens that a model's folder adds to those of its tokenizer's file: `added_tokens_decoder` of tokenizer_config.json,
`added_tokens.json`, and the roles of special_tokens_map.json and tokenizer_config.json."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""In the order in which those without an id get one."""
_MANY = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("lstrip", "rstrip", "single_word")


@dataclass
class AddedTokens:
    by_id: dict[int, AddedToken] = field(default_factory=dict)
    special: list[AddedToken] = field(default_factory=list)
    """Those with a role, with an id or without."""
    roles: dict[str, str] = field(default_factory=dict)
    """Texts; those of tokenizer_config.json count."""


def read_added_tokens(config: Mapping[str, Any], special_map: Mapping[str, Any], ids: Mapping[str, Any]) -> AddedTokens:
    """`config`: tokenizer_config.json; `special_map`: special_tokens_map.json; `ids`: added_tokens.json. Raises
    ValueError, naming file and field."""
    found, listed = AddedTokens(), config.get("added_tokens_decoder") or {}
    if not isinstance(listed, Mapping):
        raise ValueError("added_tokens_decoder in tokenizer_config.json is no object")
    for text, id in ids.items():
        if type(id) is not int:
            raise ValueError(f"added_tokens.json has the id {id!r:.80} for {text!r:.80}")
        found.by_id[id] = _token(text, False, "added_tokens.json")
    for id, token in listed.items():
        where = f"added_tokens_decoder.{id:.20} in tokenizer_config.json"
        if not id.isdecimal() or len(id) > 9:
            raise ValueError(f"{where} has no number for its name")
        found.by_id[int(id)] = _token(token, bool(isinstance(token, Mapping) and token.get("special")), where)
    for name, settings in (("special_tokens_map.json", special_map), ("tokenizer_config.json", config)):
        found.special += [_token(token, True, f"{role} in {name}") for role, token in _with_roles(settings)]
        found.roles |= {role: _text(settings[role]) for role in ROLES if settings.get(role)}
    return found


def _with_roles(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((role, settings[role]) for role in ROLES if settings.get(role))
    for name in _MANY:
        tokens = settings.get(name) or ()
        tokens = tokens.values() if isinstance(tokens, Mapping) else tokens
        yield from ((name, token) for token in (tokens if isinstance(tokens, Iterable) else [tokens]))


def _token(token: Any, special: bool, where: str) -> AddedToken:
    """Found in a text as the text is given, whatever `normalized` says: so do the programs without a tokenizer.json."""
    text = _text(token)
    if not text:
        raise ValueError(f"{where} is no text of a token")
    flags = {name: bool(token.get(name)) for name in _FLAGS} if isinstance(token, Mapping) else {}
    return AddedToken(text, normalized=False, special=special, **flags)


def _text(token: Any) -> str:
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else ""
