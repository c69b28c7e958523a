"""The recipes of docs/drop-ins.md for PFRL and EPyMARL, beside what these libraries do themselves."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pages import ROOT, programs_of

import marlcore as mc

pytestmark = pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")  # of EPyMARL's own buffer


def recipe(library: str, reason: str) -> dict[str, Any]:
    """The names that the recipe which imports `library` leaves behind; a skip without that library."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries say while they are imported
        pytest.importorskip(library, reason=reason)
        (code,) = [each.code for each in programs_of(ROOT / "docs" / "drop-ins.md") if library in each.code]
        names: dict[str, Any] = {}
        exec(code, names)
    return names


@pytest.mark.parametrize("steps", [1, 3])
def test_lanes_give_pfrls_agents_what_its_own_buffer_gives(steps: int, tmp_path: Path) -> None:
    """Compares each row that both hold, found by its state, with n-step returns and bootstraps at truncations.

    States are frames of uint8, which the agent's phi scales; an agent updates its network with them.
    """
    from_recipe = recipe("pfrl.replay_buffer", "needs pfrl: `python -m bench install tianshou`")
    import pfrl

    def scaled(frame: Any) -> Any:
        return frame.astype(np.float32) / 4

    def frame(env: int, t: float) -> Any:
        return np.array([env, 2 * t], np.uint8)

    spec = mc.TransitionSpec(mc.Field((2,), "uint8"), mc.Field((), "int64"))
    theirs = pfrl.replay_buffers.ReplayBuffer(1000, num_steps=steps)
    mine = from_recipe["Lanes"](mc.ReplayBuffer.create(spec, 1000, lanes=2), n_step=steps, gamma=0.9)
    for t in range(60):
        for env in range(2):
            row = {"state": frame(env, t), "action": t, "reward": float(t % 7), "next_state": frame(env, t + 0.5),
                   "is_state_terminal": t % 10 == 9}  # fmt: skip
            if t % 10 not in (4, 9):  # the next row's state, as in an environment
                row["next_state"] = frame(env, t + 1)
            for buffer in (theirs, mine):
                buffer.append(**row, env_id=env)
                if t % 10 == 4:
                    buffer.stop_current_episode(env_id=env)
    network = torch.nn.Sequential(torch.nn.Linear(2, 60), pfrl.q_functions.DiscreteActionValueHead())
    optimizer = torch.optim.Adam(network.parameters())
    agent = pfrl.agents.DoubleDQN(network, optimizer, mine, 0.9, None, phi=scaled, replay_start_size=100)
    agent.update(mine.sample(32))
    about = {"device": agent.device, "phi": agent.phi, "gamma": agent.gamma, "batch_states": agent.batch_states}
    whole = pfrl.replay_buffer.batch_experiences(list(theirs.memory), **about)
    batch = from_recipe["dqn"].batch_experiences(mine.sample(400), **about)
    assert {name: part.dtype for name, part in batch.items()} == {name: part.dtype for name, part in whole.items()}
    expected = {tuple(state.tolist()): i for i, state in enumerate(whole["state"])}
    assert len({tuple(state.tolist()) for state in batch["state"]}) > 60
    for i, state in enumerate(batch["state"]):
        j = expected[tuple(state.tolist())]
        ended = bool(batch["is_state_terminal"][i])
        assert ended == bool(whole["is_state_terminal"][j]) and batch["action"][i] == whole["action"][j]
        torch.testing.assert_close(batch["reward"][i], whole["reward"][j])
        if not ended:  # otherwise unspecified, and of no weight
            torch.testing.assert_close(batch["next_state"][i], whole["next_state"][j])
            torch.testing.assert_close(batch["discount"][i], whole["discount"][j])
    mine.save(tmp_path / "rows")
    mine.load(tmp_path / "rows")
    assert mine.capacity == 1000 and len(mine.sample(3)[0][0]["batch"]) == 3
    mine.replay.close()


def test_episodes_give_epymarls_learners_what_its_own_buffer_gives() -> None:
    """Whole episodes of several lengths, terminated or cut off, found by their first state; zeros behind the end."""
    from_recipe = recipe("components.episode_buffer", "needs EPyMARL's src on PYTHONPATH")
    from components.episode_buffer import EpisodeBatch, ReplayBuffer
    from components.transforms import OneHot

    agents, actions, longest = 2, 3, 8
    scheme = {
        "state": {"vshape": 4}, "obs": {"vshape": 3, "group": "agents"}, "reward": {"vshape": (1,)},
        "actions": {"vshape": (1,), "group": "agents", "dtype": torch.long},
        "terminated": {"vshape": (1,), "dtype": torch.uint8},
        "avail_actions": {"vshape": (actions,), "group": "agents", "dtype": torch.int},
    }  # fmt: skip
    given = {"groups": {"agents": agents}, "preprocess": {"actions": ("actions_onehot", [OneHot(out_dim=actions)])}}
    theirs = ReplayBuffer(scheme, buffer_size=40, max_seq_length=longest, **given)
    mine = from_recipe["Episodes"](scheme, buffer_size=40, max_seq_length=longest, **given)
    torch.manual_seed(0)
    for episode in range(30):
        batch, length = EpisodeBatch(scheme, batch_size=1, max_seq_length=longest, **given), 1 + episode % (longest - 1)
        for t in range(length + 1):
            seen = {
                "state": torch.randn(4),
                "obs": torch.randn(agents, 3),
                "avail_actions": torch.ones(agents, actions),
            }
            batch.update({name: part[None].to(batch[name].dtype) for name, part in seen.items()}, ts=t)
            if t < length:
                ended = t == length - 1 and episode % 2 == 0
                chosen = torch.randint(actions, (1, agents, 1))
                batch.update(
                    {"actions": chosen, "reward": [(float(t),)], "terminated": [(ended,)]}, ts=t, mark_filled=False
                )
        for buffer in (theirs, mine):
            buffer.insert_episode_batch(batch)
    firsts = {tuple(state[0].tolist()): i for i, state in enumerate(theirs["state"][:30])}
    drawn = mine.sample(60)
    for i in range(60):
        j = firsts[tuple(drawn["state"][i, 0].tolist())]
        for name in theirs.scheme:
            assert torch.equal(drawn[name][i], theirs[name][j]), name
    assert mine.can_sample(30) and not mine.can_sample(31)
    mine.replay.close()
