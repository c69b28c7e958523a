"""PPO with memory: its windows, what it says of them, and that it learns from what the actor had in mind."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from batches import queue_batch
from gymnasium import spaces as gym
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import rounding
from wander import Wander
from whole_runs import MODES, ON_POLICY, Runs

import marlcore as mc
from marlcore.algos.recurrent_ppo import FIRST, RecurrentPPOTrainer, first_rows, windows_of
from marlcore.interfaces import PREVIOUS_REWARD
from marlcore.observations import rows_at
from marlcore.spaces import Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch", "undrawn")

SMALL = mc.RecurrentPPO(hidden=(8,), units=6, unroll=4, batch_size=24, minibatch_size=8, epochs=2)
WIDE = gym.Box(-10, 10, (3,), np.float32)
# A window's four steps through sums of 8 + 6 + 4 + 3 numbers, with three exponentials each; all stay under 100.
CLOSE = rounding(4 * (8 + 6 + 4 + 3 + 3 * 4) + 6, 100.0)
KINDS = {"discrete": gym.Discrete(4, start=2), "multi": gym.MultiDiscrete([2, 3]), "binary": gym.MultiBinary(3)}
KINDS["box"] = gym.Box(-2, 3, (2,), np.float32)


def windows_in(rows):
    """The values of each window."""
    starts = rows.extras[FIRST].nonzero().squeeze(1)[1:]
    return [tuple(one.tolist()) for one in torch.tensor_split(rows.value, starts.tolist())]


def plain_first(continues, unroll):
    firsts, place = [], 0
    for i in range(len(continues)):
        place = place + 1 if i and continues[i - 1] else 0
        firsts.append(place % unroll == 0)
    return firsts


@settings(max_examples=50)
@given(continues=st.lists(st.booleans(), min_size=1, max_size=40), unroll=st.integers(1, 9))
def test_windows_are_runs_cut_in_pieces(continues, unroll):
    first = first_rows(torch.tensor(continues), unroll)
    assert first.tolist() == plain_first(continues, unroll)
    rows, held = windows_of(first)
    assert rows[held].tolist() == list(range(len(continues)))
    assert held[:, 0].all() and (held.sum(1) <= unroll).all()
    assert rows[:, 0].tolist() == np.flatnonzero(first).tolist()
    assert (rows[~held] == rows[:, :1].expand_as(rows)[~held]).all()


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("kind", KINDS)
def test_windows_are_seen_as_their_actor_saw_them(kind, cell):
    """Each window's outputs and values are those of steps from the state stored with its first row."""
    hyper, spaces = replace(SMALL, cell=cell), Spaces(WIDE, KINDS[kind], masked=kind == "discrete", stack=2)
    batch, model = queue_batch(hyper, spaces)
    first = first_rows(batch.continues, 4)
    output, value = model(batch.obs, batch.extras, first)
    state = None
    for i in range(24):
        stored = rows_at(batch.extras, [i])
        inputs = {name: stored[name] for name in ("previous_action", PREVIOUS_REWARD)}
        state = stored if first[i] else {**state, **inputs}
        outputs, features, state = model.acting(rows_at(batch.obs, [i]), state)
        torch.testing.assert_close(output[i], outputs[0], **CLOSE)
        torch.testing.assert_close(value[i], model.critic(features)[0, 0], **CLOSE)


def test_the_next_observation_is_valued_in_the_state_after_the_action():
    spaces = Spaces(WIDE, KINDS["discrete"])
    batch, model = queue_batch(SMALL, spaces)
    trainer = SMALL.make_trainer(model)
    which = torch.tensor([3, 17])
    for value, i in zip(trainer.values_after(batch, which), which.tolist(), strict=True):
        *_, state = model.acting(rows_at(batch.obs, [i]), rows_at(batch.extras, [i]))
        action, reward = torch.eye(4)[batch.action[[i]]], batch.reward[[i]]
        state = {**state, "previous_action": action, PREVIOUS_REWARD: reward}
        _, features, _ = model.acting(rows_at(batch.next_obs, [i]), state)
        torch.testing.assert_close(value, model.critic(features)[0, 0], **CLOSE)


@pytest.mark.parametrize("unroll", [4, 64])
def test_minibatches_are_whole_windows_and_all_of_them(unroll):
    """A window longer than a minibatch stays whole too."""
    spaces = Spaces(WIDE, gym.Discrete(4))
    hyper = replace(SMALL, unroll=unroll)
    batch, model = queue_batch(hyper, spaces, rows=200)
    batch.continues[:100] = True
    trainer = hyper.make_trainer(model)
    seen = []
    minibatches = trainer.minibatches
    trainer.minibatches = lambda rows: seen.append((rows, list(minibatches(rows)))) or iter(seen[-1][1])
    update = trainer.update(batch)
    assert update.updates == sum(len(parts) for _, parts in seen) and len(seen) == 2
    orders = []
    for rows, parts in seen:
        assert all(abs(len(part.value) - 8) < unroll for part in parts[:-1])
        values = [value for part in parts for value in part.value.tolist()]
        assert sorted(values) == sorted(rows.value.tolist())
        orders.append(values)
        whole = set(windows_in(rows))
        assert all(window in whole for part in parts for window in windows_in(part))
    assert orders[0] != orders[1] != batch.reward.tolist()


@dataclass(frozen=True)
class Comparing(mc.RecurrentPPO):
    """Notes how far the actor's log-probabilities are from those that its trainer computes."""

    def make_trainer(self, model):
        trainer = super().make_trainer(model)
        evaluate, seen = trainer.evaluate, []

        def compared(rows):
            found = evaluate(rows)
            seen.append(float((found.log_prob.detach() - rows.extras["log_prob"]).abs().max()))
            assert max(seen) < 1e-4, seen
            return found

        trainer.evaluate = compared
        return trainer


@MODES
@pytest.mark.usefixtures("shared_fork_server")
def test_the_trainer_recomputes_the_actors_probabilities(tmp_path, mode):
    """Weights hardly change. Probabilities agree in each copy and window, across all ends of episodes."""
    algorithm = Comparing(hidden=(8,), units=6, unroll=5, batch_size=100, minibatch_size=50, learning_rate=1e-12)
    runs = Runs(total_steps=1_000, **ON_POLICY)
    result = runs.train(tmp_path, Wander, algorithm, mode=mode, actor={"envs": 5}, replay={"stack": 2})
    assert all(updates > 20 for updates in result.updates.values())
    assert isinstance(algorithm.make_trainer(algorithm.make_model(Spaces(WIDE, gym.Discrete(4)))), RecurrentPPOTrainer)
