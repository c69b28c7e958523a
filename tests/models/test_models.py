"""Model checking: the core in Relacy, where threads race and memory is weak; protocols of processes in SPIN, where
anybody may be killed at any step. Each model passes, and each rule that is broken on purpose is found out.

What was explored is told at the end of pytest's output: see conftest.py.
"""

import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from core import CORE, mutants, run, spin_models

needs_relacy = pytest.mark.skipif(
    not mutants.RELACY.exists(), reason="the model checker Relacy is not installed (Debian: relacy-dev)"
)
needs_spin = pytest.mark.skipif(
    spin_models.SPIN is None, reason="the model checker SPIN is not installed (Debian: spin)"
)

SCENARIOS = {
    "lane": ("sample", "sample_pairs", "sample_stale", "sample_streamed"),
    "weights": ("newest_of_1", "newest_of_2", "newest_of_3", "device_of_2"),
    "takeover": ("takeover", "count"),
    "wake-up": ("sleep", "sleep_two", "room"),
}
"""The cases of model_lane.cpp, by the part of the core that they are about."""


def spin_cases(kind: str) -> list[Any]:
    """Every (model, macros) of that kind, "sizes" or "mutants"."""
    return [
        pytest.param(model, macros, id=" ".join((model.name, *macros)), marks=pytest.mark.long)
        for model in spin_models.MODELS
        for macros in (model.sizes if kind == "sizes" else [(mutant,) for mutant in model.mutants])
    ]


Submit = Callable[..., Future[Any]]
Searches = dict[Any, Future[Any]]


@pytest.fixture(scope="module")
def searches(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Searches:
    """Everything that the selected tests below look at, two searches at a time."""
    folder = tmp_path_factory.mktemp("models")
    running: Searches = {}
    selected = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    params = [each.params for each in selected if each]
    with ThreadPoolExecutor(max_workers=2) as pool:
        # The slow compilation first: what needs it comes after SPIN's searches, which go on beside it.
        asked = mutants.RELACY.exists() and any({"part", "name"} & case.keys() for case in params)
        world = pool.submit(mutants.build_world, folder) if asked else None
        if spin_models.SPIN is not None:
            for model, macros in ((case["model"], case["macros"]) for case in params if "macros" in case):
                running[model.name, macros] = pool.submit(spin_models.search, model, macros)
        if world is not None:
            running |= _submit_relacy(pool.submit, world, folder)
    return running


def _submit_relacy(submit: Submit, world: Future[Path], folder: Path) -> Searches:
    sound = mutants.build_model(CORE, world.result(), folder / "model")
    scenarios = {name: submit(run, [sound, name]) for names in SCENARIOS.values() for name in names}
    return scenarios | {m.name: submit(mutants.examine, m, world.result(), folder) for m in mutants.MUTANTS}


@pytest.mark.long
@needs_relacy
@pytest.mark.parametrize("part", SCENARIOS)
def test_no_execution_of_the_core_fails(searches: Searches, record_property: Any, part: str) -> None:
    """All interleavings and weakly ordered reads of a small lane, and many random ones of what is larger."""
    for name in SCENARIOS[part]:
        done = searches[name].result()
        assert done.returncode == 0, done.stdout + done.stderr
        executions = re.fullmatch(rf"{name}: (\d+) executions, no failure\n", done.stdout)
        assert executions is not None and int(executions[1]) > 10_000
        record_property("explored", (f"{part}, Relacy", int(executions[1])))
        assert name != "sample" or int(executions[1]) > 1_000_000


@pytest.mark.long
@needs_relacy
@pytest.mark.parametrize("name", [mutant.name for mutant in mutants.MUTANTS])
def test_a_core_that_breaks_a_rule_is_found_out(searches: Searches, record_property: Any, name: str) -> None:
    """Each rule of the protocol is needed: without it the model, or the race of threads, shows a torn row."""
    verdicts = searches[name].result()
    for check, (found, said) in verdicts.items():
        assert found, f"{check} did not find the mutant out: {said}"
    for part in {part for part, names in SCENARIOS.items() if not verdicts.keys().isdisjoint(names)}:
        record_property("killed", (f"{part}, Relacy", 1))


def test_each_mutant_changes_the_core_in_one_place(tmp_path: Path) -> None:
    """If this fails, the core has changed and its mutants must follow, also on a machine without Relacy."""
    for mutant in mutants.MUTANTS:
        assert mutants.mutate(mutant, tmp_path).is_dir()


def test_each_scenario_belongs_to_a_part() -> None:
    """A scenario that nobody runs would prove nothing."""
    source = (CORE / "test" / "model_lane.cpp").read_text()
    table = source[source.index("searches[] = {") : source.index("#ifdef MODEL_LONG")]
    assert re.findall(r'^    \{"(\w+)",', table, re.MULTILINE) == [n for names in SCENARIOS.values() for n in names]


@needs_spin
@pytest.mark.parametrize(("model", "macros"), spin_cases("sizes"))
def test_no_state_of_a_model_fails(
    searches: Searches, record_property: Any, model: Any, macros: tuple[str, ...]
) -> None:
    """All interleavings of its processes, each of which may be killed between any two steps."""
    search = searches[model.name, macros].result()
    assert search.failure is None
    assert search.states > 10_000
    record_property("explored", (f"{model.name}, SPIN", search.states))


@needs_spin
@pytest.mark.parametrize(("model", "macros"), spin_cases("mutants"))
def test_a_model_that_breaks_a_rule_is_found_out(
    searches: Searches, record_property: Any, model: Any, macros: tuple[str, ...]
) -> None:
    """Each rule is needed: without it the search comes upon a state, or a run, that must not be."""
    assert searches[model.name, macros].result().failure is not None
    record_property("killed", (f"{model.name}, SPIN", len(macros)))


@pytest.mark.parametrize("model", spin_models.MODELS, ids=lambda model: model.name)
def test_each_macro_of_a_model_is_a_mutant_or_a_size(model: Any) -> None:
    """A misspelt mutant would be a sound model, and a forgotten one would prove nothing."""
    source = model.path.read_text()
    asked = set(re.findall(r"^#ifn?def (\w+)$", source, re.MULTILINE))
    sizes = set(re.findall(r"^#ifndef (\w+)\n#define \1 ", source, re.MULTILINE))
    sizes |= {macro.split("=")[0] for macros in model.sizes for macro in macros}
    assert asked - sizes == set(model.mutants)
