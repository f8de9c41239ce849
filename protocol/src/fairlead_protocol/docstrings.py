"""The strings below the fields of a dataclass or the members of an enum, which Python itself does not keep.

They are what `--help`, the CRD and `docs/reference/` show, so each text has one source. Imports nothing of ours.
"""

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise


@cache
def docstrings(cls: type) -> dict[str, str]:
    """Field or member → the string below it, on one line. Empty where Python was installed without sources."""
    try:
        source = inspect.getsource(cls)
    except OSError:
        return {}
    (definition,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for statement, following in pairwise(definition.body):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = " ".join(text.split())
    return texts
