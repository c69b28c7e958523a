"""Presets: the files of tuned settings, and how Python and the command line take them."""

from dataclasses import replace
from pathlib import Path

import pytest
from whole_runs import config_of

import marlcore as mc
from marlcore.__main__ import main
from marlcore.algos import ALGORITHMS
from marlcore.config import preset_names, read_preset


@pytest.mark.parametrize("name", preset_names())
def test_each_preset_is_whole_and_valid(name: str) -> None:
    """Its settings are checked as it is read, and its hyperparameters as the algorithm is made."""
    settings, preset = read_preset(name), mc.preset(name)
    assert type(preset.algorithm) is ALGORITHMS[str(settings.algo)]
    assert (preset.env, preset.config) == (settings.env, settings.config)
    assert name.endswith(f"-{settings.algo}")


def test_at_least_fifteen_environments_have_presets() -> None:
    assert len({read_preset(name).env for name in preset_names()}) >= 15


def test_an_unknown_preset_or_one_beside_a_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"^preset: expected one of acrobot-ppo, .*; did you mean cartpole-ppo"):
        mc.preset("cartpol-ppo")
    assert main(["train", "--preset", "../presets/cartpole-ppo"]) == 2
    assert capsys.readouterr().err.startswith("marlcore: preset: expected one of acrobot-ppo, ")
    assert main(["train", "--preset", "cartpole-ppo", "--settings", "file.yaml"]) == 2
    assert (
        capsys.readouterr().err == "marlcore: settings: expected none beside --preset cartpole-ppo, got 'file.yaml'\n"
    )


def test_the_command_lists_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--preset", "list"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == preset_names()
    assert ["cartpole-dqn", "gymnasium:CartPole-v1", "dqn", "100,000"] in rows


@pytest.mark.usefixtures("undrawn")
def test_options_override_a_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--mode serial --total-steps 1200 --evaluation.interval 0 --algorithm.batch-size 512 --metrics.sinks csv"
    run_dir = tmp_path / "run"
    assert main(["train", "--preset", "cartpole-ppo", "--run-dir", str(run_dir), *options.split()]) == 0
    out, err = capsys.readouterr()
    assert out.endswith(f"see curves.png; `marlcore eval {run_dir}` plays the saved policies\n")
    assert f"marlcore: gymnasium:CartPole-v1, PPO, seed 0, in {run_dir}\n" in err
    chosen = config_of(run_dir)
    assert (chosen["total_steps"], chosen["actor"]["envs"]) == (1200, 8)
    assert (chosen["hyperparameters"]["batch_size"], chosen["hyperparameters"]["gae_lambda"]) == (512, 0.9)


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
@pytest.mark.filterwarnings("ignore:builtin type:DeprecationWarning")  # Box2D's: as an error, it ends the process
@pytest.mark.parametrize("name", preset_names())
def test_each_preset_begins_to_train(name: str, tmp_path: Path) -> None:
    """Its environment is made, and its networks fit the environment's spaces."""
    env, algorithm, config = mc.preset(name)
    short = {"total_steps": 200, "mode": "serial", "run_dir": str(tmp_path / "run")}
    sinks = {"evaluation": mc.EvaluationConfig(), "metrics": mc.MetricsConfig(("csv",))}
    try:
        result = mc.train(env, algorithm, replace(config, **short, **sinks), progress=False)
    except mc.EnvironmentFailed as error:
        pytest.skip(str(error))  # which names the package that is missing
    assert result.steps >= 200
