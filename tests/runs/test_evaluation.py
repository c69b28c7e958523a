"""Runs that evaluate their policies as they go on, and the evaluation of a run afterwards."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import current_process
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image
from processes import until
from random_play import child_seeds
from refused import check_refused
from seams import undrawn
from whole_runs import LONG, Runs, change_checkpoint, checkpoint, history, kill, metrics_of, past, updating

import marlcore as mc
from marlcore.__main__ import main
from marlcore.config import EVALUATOR
from marlcore.evaluation import LoadedPolicy
from marlcore.run import async_run, roles

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

runs = Runs(
    total_steps=600,
    learner={"publish_interval": 5, "log_interval": 20},
    replay={"capacity": 2_000},
    evaluation={"interval": 150, "episodes": 4, "envs": 3, "keep": 2},
)
OFTEN = {"interval": 1}
UNEVALUATED = mc.EvaluationConfig()
DQN = mc.DQN(hidden=(16,))
AGENT = "agent_0"
train = runs.train


class Corridor(gymnasium.Env):
    """A step to the right earns 1, one to the left nothing; an episode has 5 to 9 steps."""

    observation_space = gymnasium.spaces.Box(0.0, 10.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(5, 10))
        return self.seen(), {}

    def step(self, action: int) -> Any:
        self.left -= 1
        return self.seen(), float(action), self.left == 0, False, {"won": 1.0}

    def seen(self) -> np.ndarray:
        return np.array([self.left], np.float32)

    def render(self) -> np.ndarray:
        return np.full((8, 8, 3), 20 * self.left, np.uint8)


class Endless(Corridor):
    def step(self, action: int) -> Any:
        return self.seen(), 1.0, False, False, {}


def evaluations(run_dir: Path, name: str = "eval_return") -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in metrics_of(run_dir) if metric.name == name]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with undrawn():
        return train(tmp_path_factory.mktemp("evaluated"), Corridor, DQN).run_dir


def test_a_serial_run_evaluates_at_its_interval_and_at_its_end(run_dir: Path, tmp_path: Path) -> None:
    """The same run gives the same evaluations, and learns as it does without them."""
    evaluated = evaluations(run_dir)
    assert len(evaluated) == 4 and evaluated[-1][0] == 600
    assert all(due - 60 <= step <= due for due, (step, _) in zip((150, 300, 450), evaluated, strict=False))
    again = train(tmp_path / "again", Corridor, DQN).run_dir
    for name in ("eval_return", "eval_length", "eval_return_std"):
        assert evaluations(again, name) == evaluations(run_dir, name)
    lengths = [value for _, value in evaluations(run_dir, "eval_length")]
    assert len(set(lengths)) > 1  # each evaluation has episodes of its own
    without = train(tmp_path / "without", Corridor, DQN, evaluation=UNEVALUATED).run_dir
    assert history(without) == [metric for metric in history(run_dir) if not metric[2].startswith("eval_")]


def test_the_best_and_the_last_policies_can_be_loaded(run_dir: Path) -> None:
    evaluated = evaluations(run_dir)
    best = checkpoint(run_dir, f"{AGENT}.best")
    assert (best["step"], best["return"]) == max(evaluated, key=lambda one: (one[1], -one[0]))
    names = sorted(path.name for path in (run_dir / "checkpoints").glob("*.*.pt"))
    assert names == sorted([*(f"{AGENT}.{step}.pt" for step, _ in evaluated[-2:]), f"{AGENT}.best.pt"])
    for which in ("best", evaluated[-1][0]):
        assert mc.load_policy(run_dir, AGENT, str(which)).act(np.ones(1, np.float32)) in (0, 1)


def test_an_evaluation_repeats_under_its_seed(run_dir: Path) -> None:
    ended: list[int] = []
    outcome, again = (mc.evaluate(run_dir, 10, envs=4, seed=3, watch=ended.append) for _ in range(2))
    half = ended[: len(ended) // 2]
    assert half == sorted(half) and half[0] == 0 and half[-1] == 10
    assert outcome.returns[AGENT].tolist() == again.returns[AGENT].tolist()
    assert outcome.lengths[AGENT].tolist() != mc.evaluate(run_dir, 10, envs=4, seed=4).lengths[AGENT].tolist()
    assert outcome.infos == {AGENT: {"won": 1.0}} and outcome.episodes == 10
    assert set(outcome.lengths[AGENT]) <= {5, 6, 7, 8, 9}
    explored, again = (mc.evaluate(run_dir, 10, envs=4, seed=3, explore=True) for _ in range(2))
    assert explored.returns[AGENT].tolist() == again.returns[AGENT].tolist() != outcome.returns[AGENT].tolist()


def test_policies_draw_other_numbers_than_environments(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, player = list[int](), LoadedPolicy.player
    monkeypatch.setattr(
        LoadedPolicy, "player", lambda policy, *given: seeds.extend(given[1:2]) or player(policy, *given)
    )
    mc.evaluate(run_dir, 2, seed=3)
    assert len(seeds) == 1 and seeds[0] not in child_seeds(3, 2)


class Walker:
    def act(self, obs: Any) -> int:
        return 1


def rightwards(obs: np.ndarray) -> int:
    assert obs.shape == (1,)
    return 1


class Locked(Walker):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_other_policies_act_instead(run_dir: Path) -> None:
    for player in (Walker(), Walker, rightwards, "test_evaluation:Walker", "test_evaluation:rightwards"):
        outcome = mc.evaluate(run_dir, 5, policies={AGENT: player})
        assert outcome.returns[AGENT].tolist() == outcome.lengths[AGENT].tolist()
    own = mc.evaluate(run_dir, 5).returns[AGENT].tolist()
    for player in (str(run_dir), mc.load_policy(run_dir, AGENT)):
        assert mc.evaluate(run_dir, 5, policies={AGENT: player}).returns[AGENT].tolist() == own


class Stacked(Corridor):
    stack = 3


def test_an_environments_own_stack_is_the_default(tmp_path: Path) -> None:
    run_dir = train(tmp_path, Stacked, DQN, total_steps=60, evaluation=UNEVALUATED).run_dir
    assert mc.load_policy(run_dir, AGENT).spaces.stack == Stacked.stack


def test_a_resumed_run_continues_its_best(tmp_path: Path) -> None:
    path = train(tmp_path, Corridor, DQN).run_dir
    change_checkpoint(path / "checkpoints" / f"{AGENT}.best.pt", **{"return": 1e9})
    train(tmp_path, Corridor, DQN, total_steps=800, resume=True)
    assert checkpoint(path, f"{AGENT}.best")["return"] == 1e9
    assert evaluations(path)[-1][0] == 800


def test_an_environment_that_was_not_saved_must_be_given(tmp_path: Path) -> None:
    lock = threading.Lock()  # nothing pickles it
    path = train(tmp_path, lambda: lock and Corridor(), DQN, evaluation=UNEVALUATED).run_dir
    with pytest.raises(ValueError, match=r"^env_fn: .* \(it could not be pickled\); pass env_fn= or --env$"):
        mc.evaluate(path, 2)
    assert mc.evaluate(path, 2, env_fn=Corridor).episodes == 2


def test_a_run_whose_environment_is_elsewhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as in the directory in which the run was started, and from which its name was found."""
    (tmp_path / "pursuit.py").write_text("import gymnasium\nLine = lambda: gymnasium.make('CartPole-v1')")
    with monkeypatch.context() as there:
        there.syspath_prepend(tmp_path)
        path = train(tmp_path, "pursuit:Line", DQN, evaluation=UNEVALUATED).run_dir
    del sys.modules["pursuit"]
    with pytest.raises(ValueError, match=rf"^env_fn: '{path}' has no .*got 'pursuit:Line'.*; start where you trained"):
        mc.evaluate(path, 2)


