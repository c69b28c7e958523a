"""An Optuna study of DQN's learning rate on CartPole, whose callback ends the runs that fall behind.

pip install optuna
python optuna_study.py [TRIALS] [STEPS]
"""

import sys

import optuna

import marlcore as mc


class Reports:
    """Reports each evaluation of a run to its trial; a run that the study prunes ends with TrialPruned."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial

    def on_evaluation(self, evaluation: mc.EvaluationEvent) -> None:
        self.trial.report(evaluation.returns["agent_0"], evaluation.step)
        if self.trial.should_prune():
            raise optuna.TrialPruned(f"at step {evaluation.step}")


def mean_return(trial: optuna.Trial, steps: int) -> float:
    algorithm = mc.DQN(learning_rate=trial.suggest_float("learning_rate", 1e-6, 1e-2, log=True), hidden=(64, 64))
    config = mc.Config(
        total_steps=steps,
        seed=trial.number,
        mode="serial",
        run_dir=f"runs/study/trial-{trial.number}",
        evaluation=mc.EvaluationConfig(interval=steps // 5, episodes=5, wait=True),
    )
    result = mc.train("gymnasium:CartPole-v1", algorithm, config, progress=False, callback=Reports(trial))
    return result.returns["agent_0"]


def main(trials: int = 6, steps: int = 10_000) -> None:
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1), pruner=pruner)
    study.optimize(lambda trial: mean_return(trial, steps), n_trials=trials)
    for trial in study.trials:
        print(f"trial {trial.number}: {trial.state.name}, learning rate {trial.params['learning_rate']:.2g}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
