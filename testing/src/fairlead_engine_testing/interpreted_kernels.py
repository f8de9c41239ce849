"""Triton's interpreter without what it does over and over.

It puts its own functions into `triton.language` before each launch and before each call of a device function, of which
`tl.sum` is one, builds a table of number formats for each value and the type of a block for each step, and asks of
every sum whether it would overflow, without telling anybody. All that comes out the same every time.
"""

import builtins
from collections.abc import Callable
from typing import Any


class _Kept:
    """In place of what would take the interpreter's functions out again."""

    def restore(self) -> None: ...


def keep_what_does_not_change() -> None:
    """From here on in this process, in which no kernel can be compiled any more."""
    from triton.runtime import interpreter

    _keep_patches(interpreter)
    _keep_formats(interpreter)
    _keep_types()
    _skip_equal_shapes()
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)


def _keep_patches(interpreter: Any) -> None:
    patch = interpreter._patch_lang
    patched: set[int] = set()

    def patch_once(kernel: Callable[..., object]) -> _Kept:
        if id(kernel.__globals__) not in patched:  # what a module has imported of the language says what is patched
            patch(kernel)
            patched.add(id(kernel.__globals__))
        return _Kept()

    interpreter._patch_lang = patch_once


def _keep_formats(interpreter: Any) -> None:
    import triton.language as tl

    format_of = interpreter._get_np_dtype
    formats: dict[Any, Any] = {}

    def known_format(kind: Any) -> Any:
        element = kind.element_ty if isinstance(kind, tl.block_type) else kind
        if isinstance(element, tl.pointer_type):
            return format_of(element)
        if element not in formats:
            formats[element] = format_of(element)
        return formats[element]

    interpreter._get_np_dtype = known_format


def _keep_types() -> None:
    """Types of blocks and shapes of tensors, by their sizes: nothing changes them once they are made."""
    from triton.language import core

    first_block, first_tensor, unwrap = core.block_type.__init__, core.tensor.__init__, core._unwrap_if_constexpr
    blocks: dict[tuple[str, tuple[Any, ...]], dict[str, Any]] = {}
    shapes: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = getattr(shape, "values", shape)
        key = element_ty.name, builtins.tuple([s.value if isinstance(s, core.constexpr) else s for s in sizes])
        known = blocks.get(key)
        if known is None:
            first_block(self, element_ty, shape)
            blocks[key] = dict(self.__dict__)
        else:
            self.__dict__.update(known, element_ty=element_ty)

    def tensor(self: Any, handle: Any, type: Any) -> None:
        key = builtins.tuple(type.shape.values) if type.is_block() else ()
        known = shapes.get(key)
        if known is None:
            first_tensor(self, handle, type)
            shapes[key] = self.shape, self.numel
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = known

    def unwrapped(value: Any) -> Any:
        if isinstance(value, core.constexpr):
            return value.value
        return unwrap(value) if isinstance(value, (list, builtins.tuple, core.tuple)) else value

    core.block_type.__init__, core.tensor.__init__, core._unwrap_if_constexpr = block, tensor, unwrapped


def _skip_equal_shapes() -> None:
    """Values of one shape are broadcast to themselves, and most are of one shape."""
    from triton.language.semantic import TritonSemantic

    broadcast = TritonSemantic.broadcast_impl_value

    def broadcast_unless_equal(self: Any, left: Any, right: Any) -> tuple[Any, Any]:
        if left.type.is_block() and right.type.is_block() and left.type.shape.values == right.type.shape.values:
            return left, right
        sides: tuple[Any, Any] = broadcast(self, left, right)
        return sides

    TritonSemantic.broadcast_impl_value = broadcast_unless_equal
