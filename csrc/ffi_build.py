"""Builds marlcore._core; api.h is both the C header and cffi's input, so the two cannot drift."""

import os
from pathlib import Path

from cffi import FFI

PARTS = [
    "clipped",
    "copy",
    "dense",
    "draws",
    "files",
    "forks",
    "futex",
    "lane",
    "locks",
    "mapping",
    "network",
    "q_learning",
    "rows",
    "transition",
    "vector",
    "words",
]

root = Path(__file__).parent
declarations = "\n".join(line for line in (root / "api.h").read_text().splitlines() if not line.startswith("#"))

ffi = FFI()
ffi.cdef(declarations)
ffi.set_source(
    "marlcore._core",
    '#include "api.h"',
    sources=[f"csrc/{part}.c" for part in PARTS],
    include_dirs=["csrc"],
    depends=[f"csrc/{name}" for name in ["api.h", "atomics.h", "core.h", "dense.h", "dense_kernels.h"]],
    extra_compile_args=[
        "-std=c11",
        "-O3",
        "-fvisibility=hidden",
        "-ffp-contract=fast",  # a product and a sum in one instruction
        "--param=avoid-fma-max-bits=0",  # in all loops, or a row's result would depend on how many are beside it
        "-fno-math-errno",  # a square root is one instruction
        *os.environ.get("MARLCORE_CFLAGS", "").split(),
    ],
    py_limited_api=True,
)
