"""Runs on real environments of every kind of space; their replays hold what the environments told, bit for bit.

The long form, `python tests/long.py spaces [STEPS]`, trains on each and prints the table of
docs/environments.md.
"""

import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from crowd import Relay
from odd_spaces import Counting
from recorded import RandomActing, check_rows, read_records, read_replay, recorded
from whole_runs import LONG, Runs, config_of

import marlcore as mc

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

STEPS = 1_500
COPIES = 2
runs = Runs(actor={"sync_interval": 5}, learner={"warmup": 30, "n_step": 1}, updates_per_step=0.05)


@dataclass(frozen=True)
class Case:
    """An environment, what it needs, and what learns there; "random" acts at random and takes any action space."""

    env: str
    algorithm: str = "dqn"
    options: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    steps: int = STEPS

    @property
    def name(self) -> str:
        return " ".join([self.env, *(f"{name}={value}" for name, value in self.options.items())])

    def make(self, folder: Path) -> Any:
        return recorded(self.unrecorded(), folder)

    def unrecorded(self) -> Any:
        kind, _, rest = self.env.partition(":")
        if kind == "vector":
            return gymnasium.make_vec(rest, num_envs=COPIES, **self.options)
        if kind == "counting":
            spaces = {
                "discrete": None,
                "multi_discrete": gymnasium.spaces.MultiDiscrete([3, 2], start=[1, 0]),
                "multi_binary": gymnasium.spaces.MultiBinary(3),
                "box": gymnasium.spaces.Box(-1, 1, (2,)),
            }
            return Counting(spaces[rest], **self.options)
        return Relay() if kind == "relay" else mc.NamedEnvironment(self.env, self.options)()


MUJOCO, BOX2D, GAMES = ("mujoco", "imageio"), ("Box2D",), ("pygame", "pymunk")
CASES = [
    Case("gymnasium:CartPole-v1"),
    Case("gymnasium:Acrobot-v1", "iqn", {"max_episode_steps": 80}),
    Case("gymnasium:MountainCar-v0", options={"max_episode_steps": 60}),
    Case("gymnasium:Pendulum-v1", "td3", {"max_episode_steps": 50}),
    Case("gymnasium:FrozenLake-v1"),
    Case("gymnasium:Taxi-v4", "iqn", {"max_episode_steps": 60}),
    Case("gymnasium:CliffWalking-v1", options={"max_episode_steps": 60}),
    Case("gymnasium:Blackjack-v1", options={"natural": True}),
    Case("gymnasium:LunarLander-v3", needs=BOX2D),
    Case("gymnasium:BipedalWalker-v3", "sac", {"max_episode_steps": 80}, BOX2D),
    Case("gymnasium:HalfCheetah-v5", "td3", {"max_episode_steps": 80}, MUJOCO),
    Case("gymnasium:Humanoid-v5", "sac", needs=MUJOCO),
    Case("atari:Pong", needs=("ale_py", "cv2"), steps=600),
    Case("pettingzoo:mpe2.simple_spread_v3", options={"max_cycles": 15}, needs=("mpe2",)),
    Case("pettingzoo-parallel:mpe2.simple_spread_v3", options={"max_cycles": 15}, needs=("mpe2",)),
    Case("pettingzoo:mpe2.simple_spread_v3", "td3", {"continuous_actions": True, "max_cycles": 15}, ("mpe2",)),
    Case("pettingzoo-parallel:mpe2.simple_speaker_listener_v4", "iqn", {"max_cycles": 15}, ("mpe2",)),
    Case("pettingzoo-parallel:mpe2.simple_world_comm_v3", options={"max_cycles": 15}, needs=("mpe2",)),
    Case("pettingzoo:classic.connect_four_v3", needs=("pygame",)),
    Case("pettingzoo:classic.tictactoe_v3", "iqn", needs=("pygame",)),
    Case("pettingzoo:classic.rps_v2", options={"max_cycles": 20}, needs=("pygame",)),
    Case("pettingzoo-parallel:sisl.pursuit_v5", options={"max_cycles": 15}, needs=GAMES),
    Case("pettingzoo-parallel:sisl.multiwalker_v9", "sac", {"max_cycles": 30}, (*GAMES, "Box2D")),
    Case(
        "pettingzoo-parallel:butterfly.cooperative_pong_v6", options={"max_cycles": 20, "render_mode": "rgb_array"},
        needs=GAMES, steps=60,
    ),
    Case("pettingzoo:butterfly.knights_archers_zombies_v11", options={"max_cycles": 40}, needs=GAMES),
    Case("gymnasium:Foraging-8x8-2p-3f-v3", options={"max_episode_steps": 20}, needs=("lbforaging",)),
    Case("gymnasium:rware-tiny-2ag-v2", "iqn", {"max_episode_steps": 20}, ("rware",)),
    Case("vector:CartPole-v1"),
    Case("vector:Pendulum-v1", "sac", {"max_episode_steps": 50}),
    Case("counting:discrete", options={"mask_in": "info"}),
    Case("counting:discrete", "iqn", {"mask_in": "observation"}),
    Case("counting:multi_discrete"),
    Case("counting:multi_binary"),
    Case("counting:box", "random"),
    Case("relay:"),
]  # fmt: skip
QUICK = {"pettingzoo:classic.tictactoe_v3"}
IN_PROCESSES = {  # each kind of environment once, and spaces of several parts, which are pickled
    "gymnasium:Blackjack-v1", "atari:Pong", "pettingzoo:classic.connect_four_v3",
    "pettingzoo-parallel:mpe2.simple_world_comm_v3", "vector:CartPole-v1", "counting:multi_discrete", "relay:",
}  # fmt: skip


