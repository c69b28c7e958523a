"""Compiled kernels are kept in a directory that only this user can write, and never beside the sources."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numba
import pytest
from numba.core.registry import cpu_target

import marlcore
from marlcore.kernels import cache, jit

PACKAGE = Path(marlcore.__file__).parent
COMPILES = """if True:
    import sys
    sys.path.insert(0, sys.argv[1])
    import numpy as np
    from marlcore.kernels import jit, priorities
    assert priorities.first_bad(np.ones(1), 0.5) == 0
    print(jit.cache_directory())
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home directory; other roots lie in it."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_compiled_kernel_leaves_the_package_as_it_is(tmp_path):
    others = [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name not in ("kernels", "planning")]
    copy = shutil.copytree(PACKAGE, tmp_path / "marlcore", ignore=shutil.ignore_patterns(*others, "__pycache__"))
    before = sorted(copy.rglob("*"))
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "NUMBA_CACHE_DIR": ""}
    command = [sys.executable, "-B", "-c", COMPILES, tmp_path]
    kept = Path(subprocess.check_output(command, text=True, env=environment).strip())
    assert kept.parents[2] == tmp_path / "cache" and any(kept.glob("*.nbc"))
    assert sorted(copy.rglob("*")) == before


def test_the_sources_of_all_kernels_name_the_directory():
    """`test_kernels.py` changes some of them, and sees them compiled anew."""
    named = {file for pattern in cache.SOURCES for file in PACKAGE.glob(pattern)}
    compiled = re.compile(r"^(from|import) numba|\bjit import", re.M)
    assert {file for file in PACKAGE.rglob("*.py") if compiled.search(file.read_text())} <= named


def test_each_processor_and_compiler_has_its_directory(home, monkeypatch):
    codegen, names = type(cpu_target.target_context.codegen()), set()
    for version, *machine in (("1", "cpu", "+a"), ("2", "cpu", "+a"), ("1", "other", "+a"), ("1", "cpu", "+a,+b")):
        monkeypatch.setattr(numba, "__version__", version)
        monkeypatch.setattr(codegen, "magic_tuple", lambda self, machine=machine: ("triple", *machine))
        names.add(jit.cache_directory.__wrapped__().name)
    assert len(names) == 4 and all(name.startswith(f"{sys.implementation.cache_tag}-") for name in names)


@pytest.mark.parametrize(
    ("variables", "root"),
    [
        ({}, ".cache/marlcore/kernels"),
        ({"XDG_CACHE_HOME": "{home}/xdg"}, "xdg/marlcore/kernels"),
        ({"XDG_CACHE_HOME": "relative"}, ".cache/marlcore/kernels"),  # which the specification ignores
        ({"XDG_CACHE_HOME": "{home}/xdg", "NUMBA_CACHE_DIR": "{home}/asked"}, "asked/marlcore/kernels"),
        ({"NUMBA_CACHE_DIR": "/dev/null/no"}, ".cache/marlcore/kernels"),
        ({"HOME": "/dev/null"}, f"marlcore-{os.geteuid()}/kernels"),
    ],
)
def test_the_first_place_that_can_be_written_is_taken(home, monkeypatch, variables, root):
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(home=home))
    directory = cache.open_directory("cpu")
    assert directory.parent == home / root
    assert directory == cache.open_directory("cpu") != cache.open_directory("other")
    assert all((path.lstat().st_mode & 0o777) == 0o700 for path in (directory, directory.parent))


def test_a_user_without_a_home_is_served(home, monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache.open_directory("cpu").parent == home / f"marlcore-{os.geteuid()}" / "kernels"


@pytest.mark.parametrize("level", range(3))
@pytest.mark.parametrize("kind", ["link", "file", "writable by the group", "writable by all"])
def test_a_directory_that_others_could_fill_is_refused(home, kind, level):
    directory = cache.open_directory("cpu")
    os.utime(directory, (0, 0))
    path = [directory, *directory.parents][level]
    assert cache.stale_directories() == [directory]
    if kind in ("link", "file"):
        path.rename(home / "elsewhere")
        path.symlink_to(home / "elsewhere") if kind == "link" else path.touch()
    else:
        path.chmod(0o770 if "group" in kind else 0o702)
    assert home / ".cache" not in cache.open_directory("cpu").parents
    assert not cache.stale_directories()


def test_a_directory_of_another_user_is_refused(home, monkeypatch, caplog):
    os.utime(cache.open_directory("cpu"), (0, 0))
    assert cache.stale_directories()
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    assert not cache.stale_directories() and cache.open_directory("cpu") is None
    (record,) = caplog.records
    refused = f"{home}/.cache/marlcore/kernels and {home}/marlcore-12345"
    assert record.getMessage().startswith(f"kernels cannot be kept in {refused}")


def test_a_full_disk_is_passed_over(home, monkeypatch, small_tmpfs):
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_tmpfs))
    assert cache.open_directory("cpu").is_relative_to(small_tmpfs)
    (small_tmpfs / "full").write_bytes(bytes((1 << 20) - (1 << 15)))
    assert cache.open_directory("cpu").parent == home / ".cache" / "marlcore" / "kernels"


def test_a_directory_is_stale_once_its_installation_is_gone(home, monkeypatch):
    """Likewise if the version or a kernel's source changed. A directory that was just made is not stale."""
    installed = home / "site" / "marlcore"
    (installed / "kernels").mkdir(parents=True)
    version, kernel = installed / "__init__.py", installed / "kernels" / "rows.py"
    version.write_text("0.2.0")
    kernel.write_text("kernel")
    monkeypatch.setattr(cache, "PACKAGE", installed)
    directory, other = cache.open_directory("cpu"), cache.open_directory("other")
    next(other.glob("package-*")).unlink()
    assert not cache.stale_directories()
    for file, text in ((version, "0.3.0"), (kernel, "another")):
        before = file.read_text()
        file.write_text(text)
        assert cache.stale_directories() == [directory]
        file.write_text(before)
        assert not cache.stale_directories()
    kernel.rename(kernel.with_suffix(".kept"))
    os.mkfifo(kernel)
    assert cache.stale_directories() == [directory], "a pipe is not waited for"
    kernel.with_suffix(".kept").replace(kernel)
    made = [directory, other]
    for path in made:
        os.utime(path, (time.time() - cache.UNUSED_S - 60,) * 2)
    assert cache.stale_directories() == made
    assert [cache.open_directory("cpu"), cache.open_directory("other")] == made and not cache.stale_directories()
    monkeypatch.setattr(cache, "PACKAGE", shutil.copytree(installed, home / "another" / "marlcore"))
    assert cache.open_directory("cpu") == directory, "equal sources share what was compiled"
    shutil.rmtree(installed)
    assert cache.stale_directories() == [other]
    shutil.rmtree(home / "another")
    assert cache.stale_directories() == made


def halved(x):
    return x / 2


def test_processes_that_save_at_once_mix_no_signatures(home):
    """Neither process saw the other's file when it chose a file name; one index overwrites the other."""
    first, second, later = (jit.jit(halved) for _ in range(3))
    for kernel in (first, second, later):
        kernel._cache._cache_path = kernel._cache._cache_file._cache_path = str(home)
        kernel._cache._cache_file._index_path = str(home / "index")
    assert first(3.0) == 1.5
    second._cache._cache_file._load_index = dict
    second._cache._cache_file._save_index = lambda overloads: None
    assert second(3) == 1.5
    assert later(3.5) == 1.75 and later.stats.cache_hits
