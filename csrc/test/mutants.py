"""Breaks the core on purpose, one protocol rule at a time: each mutant must be found out by its check.

Usage: python csrc/test/mutants.py [name ...]; the status is 1 when a mutant survives. The model needs Relacy
(Debian: relacy-dev).

Relacy lets a load see an old value, but no load or store changes places with a later one. So the release of
mc_announce, the acquire of mc_deliver and the first release of mc_store_kept can be left out unseen; the mutants that
write two steps in the other order show what the first two prevent.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

CORE = Path(__file__).parent.parent
RELACY = Path("/usr/include/relacy/relacy.hpp")
CFLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
MODELLED = ("copy.c", "futex.c", "lane.c", "words.c")
MODEL_CFLAGS = [*CFLAGS, "-Dsyscall=model_futex"]
WORLD_FLAGS = ["-std=gnu++17", "-O2", "-w", "-fpermissive"]  # Relacy's headers are older than today's compilers
# Of one long row the writer is nearly always inside an append: a broken lane shows within a fraction of a second.
STRESS = ["--reads", "1000000000", "--capacity", "1", "--row", "65536", "--newest", "--until-torn"]
OF_NETWORKS = '#include "dense.h"'


def sources_of(core: Path, program: Path) -> list[Path]:
    """A program's sources: of the core's, those of networks, which take longest to compile, only if it has some."""
    every = OF_NETWORKS in program.read_text()
    return [*(each for each in sorted(core.glob("*.c")) if every or OF_NETWORKS not in each.read_text()), program]


@dataclass(frozen=True)
class Mutant:
    """One rule broken."""

    name: str
    edits: tuple[tuple[str, str, str], ...]
    """Each a file, a text that occurs there once, and what takes its place."""
    checks: tuple[str, ...]
    """What finds it out: scenarios of the model, or "stress"; each of them must."""


NO_WRITE_FENCE = (
    "atomics.h",
    "static inline void mc_fence_write(void) { atomic_thread_fence(memory_order_release); }",
    "static inline void mc_fence_write(void) {}",
)
NO_READ_FENCE = (
    "atomics.h",
    "static inline void mc_fence_read(void) { atomic_thread_fence(memory_order_acquire); }",
    "static inline void mc_fence_read(void) {}",
)
NO_RESERVATION = (
    ("lane.c", "        mc_store_reserved(counters, c + n);\n", ""),
    ("lane.c", "    mc_store_reserved(counters, c + lane->capacity);\n", ""),
)

READ_CHECK = (
    "    mc_fence_read();\n"
    "    return mc_ticket_whole(ticket, lane->capacity, mc_load_reserved(counters)) ? 0 : -ESTALE;"
)

MUTANTS = [
    Mutant("no_writer_fence", (NO_WRITE_FENCE,), ("sample_stale",)),
    Mutant(
        "release_store_instead_of_writer_fence",
        (
            NO_WRITE_FENCE,
            ("atomics.h", "&c->reserved, value, memory_order_relaxed", "&c->reserved, value, memory_order_release"),
        ),
        ("sample_stale",),
    ),
    Mutant("no_reader_fence", (NO_READ_FENCE,), ("sample_stale", "newest_of_2")),
    Mutant(
        "acquire_load_instead_of_reader_fence",
        (
            NO_READ_FENCE,
            (
                "atomics.h",
                "((struct mc_counters *)c)->reserved, memory_order_relaxed",
                "((struct mc_counters *)c)->reserved, memory_order_acquire",
            ),
        ),
        ("sample_stale", "newest_of_2"),
    ),
    Mutant(
        "relaxed_store_of_committed",
        (
            (
                "atomics.h",
                "&c->committed, value, memory_order_release",
                "&c->committed, value, memory_order_relaxed",
            ),
        ),
        ("sample_stale",),
    ),
    Mutant(
        "relaxed_load_of_committed",
        (
            (
                "atomics.h",
                "((struct mc_counters *)c)->committed, memory_order_acquire",
                "((struct mc_counters *)c)->committed, memory_order_relaxed",
            ),
        ),
        ("sample_stale",),
    ),
    Mutant(
        "one_row_too_many_accepted",
        (("lane.c", "ticket + capacity >= reserved;", "ticket + capacity + 1 >= reserved;"),),
        ("sample_stale", "newest_of_1", "stress"),
    ),
    Mutant(
        "reserve_after_the_copy",
        (
            *NO_RESERVATION,
            (
                "lane.c",
                "    mc_store_committed(mc_counters_of(lane), first + n);\n",
                "    mc_store_reserved(mc_counters_of(lane), first + n);\n"
                "    mc_store_committed(mc_counters_of(lane), first + n);\n",
            ),
        ),
        ("sample_stale", "stress"),
    ),
    Mutant(
        "plain_rows",
        (
            (
                "atomics.h",
                "    atomic_store_explicit(to, value, memory_order_relaxed);\n}\n"
                "static inline uint64_t mc_load_row_word(mc_word *from) {\n"
                "    return atomic_load_explicit(from, memory_order_relaxed);\n",
                "    model_plain_store(to, value);\n}\n"
                "static inline uint64_t mc_load_row_word(mc_word *from) {\n"
                "    return model_plain_load(from);\n",
            ),
        ),
        ("sample_stale",),
    ),
    Mutant(
        "successor_lowers_reserved",
        (("lane.c", "    if (r < c + n) {\n", "    {\n"),),
        ("takeover",),
    ),
    Mutant(
        "kept_of_any_row",
        (("lane.c", "    if (mc_load_kept_of(counters) != c)\n        return -ESTALE;\n", ""),),
        ("count",),
    ),
    Mutant(
        "kept_without_a_second_look",
        (("lane.c", "    return mc_load_committed(counters) == c ? 0 : -ESTALE;", "    return 0;"),),
        ("count",),
    ),
    Mutant(
        "relaxed_store_of_the_row_that_is_kept",
        (("atomics.h", "&c->kept[1], of, memory_order_release", "&c->kept[1], of, memory_order_relaxed"),),
        ("count",),
    ),
    Mutant(
        "kept_again_by_a_successor",
        (
            (
                "lane.c",
                "    if (r < c + n) {\n        if (n == lane->capacity)",
                "    {\n        if (n == lane->capacity)",
            ),
        ),
        ("count",),
    ),
    Mutant(
        "no_waiter_fence",
        (("futex.c", "    mc_fence_event(); /* announced", "    /* announced"),),
        ("sleep", "room"),
    ),
    Mutant(
        "no_notifier_fence",
        (("futex.c", "    mc_fence_event(); /* it is there", "    /* it is there"),),
        ("sleep", "room"),
    ),
    Mutant(
        "announced_before_the_event_is_seen",
        (
            (
                "futex.c",
                "    uint32_t seen = mc_load_half(&e->event);\n    mc_announce(&e->wanted, amount ? amount : 1);\n",
                "    mc_announce(&e->wanted, amount ? amount : 1);\n    uint32_t seen = mc_load_half(&e->event);\n",
            ),
        ),
        ("sleep",),
    ),
    Mutant(
        "event_moved_before_the_announcement_is_taken",
        (
            (
                "futex.c",
                "    if (!mc_deliver(&e->wanted, amount))\n        return;\n    mc_add_half(&e->event);\n",
                "    mc_add_half(&e->event);\n    if (!mc_deliver(&e->wanted, amount))\n        return;\n",
            ),
        ),
        ("sleep", "room"),
    ),
    Mutant(
        "the_larger_of_two_wishes_stands",
        (("atomics.h", "before && before < amount ? before : amount", "before > amount ? before : amount"),),
        ("sleep_two",),
    ),
    Mutant(
        "less_is_taken_off_than_was_delivered",
        (("atomics.h", "after = before > amount ? before - amount : 0;", "after = before > amount ? before : 0;"),),
        ("sleep", "room"),
    ),
    Mutant(
        "woken_but_the_event_stays",
        (("futex.c", "    mc_add_half(&e->event);\n", ""),),
        ("sleep", "room"),
    ),
    Mutant(
        "the_event_is_read_again_before_the_sleep",
        (("futex.c", "FUTEX_WAIT, seen,", "FUTEX_WAIT, mc_load_half(&mc_event_at(event)->event) + 0 * seen,"),),
        ("sleep", "room"),
    ),
    Mutant(
        "no_streaming_fence",
        (
            (
                "atomics.h",
                "static inline void mc_fence_write_streaming(void) { atomic_thread_fence(memory_order_seq_cst); }",
                "static inline void mc_fence_write_streaming(void) {}",
            ),
        ),
        ("sample_streamed",),
    ),
    Mutant(
        "flip_without_validation",
        (("lane.c", READ_CHECK, "    return 0;"),),
        ("newest_of_1", "newest_of_2", "newest_of_3"),
    ),
    Mutant(
        "only_the_active_slot_is_checked_again",
        (
            (
                "lane.c",
                READ_CHECK,
                "    mc_fence_read();\n"
                "    uint64_t newest = mc_load_committed(counters) - 1;\n"
                "    return newest % lane->capacity == ticket % lane->capacity ? 0 : -ESTALE;",
            ),
        ),
        ("newest_of_1", "newest_of_2", "newest_of_3"),
    ),
    Mutant(
        "flip_before_the_copy",
        (
            (
                "lane.c",
                "    mc_lane_put(lane, first, n, sources);\n    mc_lane_commit(lane, first, n);\n",
                "    mc_lane_commit(lane, first, n);\n    mc_lane_put(lane, first, n, sources);\n",
            ),
        ),
        ("sample", "newest_of_1", "newest_of_2", "newest_of_3"),
    ),
    Mutant(
        "flip_before_the_row_is_finished",
        (
            (
                "lane.c",
                "    mc_copy_in(row + from, (const uint8_t *)source + from, column->size - from);\n"
                "    mc_lane_commit(lane, (uint64_t)ticket, 1);\n",
                "    mc_lane_commit(lane, (uint64_t)ticket, 1);\n"
                "    mc_copy_in(row + from, (const uint8_t *)source + from, column->size - from);\n",
            ),
        ),
        ("device_of_2",),
    ),
]


class EditError(Exception):
    """The text that a mutant changes is not there, or not once: the core moved on, its mutants must follow."""


def compile_with(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")


def build_world(folder: Path) -> Path:
    """The model checker and what the core's atomics end up in: the same for every core, and slow to compile."""
    world = folder / "model_lane.o"
    source = CORE / "test" / "model_lane.cpp"
    compile_with(["g++", *WORLD_FLAGS, *_include(CORE), "-c", str(source), "-o", str(world)])
    return world


