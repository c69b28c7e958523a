"""`marlcore doctor` tries what marlcore needs, gives advice where something is missing, and never fails itself."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from marlcore import Config, TreasureHunt, cgroup
from marlcore.__main__ import main
from marlcore.cgroup import MemoryLimit
from marlcore.cli import doctor, linux_features

GIB = 1 << 30


def check_finding(finding: doctor.Finding, state: str = "ok", found: str = "", advice: str = "") -> None:
    assert finding.state == state and finding.found and found in finding.found
    assert advice in finding.advice and len(finding.advice.splitlines()) == (state != "ok")


def statvfs(free: int, total: int = 8 * GIB) -> Callable[[Path], Any]:
    return lambda directory: SimpleNamespace(f_frsize=4096, f_blocks=total // 4096, f_bavail=free // 4096)


def mounts(tmp_path: Path, *kinds: tuple[Path, str]) -> Path:
    lines = [f"{i} 1 0:{i} / {where} rw shared:1 - {kind} none rw\n" for i, (where, kind) in enumerate(kinds)]
    (tmp_path / "mountinfo").write_text("".join(lines))
    return tmp_path / "mountinfo"


def fake_torch(gpus: int = 0, mps: bool = False, threads: int = 1, warns: str = "", fails: str = "") -> Any:
    """A torch with these GPUs; the driver warns of something, or the first use of a GPU fails."""
    torch = Mock(**{"cuda.device_count.return_value": gpus, "get_num_threads.return_value": threads})
    torch.cuda.is_available = lambda: (warns and warnings.warn(warns, stacklevel=1)) or gpus > 0
    torch.cuda.get_device_name = "GPU {}".format
    torch.backends.mps.is_available.return_value = mps
    torch.ones.side_effect = RuntimeError(fails) if fails else None
    return torch


def limit(left: int) -> Callable[[], MemoryLimit]:
    return lambda: MemoryLimit(8 * GIB, left)


MANY = [fake_torch(threads=64), lambda: 2.5, {"OMP_NUM_THREADS": "64"}]
ELSEWHERE, OLD = [lambda: Path("/tmp"), {"NUMBA_CACHE_DIR": "/proc/no"}], "CUDA error: no kernel\nis available"
# a check, its arguments, and its finding: state, a part of what is found, a part of the advice
LOOKS = {
    "x86_64": (doctor.check_python, ["linux", "x86_64"], "ok", "Python 3.", ""),
    "aarch64": (doctor.check_python, ["linux", "aarch64"], "ok", "Python 3.", ""),
    "core works": (doctor.check_core, [], "ok", "marlcore ", ""),
    "packages": (doctor.check_packages, [["numpy"]], "ok", "numpy ", ""),
    "torch": (doctor.check_packages, [["torch"]], "ok", "torch ", ""),
    "no limit": (doctor.check_memory_limit, [lambda: None], "ok", "no limit", ""),
    "a wide limit": (doctor.check_memory_limit, [limit(4 * GIB)], "ok", "8.0 GiB, 4.0 GiB free", ""),
    "networks": (doctor.check_kernels, [], "ok", " units; torch computes wider ones", ""),
    "processors works": (doctor.check_processors, [lambda: 4.0], "ok", "4 for 1 actors and 3 learners", ""),
    "no Ray": (doctor.check_niceness, [None, {"RAY_TMPDIR": "/no"}], "ok", "no Ray runs here", ""),
    "an address": (doctor.check_niceness, [None, {"RAY_ADDRESS": "auto"}], "warning", "niceness 15", "_niceness=0"),
    "Ray's niceness": (doctor.check_niceness, [True, {}], "warning", "niceness 15", "RAY_worker_niceness=0"),
    "equal niceness": (doctor.check_niceness, [True, {"RAY_worker_niceness": "0"}], "ok", "niceness 0", ""),
    "threads works": (doctor.check_threads, [fake_torch(threads=2), lambda: 2.0, {}], "ok", "torch uses 2", ""),
    "a thread for half a processor": (doctor.check_threads, [fake_torch(), lambda: 0.5, {}], "ok", "torch uses 1", ""),
    "cache": (doctor.check_numba_cache, [lambda: Path("/tmp"), {}], "ok", "kernels are cached in /tmp", ""),
    "asked cache": (doctor.check_numba_cache, [lambda: Path("/tmp"), {"NUMBA_CACHE_DIR": "/"}], "ok", "kernels", ""),
    "Numba's cache": (doctor.check_numba_cache, [], "ok", "kernels are cached in /", ""),
    "no GPU": (doctor.check_gpu, [fake_torch()], "ok", "none; learners train on the CPU", ""),
    "two GPUs": (doctor.check_gpu, [fake_torch(gpus=2)], "ok", "cuda:0 GPU 0, cuda:1 GPU 1", ""),
    "a Mac's": (doctor.check_gpu, [fake_torch(mps=True)], "ok", "mps Metal", ""),
    **{
        " ".join(at): (doctor.check_python, at, "problem", f"on {', '.join(at)}", "use Linux")
        for at in [("darwin", "arm64"), ("linux", "riscv64"), ("win32", "x86_64")]
    },
    "core": (doctor.check_core, ["marlcore._no"], "problem", "the core does not load: No module named", "pip install"),
    "package": (doctor.check_packages, [["numpy", "no_such"]], "problem", "No module named 'no_such'", "pip"),
    "no version": (doctor.check_packages, [["this_is_hollow"]], "problem", "__version__", "pip install"),
    "no /dev/shm": (doctor.check_shared_memory, [Path("/no")], "problem", "/no is not a directory", "mount a tmpfs"),
    "low limit": (doctor.check_memory_limit, [limit(500 << 20)], "warning", "8.0 GiB, ", "--memory"),
    "limit reached": (doctor.check_memory_limit, [limit(0)], "problem", "8.0 GiB, ", "--memory"),
    "no directory": (doctor.check_feature, ["futex", Path("/no")], "problem", "No such file", "first fix /no"),
    "processors": (doctor.check_processors, [lambda: 1.5], "warning", "1.5 for 1 actors and 3 learners", "--cpus"),
    "threads": (doctor.check_threads, MANY, "warning", "64 a process, OMP_NUM_THREADS is 64, for 2 processors", "=1"),
    "interpreted": (doctor.check_numba_cache, [None, {"NUMBA_DISABLE_JIT": "1"}], "problem", "is set", "unset"),
    "no cache": (doctor.check_numba_cache, [Mock(side_effect=RuntimeError), {}], "problem", "cannot be", "NUMBA_"),
    "closed": (doctor.check_numba_cache, [lambda: Path("/proc/no"), {}], "problem", "cannot be cached: ", "NUMBA_CAC"),
    "elsewhere": (doctor.check_numba_cache, ELSEWHERE, "warning", "/proc/no cannot be written; kernels are", "NUMBA_"),
    "broken GPU": (doctor.check_gpu, [fake_torch(1, fails=OLD)], "problem", "GPU 0): CUDA error: no", "learner.device"),
    "broken driver": (doctor.check_gpu, [fake_torch(warns="driver too old")], "warning", "driver too old", "driver"),
}  # fmt: skip


@pytest.mark.parametrize("case", LOOKS)
def test_what_is_found_has_advice_where_it_is_not_fine(case, monkeypatch):
    monkeypatch.setitem(sys.modules, "this_is_hollow", SimpleNamespace())
    check, arguments, *expected = LOOKS[case]
    check_finding(check(*arguments), *expected)


def test_a_core_without_cffi_needs_cffi_alone(monkeypatch):
    missing = Mock(side_effect=ModuleNotFoundError("marlcore needs cffi", name="cffi"))
    monkeypatch.setattr(doctor, "import_module", missing)
    check_finding(doctor.check_core(), "problem", "marlcore needs cffi", "python -m pip install cffi")


def test_the_default_run_is_that_of_the_settings():
    """The doctor cannot read them, since it works without the libraries of training."""
    config = Config()
    assert (config.replay.capacity, config.learner.warmup) == (doctor.ROWS, doctor.WARMUP)
    assert (config.actor.processes, len(TreasureHunt().agents)) == (doctor.ACTORS, doctor.LEARNERS)


ROOM = [
    ("tmpfs", 4 * GIB, "ok", ""),
    ("tmpfs", 64 << 20, "warning", "--shm-size"),
    ("tmpfs", 0, "problem", "--shm-size"),
    ("overlay", 8 * GIB, "warning", "mount a tmpfs"),
    ("overlay", 1 << 20, "problem", "mount a tmpfs"),
]


@pytest.mark.parametrize(("kind", "free", "state", "advice"), ROOM)
def test_the_room_in_shared_memory_is_counted_in_transitions(tmp_path, kind, free, state, advice):
    table = mounts(tmp_path, (Path("/"), "overlay"), (tmp_path, "ext4"), (tmp_path, kind))
    finding = doctor.check_shared_memory(tmp_path, table, statvfs(free))
    says = f"free: {free // (84 * 84 + 24):,} transitions of 84x84 frames, a replay has 100,000"
    check_finding(finding, state, says, advice)
    assert finding.found.startswith(f"{kind} of 8.0 GiB, ")


def test_read_only_shared_memory_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    check_finding(doctor.check_shared_memory(tmp_path), "problem", "cannot be written", "read-write")


def test_what_nobody_holds_is_a_warning_and_stays(tmp_path):
    check_finding(doctor.check_orphans(tmp_path))
    (tmp_path / "marlcore-left").write_bytes(bytes(8192))
    check_finding(doctor.check_orphans(tmp_path), "warning", "orphaned segments: 1, 8 KiB", "marlcore gc")
    assert (tmp_path / "marlcore-left").exists()


def test_the_quota_counts_where_it_is_less_than_the_affinity(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for quota, expected in [(None, 4.0), (2.5, 2.5), (8.0, 4.0)]:
        monkeypatch.setattr(cgroup, "cpu_quota", lambda quota=quota: quota)
        assert cgroup.cores() == expected


def groups(tmp_path: Path, own: str | None, files: dict[str, object]) -> tuple[Path, Path]:
    """A tree of control groups and the file that says which are this process's."""
    root = tmp_path / "cgroup"
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    if own is not None:
        (tmp_path / "own").write_text(own)
    return root, tmp_path / "own"


