"""Searches the SPIN models in spin/ for a state or a run that must not be, and each of them with a rule broken.

Usage: python csrc/test/spin_models.py [model ...]; the status is 1 when a sound model fails or a mutant survives.
Needs SPIN (Debian: spin).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mutants import compile_with

SPIN = shutil.which("spin")
SOONER = "clang" if shutil.which("clang") else "gcc"  # compiles a mutant's search in two thirds of the time
DEPTH = 10_000


@dataclass(frozen=True)
class Model:
    """A file of spin/: what is searched, and the macros that break a rule each."""

    name: str
    mutants: tuple[str, ...]
    sizes: tuple[tuple[str, ...], ...] = ((),)
    """Each a size of the sound model, as macros; a mutant has that of its file."""
    liveness: bool = False
    """It has a property of whole runs. None of them is endless, so no fairness is asked for."""
    order: tuple[str, ...] = ()
    """Flags of the compiler for another order of the search, in which mutants are found sooner; a sound model's search
    visits all states in any order."""

    @property
    def path(self) -> Path:
        return Path(__file__).parent / "spin" / f"{self.name}.pml"


MODELS = (
    Model(
        "takeover",
        (
            "LOWER_RESERVED",
            "NO_PROOF_OF_DEATH",
            "LOCK_DROPPED_BEFORE_COMMIT",
            "RESUME_BEHIND_THE_RESERVATION",
            "RESERVE_AFTER_THE_COPY",
            "NO_VALIDATION",
            "NOTHING_KEPT",
            "KEPT_AFTER_THE_RESERVATION",
            "COUNTED_WITHOUT_A_SECOND_LOOK",
        ),
    ),
    Model(
        "segment",
        (
            "NAME_BEFORE_HEADER",
            "NAME_BEFORE_LOCK",
            "ATTACH_WITHOUT_LOCK",
            "ATTACH_WITHOUT_SECOND_LOOK",
            "SWEEP_WITHOUT_LOCK",
            "SWEEP_ASKS_INSTEAD_OF_LOCKING",
            "SWEEP_WITHOUT_SECOND_LOOK",
            "UNLINKED_WITHOUT_A_LOOK",
            "CLOSED_BEFORE_UNLINKED",
            "LOCK_OUTLIVES_ITS_HOLDER",
        ),
        sizes=((), ("KILLS=3", "ONE_SWEEPER")),
        order=("-DREVERSE",),
    ),
    Model(
        "save",
        (
            "WRITTEN_IN_PLACE",
            "NAMED_BEFORE_WRITTEN",
            "TARGET_REMOVED_FIRST",
            "ASIDE_WITHOUT_LOCK",
            "LOAD_WITHOUT_SECOND_LOOK",
        ),
    ),
    Model(
        "durable",
        (
            "WATERMARK_BEFORE_ROWS",
            "ONE_PLACE",
            "NO_BOOT_ID",
            "NO_CHECKSUM",
            "CHECKSUM_OF_THE_WRONG_PLACE",
            "NO_PROMISE",
            "PROMISED_BEFORE_THE_DISK",
            "PROMISE_LOWERED",
            "LOWERED_BESIDE_A_WRITER",
            "LOWERED_BELOW_THE_RESERVATION",
            "PLEDGE_NOT_ON_DISK",
            "PREDECESSORS_PLEDGE_BELIEVED",
            "PLEDGE_CLEARED_TOO_EARLY",
            "ENTERED_BEFORE_THE_END",
        ),
        sizes=(("TICKETS=4",), ("CUTS=2", "KILLS=1")),
    ),
    Model(
        "durable_queue",
        (
            "COMMIT_BEFORE_THE_CHECKPOINT",
            "RELEASED_BY_READING",
            "RELEASED_BEFORE_THE_CURSOR",
            "ONE_HALF",
            "TURN_BEFORE_THE_HALF",
            "NO_SECOND_LOOK",
            "WATERMARK_BEFORE_ROWS",
            "CURSOR_AFTER_THE_WATERMARK",
            "RELEASED_AFTER_THE_CURSOR",
            "PROMISE_BEYOND_THE_ROOM",
            "PLEDGE_BEYOND_THE_ROOM",
            "NO_BOOT_ID",
            "CURSOR_NOT_OF_THE_MARK",
            "STATE_NOT_GIVEN",
            "STATE_WITH_ROWS_THAT_WERE_CUT",
            "CHECKPOINT_NOT_SAVED_ANEW",
            "WRITERS_BEFORE_THE_STATE",
        ),
        sizes=((), ("TICKETS=3",), ("CAPACITY=2", "TICKETS=4", "KILLS=0"), ("CAPACITY=2", "TICKETS=3", "CUTS=0")),
    ),
    Model(
        "relay",
        (
            "CURSOR_AFTER_ROWS",
            "CURSOR_BEFORE_ROWS",
            "LOST_BEFORE_THE_OFFSET",
            "OFFSET_BEFORE_THE_SEAM",
            "BOOKED_AFTER_ROWS",
            "EPOCH_BEFORE_ITS_OFFSET",
            "NO_EPOCHS",
            "GAPS_UNDECLARED",
            "DUPLICATES_TAKEN",
            "SENT_AGAIN_AFTER_A_MOVE",
            "UNANSWERED_SENT_AGAIN",
        ),
        sizes=((), ("TICKETS=3", "KILLS=0", "MOVES=1")),
        order=("-DT_REVERSE",),
    ),
    Model(
        "supervisor",
        (
            "REPLACED_WHEN_STALE",
            "REPLACED_WHEN_KILLED",
            "JUDGED_BY_ITS_PREDECESSORS_HEARTBEAT",
            "NOBODY_KILLS_THE_FROZEN",
            "RESTARTED_THOUGH_DONE",
            "RESTARTED_FOR_EVER",
            "TRIED_AGAIN_THOUGH_HOPELESS",
            "REFUSALS_DO_NOT_COUNT",
            "RESTARTS_AFTER_STANDING_DOWN",
            "GIVES_THE_LAST_CHECKPOINT_UP",
            "SLEEPS_THROUGH_THE_BACK_OFF",
            "FAILS_AND_LEAVES_THE_REST",
            "WAITS_FOR_THE_FROZEN",
        ),
        sizes=((), ("MOST_RESTARTS=2",)),
        liveness=True,
    ),
    Model(
        "queue",
        (
            "NEVER_ASKED",
            "NOBODY_WOKEN",
            "ROOM_WITHOUT_TAKING",
            "A_LOOK_THAT_HAD_BEGUN_COUNTS",
            "LOOKS_AFTER_ROOM",
            "LOOKED_BEFORE_RELEASE",
        ),
        sizes=((), ("BATCH=4", "KILLS=0"), ("WRITERS=1", "CAPACITY=3", "BATCH=5", "ROWS=8")),
    ),
    Model(
        "lease",
        (
            "EPOCH_REUSED",
            "GRANTED_WHILE_HELD",
            "RENEWED_WITHOUT_EPOCH",
            "RENEWAL_REVIVES",
            "ANOTHER_CLOCK",
            "FENCED_LATER",
            "NOT_CHECKED",
            "SEAT_CHECKED_ALONE",
            "CHECKED_WHEN_OPENED",
            "TWO_INGESTS_AT_ONCE",
        ),
        sizes=((), ("SENDS=1", "TICKS=4")),
    ),
)


@dataclass(frozen=True)
class Search:
    """What a search came to; `failure` is None when it visited every state and found none."""

    states: int
    failure: str | None


def search(model: Model, macros: tuple[str, ...]) -> Search:
    """Searches the model with these macros, until a failure or to the end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run(["spin", "-a", *(f"-D{macro}" for macro in macros), str(model.path)], folder)
        kind = [] if model.liveness else ["-DSAFETY"]
        sound = macros in model.sizes
        # long searches wait for memory, which no optimization changes
        compiler = ["gcc", "-Og"] if sound else [SOONER, "-O0", *model.order]
        compile_with([*compiler, "-w", *kind, "-o", str(folder / "pan"), str(folder / "pan.c")])
        table = "-w24" if sound else "-w20"  # nor does it need a table for so many states, which grows if it must
        said = _run(["./pan", f"-m{DEPTH}", table, *(["-a"] if model.liveness else [])], folder)
    counts = re.search(r"errors: (\d+)\s+(\d+) states, stored", said)
    failure = re.search(r"^pan:1: (.*) \(at depth \d+\)$", said, re.MULTILINE)
    if counts is None or (failure is None) != ("Search not completed" not in said) or "too small" in said:
        raise RuntimeError(f"{model.name} {' '.join(macros)}: the search broke off:\n{said}")
    return Search(int(counts[2]), failure and failure[1])


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="*", choices=[[], *(model.name for model in MODELS)])
    names = parser.parse_args().model
    wrong = 0
    for model in MODELS:
        if names and model.name not in names:
            continue
        for macros in (*model.sizes, *((mutant,) for mutant in model.mutants)):
            found = search(model, macros)
            sys.stdout.write(
                f"{' '.join((model.name, *macros))}: {found.states} states, {found.failure or 'no failure'}\n"
            )
            sys.stdout.flush()
            wrong += (found.failure is None) != (macros in model.sizes)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
