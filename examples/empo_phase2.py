"""EMPO's phase 2: a robot learns to leave a person many options; the result stands beside the exact one.

    python examples/empo_phase2.py

A person and a robot move around a pillar; the person's policies for its two goals are planned. The learner trains,
after Heitzig & Potham 2025 (arXiv:2508.00159) with the robot's reward U = -1 / (X + 0.2):

    ability V(s, g), a network: how likely the person achieves g, E [1 if s' achieves g, else gamma V(s', g)]
    power X(s), a lookup table, from stage 1: the sum over g of V(s, g)^2
    robot Q(s, a), a network, from stage 2: E gamma W(s') with W = U + sum of pi Q and pi ~ (-Q)^-beta

beta rises in stage 3, "ramp", up to stage 4, "full"; both stages clear the replay. Rows hold all outcomes of their
state, so targets are expectations. Explorers go where counts and random network distillation (rnd) find new states.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn
from torch.nn.functional import mse_loss, one_hot, softplus

import marlcore as mc
from marlcore.algos.exploration_bonuses import CountBonus, RNDBonus, StateTable
from marlcore.algos.parts_trainer import Part, PartsTrainer
from marlcore.planning import backward_induction, build_graph, robot_induction

PERSON, ROBOT = 0, 1
SIDE, GOALS, PILLAR = 3, [2, 6], 4  # cells are numbered row by row
MOVES = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)]
STEPS, SIZES = 6, (7, SIDE**2, SIDE**2)  # of an episode; of the parts of a state
SLIP, GAMMA, PERSON_BETA, BETA, TERMINAL, FLOOR = 0.1, 0.95, 1.0, 20.0, -1.0, 0.2
STAGES = {"power": 500, "robot": 1_000, "ramp": 2_000, "full": 4_000}  # and the steps at which they begin
PARTS = {"actions": mc.Field((2,), "uint8"), "probability": mc.Field(), "after": mc.Field((3,), "uint8")}
OUTCOMES = mc.Ragged("outcomes", 2 * len(MOVES) ** 2, PARTS)


class Room(gymnasium.Env):
    """A world model of both, and the robot's environment. A state: step, person's cell, robot's cell."""

    agents = ("person", "robot")
    observation_space = Box(0, SIDE**2, (3,), np.uint8)
    action_space = Discrete(len(MOVES))

    def get_state(self) -> tuple[int, ...]:
        return self.state

    def set_state(self, state: tuple[int, ...]) -> None:
        self.state = state

    def transition_probabilities(self, state: tuple[int, ...], actions: tuple[int, ...]) -> Any:
        step, person, robot = state
        if step == STEPS:
            return None
        after = moved(person, actions[PERSON], robot)
        places = [(1.0, person)] if after == person else [(1 - SLIP, after), (SLIP, person)]
        return [(p, (step + 1, place, moved(robot, actions[ROBOT], place))) for p, place in places]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.goal, self.state = self.np_random.integers(len(GOALS)), (0, 0, 8)
        return np.array(self.state, np.uint8), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        person = self.np_random.choice(len(MOVES), p=plan().prior[self.state][self.goal])
        p, after = zip(*self.transition_probabilities(self.state, (person, int(action))), strict=True)
        self.state = after[self.np_random.choice(len(after), p=p)]
        return np.array(self.state, np.uint8), 0.0, self.state[0] == STEPS, False, {}


def moved(cell: int, action: int, taken: int) -> int:
    row, column = np.add(divmod(cell, SIDE), MOVES[action]).tolist()
    free = 0 <= row < SIDE and 0 <= column < SIDE and SIDE * row + column not in (PILLAR, taken)
    return SIDE * row + column if free else cell


@cache
def outcomes_of(state: tuple[int, ...]) -> dict[str, Any]:
    profiles = [(person, robot) for person in range(len(MOVES)) for robot in range(len(MOVES))]
    rows = [(profile, *row) for profile in profiles for row in Room().transition_probabilities(state, profile)]
    return OUTCOMES.pad(**dict(zip(("actions", "probability", "after"), zip(*rows, strict=True), strict=True)))


