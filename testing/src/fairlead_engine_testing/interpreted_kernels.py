"""Triton's interpreter without what it does over and over.

It puts its own functions into `triton.language` before each launch and before each call of a device function, of which
`tl.sum` is one, and builds a table of number formats for each value. All that comes out the same every time.
"""

from collections.abc import Callable
from typing import Any


class _Kept:
    """In place of what would take the interpreter's functions out again."""

    def restore(self) -> None: ...


def keep_patches() -> None:
    """From here on in this process, in which no kernel can be compiled any more."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch, format_of = interpreter._patch_lang, interpreter._get_np_dtype
    patched: set[int] = set()
    formats: dict[Any, Any] = {}

    def patch_once(kernel: Callable[..., object]) -> _Kept:
        if id(kernel.__globals__) not in patched:  # what a module has imported of the language says what is patched
            patch(kernel)
            patched.add(id(kernel.__globals__))
        return _Kept()

    def known_format(kind: Any) -> Any:
        element = kind.element_ty if isinstance(kind, tl.block_type) else kind
        if isinstance(element, tl.pointer_type):
            return format_of(element)
        if element not in formats:
            formats[element] = format_of(element)
        return formats[element]

    interpreter._patch_lang, interpreter._get_np_dtype = patch_once, known_format
