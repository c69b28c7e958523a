"""Segments whose bytes an enemy chose: what is done with them ends in a result or an exception, never in a signal.

Each round of a case changes counters, slots and rows between any two uses, to noise, to extreme words, or by a bit; a
second process goes on changing them meanwhile in `test_a_segment_that_always_changes_ends_no_process`. All of it
happens in a child process, which must end by itself, in time and with status 0. The suite runs a few rounds of a seed
that it prints when they fail;

    python tests/long.py hostile 600

runs every case for that many seconds in all, with other rounds each time unless a second number, the seed, is given.
It ends with how many uses gave a result and how many an exception, or with the round that ended otherwise.
"""

import faulthandler
import os
import re
import secrets
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seams
from core import CORE, build, counted, python, report, run
from mapped import Mapped
from uses import CASES, Case, Use
from victims import fork, kill

import marlcore as mc

pytestmark = pytest.mark.long
SEED = 20_240_101
PATIENCE_S = 300  # for what hangs; far more than a slow machine needs
PAGE, FIXED = 4096, 48  # bytes of these headers, and of what precedes their description
HEADERS = ["limited", "queue", "store", "control", "telemetry"]


EXTREME = [0, 1, -1, 2**31, 2**32 - 1, 2**61, 2**62 - 1, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1]


