"""Pages of flags of commands and of parameters of requests, from where they are declared."""

import argparse
import re
import types
from dataclasses import fields
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from fairlead.cli.simulate_command import add_arguments as add_simulate_arguments
from fairlead.gateway.gateway_command import add_arguments as add_gateway_arguments
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead_common.settings import docstrings
from fairlead_engine.__main__ import build_parser
from fairlead_engine.api.schemas import ENDPOINTS
from fairlead_engine.config import CharacteriseConfig, EngineConfig, ServerConfig
from fairlead_engine.external.front_config import FrontConfig
from fairlead_engine.types import SamplingParams
from fairlead_engine.types.parameters import By, Declared, declared
from reference_pages.tables import documented, table, with_default


def engine_flags() -> str:
    """The page of the engine's flags."""
    parts = ["A setting is a flag (`--max-num-seqs 16`) or a line of the file that `--config` names "
             "(`max-num-seqs: 16`); flags win. Yes-or-no settings are `--name` and `--no-name` as flags. "
             "`serve` takes those of model and server, `characterise` those of the model and its own, `front` its own "
             "alone."]  # fmt: skip
    kinds = (("Model and scheduler", EngineConfig), ("Server", ServerConfig), ("characterise", CharacteriseConfig),
             ("front", FrontConfig))  # fmt: skip
    for title, kind in kinds:
        texts = docstrings(kind)
        rows = []
        for field in fields(kind):
            flag = f"--{field.name.replace('_', '-')}"
            rows.append([f"`{flag}`", *with_default(texts.get(field.name), field.default, flag)])
        parts += [f"## {title}", table(["Flag", "Default", "Meaning"], rows)]
    return "\n\n".join(parts)


def commands_besides() -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """By name, what `fairlead-engine` does besides what takes a model's settings: a line of it, and its flags."""
    [commands] = [each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction)]
    texts = {each.dest: each.help for each in commands._choices_actions}
    return {
        name: (documented(texts.get(name), name), parser)
        for name, parser in commands.choices.items()
        if name not in ("serve", "characterise")
    }


def engine_commands() -> str:
    """The page of the engine's other commands."""
    parts = ["All of them print `--help`, and end with status 1 where they could not do it, 2 where they were called "
             "wrongly."]  # fmt: skip
    for name, (text, parser) in commands_besides().items():
        actions = [each for each in parser._actions if not isinstance(each, argparse._HelpAction)]
        options, named = [each for each in actions if each.option_strings], [e for e in actions if not e.option_strings]
        usage = [f"fairlead-engine {name}"]
        usage += [f"[{each.metavar} …]" if each.nargs == "*" else str(each.metavar) for each in named]
        usage += [f"{each.option_strings[0]} {each.metavar}" for each in options if each.required]
        rows = [[f"`{_written(each)}`", *_row(each, name)] for each in (*named, *options)]
        parts += [f"## {name}", f"To {text}: `{' '.join(usage)}`. {documented(parser.description, name)}"]
        parts += [table(["Flag", "Default", "Meaning"], rows)]
    return "\n\n".join(parts)


def _written(action: argparse.Action) -> str:
    """As it stands on the command line."""
    return ", ".join(action.option_strings) or str(action.metavar)


def _row(action: argparse.Action, command: str) -> list[str]:
    """Default and meaning."""
    what, choices = f"{command} {_written(action)}", [str(each) for each in action.choices or ()]
    text = re.sub(r"\s*\(default: (.*)\)$", r" Default: \1", documented(action.help, what), flags=re.DOTALL)
    if choices and not all(each in text for each in choices):
        text = f"{text.rstrip('.')}: {', '.join(choices)}"
    is_told = isinstance(action.default, int | float | str) and action.default != argparse.SUPPRESS
    default = action.default if is_told else None
    found, meaning = with_default(text, default, what)
    if action.required and action.nargs != "*":  # of which argparse says that it is required
        return ["*required*", meaning]
    return ["" if action.nargs == 0 else found, meaning]


def gateway_flags() -> str:
    """The page of the gateway's flags."""
    parser, texts = argparse.ArgumentParser(add_help=False), docstrings(GatewaySettings)
    add_gateway_arguments(parser)
    defaults = {field.name: field.default for field in fields(GatewaySettings)}
    rows = []
    for action in parser._actions:
        text = texts.get(action.dest) or re.sub(r" \(default: .*\)$", "", action.help or "")
        default = defaults.get(action.dest, action.default)
        rows.append([f"`{action.option_strings[0]}`", *with_default(text, default, action.dest)])
    units = "Times are seconds (also as `500ms`, `3s`, `15m`), sizes bytes (also as `16Mi`)."
    return f"{units}\n\n" + table(["Flag", "Default", "Meaning"], rows)