REFUSED = {
    "run_dir: expected a run's directory with checkpoints/run.pickle, got '/no/run'": {"run": "/no/run"},
    "episodes: expected an integer of at least 1, got 0": {"episodes": 0},
    "envs: expected an integer of at least 1, got 0": {"envs": 0},
    "which: expected one of the checkpoints of 'agent_0' in ": {"which": "17"},
    "/checkpoints, ['best', 'last', '": {"which": "17"},
    "policies: expected names among ['agent_0'], got 'red'": {"policies": {"red": Walker}},
    "names among ['agent_0'], got 'xxxxx": {"policies": {"x" * 9999: Walker}},
    "env_fn: expected the agents ['agent_0'], got 'agent_1'": {"env_fn": "treasure_hunt"},
    "action of policies['agent_0']: expected an action of Discrete(2), got 2": {"policies": {AGENT: lambda obs: 2}},
    **{
        f"policies['agent_0']: expected {says}": {"policies": {AGENT: player}}
        for says, player in {
            "a function of an observation, or a class or": 3,
            "a class with a method act(obs)": Corridor,
            "an object that can be copied": Locked(),
            "module:name or the directory of a": "/no/run",
            "something that can be": "test_evaluation:no",
        }.items()
    },
}


@pytest.mark.parametrize("says", REFUSED)
def test_evaluate_refuses(run_dir: Path, says: str) -> None:
    asked = {"run": run_dir, "episodes": 1, **REFUSED[says]}
    check_refused(lambda: mc.evaluate(asked.pop("run"), **asked), (ValueError, TypeError), says)


