"""The gallery: each example runs in a short form and prints what it promises, is short, and stands on the page."""

import importlib
import json
import re
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import marlcore as mc

ROOT = Path(__file__).parents[2]
EXAMPLES, PAGE = ROOT / "examples", (ROOT / "docs" / "gallery.md").read_text()
LONGER = {"empo_phase2.py"}  # a whole algorithm beside its exact solution; docs/planning.md shows it


@dataclass(frozen=True)
class Short:
    """A short form: its arguments, what it prints, the least value of the last group, and what it needs."""

    arguments: str
    prints: str
    least: float = float("-inf")
    needs: str = "gymnasium"
    alone: bool = False  # in a process of its own: a library whose threads other tests must not inherit


EPISODES = r"\d+ episodes, the last \d+ returned [-\d.]+"
RUNS = {
    "apex_cpprb": Short("3000", r"3000 updates, \d+00 transitions held, mean return (\S+)", least=60),
    "atari_pong": Short("400", r"400 steps, \d+ updates, return \S+", needs="ale_py"),
    "bit_flip": Short("", r"goals reached in (\d+)% of the episodes; .*", least=90),
    "dict_and_mask": Short("600", r"\d+% of 100 parcels were delivered, return \S+\nup \^.*: .+"),
    "empo_planning": Short("", r"153 states\nleft end: .*\nright end: .* with 0.25 .* with (0.65) [\s\S]*"),
    "jax_actor_learner": Short("", r"\d+ versions .* the best actions are \[1(, 1){6}\]", needs="jax", alone=True),
    "kuhn_poker": Short("2 600", r"exploitability 0\.\d{3}", needs="scipy"),
    "offline": Short("90", r"a balancing script: BC returns \d+; .*\n16 of 64 rows are demonstrations"),
    "optuna_study": Short(
        "6 3000", r"(?s)(?=.*COMPLETE)(?=.*PRUNED)(trial \d: \w+, learning rate \S+\s?){6}", needs="optuna"
    ),
    "own_networks": Short("2100", r"return \S+ in the last tenth; .*", needs="minigrid"),
    "population": Short(
        "--size 4 --steps 512 --interval 256", r"(member \d: score \S+, learning rate \S+\s?){4}best: .*"
    ),
    "ppo_async": Short("--total-timesteps 512 --batch-size 256", EPISODES),
    "puck_self_play": Short("1200", r"(against .*: \d+ of 100 games won\s?){3}"),
    "replay_cpprb": Short("3000", r"3000 steps, 3000 transitions held, mean return (\S+)", least=60),
    "rows_between_nodes": Short("local", "1000 rows arrived; a batch of them has 32", needs="ray", alone=True),
    "sac_async": Short("--total-timesteps 520 --learning-starts 400 --batch-size 32", EPISODES),
    "sb3_dqn": Short("--timesteps 1500", r"the pole leant by .*; mean return \S+", needs="stable_baselines3"),
    "sorrel_treasurehunt": Short("--epochs 20", r"20 epochs, \d+ steps and \d+ updates .*\nscore .*", needs="sorrel"),
    "spread": Short(
        "--steps 600 --algorithms maddpg mappo", r"maddpg -[\d.]+ by agent in \d+ s\nmappo  -.*", needs="mpe2"
    ),
    "two_step_game": Short("--steps 600", r"VDN earns \d\nQMIX earns \d"),
    "torchrl_dqn": Short("--updates 30", EPISODES, needs="torchrl"),
}
# Run by other tests
ELSEWHERE = {"custom_algorithm", "dqn_async", "dqn_compiled", "empo_phase2", "export_onnx", "onnx_player", "puck"}


@pytest.mark.long
@pytest.mark.usefixtures("undrawn", "shared_fork_server")
@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = RUNS[name]
    pytest.importorskip(short.needs, reason=f"needs {short.needs}: the first lines of {name}.py say how to install it")
    monkeypatch.chdir(tmp_path)
    path, arguments = str(EXAMPLES / f"{name}.py"), short.arguments.split()
    if short.alone:
        printed = run(path, *arguments)
    else:
        monkeypatch.setattr(sys, "argv", [path, *arguments])
        runpy.run_path(path, run_name="__main__")
        printed = capsys.readouterr().out
    said = re.fullmatch(short.prints, printed.strip())
    assert said, printed
    assert short.least == float("-inf") or float(said[1]) >= short.least, printed