@cache
def plan() -> SimpleNamespace:
    """The person's policies by state, [..., goals, actions], and the exact V, pi and W in states [n, 3]."""
    goals = [lambda state, cell=cell: state[1] == cell for cell in GOALS]
    with (
        build_graph(Room(), workers=1, progress=False) as graph,
        backward_induction(graph, {PERSON: goals}, beta=PERSON_BETA, robots=[ROBOT], gamma=GAMMA, workers=1) as people,
    ):
        options = {"beta": BETA, "power": True, "terminal": TERMINAL, "gamma": GAMMA, "people_gamma": GAMMA}
        exact = robot_induction(graph, people, lambda able, _: -1 / ((able[PERSON] ** 2).sum(1) + FLOOR), **options)
        acting = np.diff(graph.row_start) > 0
        states = np.array(graph.states)[acting]
        prior = np.zeros((*SIZES, len(GOALS), len(MOVES)))
        prior[tuple(states.T)] = people[PERSON].policy[acting]
    solution = [torch.tensor(part[acting]) for part in (exact.attainable[PERSON], exact.policy, exact.values)]
    return SimpleNamespace(states=torch.tensor(states), prior=prior, exact=solution)


def features(obs: torch.Tensor) -> torch.Tensor:
    return torch.cat([one_hot(obs[..., i].long(), n) for i, n in enumerate(SIZES)], -1).float()


