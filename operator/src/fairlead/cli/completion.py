"""`fairlead completion`: what a shell needs to complete the other commands, made from their own arguments.

source <(fairlead completion bash)      also for zsh; for fish: fairlead completion fish | source
"""

import argparse
from collections.abc import Iterator

from fairlead.cli.main import build_parser, find_commands

_BASH = """\
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
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(args: argparse.Namespace) -> int:
    """Prints the script; 0."""
    parsers = dict(_commands("fairlead", build_parser(find_commands())))
    print(_fish(parsers) if args.shell == "fish" else ("" if args.shell == "bash" else _ZSH) + _bash(parsers), end="")
    return 0


def _commands(path: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command and verb, by its words."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, subparser in action.choices.items():
                yield from _commands(f"{path} {name}", subparser)


def _flags(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings and action.help != argparse.SUPPRESS]


def _bash(parsers: dict[str, argparse.ArgumentParser]) -> str:
    choices = [
        f'        "{path} {option}") words="{" ".join(map(str, action.choices))}" ;;'
        for path, parser in parsers.items()
        for action in _flags(parser)
        if action.choices
        for option in action.option_strings
    ]
    words = []
    for path, parser in parsers.items():  # what may come next: verbs and other closed choices, then flags
        found = [str(word) for each in parser._actions if not each.option_strings for word in each.choices or ()]
        found += [option for action in _flags(parser) for option in action.option_strings]
        words.append(f'            "{path}") words="{" ".join(found)}" ;;')
    paths = " | ".join(f'"{path}"' for path in parsers if " " in path)
    return _BASH.format(paths=paths, choices="\n".join(choices), words="\n".join(words))


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
        for action in _flags(parser):
            names = " ".join(
                f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
                for option in action.option_strings
            )
            takes = "" if action.nargs == 0 else " -r"
            takes += f" -f -a '{' '.join(map(str, action.choices))}'" if action.choices else ""
            lines.append(f"complete -c fairlead -n '{condition}' {names}{takes}")
    return "\n".join(lines) + "\n"