def test_a_policy_for_other_spaces_is_refused(run_dir: Path, tmp_path: Path) -> None:
    other = train(tmp_path, "gymnasium:CartPole-v1", total_steps=100, evaluation=UNEVALUATED).run_dir
    with pytest.raises(ValueError, match=r"^policies\['agent_0'\]: expected a policy for Spaces\(.*\), got one for"):
        mc.evaluate(run_dir, episodes=1, policies={AGENT: mc.load_policy(other, AGENT)})


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `marlcore eval` with these arguments; returns its status, stdout and stderr."""
    return lambda *arguments: (main(["eval", *map(str, arguments)]), *capsys.readouterr())


def test_the_command_prints_a_table_and_films_an_episode(run_dir: Path, tmp_path: Path, command: Any) -> None:
    status, said, complaints = command(run_dir, "--episodes", "6", "--which", "best", "--video", tmp_path / "one.gif",
                                       "--policies", AGENT, "test_evaluation:rightwards")  # fmt: skip
    assert status == 0, complaints
    assert "6 episodes" in said and AGENT in said and " to " in said
    with Image.open(tmp_path / "one.gif") as video:
        assert video.n_frames in range(6, 11) and video.size == (8, 8) and video.info["duration"] == 50


@LONG
def test_bad_input_of_the_command_is_one_line(run_dir: Path, command: Any) -> None:
    for arguments, says in (
        ("--video no/a.gif", "video: expected a file in a directory that exists, got 'no/a.gif'"),
        ("--video a.avi", "video: expected a file named .gif or .mp4, got 'a.avi'"),
        ("--env treasure_hunt --video a.gif", "video: expected an environment that renders"),
        ("--which 17", "which: expected one of the checkpoints of 'agent_0' in "),
    ):
        status, _, complaints = command(run_dir, *arguments.split())
        assert status == 2 and says in complaints and len(complaints.splitlines()) == 1


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., mc.Run]]:
    started: list[mc.Run] = []

    def begin(env_fn: Any, **changes: Any) -> mc.Run:
        started.append(runs.start(tmp_path, env_fn, DQN, mode="async", total_steps=10**8, **changes))
        return started[-1]

    yield begin
    for run in started:
        run.stop()
        run.wait()


def newest(run: mc.Run) -> int:
    steps = [path.name.split(".")[1] for path in (run.run_dir / "checkpoints").glob(f"{AGENT}.*.pt")]
    return max((int(step) for step in steps if step.isdecimal()), default=-1)


class Lagging(Corridor):
    """In the evaluator, an evaluation ends when two more are due or the run has taken all steps."""

    evaluations = until = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed:  # an evaluation of one episode begins; by 0 the environment is only looked at
            self.evaluations += 1
            self.until = self.end(mc.run_step().step)
        return super().reset(seed=seed)

    def end(self, step: int) -> int:
        return (step // 125 + 2) * 125

    def step(self, action: int) -> Any:
        while current_process().name == EVALUATOR and mc.run_step().step < min(self.until, 600):
            time.sleep(0.01)
        return super().step(action)


class Punctual(Lagging):
    """In the evaluator, an evaluation ends when the next one is due, where training waits for it."""

    def end(self, step: int) -> int:
        return (self.evaluations + 1) * 125


@LONG
@pytest.mark.parametrize("env_fn", [Lagging, Punctual])
def test_each_evaluation_that_falls_due_is_made_or_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, env_fn: Any
) -> None:
    """With `wait`, no evaluation is skipped: training waits when the next one is due.

    The learner stays at most 4 of 12 updates behind, since old weights are not evaluated again.
    """
    wait = env_fn is Punctual
    settings = {"interval": 125, "episodes": 1, "wait": wait}
    path = train(tmp_path, env_fn, DQN, mode="async", updates_tolerance=4, evaluation=settings).run_dir
    made, skipped = len(evaluations(path)), evaluations(path, "eval_skipped")[-1][1]
    assert made + skipped == 5 and (skipped == 0) == wait
    assert (f"evaluation: {skipped:g} evaluations, due every 125 steps, were skipped" in caplog.text) == (not wait)


@pytest.mark.parametrize("keep", [3, 0])
def test_a_restarted_evaluator_goes_on_counting_what_it_skips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    """Each evaluation starts a new evaluator, and two evaluations fall due in a round."""
    finish = roles.EvaluatorRole.finish
    anew = lambda worker, *args, **final: (finish(worker, *args, **final), worker.build())[0]  # noqa: E731
    monkeypatch.setattr(roles.EvaluatorRole, "finish", anew)
    changes = {
        "evaluation": {"interval": 1, "episodes": 1, "keep": keep},
        "learner": {"warmup": 1, "publish_interval": 1},
    }
    path = train(tmp_path, Corridor, DQN, total_steps=24, updates_per_step=1.0, **changes).run_dir
    counts = [count for _, count in evaluations(path, "eval_skipped")]
    assert len(counts) > 3 and counts == sorted({*counts}) and counts[-1] + len(counts) == 24


@pytest.mark.parametrize("before", [{"keep": 0}, {"interval": 0}])
def test_a_resumed_run_counts_no_evaluation_twice(tmp_path: Path, before: dict[str, int]) -> None:
    """Nor one that was not due before; no checkpoint tells the last evaluation."""
    train(tmp_path, Corridor, DQN, evaluation={**before})
    path = train(tmp_path, Corridor, DQN, total_steps=800, resume=True, evaluation={"keep": 0}).run_dir
    assert {value for _, value in evaluations(path, "eval_skipped")} == {0}


@LONG
def test_a_killed_evaluator_is_replaced(start: Callable[..., mc.Run]) -> None:
    run = start(Corridor, evaluation={**OFTEN, "episodes": 200})
    until(lambda: run.status().metrics.get((AGENT, "eval_return")) is not None)
    best = checkpoint(run.run_dir, f"{AGENT}.best")["return"]
    kill(run, EVALUATOR)  # it always plays
    until(lambda: run.status().restarts[EVALUATOR] == 1)
    before = newest(run)
    until(lambda: newest(run) > before)
    assert checkpoint(run.run_dir, f"{AGENT}.best")["return"] >= best
    assert mc.evaluate(run, 3).episodes == 3
    assert mc.evaluate(run, 3, which="best").episodes == 3


@LONG
def test_a_run_stops_in_the_middle_of_an_evaluation(start: Callable[..., mc.Run]) -> None:
    patience = mc.SupervisionConfig(learner_timeout=3600.0)  # which it does not wait for
    run = start(Endless, evaluation=OFTEN, supervision=patience)
    past(run, 500)
    run.stop()
    run.wait(timeout=1800)
    assert evaluations(run.run_dir) == []


@LONG
def test_an_endless_last_evaluation_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time begins here only when the learner has written its last checkpoint, however long that takes."""
    is_over = async_run._End.is_over
    monkeypatch.setattr(async_run._End, "is_over", lambda end, names: names == [EVALUATOR] and is_over(end, names))
    monkeypatch.setattr(async_run, "grace_of", lambda spec: 10.0)
    result = train(tmp_path, Endless, DQN, mode="async")
    assert result.steps == 600 and result.restarts[EVALUATOR] == 0
    assert np.isnan(result.returns[AGENT]), "no episode ended, and the agent is not missing"
    assert checkpoint(result.run_dir)["step"] == 600