class Networks(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def layers(outputs: int) -> nn.Module:
            hidden = nn.Linear(sum(SIZES), 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
            return nn.Sequential(*hidden, nn.Linear(64, outputs))

        self.ability, self.robot = layers(len(GOALS)), layers(len(MOVES))
        self.power, self.counts, self.rnd = StateTable(1_000), CountBonus(1_000), RNDBonus((sum(SIZES),))

    def abilities(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.ability(features(obs)))

    def decide(self, obs: torch.Tensor, beta: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Q and pi, [..., actions], and W, [...]."""
        values = -softplus(self.robot(features(obs)))
        policy = torch.softmax(-beta * torch.log(-values), -1)
        reward = -1 / (self.power(obs.reshape(-1, 3)).reshape(obs.shape[:-1]) + FLOOR)
        return values, policy, torch.where(obs[..., 0] == STEPS, TERMINAL, reward + (policy * values).sum(-1))


@dataclass(frozen=True)
class Phase2(mc.Algorithm):
    learning_rate: float = 3e-3

    def schedules(self) -> dict[str, Any]:
        return {"beta": f"piecewise([({STAGES['ramp']}, 0), ({STAGES['full']}, {BETA})])", "epsilon": 0.9}

    def transition(self, spaces: mc.Spaces) -> mc.TransitionSpec:
        return mc.TransitionSpec(spaces.obs, spaces.action_field, OUTCOMES.fields)

    def make_model(self, spaces: mc.Spaces) -> Networks:
        return Networks()

    @torch.inference_mode()
    def act(self, model: Any, obs: Any, *, explore: Any, state: Any, mask: Any, generator: Any) -> mc.Action:
        rows = [outcomes_of(tuple(row)) for row in obs.tolist()]
        extras = {name: np.stack([row[name] for row in rows]) for name in OUTCOMES.fields}
        explore = explore or {"beta": BETA, "epsilon": 0.0}
        after = torch.from_numpy(extras["after"]).reshape(-1, 3)
        new = (model.counts(after) + 0.1 * model.rnd(features(after))).numpy().reshape(len(rows), -1)
        of_action = extras["actions"][..., ROBOT, None] == np.arange(len(MOVES))
        newest = ((new * extras["probability"])[..., None] * of_action).sum(1).argmax(1)  # if the person acts at random
        policy = (1 - explore["epsilon"]) * model.decide(obs, explore["beta"])[1].double().numpy()
        policy += explore["epsilon"] * np.eye(len(MOVES))[newest]
        action = np.array([generator.choice(len(p), p=p / p.sum()) for p in policy])
        return mc.Action(action, extras)

    def make_trainer(self, model: Any) -> Phase2Trainer:
        return Phase2Trainer(self, model)


class Phase2Trainer(PartsTrainer):
    def __init__(self, hyper: Phase2, model: Networks) -> None:
        self.model, self.prior = model, torch.from_numpy(plan().prior).float()
        networks = model.rnd.predictor, model.ability, model.robot
        adams = [torch.optim.Adam(network.parameters(), lr=hyper.learning_rate) for network in networks]
        parts = {
            "rnd": Part(lambda batch: model.rnd.loss(features(batch.obs)), adams[0]),
            "ability": Part(self.ability_loss, adams[1], max_norm=1.0),
            "power": Part(self.power_loss, torch.optim.SGD([model.power.values], lr=0.1), max_norm=10.0, stage=1),
            "robot": Part(self.robot_loss, adams[2], max_norm=5.0, stage=2),
        }
        super().__init__(parts)

    def update(self, batch: Any) -> mc.Update:
        self.model.counts.count(batch.obs)
        batch.after, (batch.person, batch.robot) = batch.extras["after"], batch.extras["actions"].long().unbind(-1)
        batch.chance = OUTCOMES.mask(batch.extras) * batch.extras["probability"]
        batch.prior = self.prior[batch.obs.long().unbind(-1)]  # [B, goals, actions]
        return super().update(batch)

    def ability_loss(self, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            policy = self.model.decide(batch.obs, batch.numbers["beta"])[1].gather(1, batch.robot)
            person = batch.prior.gather(2, batch.person[:, None].expand(-1, len(GOALS), -1))
            achieved = batch.after[..., 1, None] == torch.tensor(GOALS)
            later = GAMMA * self.model.abilities(batch.after) * (batch.after[..., :1] < STEPS)
            target = ((batch.chance * policy)[:, None] * person * torch.where(achieved, 1.0, later).mT).sum(2)
        return mse_loss(self.model.abilities(batch.obs), target)

    def power_loss(self, batch: Any) -> torch.Tensor:
        self.model.power.add(batch.obs)
        target = self.model.abilities(batch.obs).square().sum(1).detach()
        return 0.5 * (self.model.power(batch.obs) - target).square().sum()

    def robot_loss(self, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            chance = batch.chance * batch.prior.mean(1).gather(1, batch.person)
            later = GAMMA * self.model.decide(batch.after, batch.numbers["beta"])[2]
            target = torch.zeros(len(chance), len(MOVES)).scatter_add_(1, batch.robot, chance * later)
        return mse_loss(self.model.decide(batch.obs, 0.0)[0], target)


def settings(**changes: Any) -> mc.Config:
    """Settings of a run; `changes` are fields of Config."""
    learner = mc.LearnerConfig(batch_size=64, n_step=1, warmup=200, device="cpu")
    replay = mc.ReplayConfig(clear_at_stage=("ramp", "full"))
    stages = {"stages": tuple(STAGES.values()), "stage_names": tuple(STAGES)}
    chosen = {"total_steps": 12_000, "updates_per_step": 0.25, "learner": learner, "replay": replay, **stages}
    return mc.Config(**chosen | changes)


@torch.no_grad()
def beside_exact(model: Networks) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """V, pi and W in all states, as learned and exactly."""
    _, policy, value = model.decide(plan().states, BETA)
    learned = model.abilities(plan().states), policy, value
    return dict(zip(("V", "pi", "W"), zip(learned, plan().exact, strict=True), strict=True))


if __name__ == "__main__":
    import empo_phase2 as example  # whose names the processes can import

    outcome, model = mc.train(example.Room, example.Phase2(), settings()), Networks()
    model.load_state_dict(torch.load(f"{outcome.run_dir}/checkpoints/agent_0.pt")["network"])
    for part, (learned, exact) in beside_exact(model).items():
        first = [values[0].double().numpy().round(3) for values in (learned, exact)]
        mean = (learned - exact).abs().mean()
        print(f"{part}: in the first state {first[0]}, exactly {first[1]}; in all states a mean error of {mean:.3f}")
