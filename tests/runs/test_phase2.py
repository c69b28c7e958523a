"""The example of EMPO's phase 2: parts that begin by stage, and results close to the exact ones."""

import runpy
from pathlib import Path

import empo_phase2 as phase2
import pytest
from metric_names import unexplained
from whole_runs import checkpoint, metrics_of

import marlcore as mc

pytestmark = pytest.mark.usefixtures("undrawn")


def trained(run_dir, **changes):
    config = phase2.settings(mode="serial", run_dir=str(run_dir), **changes)
    result = mc.train(phase2.Room, phase2.Phase2(), config, progress=False)
    model = phase2.Networks()
    model.load_state_dict(checkpoint(Path(result.run_dir))["network"])
    return model, result


def test_parts_are_trained_from_their_stages_on(tmp_path):
    """The table of counts grows by each row that is drawn."""
    options = {"stages": (150, 300, 450, 600), "updates_per_step": 0.1}
    learner = mc.LearnerConfig(batch_size=16, n_step=1, warmup=50, log_interval=1, device="cpu")
    model, result = trained(tmp_path / "run", total_steps=500, learner=learner, **options)
    began = {}
    for metric in metrics_of(tmp_path / "run"):
        began.setdefault(metric.name, metric.step)
    parts = ("rnd", "ability", "power", "robot")
    assert unexplained(tmp_path / "run", schedules=("beta",)) == []
    steps = [(began[f"loss_{part}"], began[f"grad_norm_{part}"]) for part in parts]
    assert max(steps[:2])[0] < 150 <= steps[2][0] < 300 <= steps[3][0], steps
    table = model.counts.table
    assert table.values.sum() == 16 * result.updates["agent_0"] and 0 < len(model.power) <= len(table)


@pytest.mark.long
@pytest.mark.usefixtures("shared_fork_server")
def test_phase_2_comes_close_to_the_exact_solution(tmp_path, monkeypatch, capsys):
    """The control, untrained networks, misses each threshold."""
    thresholds = {"V": 0.05, "pi": 0.06, "W": 0.5}
    monkeypatch.chdir(tmp_path)
    runpy.run_path(phase2.__file__, run_name="__main__")
    printed = capsys.readouterr().out
    means = [float(line.rpartition(" ")[2]) for line in printed.splitlines() if "mean error" in line]
    beside = phase2.beside_exact(trained(tmp_path / "short", total_steps=100)[0])
    short = {name: (own - exact).abs().mean().item() for name, (own, exact) in beside.items()}
    bounds = zip(means, thresholds.values(), (short[part] for part in thresholds), strict=True)
    assert all(mean < most < untrained for mean, most, untrained in bounds), (printed, short)
