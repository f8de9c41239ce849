"""What Triton's compiler makes of a kernel for a GPU, on a machine that has none: registers, spills, instructions.

Kernels that were defined for Triton's interpreter, as in tests, cannot be compiled, so compiling has a process of its
own: `compiled` runs a script there, which calls `compile_for_gpu` and hands what it found to `tell`.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class GPUCode:
    """One compiled specialisation of a kernel."""

    registers: int
    """Per thread; 255 is all there are."""
    spilled_bytes: int
    """Per thread, kept in memory for want of registers."""
    shared_bytes: int
    """Per program."""
    wide_loads: int
    """Instructions that load 16 bytes of global memory at once, into registers or shared memory."""
    tensor_products: int
    """Instructions of the tensor cores."""


def compile_for_gpu(
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    *,
    num_warps: int = 4,
    num_stages: int = 3,
    capability: int = 90,
) -> GPUCode:
    """Compiles a `triton.jit` function as a launch would, whose pointers, and whole numbers called `*_stride` or
    `*_SIZE`, are multiples of 16.

    `types` of arguments are Triton's (`*bf16`, `i32`); the others are `constants`.
    """
    names = kernel.arg_names
    aligned = [
        parameter.name
        for parameter in kernel.params
        if parameter.name.endswith(("_stride", "_SIZE"))
        or (types.get(parameter.name, "").startswith("*") and not parameter.do_not_specialize_on_alignment)
    ]
    aligned = [name for name in aligned if name not in constants]
    compiled = triton.compile(
        ASTSource(
            kernel,
            signature={name: "constexpr" if name in constants else types[name] for name in names},
            constexprs=dict(constants),
            attrs={(names.index(name),): _ALIGNED for name in aligned},
        ),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": num_warps, "num_stages": num_stages},
    )
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        usage = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    ptx = compiled.asm["ptx"]
    return GPUCode(
        registers=int(found[1]),
        spilled_bytes=int(found[2]),
        shared_bytes=compiled.metadata.shared,
        wide_loads=len(re.findall(r"ld\.global\S*\.v4\.b32|cp\.async\.cg\.shared\.global", ptx)),  # .cg: 16 bytes
        tensor_products=len(re.findall(r"mma\.sync|wgmma\.mma_async", ptx)),
    )


def tell(found: Mapping[str, GPUCode]) -> None:
    """What a script for `compiled` ends with."""
    print(json.dumps({name: asdict(code) for name, code in found.items()}))


def compiled(script: str, cache: Path) -> dict[str, GPUCode]:
    """Runs a script in a process without Triton's interpreter; `cache` is the folder of what it compiles."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name: GPUCode(**code) for name, code in json.loads(done.stdout).items()}
