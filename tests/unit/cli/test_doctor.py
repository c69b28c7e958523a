"""`marlcore doctor` tries what marlcore needs, says what to do where it is missing, and never fails itself."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from marlcore import cgroup
from marlcore.__main__ import main
from marlcore.cgroup import MemoryLimit
from marlcore.cli import doctor, kernel_features
from marlcore.cli.doctor import CHECKS, Finding, examine

GIB = 1 << 30


def fine(finding: Finding) -> None:
    assert (finding.state, finding.advice) == ("ok", "")
    assert finding.found


def bad(finding: Finding, state: str, found: str, advice: str) -> None:
    assert finding.state == state
    assert found in finding.found
    assert advice in finding.advice
    assert len(finding.advice.splitlines()) == 1


# ---- software ----


def test_linux_on_a_known_machine_is_fine():
    fine(doctor.check_python("linux", "x86_64"))
    fine(doctor.check_python("linux", "aarch64"))


@pytest.mark.parametrize(
    ("check", "arguments", "state", "found", "advice"),
    [
        *((doctor.check_python, at, "problem", f"on {', '.join(at)}", "use Linux")
          for at in [("darwin", "arm64"), ("linux", "riscv64"), ("win32", "x86_64")]),
        (doctor.check_core, ["marlcore._no_core"], "problem", "the core does not load: No module named", "pip install"),
        (doctor.check_packages, [["numpy", "no_such_package"]], "problem", "No module named 'no_such_package'", "pip"),
        (doctor.check_numba_cache, [None, {"NUMBA_DISABLE_JIT": "1"}], "problem", "is set", "unset"),
        (doctor.check_processors, [lambda: 1.5], "warning", "1.5 for 1 actors and 3 learners", "--cpus"),
    ],
)  # fmt: skip
def test_what_is_missing_is_told_with_advice(check, arguments, state, found, advice):
    bad(check(*arguments), state, found, advice)


def test_packages_that_load_are_named_with_their_versions(monkeypatch):
    monkeypatch.setitem(sys.modules, "fake_package", SimpleNamespace(__version__="1.2"))
    finding = doctor.check_packages(["fake_package", "numpy"])
    fine(finding)
    assert finding.found.startswith("fake_package 1.2, numpy ")


def test_a_package_without_a_version_is_a_problem(monkeypatch):
    monkeypatch.setitem(sys.modules, "hollow_package", SimpleNamespace())
    bad(doctor.check_packages(["hollow_package"]), "problem", "__version__", "pip install")


def test_the_core_loads():
    fine(doctor.check_core())


# ---- memory ----


def statvfs(total: int, free: int):
    return lambda directory: SimpleNamespace(f_frsize=4096, f_blocks=total // 4096, f_bavail=free // 4096)


def mounts(tmp_path: Path, *kinds: tuple[Path, str]) -> Path:
    """A mountinfo with these mounts."""
    lines = [f"{i} 1 0:{i} / {where} rw shared:1 - {kind} none rw\n" for i, (where, kind) in enumerate(kinds)]
    path = tmp_path / "mountinfo"
    path.write_text("".join(lines))
    return path


def test_a_large_tmpfs_is_fine(tmp_path):
    """A large tmpfs is fine and its room is counted in transitions."""
    tmpfs = mounts(tmp_path, (Path("/"), "overlay"), (tmp_path, "ext4"), (tmp_path, "tmpfs"))
    finding = doctor.check_shared_memory(tmp_path, tmpfs, statvfs(8 * GIB, 4 * GIB))
    fine(finding)
    assert finding.found.startswith("tmpfs of 8.0 GiB, 4.0 GiB free: ")
    assert f"{4 * GIB // (84 * 84 + 24):,} transitions of 84x84 frames" in finding.found


@pytest.mark.parametrize(("free", "state"), [(64 << 20, "warning"), (1 << 20, "problem"), (0, "problem")])
def test_a_small_tmpfs_says_how_to_make_it_larger(tmp_path, free, state):
    """A tmpfs too small for the default replay says how to make it larger."""
    finding = doctor.check_shared_memory(tmp_path, mounts(tmp_path, (tmp_path, "tmpfs")), statvfs(8 * GIB, free))
    bad(finding, state, "a replay has 100,000", "--shm-size")


@pytest.mark.parametrize(("free", "state"), [(8 * GIB, "warning"), (1 << 20, "problem")])
def test_shared_memory_that_is_no_memory_is_a_warning(tmp_path, free, state):
    disk = mounts(tmp_path, (Path("/"), "overlay"))
    bad(doctor.check_shared_memory(tmp_path, disk, statvfs(8 * GIB, free)), state, "overlay of 8", "mount a tmpfs")


def test_missing_or_read_only_shared_memory_is_a_problem(tmp_path, monkeypatch):
    bad(doctor.check_shared_memory(tmp_path / "no"), "problem", "is no directory", "mount a tmpfs")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    bad(doctor.check_shared_memory(tmp_path), "problem", "cannot be written", "read-write")


def test_no_memory_limit_and_a_wide_one_are_fine():
    fine(doctor.check_memory_limit(lambda: None))
    fine(doctor.check_memory_limit(lambda: MemoryLimit(8 * GIB, 4 * GIB)))


@pytest.mark.parametrize(("left", "state"), [(500 << 20, "warning"), (0, "problem")])
def test_a_memory_limit_that_is_too_low_is_named(left, state):
    """A memory limit that leaves too little for the default replay is named."""
    finding = doctor.check_memory_limit(lambda: MemoryLimit(8 * GIB, left))
    bad(finding, state, "8.0 GiB, ", "--memory")


def test_what_nobody_holds_is_a_warning_and_stays(tmp_path):
    fine(doctor.check_orphans(tmp_path))
    (tmp_path / "marlcore-left").write_bytes(bytes(8192))
    bad(doctor.check_orphans(tmp_path), "warning", "orphaned segments: 1, 8 KiB", "marlcore gc")
    assert (tmp_path / "marlcore-left").exists()


# ---- control groups ----


def groups(tmp_path: Path, own: str, files: dict[str, object]) -> tuple[Path, Path]:
    """A tree of control groups and the file that says which are this process's."""
    root = tmp_path / "cgroup"
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    (tmp_path / "own").write_text(own)
    return root, tmp_path / "own"


