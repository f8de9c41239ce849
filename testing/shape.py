"""`make shape`: figures of the source, per distribution: how many files, how long they and their functions are, and
what should not be there: private functions with one use, module names that occur twice, import circles.

Below them come the figures that have a bound; where one is exceeded, the exit status is 1. A change that brings a
figure down brings its bound down with it.

Standard library only. A private function counts as used once where its name occurs at most once beside its definition
in all of the distribution's modules; the share is of all functions and methods.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DISTRIBUTIONS = {
    "common": ("common/src",),
    "operator": ("operator/src",),
    "local": ("local/src",),
    "engine": ("engine/src",),
    "testing": ("testing/src",),
}
PRODUCT = ("common", "operator", "local", "engine")
TESTS = ("tests", "e2e", "testing")
EXPERIMENTS = ("engine/benchmarks", "operator/benchmarks")
BOUNDS: dict[str, float] = {
    "lines of the product": 112_260,
    "lines of tests, e2e and testing": 116_900,
    "modules of the product": 690,
    "% placeholder words in docstrings": 6.5,
    "short modules with one importer": 4,
    "class names defined twice": 3,
    "loose modules of the engine": 5,
    "classes of more than 30 methods": 0,
    "functions of more than 60 lines": 0,
    "import circles": 0,
}
"""Of each figure, the most that it may be."""
SHORT_LINES = 60
"""A module of fewer lines with one importer should be part of that one, unless it is a seam."""
MANY_METHODS = 30
LONG_FUNCTION_LINES = 60
PLACEHOLDERS = frozenset(
    ["it", "its", "they", "them", "their", "those", "that", "what", "who", "whose", "whom", "one", "ones", "other"]
    + ["others", "so", "such", "there", "this", "these", "either", "none", "any", "whatever", "whoever", "which"]
)
"""Words that stand for a thing: a docstring full of them cannot be read by itself."""
_LEAST_WORDS = 9
"""Of the sentences in which they are counted."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Module:
    """One file, by the name that imports it."""

    name: str
    path: Path
    num_lines: int
    tree: ast.Module
    is_package: bool


def modules_of(roots: Sequence[Path]) -> list[Module]:
    """Every Python file below the roots, in order of their names."""
    found = []
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            text = path.read_text()
            name = ".".join(parts[:-1] if is_package else parts)
            found.append(Module(name, path, len(text.splitlines()), ast.parse(text), is_package))
    return found


def functions_of(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods, nested ones too."""
    return (node for node in ast.walk(module.tree) if isinstance(node, _FUNCTIONS))


def quantile(values: Sequence[int], share: float) -> int:
    """The value that `share` of them do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0


def used_once(modules: Sequence[Module]) -> list[str]:
    """Private functions whose name is used at most once in all of the modules."""
    names: Counter[str] = Counter()
    defined: dict[str, str] = {}
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, _FUNCTIONS):
                defined.setdefault(node.name, module.name)
            elif isinstance(node, ast.Name):
                names[node.id] += 1
            elif isinstance(node, ast.Attribute):
                names[node.attr] += 1
    private = [name for name in defined if name.startswith("_") and not name.startswith("__")]
    return sorted(f"{defined[name]}.{name}" for name in private if names[name] <= 1)


def duplicate_names(modules: Sequence[Module]) -> dict[str, list[str]]:
    """Module name → the modules that bear it, where several do."""
    by_name: dict[str, list[str]] = {}
    for module in modules:
        if not module.is_package and not module.name.endswith("__main__"):
            by_name.setdefault(module.name.rpartition(".")[2], []).append(module.name)
    return {name: found for name, found in sorted(by_name.items()) if len(found) > 1}


def imports_of(module: Module, known: frozenset[str]) -> set[str]:
    """Modules of the same distribution that this one imports, in functions and under TYPE_CHECKING too."""
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module.name.split(".")
            base = package[: len(package) - node.level + module.is_package] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{source}.{a.name}" if f"{source}.{a.name}" in known else source for a in node.names}
    return {name for name in found if name in known and name != module.name}


def circles(modules: Sequence[Module]) -> list[list[str]]:
    """Groups of modules that import one another: strongly connected components, by Tarjan's algorithm (1972)."""
    known = frozenset(module.name for module in modules)
    graph = {module.name: imports_of(module, known) for module in modules}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def short_with_one_importer(modules: Sequence[Module]) -> list[str]:
    """Short modules that one other module imports."""
    known = frozenset(module.name for module in modules)
    importers = Counter(name for module in modules for name in imports_of(module, known))
    return [
        module.name
        for module in modules
        if not module.is_package and module.num_lines < SHORT_LINES and importers[module.name] == 1
    ]


