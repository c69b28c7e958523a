"""The recurrent state of policies that act: kept for each copy, zero where an episode begins, stored as it was."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from batches import acting_policy
from gymnasium.spaces import Box, Discrete
from rounding import rounding
from seams import without_limits
from wander import Wander
from whole_runs import Runs

import marlcore as mc
from marlcore.algos.networks.qnetwork import RecurrentQNetwork
from marlcore.algos.networks.recurrent import Windows
from marlcore.evaluation import LoadedPolicy
from marlcore.interfaces import PREVIOUS_REWARD
from marlcore.loops import ActingPolicy, Collector, PolicyModel
from marlcore.self_play import Contender, Matches

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

SPACES = mc.Spaces(Box(-10, 10, (3,), np.float32), Discrete(4))
SMALL = mc.R2D2(hidden=(8, 8), units=6, length=12, burn_in=4, period=8)
RUNS = Runs(  # without updates, so that all rows are of the same weights
    total_steps=1_000, updates_per_step=1e-6, actor={"envs": 5}, learner={"warmup": 20},
    exploration={"epsilon": 0.5}, replay={"save": True}, supervision={"backoff": 0.0},
)  # fmt: skip


@dataclass(frozen=True)
class Telling(mc.R2D2):
    """R2D2 that stores the values by which it acted."""

    def transition(self, spaces: mc.Spaces) -> mc.TransitionSpec:
        spec = super().transition(spaces)
        return replace(spec, extras={**spec.extras, "values": mc.Field((4,))})

    def act(self, model: torch.nn.Module, obs: Any, *, state: Any, **options: Any) -> mc.Action:
        assert isinstance(model, RecurrentQNetwork)
        with torch.inference_mode():
            values, _ = model(obs, state)
        return super().act(model, obs, state=state, **options)._replace(extras={"values": values.numpy()})


# An episode of 60 choices, each a step through sums of 8 + 6 + 7 numbers with three exponentials.
CLOSE = rounding(60 * (8 + 6 + 7 + 3 * 4), 10.0)
TELLING = Telling(hidden=(8, 8), units=6, length=12, burn_in=4, period=8)


def compared(run_dir: Path, agent: str, algorithm: mc.R2D2, stack: int = 1) -> mc.Batch:
    """Windows of an agent's replay, whose values, unrolled from the stored state, are those that the actor had."""
    model = mc.load_policy(run_dir, agent)._model.model
    window = algorithm.source(mc.ReplaySource()).sequence
    with mc.ReplayBuffer.load(run_dir / "checkpoints" / f"{agent}.replay") as replay, without_limits():
        batch = replay.sampler(400, sequence=window, seed=0, stack=stack).sample()
    given = batch.torch()
    obs = torch.cat([given.obs[:, :1], given.next_obs], 1)
    with torch.no_grad():
        windows = Windows(given.action, given.reward, algorithm.burn_in, given.mask[:, 0])
        values, _ = model(obs, given.extras, windows)
    held = batch.valid[..., -1]
    np.testing.assert_allclose(values[:, :-1].numpy()[held], batch.extras["values"][held], **CLOSE)
    return batch


@pytest.mark.parametrize("stack", [pytest.param(1, marks=pytest.mark.long), 3])
def test_a_stored_state_is_the_one_that_acted(tmp_path: Path, stack: int) -> None:
    """In each copy, also where some copies begin an episode or only some act, and with stacks of observations."""
    result = RUNS.train(tmp_path, Wander, TELLING, replay={"stack": stack})
    for agent in Wander.agents:
        batch = compared(result.run_dir, agent, TELLING, stack)
        begins = batch.mask[:, 0]
        assert begins.any() and not begins.all()
        assert all(not part[begins].any() for name, part in batch.extras.items() if name != "values")
        assert all(part[~begins].any() for part in batch.extras.values())
        assert len(set((batch.index % 5).tolist())) == 5
        assert (batch.extras["previous_action"][~begins].sum(1) == 1).all()


@pytest.mark.long
def test_a_killed_actors_rows_join_no_others(tmp_path: Path) -> None:
    """The next one begins with the state zero, and no window reaches across the kill."""
    env = partial(Wander, killed=tmp_path / "killed", after=150)
    result = RUNS.train(tmp_path, env, TELLING, mode="async", total_steps=4_000)
    assert result.restarts["actor-0"] == 1
    for agent in Wander.agents:
        compared(result.run_dir, agent, TELLING)