def simulation_flags() -> str:
    """The page of the flags of `fairlead simulate autoscaling`."""
    parser = argparse.ArgumentParser(prog="fairlead simulate", add_help=False)
    add_simulate_arguments(parser)
    [commands] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    rows = []
    for action in commands.choices["autoscaling"]._actions:
        if not isinstance(action, argparse._HelpAction):
            text = documented(action.help, action.option_strings[0]) % {"default": action.default}
            value = "" if action.nargs == 0 else f" {action.metavar or ' or '.join(action.choices or ())}"
            rows.append([", ".join(f"`{each}{value}`" for each in action.option_strings), text])
    times = "Times are written with units (`90s`, `30m`, `2h`), or as seconds."
    return f"{times}\n\n" + table(["Flag", "Meaning"], rows)


def request_parameters() -> str:
    """The page of what clients may send, from where each parameter is declared."""
    found: dict[tuple[str, ...], list[str]] = {}
    for endpoint, schema in ENDPOINTS.items():
        sampling = {each.name: each for each in declared(SamplingParams)}
        for each in declared(schema):
            default = sampling[each.name].default if each.name in sampling else each.default
            row = (each.name, worded(each.type), _accepted(each), _written_default(each, default),
                   str(each.parameter.by), each.parameter.text)  # fmt: skip
            if each.parameter.by is not By.NOBODY:
                documented(each.parameter.text, f"the parameter {each.name} of {endpoint}")
            found.setdefault(row, []).append(endpoint)
    rows = [[f"`{row[0]}`", ", ".join(of), *row[1:]] for row, of in found.items()]
    return "\n\n".join((
        "[The API](../api.md) has examples and the rules that hold for all of them. *By*: who acts on it. *gateway* = "
        "it decides about routing, waiting or tokenising, and the engine gets it too; *nobody* = it is taken because "
        "clients send it, and changes nothing; *refused* = answered 400 with what to do instead, but for the values "
        "that change nothing.",
        table(["Parameter", "Of", "Type", "Accepted", "Default", "By", "What it does"],
              sorted(rows, key=lambda row: (list(By).index(By(row[5])), row[4] != "needed"))),
        "Fields that begin with `fairlead_` are between gateways and engines; a gateway drops them when a client sends "
        "them.",
    ))  # fmt: skip


def worded(kind: Any) -> str:
    """A parameter's type in a word or two; None says nothing, as everything optional may be null."""
    origin = get_origin(kind)
    if origin is Annotated:
        return worded(get_args(kind)[0])
    if origin in (Union, types.UnionType):
        return " or ".join(worded(each) for each in get_args(kind) if each is not type(None))
    if origin is Literal:
        return "string"
    if origin is list:
        of = worded(get_args(kind)[0])
        return "list" if of == "any" else f"list of {of}s"
    words = {bool: "boolean", int: "integer", float: "number", str: "string", Any: "any"}
    return words.get(kind, "object")


def _accepted(each: Declared) -> str:
    parameter = each.parameter
    bounds = f"{parameter.low:g} to {parameter.high:g} each" if worded(each.type) == "object" and parameter.low else ""
    if parameter.accepted:
        return parameter.accepted
    kinds = (each.type, *get_args(each.type))
    literals = tuple(value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind))
    if words := parameter.one_of or literals:
        return " or ".join(f'`"{value}"`' for value in words)
    if parameter.only is not None:
        return f"only `{parameter.only}`"
    if parameter.most is not None:
        longest = f"of at most {parameter.longest} characters each" if parameter.longest else ""
        unit = "items" if parameter.unit in ("ids", "texts") else parameter.unit
        return ", ".join(part for part in (f"at most {parameter.most} {unit}", longest, bounds) if part)
    if parameter.low is not None and parameter.high is not None:
        return f"{'above ' if parameter.above else ''}{_number(parameter.low)} … {_number(parameter.high)}"
    parts = (each.type, *(part for part in get_args(each.type) if get_origin(part) is Annotated))
    metas = [meta for part in parts for meta in get_args(part) if isinstance(meta, msgspec.Meta)]
    for meta in metas:
        if meta.max_length is not None:
            units = {"string": "characters", "object": "entries"}
            return f"at most {meta.max_length} {units.get(worded(each.type), 'items')}"
        if meta.ge is not None and meta.le is not None:
            return f"{_number(meta.ge)} … {_number(meta.le)}"
    return ""


def _number(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def _written_default(each: Declared, default: Any) -> str:
    if each.parameter.default or default is msgspec.NODEFAULT:
        return each.parameter.default or "needed"
    if isinstance(default, bool):
        return str(default).lower()
    return _number(default) if isinstance(default, int | float) else "–"