def classes_of(modules: Sequence[Module]) -> Iterator[ast.ClassDef]:
    """Classes, nested ones too."""
    return (node for module in modules for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))


def classes_with_one_name(modules: Sequence[Module]) -> list[str]:
    """Names that several classes have."""
    return sorted(name for name, times in Counter(each.name for each in classes_of(modules)).items() if times > 1)


def large_classes(modules: Sequence[Module]) -> list[str]:
    """Classes of many methods."""
    return [
        each.name
        for each in classes_of(modules)
        if sum(isinstance(node, _FUNCTIONS) for node in each.body) > MANY_METHODS
    ]


def long_functions(modules: Sequence[Module]) -> list[str]:
    """Functions of many lines outside of kernels."""
    return [
        f"{module.name}.{each.name}"
        for module in modules
        if ".kernels." not in module.name
        for each in functions_of(module)
        if (each.end_lineno or each.lineno) - each.lineno + 1 > LONG_FUNCTION_LINES
    ]


def placeholder_percent(modules: Sequence[Module]) -> float:
    """Of the words in docstrings' longer sentences, those of modules, classes, functions and attributes."""
    words: Counter[bool] = Counter()
    for text in (text for module in modules for text in _docstrings(module.tree)):
        for sentence in re.split(r"(?<=[.:;])\s", text):
            found = re.findall(r"[a-z']+", sentence.lower())
            if len(found) >= _LEAST_WORDS:
                words.update(word in PLACEHOLDERS for word in found)
    return round(100 * words[True] / max(1, words.total()), 1)


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """A text that stands by itself is the docstring of what is before it, or of what it is in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def figures() -> dict[str, tuple[float, list[str]]]:
    """What has a bound, each with the names behind it."""
    product = modules_of([ROOT / root for name in PRODUCT for root in DISTRIBUTIONS[name]])
    tests = modules_of([ROOT / name for name in TESTS])
    loose = [each.name for each in product if each.name.count(".") == 1 and each.name.startswith("fairlead_engine.")]
    loose = [name for name in loose if not (ROOT / "engine/src" / name.replace(".", "/")).is_dir()]
    around = circles([*product, *modules_of([ROOT / name for name in EXPERIMENTS])])
    names = {
        "short modules with one importer": short_with_one_importer(product),
        "class names defined twice": classes_with_one_name(product),
        "loose modules of the engine": loose,
        "classes of more than 30 methods": large_classes(product),
        "functions of more than 60 lines": long_functions(product),
        "import circles": [" ".join(each) for each in around],
    }
    return {
        "lines of the product": (sum(each.num_lines for each in product), []),
        "lines of tests, e2e and testing": (sum(each.num_lines for each in tests), []),
        "modules of the product": (len(product), []),
        "% placeholder words in docstrings": (placeholder_percent(product), []),
        **{name: (len(found), found) for name, found in names.items()},
    }


def are_within_bounds(verbose: bool) -> bool:
    """Prints each figure with its bound."""
    is_fine = True
    for name, (value, behind) in figures().items():
        exceeds = value > BOUNDS[name]
        is_fine = is_fine and not exceeds
        print(f"{name:44}{value:8,}   of at most {BOUNDS[name]:,}{'  EXCEEDED' if exceeds else ''}")
        if behind and (verbose or exceeds):
            print(f"  {', '.join(behind)}")
    return is_fine


def main(arguments: Sequence[str]) -> int:
    """Prints the table and the bounds; with `-v` the names behind the figures."""
    verbose = "-v" in arguments
    head = f"{'':10}{'files':>6}{'lines':>8}   {'file median/p90':>15}   {'function median/p90':>19}"
    print(f"{head}   {'private used once':>17}   {'same name':>9}   {'circles':>7}")
    for distribution, roots in DISTRIBUTIONS.items():
        modules = modules_of([ROOT / root for root in roots])
        if not modules:
            continue
        files = [module.num_lines for module in modules]
        functions = [f.end_lineno - f.lineno + 1 for m in modules for f in functions_of(m) if f.end_lineno]
        once = used_once(modules)
        twice, around = duplicate_names(modules), circles(modules)
        print(
            f"{distribution:10}{len(files):6}{sum(files):8,}   {quantile(files, 0.5):>11}/{quantile(files, 0.9):<3}"
            f"   {quantile(functions, 0.5):>15}/{quantile(functions, 0.9):<3}"
            f"   {len(once):>10} = {100 * len(once) / max(1, len(functions)):2.0f} %"
            f"   {len(twice):>9}   {len(around):>7}"
        )
        if verbose:
            for label, names in (("used once", once), *(("same name", found) for found in twice.values())):
                print(f"  {label}: {', '.join(names)}")
            for circle in around:
                print(f"  circle: {', '.join(circle)}")
    print()
    return 0 if are_within_bounds(verbose) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
