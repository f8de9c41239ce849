"""Modules of a package of this repository as one program, for pods whose image lacks the package."""

import base64
import io
import zipfile
from importlib import import_module
from pathlib import Path


def packed(package: str, main: str, modules: tuple[str, ...]) -> str:
    """What `python -c` runs as `python -m PACKAGE.MAIN`, which imports no other modules of the package than these."""
    folder = Path(next(iter(import_module(package).__path__)))
    packing = io.BytesIO()
    with zipfile.ZipFile(packing, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{package}/__init__.py", "")
        for module in (main, *modules):
            archive.write(folder / f"{module}.py", f"{package}/{module}.py")
    text = base64.b64encode(packing.getvalue()).decode()
    return (
        "import base64, runpy, sys, tempfile\n"
        "file = tempfile.NamedTemporaryFile(suffix='.zip')\n"
        f"file.write(base64.b64decode('{text}'))\n"
        "file.flush()\n"
        "sys.path.insert(0, file.name)\n"
        f"runpy.run_module('{package}.{main}', run_name='__main__')\n"
    )
