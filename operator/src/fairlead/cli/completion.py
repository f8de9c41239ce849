"""`fairlead completion`: what a shell needs to complete the other commands, made from their own arguments.

source <(fairlead completion bash)      also for zsh; for fish: fairlead completion fish | source
"""

import argparse
import contextlib
import io
import re
from collections.abc import Iterator

from fairlead.cli.main import build_parser, find_commands
from fairlead.cli.options import Completer, UsageError, tell
from fairlead_common.garbage import unsearched

_HARMLESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")

_BASH = """\
_fairlead_values() {{
    fairlead completion --values "$1" "$2" "${{COMP_WORDS[@]:1:$((COMP_CWORD - 1))}}" 2>/dev/null </dev/null
}}
_fairlead() {{
    local typed=fairlead word words=
    for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD - 1))}}"; do
        case "$typed $word" in
            {paths}) typed="$typed $word" ;;
        esac
    done
    case "$typed ${{COMP_WORDS[$((COMP_CWORD - 1))]}}" in
{choices}
        *) case "$typed" in
{words}
        esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[$COMP_CWORD]}}"))
}}
complete -o default -F _fairlead fairlead
"""
"""For zsh too, which reserves the variable `path`, and expands indices only on request."""
_ZSH = """\
(( ${+functions[compdef]} )) || { autoload -U +X compinit && compinit; }
autoload -U +X bashcompinit && bashcompinit
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "bash and zsh: add to ~/.bashrc or ~/.zshrc:  source <(fairlead completion bash)\n"
        "fish:         fairlead completion fish > ~/.config/fish/completions/fairlead.fish\n"
    )
    parser.add_argument("shell", nargs="?", choices=("bash", "zsh", "fish"))
    # What the scripts call: the command, the argument, and what was typed before it.
    parser.add_argument("--values", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Prints the script, or the values that an argument may have now; 0, or 2 without a shell."""
    with unsearched():
        parsers = dict(_commands("fairlead", build_parser(find_commands())))
    if args.values:
        path, argument, *typed = args.values
        print("\n".join(_values(path, parsers[path], argument, typed)))
        return 0
    if args.shell is None:
        tell(UsageError("for which shell?", "fairlead completion bash, or zsh, or fish"))
        return 2
    print(_fish(parsers) if args.shell == "fish" else ("" if args.shell == "bash" else _ZSH) + _bash(parsers), end="")
    return 0


def _commands(path: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command and verb, by its words."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, subparser in action.choices.items():
                yield from _commands(f"{path} {name}", subparser)


def _values(path: str, parser: argparse.ArgumentParser, argument: str, typed: list[str]) -> list[str]:
    """What an argument may be now; empty where that cannot be known. Names are others' words, which bash would run as a
    part of its own, so only harmless ones are told."""
    action = next(each for each in parser._actions if argument in (each.dest, *each.option_strings))
    for word in path.split()[1:]:
        if word in typed:
            typed.remove(word)
    completer = _completer(action)
    assert completer is not None, f"{path} {argument}"
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            found = list(completer(_given(parser, typed)))
    except Exception:  # of any kind: nobody who presses a key wants to read it
        return []
    return sorted(each for each in found if _HARMLESS.fullmatch(each))


def _given(parser: argparse.ArgumentParser, typed: list[str]) -> argparse.Namespace:
    """What was typed, as far as it makes sense by itself."""
    while typed:
        try:
            return parser.parse_known_args(typed)[0]
        except SystemExit:
            typed = typed[:-1]
    return argparse.Namespace(**{action.dest: action.default for action in parser._actions})


def _completer(action: argparse.Action) -> Completer | None:
    completer: Completer | None = getattr(action, "completer", None)
    return completer


def _flags(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings and action.help != argparse.SUPPRESS]


def _bash(parsers: dict[str, argparse.ArgumentParser]) -> str:
    choices = [  # a value is wanted: a closed choice, what is there now, or what nobody knows (a file, by default)
        f'        "{path} {option}") words="{_words(path, option, action)}" ;;'
        for path, parser in parsers.items()
        for action in _flags(parser)
        if action.nargs != 0
        for option in action.option_strings
    ]
    words = []
    for path, parser in parsers.items():  # what may come next: verbs and other closed choices, then flags
        found = [_words(path, each.dest, each) for each in parser._actions if not each.option_strings]
        found += [option for action in _flags(parser) for option in action.option_strings]
        words.append(f'            "{path}") words="{" ".join(filter(None, found))}" ;;')
    paths = " | ".join(f'"{path}"' for path in parsers if " " in path)
    return _BASH.format(paths=paths, choices="\n".join(choices), words="\n".join(words))


def _words(path: str, argument: str, action: argparse.Action) -> str:
    """bash's words for the value of an argument."""
    if action.choices:
        return " ".join(map(str, action.choices))
    return "" if _completer(action) is None else f"$(_fairlead_values '{path}' '{argument}')"


def _fish(parsers: dict[str, argparse.ArgumentParser]) -> str:
    """One line per word and flag, with the words that must precede, and the verbs that must not."""
    lines = ["complete -c fairlead -n __fish_use_subcommand -f"]
    for path, parser in parsers.items():
        before = [f"__fish_seen_subcommand_from {word}" for word in path.split()[1:]] or ["__fish_use_subcommand"]
        condition = "; and ".join(before)
        for action in parser._actions:
            if not action.option_strings and action.choices:
                words = " ".join(map(str, action.choices))
                lines.append(f"complete -c fairlead -n '{condition}; and not __fish_seen_subcommand_from {words}' "
                             f"-f -a '{words}'")  # fmt: skip
            elif not action.option_strings and _completer(action) is not None:
                lines.append(f"complete -c fairlead -n '{condition}' -f -a {_fish_values(path, action.dest)}")
        for action in _flags(parser):
            names = " ".join(
                f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
                for option in action.option_strings
            )
            takes = "" if action.nargs == 0 else " -r"
            if action.choices:
                takes += f" -f -a '{' '.join(map(str, action.choices))}'"
            elif _completer(action) is not None:
                takes += f" -f -a {_fish_values(path, action.option_strings[0])}"
            lines.append(f"complete -c fairlead -n '{condition}' {names}{takes}")
    return "\n".join(lines) + "\n"


def _fish_values(path: str, argument: str) -> str:
    """What fish runs for the value of an argument."""
    return f'\'(fairlead completion --values "{path}" "{argument}" (commandline -opc)[2..] 2>/dev/null </dev/null)\''