def made_player(copies: int) -> ActingPolicy:
    torch.manual_seed(1)
    return acting_policy(SMALL, SMALL.make_model(SPACES), SPACES, copies)


def test_each_copy_has_a_state_of_its_own() -> None:
    """A player of three copies, of which one, two or all act, does what three players of one copy do."""
    together, *alone = (made_player(copies) for copies in (3, 1, 1, 1))
    rng = np.random.default_rng(4)
    for round_ in range(60):
        copies = np.flatnonzero(rng.random(3) < 0.7) if round_ else np.arange(3)
        if not len(copies):
            continue
        begins = rng.random(len(copies)) < 0.1
        obs, reward = rng.normal(size=(len(copies), 3)).astype(np.float32), rng.normal(size=len(copies))
        at = slice(None) if len(copies) == 3 else copies
        chosen = together.choose(obs, at, begins)
        for row, copy in enumerate(copies.tolist()):
            one = alone[copy].choose(obs[row : row + 1], slice(None), begins[row : row + 1])
            assert one.action[0] == chosen.action[row]
            for name, part in alone[copy].state_before.items():
                torch.testing.assert_close(together.state_before[name][row], part[0], **CLOSE)
            alone[copy].reward(reward[row : row + 1], slice(None))
        together.reward(reward, at)
    assert together.state_before.keys() == SMALL.transition(SPACES).extras.keys()


def test_a_loaded_policy_keeps_its_state_until_it_is_reset() -> None:
    model: Any = made_player(1).network.model.model
    with torch.no_grad():
        for one in model.torso.core.parameters():
            one *= 5  # so that memory matters
        for layer in (model.head.hidden, model.head.output):
            layer.bias.zero_()
    policy = LoadedPolicy(SMALL, PolicyModel(model), SPACES, "repeat", {})
    rng, state, different = np.random.default_rng(0), None, set()
    for step in range(80):
        obs, reward = rng.normal(scale=5, size=3).astype(np.float32), float(rng.normal(scale=20))
        if step % 10 == 0:
            policy.reset()
            state = None
        else:
            state[PREVIOUS_REWARD] = torch.tensor([reward])  # type: ignore[index]
        with torch.no_grad():
            values, state = model(torch.from_numpy(obs)[None], state)
            expected = int(values.argmax())
            state = model.torso.acted(state, torch.tensor([expected]))
            assert policy.act(obs, reward=reward) == expected
        different.add((expected, int(model(torch.from_numpy(obs)[None], None)[0].argmax())))
    assert any(one != forgetful for one, forgetful in different), "memory makes no difference here"


def test_opponents_of_self_play_are_told_their_own_rewards() -> None:
    """A frozen opponent's memory has its rewards, in the copies in which it plays, and in no others."""

    class Pool(dict[int, Any]):
        def load(self, number: int) -> bool:
            return True

        def keep(self, numbers: Any) -> None:
            pass

        def player(self, agent: str, number: int) -> Any:
            return self[number]

        policies = (SimpleNamespace(name="main"),)

    pool: Any = Pool({number: made_player(6) for number in (1, 2)})
    published = {"opponents": np.array([1, 2]), "odds": np.array([0.5, 0.5])}
    config = mc.SelfPlayConfig(pool=2, latest=0.0, side="left")
    env: Any = SimpleNamespace(ended=np.zeros(6, np.int64))
    rng = np.random.default_rng(3)
    learning: Any = None  # which never acts on the right
    recorder: Any = SimpleNamespace(copies=6, parts=np.zeros(6, int), index_of=lambda copies: copies)
    collectors = {agent: Collector(learning, learning, recorder) for agent in Wander.agents}
    contender = Contender(collectors, lambda: published, pool, lambda *_: None)
    matches = Matches(config, [contender], np.zeros(6, np.int64), env, [], rng)
    copies = np.arange(6)
    turn = mc.Turn("right", copies, rng.normal(size=(6, 3)).astype(np.float32), np.ones(6, bool))
    matches.begin(turn)
    opponents, collector = matches.present[:, 0], collectors["right"]
    assert set(opponents.tolist()) == {1, 2}
    collector.act(turn)
    never = np.zeros(6, bool)
    collector.record(mc.Outcome("right", copies, copies + 1.0, never, never, None))
    collector.record(mc.Outcome("right", copies, copies + 9.0, never, never, None, acted=False))
    collector.act(turn._replace(begins=never))
    for number, player in pool.items():
        assert player.state_before[PREVIOUS_REWARD].tolist() == (copies[opponents == number] + 1.0).tolist()