def v2(limit: object, used: int = 100, cache: int = 30) -> dict[str, object]:
    return {"memory.max": limit, "memory.current": used, "memory.stat": f"anon 5\ninactive_file {cache}"}


def v1(limit: object, used: int = 100, cache: int = 30) -> dict[str, object]:
    stat = f"inactive_file 1\ntotal_inactive_file {cache}"
    return {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used, "memory.stat": stat}


def under(folder: str, files: dict[str, object]) -> dict[str, object]:
    return {f"{folder}/{name}": content for name, content in files.items()}


MEMORY_CASES = {
    "version 2": ("0::/", v2(1000), MemoryLimit(1000, 930)),
    "version 2, used up": ("0::/", v2(1000, 2000), MemoryLimit(1000, 0)),
    "version 2, no limit": ("0::/", v2("max"), None),
    "version 2, own group": ("0::/a/b", under("a/b", v2(1000)) | under("a", v2("max")), MemoryLimit(1000, 930)),
    "version 2, group around": ("0::/a/b", under("a/b", v2(1000)) | under("a", v2(600)), MemoryLimit(600, 530)),
    "version 2, another's group": ("0::/a", under("b", v2(1000)), None),
    "version 2, outside of the namespace": ("0::/../x", v2(1000), MemoryLimit(1000, 930)),
    "version 1": ("4:cpu:/\n3:memory:/a", under("memory/a", v1(1000)), MemoryLimit(1000, 930)),
    "version 1, no limit": ("3:memory:/", under("memory", v1((1 << 63) - 4096)), None),
    "version 1, path of the host": ("3:memory:/docker/x", under("memory", v1(1000)), MemoryLimit(1000, 930)),
    "both, version 1 rules": ("1:memory:/\n0::/", under("memory", v1(1000)), MemoryLimit(1000, 930)),
    "nothing": ("", {}, None),
}


@pytest.mark.parametrize("case", MEMORY_CASES)
def test_the_memory_limit_that_leaves_least_is_found(tmp_path, case):
    own, files, expected = MEMORY_CASES[case]
    assert cgroup.memory_limit(*groups(tmp_path, own, files)) == expected