def build_model(core: Path, world: Path, binary: Path, *flags: str) -> Path:
    """The model of the core in `core`."""
    objects = []
    for name in MODELLED:
        objects.append(str(binary.with_suffix(f".{name}.o")))
        compile_with(["gcc", *MODEL_CFLAGS, *flags, *_include(core), "-c", str(core / name), "-o", objects[-1]])
    compile_with(["g++", str(world), *objects, "-o", str(binary)])
    return binary


def _include(core: Path) -> list[str]:
    return [f"-I{core / 'test' / 'model'}", f"-I{core}"]


def build_stress(core: Path, binary: Path) -> Path:
    sources = [core / "test" / "stress_lane.c", core / "copy.c", core / "futex.c", core / "lane.c"]
    compile_with(["gcc", *CFLAGS, f"-I{core}", *map(str, sources), "-o", str(binary), "-pthread"])
    return binary


def mutate(mutant: Mutant, folder: Path) -> Path:
    """A copy of the core with the mutant's edits."""
    core = folder / mutant.name
    shutil.copytree(CORE, core, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in mutant.edits:
        text = (core / name).read_text()
        if text.count(old) != 1:
            raise EditError(f"{mutant.name}: {name} holds {text.count(old)} times, expected once: {old!r}")
        (core / name).write_text(text.replace(old, new))
    return core


def examine(mutant: Mutant, world: Path, folder: Path) -> dict[str, tuple[bool, str]]:
    """For each of the mutant's checks: whether it found the mutant out, and what it said."""
    core = mutate(mutant, folder)
    verdicts = {}
    model = stress = None
    for check in mutant.checks:
        if check == "stress":
            stress = stress or build_stress(core, folder / f"{mutant.name}.stress")
            command = [str(stress), *STRESS]
        else:
            model = model or build_model(core, world, folder / f"{mutant.name}.model", "-O0")  # it fails soon
            command = [str(model), "--random", check]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
        verdicts[check] = (done.returncode == 1, done.stdout.strip())
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="*", choices=[[], *(mutant.name for mutant in MUTANTS)])
    names = parser.parse_args().name
    alive = 0
    with tempfile.TemporaryDirectory() as folder:
        world = build_world(Path(folder))
        for mutant in MUTANTS:
            if names and mutant.name not in names:
                continue
            for check, (found, said) in examine(mutant, world, Path(folder)).items():
                sys.stdout.write(f"{mutant.name}: {'found' if found else 'NOT FOUND'} by {check} ({said})\n")
                sys.stdout.flush()
                alive += not found
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
