"""Parameters of requests, each declared once: a field's type, bounds, acting part and meaning.

Fields of `SamplingParams` and of the request schemas carry a `Parameter`: the source of accepted values, sentences of
refusals, the engine's arguments and the reference page. Knows no concrete request.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import msgspec

Encode = Callable[[str], list[int]]
"""From a text to its token ids, without special tokens."""


class By(StrEnum):
    """Who acts on a parameter."""

    GATEWAY = "gateway"
    """Routing, waiting or tokenising in the gateway depends on the parameter; the engine gets it too."""
    ENGINE = "engine"
    NOBODY = "nobody"
    """Accepted because clients send it, and without effect."""
    REFUSED = "refused"
    """Every value with an effect is refused, with advice."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """The declaration of a parameter, besides its name and type."""

    text: str
    """The effect, or an alternative to a refused parameter: sentences for the reference."""
    by: By = By.ENGINE
    low: float | None = None
    """Least value, for maps of each value; bounds are inclusive."""
    high: float | None = None
    above: bool = False
    """`low` itself is out of bounds."""
    most: int | None = None
    """How many items one request may have."""
    unit: str = "items"
    longest: int | None = None
    """Characters of one of its texts."""
    one_of: tuple[str, ...] = ()
    """The values that it may have."""
    only: str | None = None
    """JSON of the only value of a refused parameter."""
    accepted: str = ""
    """For the reference, where the bounds do not say all and more is checked."""
    default: str = ""
    """For the reference; empty = the field's default."""
    name: str = ""
    """The clients' name; empty = the field's name."""
    takes: Any = None
    """The clients' type; None = the field's type."""
    read: Callable[[Any], Any] = lambda value: value
    """From that type to the field's; raises ValueError."""
    encode: Callable[[Encode, Any], Any] | None = None
    """Replaces `read`, for values that need the model's tokenizer."""
    from_model: bool = False
    """The model's `generation_config.json` may have another default."""

    @property
    def is_bounded(self) -> bool:
        """Whether some values of the type are refused."""
        bounds = (self.low, self.most, self.longest, self.only)
        return self.by is By.REFUSED or bool(self.one_of) or any(bound is not None for bound in bounds)

    def check_value(self, name: str, value: Any) -> None:
        """Raises ValueError, whose text begins with `name`, for a value out of bounds."""
        if self.one_of and value not in self.one_of:
            raise ValueError(f"{name} must be one of {', '.join(self.one_of)}, not {value!r}")
        if isinstance(value, dict):
            for key, each in value.items():
                self.check_value(f"{name} of token {key}", each)
            return
        if self.low is None or self.high is None:
            return
        if not self.low <= value <= self.high or (self.above and value == self.low):  # false for NaN too
            bracket = "(" if self.above else "["
            raise ValueError(f"{name} must be in {bracket}{self.low}, {self.high}], not {value}")

    def check_size(self, name: str, value: Any) -> None:
        """Raises ValueError for too many items or a too long item."""
        if self.most is not None and not isinstance(value, str) and len(value) > self.most:
            raise ValueError(f"{name} must hold at most {self.most} {self.unit}, not {len(value)}")
        texts = (value,) if isinstance(value, str) else value
        if self.longest is not None and any(len(text) > self.longest for text in texts):
            raise ValueError(f"a text in {name} must have at most {self.longest} characters")


class Declared(NamedTuple):
    """A field of a struct with a `Parameter`."""

    field: str
    type: Any
    """The field's, without what is declared of it."""
    parameter: Parameter
    default: Any
    """`msgspec.NODEFAULT` where it is needed."""

    @property
    def name(self) -> str:
        return self.parameter.name or self.field


@cache
def declared(struct: type[msgspec.Struct]) -> tuple[Declared, ...]:
    """The parameters among a struct's fields, in the struct's order."""
    found = []
    for field in msgspec.structs.fields(struct):
        if get_origin(field.type) is Annotated:
            kind, *metadata = get_args(field.type)
            bounds = [each for each in metadata if not isinstance(each, Parameter)]
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            found += [
                Declared(field.name, Annotated[kind, *bounds] if bounds else kind, each, default)
                for each in metadata
                if isinstance(each, Parameter)
            ]
    return tuple(found)


@cache
def bounded(struct: type[msgspec.Struct]) -> tuple[Declared, ...]:
    """The parameters of which some values are refused: checking all would take several times as long."""
    return tuple(each for each in declared(struct) if each.parameter.is_bounded)


def optional_fields(struct: type[msgspec.Struct]) -> list[tuple[str, Any, None]]:
    """A struct's parameters as fields of a request: as clients call and write them; null is as good as left out."""
    return [
        (each.name, Annotated[(each.parameter.takes or each.type) | None, each.parameter], None)
        for each in declared(struct)
    ]