def v2(limit: object, used: int = 100) -> dict[str, object]:
    return {"memory.max": limit, "memory.current": used, "memory.stat": "anon 5\ninactive_file 30"}


def v1(limit: object) -> dict[str, object]:
    stat = "inactive_file 1\ntotal_inactive_file 30"
    return {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": 100, "memory.stat": stat}


def quota(microseconds: int) -> dict[str, object]:
    return {"cpu.cfs_quota_us": microseconds, "cpu.cfs_period_us": 100_000}


def under(folder: str, files: dict[str, object]) -> dict[str, object]:
    return {f"{folder}/{name}": content for name, content in files.items()}


LIMITS = {  # the groups of the process, their files, and the limit
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
    "cpu, version 2": ("0::/", {"cpu.max": "150000 100000"}, 1.5),
    "cpu, version 2, no limit": ("0::/", {"cpu.max": "max 100000"}, None),
    "cpu, version 2, group around": ("0::/a", {"a/cpu.max": "400000 100000", "cpu.max": "200000 100000"}, 2.0),
    "cpu, version 1": ("4:cpu,cpuacct:/", under("cpu,cpuacct", quota(50_000)), 0.5),
    "cpu, version 1, no limit": ("4:cpu:/", under("cpu", quota(-1)), None),
    "cpu, nothing": ("", {}, None),
    **dict.fromkeys(["no groups", "cpu, no groups"], (None, {}, None)),
}


@pytest.mark.parametrize("case", LIMITS)
def test_the_limit_that_leaves_least_is_found(tmp_path, case):
    own, files, expected = LIMITS[case]
    limit_of = cgroup.cpu_quota if case.startswith("cpu") else cgroup.memory_limit
    assert limit_of(*groups(tmp_path, own, files)) == expected


@pytest.mark.parametrize("name", linux_features.FEATURES)
def test_a_feature_that_works_is_fine_and_leaves_nothing(name):
    before = set(os.listdir("/proc/self/fd"))
    check_finding(doctor.check_feature(name))
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", [name for name in linux_features.FEATURES if name != "pidfd"])
def test_a_feature_that_a_file_system_lacks_is_a_problem(name, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: True)  # as root is told
    finding = doctor.check_feature(name, Path("/proc/self"))
    check_finding(
        finding, "problem", f"needed: {linux_features.FEATURES[name].purpose}", linux_features.FEATURES[name].advice
    )


BROKEN = {  # a feature, its call, what takes the call's place, and what is found
    "lying pidfd": ("pidfd", "os.pidfd_open", lambda pid: os.open("/dev/null", os.O_RDONLY), "is reported as ended"),
    "no pidfd": ("pidfd", "os.pidfd_open", None, "built without os.pidfd_open"),
    "open lock": ("OFD locks", "marlcore.memory.try_lock", lambda *_, **__: True, "a lock does not exclude others"),
    "closed lock": ("OFD locks", "marlcore.memory.try_lock", lambda *_, **__: False, "cannot be taken"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_feature_that_does_not_do_its_work_is_a_problem(case, monkeypatch):
    name, call, broken, found = BROKEN[case]
    monkeypatch.setattr(call, broken) if broken else monkeypatch.delattr(call)
    check_finding(doctor.check_feature(name), "problem", found, "use Linux")


def test_a_sleeper_that_nobody_wakes_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr("marlcore.memory.native.Event.notify", lambda event: None)
    with pytest.raises(OSError, match="is not woken"):
        linux_features.try_waking(tmp_path, patience=0.5)


@pytest.mark.parametrize("error", [OSError("no"), ImportError(""), ValueError("two\nlines"), PermissionError(13, "no")])
def test_a_failing_check_is_a_finding_of_one_line(error):
    def fails() -> doctor.Finding:
        raise error

    found = doctor.examine({"first": fails, "second": lambda: doctor.Finding("ok", "good")})
    check_finding(found["first"], "problem", "could not be checked: ", "fix the problems above")
    assert len(found["first"].found.splitlines()) == 1
    check_finding(found["second"])


@pytest.mark.long
def test_without_the_core_every_check_still_ends(program):
    out = program("""
        import json, sys
        sys.modules["marlcore._core"] = None
        from marlcore.cli.doctor import CHECKS, examine
        print(json.dumps({name: finding.state for name, finding in examine(CHECKS).items()}))
    """).finish()
    states = json.loads(out)
    assert states.keys() == doctor.CHECKS.keys()
    assert {"core", "orphans", "OFD locks"} <= {name for name, state in states.items() if state == "problem"}
    assert states["python"] == states["O_TMPFILE"] == "ok"


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warning", 0), ("problem", 1)])
def test_the_exit_code_is_1_where_there_is_a_problem(monkeypatch, capsys, state, code):
    checks = {"a": lambda: doctor.Finding("ok", "good"), "b": lambda: doctor.Finding(state, "[bold]found", "do this")}
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


@pytest.mark.long
def test_the_command_finds_this_machine_fit():
    command = [sys.executable, "-W", "error", "-m", "marlcore", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows] == list(doctor.CHECKS)
    problems = [row for row in rows if row["state"] == "problem"]
    assert (done.returncode, done.stderr) == (int(bool(problems)), "")
    assert all(bool(row["advice"]) == (row["state"] != "ok") for row in rows)
    needed = [row["state"] for row in rows if row["name"] in {"python", "packages", "core", *linux_features.FEATURES}]
    assert needed == ["ok"] * len(needed), "the tests ran on this machine, so it can do all of this"
