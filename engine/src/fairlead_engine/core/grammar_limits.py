"""Limits of a grammar wherever one is made, and llguidance's errors on one line."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLParserLimits


def parser_limits() -> "LLParserLimits":
    """Limits of a grammar: about 20 ms to begin, 15 ms for a token's lexer, 3 ms for its parser, 2 kB a lexer state."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


def described(error: str) -> str:
    return " ".join(error.split())