@pytest.mark.long
@pytest.mark.parametrize(("name", "with_torch"), [("dqn_compiled", False), ("dqn_async", True)])
def test_actors_of_the_compiled_example_load_no_torch(
    name: str, with_torch: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its group of workers has a fork server of its own, since the tests' shared one has imported torch."""
    end, loaded = mc.Workers.__exit__, []

    def spied(workers: mc.Workers, *error: Any) -> None:
        loaded.extend("libtorch" in Path(f"/proc/{worker.pid}/maps").read_text() for worker in workers)
        end(workers, *error)

    monkeypatch.setattr(mc.Workers, "__exit__", spied)
    path = str(EXAMPLES / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path, "--total-timesteps=1400", "--batch-size=32"])
    runpy.run_path(path, run_name="__main__")
    assert loaded == [with_torch] * 2
    assert re.fullmatch(EPISODES, capsys.readouterr().out.strip())


@pytest.mark.long
@pytest.mark.usefixtures("shared_fork_server")
def test_a_curve_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(ROOT)
    figures, pictures = tmp_path / "figures", tmp_path / "gallery"
    for module in ("bench.figures", "bench.runs.gallery"):
        monkeypatch.setattr(f"{module}.FOLDER", figures)
    for folder in (figures, pictures):
        folder.mkdir()
    (figures / "gallery.json").write_text("{}")
    arguments = "ppo_async --seeds 0 1 --store --total-timesteps 512 --batch-size 256"
    assert importlib.import_module("bench.__main__").main(["gallery", *arguments.split()]) == 0
    assert re.findall(r"^seed (\d): [\d.]+ in the last tenth; ", capsys.readouterr().out, re.M) == ["0", "1"]
    assert (pictures / "ppo_async.png").read_bytes().startswith(b"\x89PNG")
    assert [*json.loads((figures / "gallery.json").read_text())["ppo_async"]["seeds"]] == ["0", "1"]


@pytest.mark.long
@pytest.mark.usefixtures("undrawn", "shared_fork_server")
def test_an_exported_policy_is_played_without_marlcore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript", reason="needs onnxscript: pip install marlcore[onnx]")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "export_onnx.py"))["main"](300, "cartpole.onnx")
    assert re.fullmatch(r"cartpole.onnx: \d+ KB, inputs .*'obs': .*\n", capsys.readouterr().out)
    blocked = "import sys; sys.modules.update(marlcore=None, torch=None); sys.argv = sys.argv[1:]; import runpy; "
    program = blocked + "runpy.run_path(sys.argv[0], run_name='__main__')"
    printed = run("-c", program, str(EXAMPLES / "onnx_player.py"), "cartpole.onnx", "3")
    assert re.fullmatch(r"3 episodes, mean return \d+\.\d\n", printed)


@pytest.mark.long
def test_the_notebooks_run(tmp_path: Path) -> None:
    pytest.importorskip("nbconvert", reason="needs nbconvert and ipykernel: pip install marlcore[test]")
    notebooks = sorted(EXAMPLES.glob("*.ipynb"))
    assert len(notebooks) == 2
    for path in notebooks:
        (tmp_path / path.name).write_text(path.read_text().replace("STEPS = 10_000", "STEPS = 1_200"))
    run("-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", *sorted(str(p) for p in tmp_path.iterdir()))
    assert all('"execution_count": 3' in (tmp_path / path.name).read_text() for path in notebooks)


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run_by_a_test_and_stands_on_the_page() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {*RUNS} | ELSEWHERE
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert [name for name in files if f"(../examples/{name})" not in PAGE] == []
    assert f" {len(names)} programs and what each of them learned; all but one" in (ROOT / "README.md").read_text()


def test_examples_and_pictures_are_small() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert {name for name, count in lines.items() if count >= 120} == LONGER
    pictures = {path.name: path.stat().st_size for path in (ROOT / "docs" / "gallery").iterdir()}
    assert {*re.findall(r"\(gallery/([\w.-]+)\)", PAGE)} == {*pictures}
    assert max(*pictures.values(), *(path.stat().st_size for path in EXAMPLES.glob("*.ipynb"))) < 60_000