def train_and_check(case: Case, folder: Path, **changes: Any) -> dict[str, Any]:
    """Trains on an environment; returns a row of the table."""
    records = folder / "records"
    replay = {"capacity": COPIES * case.steps, "save": True}  # no row of an agent is overwritten
    algorithm = RandomActing() if case.algorithm == "random" else case.algorithm
    env_fn = partial(case.make, records)
    envs = COPIES + case.env.startswith("vector:")  # for which its own number of copies counts instead
    result = runs.train(
        folder, env_fn, algorithm, total_steps=case.steps, replay=replay, actor={"envs": envs}, **changes
    )
    assert config_of(result.run_dir)["actor"]["envs"] == COPIES
    told, compared, spaces = read_records(records), 0, []
    for agent, updates in result.updates.items():
        spaces.append(mc.load_policy(result.run_dir, agent).spaces)
        lanes = read_replay(result.run_dir / "checkpoints" / f"{agent}.replay", spaces[-1])
        assert updates > 0 or case.steps < 600
        for copy in range(COPIES):
            compared += check_rows(lanes[copy], told[copy, agent])
    assert result.steps - compared <= 2 * len(told)
    return {
        "environment": case.name,
        "agents": len(told) // COPIES,
        "observation": " / ".join(dict.fromkeys(kind_of(each.observation) for each in spaces)),
        "action": " / ".join(dict.fromkeys(kind_of(each.action) for each in spaces)),
        "mask": "yes" if any(each.masked for each in spaces) else "",
        "algorithm": case.algorithm,
        "transitions compared": f"{compared:,}",
    }


def kind_of(space: gymnasium.Space) -> str:
    if isinstance(space, (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)):
        return f"{type(space).__name__} of {len(space.spaces)}"
    shape = "x".join(map(str, space.shape))
    return f"{type(space).__name__} {shape}".rstrip() + (" uint8" if str(space.dtype) == "uint8" else "")


SERIAL = [pytest.param(c, "serial", id=c.name, marks=() if c.name in QUICK else LONG) for c in CASES]
ASYNC = [pytest.param(c, "async", id=f"{c.name}-async", marks=LONG) for c in CASES if c.env in IN_PROCESSES]


@pytest.mark.parametrize(("case", "mode"), SERIAL + ASYNC)
def test_the_replay_holds_what_the_environment_told(tmp_path: Path, case: Case, mode: str) -> None:
    for package in case.needs:
        pytest.importorskip(package, reason=f"needs {package}")
    train_and_check(replace(case, steps=min(case.steps, 750)), tmp_path, mode=mode)


def main(steps: int = 0) -> None:
    for number, case in enumerate(CASES):
        with tempfile.TemporaryDirectory() as folder:
            row = train_and_check(replace(case, steps=steps or case.steps), Path(folder), mode="serial")
        if not number:
            print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}")
        print(f"| {' | '.join(map(str, row.values()))} |", flush=True)