def update_slowly(update: Any, batch: Any) -> mc.Update:
    time.sleep(0.05)
    return update(batch)


@LONG
def test_an_asynchronous_run_evaluates_its_last_weights(tmp_path: Path) -> None:
    """The learner makes its last updates after the actors have taken all steps."""
    path = train(tmp_path, Corridor, updating(mc.DQN, update_slowly)(hidden=(16,)), mode="async").run_dir
    last = checkpoint(path)
    kept = checkpoint(path, f"{AGENT}.{last['step']}")
    assert kept["version"] == last["version"] and evaluations(path)[-1] == (last["step"], kept["return"])


class Shaky(gymnasium.Env):
    """Large rewards of chance on the way; the observation is nested."""

    observation_space = gymnasium.spaces.Dict(
        {"a": gymnasium.spaces.Dict({"b": gymnasium.spaces.Box(-1.0, 1.0, (1,))})}
    )
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 20
        return {"a": {"b": np.zeros(1, np.float32)}}, {}

    def step(self, action: int) -> Any:
        self.left -= 1
        obs, reward = {"a": {"b": np.zeros(1, np.float32)}}, 3000.0 * self.np_random.integers(-1, 2) + action
        return obs, reward, False, self.left == 0, {}


def test_a_mixture_of_one_policy_plays_as_the_policy(tmp_path: Path) -> None:
    """A recurrent policy gets its rewards; a player's own draws do not depend on what it played before."""
    train(tmp_path, Shaky, mc.R2D2(), total_steps=200, replay={}, learner={"warmup": 100}, evaluation={})
    mixed = mc.MixedPlayer([mc.load_policy(tmp_path / "run", AGENT)], np.ones(1), [0])
    outcomes = [mc.evaluate(tmp_path / "run", 8, policies=given) for given in ({}, {AGENT: mixed}, {AGENT: mixed})]
    returns = [outcome.returns[AGENT].tolist() for outcome in outcomes]
    assert returns[0] == returns[1] == returns[2] and len(set(returns[0])) > 1