def attack(body: np.ndarray, rng: np.random.Generator, control: int) -> None:
    """Changes some bytes, most of them of the first `control`: lines of words, the first of which mean most."""
    words = body.view(np.int64)
    for _ in range(rng.integers(1, 4)):
        line = 16 * int(rng.integers(control // 128))
        at = line + int(16 * rng.random() ** 3) if rng.random() < 0.7 else int(rng.integers(len(words)))
        kind = rng.integers(5)
        with np.errstate(over="ignore"):
            if kind == 0:
                words[at] = EXTREME[rng.integers(len(EXTREME))]
            elif kind == 1:
                words[at] ^= np.int64(1) << np.int64(rng.integers(64))
            elif kind == 2:
                words[at] += np.int64(rng.integers(-100, 100))
            elif kind == 3:  # both counters of a lane
                words[at : at + 2] = EXTREME[rng.integers(len(EXTREME))]
            else:
                first, count = 8 * at, int(rng.integers(1, 2000))
                body[first : first + count] = rng.integers(0, 256, len(body[first : first + count]), np.uint8)


def control_bytes(shared: Any) -> int:
    lanes = isinstance(shared, (mc.ReplayBuffer, mc.TrajectoryQueue, mc.ParameterStore))
    return Mapped(shared).geometry.column_offset(0) if lanes else 128 * 4


def use(name: str, call: Use, tally: Counter[str]) -> None:
    """Makes one use, which must end in a result or in a documented exception."""
    try:
        call()
    except (mc.MarlcoreError, TimeoutError):
        tally["exceptions"] += 1
    except ValueError as error:
        assert re.match(r"[^:]*.*: expected ", str(error)), f"{name}: {error!r}"
        tally["exceptions"] += 1
    else:
        tally["results"] += 1


def begin(name: str, folder: Path) -> Case:
    """The case, with every kernel compiled before anything is changed."""
    for room in ("transitions", "replay"):
        seams.replace(room, LAP_LIMIT_S=0.05)
    case = CASES[name](folder)
    case.open()
    for use_name, call in case.uses().items():
        use(use_name, call, Counter())
    return case


LEAST = 12  # rounds, however slow the machine is: some end in an exception


def say(*words: object) -> None:
    """Logs the child's position, in case it dies there."""
    print(*words, file=sys.stderr, flush=True)


def rounds(seconds: float) -> Iterator[int]:
    end, number = time.monotonic() + seconds, 0
    while number < LEAST or time.monotonic() < end:
        yield number
        number += 1


def live(case: Case, seed: int, seconds: float) -> Counter[str]:
    tally: Counter[str] = Counter()
    body = Mapped(case.shared).body
    whole, control = body.copy(), control_bytes(case.shared)
    for number in rounds(seconds):
        rng = np.random.default_rng([seed, number])
        say("round", number)
        body[:] = whole
        uses = case.uses()
        for name in rng.choice(list(uses), 12):
            what = rng.random()
            if what < 0.5:
                attack(body, rng, control)
            elif what < 0.75:
                body[:] = whole
            say(name)
            use(name, uses[name], tally)
    return tally


def racing(case: Case, seed: int, seconds: float) -> Counter[str]:
    tally: Counter[str] = Counter()
    body, control = Mapped(case.shared).body, control_bytes(case.shared)
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings():  # the enemy takes no locks, which the threads of others may have held
        warnings.simplefilter("ignore", DeprecationWarning)
        enemy = fork(attack_for_ever, body, np.random.default_rng(seed), control)
    try:
        for _ in rounds(seconds):
            uses = case.uses()
            for name in rng.choice(list(uses), 12):
                use(name, uses[name], tally)
    finally:
        kill(enemy)
    return tally


def attack_for_ever(body: np.ndarray, rng: np.random.Generator, control: int) -> None:
    """The enemy's process: killed by its parent, or gone after it."""
    whole, parent = body.copy(), os.getppid()
    while os.getppid() == parent:
        body[:] = whole
        for _ in range(20):
            attack(body, rng, control)


def changes(raw: bytes, used: int) -> Iterator[tuple[int, bytes, bool]]:
    """(byte, header with that byte changed, whether its checksum is right again)."""
    for at in range(len(raw)):
        yield at, raw[:at] + bytes([raw[at] ^ (1, 0x80)[at % 2]]) + raw[at + 1 :], False
    for at in range(used):
        for other in {raw[at] ^ 1, raw[at] ^ 0x80, *b'09-e",'} - {raw[at]}:
            changed = bytearray(raw[:at] + bytes([other]) + raw[at + 1 :])
            changed[12:16] = bytes(4)
            changed[12:16] = struct.pack("<I", zlib.crc32(changed))
            yield at, bytes(changed), True


def rewrite(path: Path, header: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        file.write(header)


def headers(case: Case) -> Counter[str]:
    """Changes each byte of the header: the segment is refused, or it works as described."""
    tally: Counter[str] = Counter()
    path, kind = Path(case.shared.handle.path), type(case.shared)
    raw = path.read_bytes()[:PAGE]
    body = Mapped(case.shared).body
    whole = body.copy()
    used = FIXED + struct.unpack_from("<Q", raw, 40)[0]
    for at, changed, sealed in changes(raw, used):
        rewrite(path, changed)
        say("byte", at, changed[max(0, at - 20) : at + 20])
        try:
            shared = kind.attach(path)
        except mc.MarlcoreError:
            tally["refused" if sealed else "unsealed"] += 1
            continue
        with shared:
            use(f"byte {at}", partial(case.attached, shared), tally)
        body[:] = whole
    rewrite(path, raw)
    return tally


KINDS = {"live": live, "racing": racing, "headers": lambda case, seed, seconds: headers(case)}


def run_child(kind: str, names: list[str], seed: int, seconds: float) -> None:
    faulthandler.enable()
    tallies: Counter[str] = Counter()
    for name in names:
        say("case", name)
        with tempfile.TemporaryDirectory() as folder:
            case = CASES[name](Path(folder)) if kind == "headers" else begin(name, Path(folder))
            tally = KINDS[kind](case, seed, seconds)
            case.shared.close()
        tallies.update({f"{name}:{what}": count for what, count in tally.items()})
    report(tallies)


def child(kind: str, names: list[str], seed: int, seconds: float) -> dict[str, Counter[str]]:
    """Runs cases in a process of their own, each for `seconds`; returns what each counted."""
    done = python(__file__, kind, ",".join(names), seed, seconds, timeout=len(names) * seconds + PATIENCE_S)
    assert done.returncode == 0, f"{kind}, seed {seed}: ended with {done.returncode}\n{done.stderr[-6000:]}"
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    for key, count in counted(done).items():
        name, what = key.split(":")
        counts[name][what] = count
    return counts


def test_a_changed_header_is_refused_or_works():
    """Also with a checksum that is right, which only the checks behind it can refuse."""
    for counts in child("headers", HEADERS, SEED, 0.0).values():
        assert counts["unsealed"] == PAGE and counts["refused"] > 0 and counts["results"] > 0


def test_no_counters_and_rows_end_a_process_by_a_signal():
    for name, counts in child("live", list(CASES), SEED, 0.7).items():
        assert counts["results"] > 0
        assert counts["exceptions"] > 0 or name == "control"


def test_a_segment_that_always_changes_ends_no_process():
    for counts in child("racing", list(CASES), SEED, 0.7).values():
        assert counts["results"] > 0


FUZZ = ["-O1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]


def has_fuzzer() -> bool:
    """Whether there is clang, and its libFuzzer, which Debian packs apart."""
    empty = "int LLVMFuzzerTestOneInput(const void *data, unsigned long size) { return 0 * (data == 0) * size; }"
    command = ["clang", *FUZZ, "-x", "c", "-", "-o", "/dev/null"]
    return shutil.which("clang") is not None and not subprocess.run(command, input=empty, text=True).returncode


def test_no_input_of_the_fuzzer_leads_the_core_astray(tmp_path):
    """csrc/test/fuzz_lane.c says what each call may answer; the sanitizers, where it may read and write."""
    if not has_fuzzer():
        pytest.skip("clang with libFuzzer is not installed (Debian: clang, libclang-rt-dev)")
    program = build(CORE, "fuzz_lane", tmp_path, FUZZ, "clang")
    # Its own limit is the peak resident size, which a program inherits from the process that started it: pytest's.
    limits = ["-runs=250000", "-max_total_time=120", "-rss_limit_mb=0", "-malloc_limit_mb=256"]
    done = run([program, *limits, f"-seed={SEED}", f"-artifact_prefix={tmp_path}/"])
    assert done.returncode == 0, done.stderr[-6000:]
    assert int(done.stderr.rpartition("Done ")[2].split()[0]) > 1000


def main(seconds: float, seed: int = secrets.randbits(32)) -> None:
    print(f"seed {seed}", flush=True)
    tally: Counter[str] = Counter()
    for kind in ("live", "racing"):
        for name in CASES:
            counts = child(kind, [name], seed, seconds / (2 * len(CASES)))[name]
            print(kind, name, dict(counts), flush=True)
            tally += counts
    print(f"{tally['results']} results, {tally['exceptions']} exceptions, 0 signals")


if __name__ == "__main__":
    run_child(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), float(sys.argv[4]))