CPU_CASES = {
    "version 2": ("0::/", {"cpu.max": "150000 100000"}, 1.5),
    "version 2, no limit": ("0::/", {"cpu.max": "max 100000"}, None),
    "version 2, group around": ("0::/a", {"a/cpu.max": "400000 100000", "cpu.max": "200000 100000"}, 2.0),
    "version 1": (
        "4:cpu,cpuacct:/",
        under("cpu,cpuacct", {"cpu.cfs_quota_us": 50000, "cpu.cfs_period_us": 100000}),
        0.5,
    ),
    "version 1, no limit": ("4:cpu:/", under("cpu", {"cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 100000}), None),
    "nothing": ("", {}, None),
}


@pytest.mark.parametrize("case", CPU_CASES)
def test_the_least_processor_quota_is_found(tmp_path, case):
    own, files, expected = CPU_CASES[case]
    assert cgroup.cpu_quota(*groups(tmp_path, own, files)) == expected


def test_a_machine_without_control_groups_has_no_limits(tmp_path):
    assert cgroup.memory_limit(tmp_path, tmp_path / "nothing") is None
    assert cgroup.cpu_quota(tmp_path, tmp_path / "nothing") is None


# ---- kernel ----


@pytest.mark.parametrize("name", kernel_features.FEATURES)
def test_a_feature_that_works_is_fine_and_leaves_nothing(name):
    before = set(os.listdir("/proc/self/fd"))
    fine(doctor.check_feature(name))
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", [name for name in kernel_features.FEATURES if name != "pidfd"])
def test_a_feature_that_a_file_system_lacks_is_a_problem(name, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: True)  # as root is told
    finding = doctor.check_feature(name, Path("/proc/self"))
    bad(finding, "problem", f"needed: {kernel_features.FEATURES[name].purpose}", kernel_features.FEATURES[name].advice)


def test_a_missing_directory_is_not_blamed_on_the_kernel(tmp_path):
    bad(doctor.check_feature("futex", tmp_path / "no"), "problem", "No such file", f"first fix {tmp_path}")


def test_a_python_without_pidfds_is_a_problem(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    bad(doctor.check_feature("pidfd"), "problem", "built without os.pidfd_open", "Linux 5.3")


def test_a_pidfd_that_says_a_living_process_ended_is_a_problem(monkeypatch):
    monkeypatch.setattr(os, "pidfd_open", lambda pid: os.open("/dev/null", os.O_RDONLY))
    bad(doctor.check_feature("pidfd"), "problem", "is reported as ended", "Linux 5.3")


@pytest.mark.parametrize(
    ("takes", "found"),
    [
        (lambda fd, offset, exclusive: True, "a lock does not exclude others"),
        (lambda fd, offset, exclusive: False, "cannot be taken"),
    ],
)
def test_locks_that_do_not_lock_are_a_problem(monkeypatch, takes, found):
    monkeypatch.setattr("marlcore.memory.try_lock", takes)
    bad(doctor.check_feature("OFD locks"), "problem", found, "Linux 3.15")


def test_a_sleeper_that_nobody_wakes_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr("marlcore.memory.native.Event.notify", lambda event: None)
    with pytest.raises(OSError, match="is not woken"):
        kernel_features.try_waking(tmp_path, patience=0.1)


# ---- processors and accelerators ----


def test_a_processor_for_each_worker_is_fine():
    fine(doctor.check_processors(lambda: 4.0))


def test_the_quota_counts_where_it_is_less_than_the_affinity(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for quota, expected in [(None, 4.0), (2.5, 2.5), (8.0, 4.0)]:
        monkeypatch.setattr(cgroup, "cpu_quota", lambda quota=quota: quota)
        assert doctor.processors() == expected


@pytest.mark.parametrize(("count", "available"), [(2, 2.0), (1, 0.5), (1, 64.0)])
def test_no_more_threads_than_processors_are_fine(count, available):
    torch = SimpleNamespace(get_num_threads=lambda: count)
    fine(doctor.check_threads(torch, lambda: available, {}))


def test_more_threads_than_processors_are_a_warning():
    torch = SimpleNamespace(get_num_threads=lambda: 64)
    finding = doctor.check_threads(torch, lambda: 2.5, {"OMP_NUM_THREADS": "64"})
    bad(finding, "warning", "64 a process, OMP_NUM_THREADS is 64, for 2 processors", "OMP_NUM_THREADS=1")


def test_a_cache_that_can_be_written_is_fine(tmp_path):
    fine(doctor.check_numba_cache(lambda: tmp_path, {}))
    fine(doctor.check_numba_cache(lambda: tmp_path, {"NUMBA_CACHE_DIR": str(tmp_path.parent)}))


def test_numba_says_where_it_caches_the_kernels():
    finding = doctor.check_numba_cache()
    fine(finding)
    assert Path(finding.found.removeprefix("kernels are cached in ")).is_dir()


def no_cache() -> Path:
    raise RuntimeError("cannot cache function 'draw': no locator available")


@pytest.mark.parametrize("cache", [lambda: Path("/proc/nothing"), no_cache])
def test_a_cache_that_cannot_be_written_is_a_problem(cache):
    bad(doctor.check_numba_cache(cache, {}), "problem", "cannot be cached: ", "set NUMBA_CACHE_DIR")


def test_a_cache_at_another_place_is_a_warning(tmp_path):
    finding = doctor.check_numba_cache(lambda: tmp_path, {"NUMBA_CACHE_DIR": "/proc/nothing"})
    bad(finding, "warning", f"/proc/nothing cannot be written; kernels are cached in {tmp_path}", "NUMBA_CACHE_DIR")


class FakeTorch:
    """A torch with these GPUs; `broken` is what the driver, or the first use of one, says."""

    def __init__(self, gpus: int = 0, mps: bool = False, broken: str = "") -> None:
        self.cuda = SimpleNamespace(
            is_available=self.available, device_count=lambda: gpus, get_device_name=lambda i: f"GPU {i}"
        )
        self.backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps))
        self.gpus, self.broken = gpus, broken

    def available(self) -> bool:
        if self.broken and not self.gpus:
            warnings.warn(self.broken, stacklevel=1)
        return self.gpus > 0

    def ones(self, n: int, device: str) -> SimpleNamespace:
        if self.broken:
            raise RuntimeError(self.broken)
        return SimpleNamespace(item=lambda: 1.0)


@pytest.mark.parametrize(
    ("torch", "found"),
    [
        (FakeTorch(), "none; learners train on the CPU"),
        (FakeTorch(gpus=2), "cuda:0 GPU 0, cuda:1 GPU 1"),
        (FakeTorch(mps=True), "mps Metal"),
    ],
)
def test_a_gpu_that_works_and_no_gpu_are_fine(torch, found):
    finding = doctor.check_gpu(torch)
    fine(finding)
    assert finding.found == found


def test_a_gpu_that_torch_cannot_use_is_a_problem():
    torch = FakeTorch(gpus=1, broken="CUDA error: no kernel image\nis available")
    bad(doctor.check_gpu(torch), "problem", "cuda:0 (GPU 0): CUDA error: no kernel image is", "--learner.device cpu")


def test_a_driver_that_does_not_work_is_a_warning():
    bad(doctor.check_gpu(FakeTorch(broken="driver too old")), "warning", "driver too old", "driver")


# ---- all of them ----


@pytest.mark.parametrize("error", [OSError("no"), ImportError(""), ValueError("two\nlines"), PermissionError(13, "no")])
def test_a_failing_check_is_a_finding_of_one_line(error):
    """A check that fails is a finding of one line and the others go on."""

    def fails() -> Finding:
        raise error

    found = examine({"first": fails, "second": lambda: Finding("ok", "good")})
    bad(found["first"], "problem", "could not be checked: ", "fix the problems above")
    assert len(found["first"].found.splitlines()) == 1
    fine(found["second"])


@pytest.mark.long
def test_without_the_core_every_check_still_ends(program):
    out = program("""
        import json, sys
        sys.modules["marlcore._core"] = None
        from marlcore.cli.doctor import CHECKS, examine
        print(json.dumps({name: finding.state for name, finding in examine(CHECKS).items()}))
    """).finish()
    states = json.loads(out)
    assert states.keys() == CHECKS.keys()
    assert {"core", "orphans", "OFD locks"} <= {name for name, state in states.items() if state == "problem"}
    assert states["python"] == states["O_TMPFILE"] == "ok"


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warning", 0), ("problem", 1)])
def test_the_exit_code_is_1_where_there_is_a_problem(monkeypatch, capsys, state, code):
    checks = {"a": lambda: Finding("ok", "good"), "b": lambda: Finding(state, "[bold]found", "do this")}
    monkeypatch.setattr(doctor, "CHECKS", checks)
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["doctor"]) == code
    out = capsys.readouterr().out
    assert state in out and "[bold]found" in out and "do this" in out
    assert main(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == [
        {"name": "a", "state": "ok", "found": "good", "advice": ""},
        {"name": "b", "state": state, "found": "[bold]found", "advice": "do this"},
    ]


def test_an_unknown_option_is_one_line(capsys):
    assert main(["doctor", "--jsn"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("marlcore: ") and len(errors.splitlines()) == 1


@pytest.mark.long
def test_the_command_finds_this_machine_fit():
    command = [sys.executable, "-W", "error", "-m", "marlcore", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows] == list(CHECKS)
    problems = [row for row in rows if row["state"] == "problem"]
    assert (done.returncode, done.stderr) == (int(bool(problems)), "")
    assert all(bool(row["advice"]) == (row["state"] != "ok") for row in rows)
    needed = [row["state"] for row in rows if row["name"] in {"python", "packages", "core", *kernel_features.FEATURES}]
    assert needed == ["ok"] * len(needed), "the tests ran on this machine, so it can do all of this"


def test_every_command_of_the_table_exists():
    from marlcore.__main__ import COMMANDS

    for module, function, _, _ in COMMANDS.values():
        assert callable(getattr(importlib.import_module(f"marlcore.cli.{module}"), function))
