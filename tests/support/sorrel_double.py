"""A small double of sorrel 1.6.0: the same names, the same loop, the same rules of its buffer, in a world of a line.

Entities come first in each turn, then the agents one after another. `Line` is a world in which agents step left or
right towards a prize, which is an entity that moves. tests/runs/test_sorrel_itself.py compares with sorrel itself.
"""

import random
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

CELLS = 7


def config(epochs: int = 5, max_turns: int = 8, **model: Any) -> SimpleNamespace:
    return SimpleNamespace(
        experiment=SimpleNamespace(epochs=epochs, max_turns=max_turns, record_period=1000),
        model=SimpleNamespace(**{"epsilon_decay": 0.1, **model}),
    )


class Buffer:
    def __init__(self, capacity: int, obs_shape: Any, n_frames: int = 1) -> None:
        self.capacity, self.obs_shape, self.n_frames = capacity, obs_shape, n_frames
        self.extra_data: dict[str, Any] = {}
        self.clear()

    def clear(self) -> None:
        self.states = np.zeros((self.capacity, *self.obs_shape), np.float32)
        self.actions = np.zeros(self.capacity, np.int64)
        self.rewards = np.zeros(self.capacity, np.float32)
        self.dones = np.zeros(self.capacity, np.float32)
        self.idx = self.size = 0

    def add(self, obs: Any, action: Any, reward: float, done: bool, **extras: Any) -> None:
        self.states[self.idx], self.actions[self.idx] = obs, action
        self.rewards[self.idx], self.dones[self.idx] = reward, done
        for name, value in extras.items():
            self.extra_data[name][self.idx] = value
        self.idx, self.size = (self.idx + 1) % self.capacity, min(self.size + 1, self.capacity)

    def add_empty(self) -> None:
        self.idx = (self.idx + self.n_frames - 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def _draw(self, batch_size: int) -> tuple[Any, ...]:
        starts = np.random.choice(max(1, self.size - self.n_frames - 1), batch_size, replace=False)
        at = starts[:, None] + np.arange(self.n_frames)
        states, next_states = (self.states[rows].reshape(batch_size, -1) for rows in (at, at + 1))
        valid = 1.0 - self.dones[at[:, :-1]].any(axis=1, keepdims=True)
        return at, states, next_states, self.dones[at[:, -1:]], valid

    def sample(self, batch_size: int) -> tuple[Any, ...]:
        at, states, next_states, dones, valid = self._draw(batch_size)
        return states, self.actions[at[:, -1:]], self.rewards[at[:, -1:]], next_states, dones, valid

    def last_transition(self, offset: int = 0) -> Any:
        if self.size <= offset:
            return None
        at = (self.idx - 1 - offset) % self.capacity
        return int(self.actions[at]), float(self.rewards[at]), bool(self.dones[at])

    def current_state(self) -> Any:
        return np.roll(self.states, -self.idx, axis=0)[self.capacity - self.n_frames + 1 :]

    def __len__(self) -> int:
        return self.size


class TransformerBuffer(Buffer):
    def sample_transformer(self, batch_size: int) -> tuple[Any, ...]:
        at, states, next_states, dones, valid = self._draw(batch_size)
        agents = self.extra_data["agent_ids"][at[:, 0]] if "agent_ids" in self.extra_data else None
        return states, self.actions[at], np.float32(self.actions[at + 1]), next_states, dones, valid, agents


class Plain:
    """A model that learns nothing, with the names of every model; its memory may hold a single row."""

    def __init__(self, capacity: int = 1) -> None:
        self.memory, self.epsilon = Buffer(capacity, (CELLS,)), 0.0

    def take_action(self, state: Any) -> int:
        return random.randrange(2)

    def train_step(self) -> Any:
        return np.array(0.0)

    def reset(self) -> None:
        pass

    def epsilon_decay(self, decay_rate: float) -> None:
        self.epsilon *= 1 - decay_rate

    def start_epoch_action(self, **kwargs: Any) -> None:
        pass

    end_epoch_action = start_epoch_action


class Model(nn.Module, Plain):
    def __init__(self, batch_size: int = 4, capacity: int = 64, n_frames: int = 2, epsilon: float = 0.5) -> None:
        super().__init__()
        self.n_frames, self.batch_size, self.epsilon = n_frames, batch_size, epsilon
        self.local = nn.Linear(n_frames * CELLS, 2)
        self.target = nn.Linear(n_frames * CELLS, 2)
        self.register_buffer("updated", torch.zeros((), dtype=torch.int64))
        self.optimizer = torch.optim.Adam(self.local.parameters(), lr=0.01)
        self.memory = Buffer(capacity, (CELLS,), n_frames)

    def take_action(self, state: Any) -> int:
        return random.randrange(2) if random.random() < self.epsilon else self.greedy(state)

    def greedy(self, state: Any) -> int:
        with torch.no_grad():
            return int(self.local(torch.from_numpy(state).float()).argmax())

    def train_step(self) -> Any:
        if len(self.memory) < self.batch_size + self.memory.n_frames + 1:
            return np.array(0.0)
        states, actions, rewards, next_states, dones, valid = (
            torch.from_numpy(array).float() for array in self.memory.sample(self.batch_size)
        )
        with torch.no_grad():
            best = rewards + 0.9 * (1 - dones) * self.target(next_states).max(1, keepdim=True).values
        loss = ((self.local(states).gather(1, actions.long()) - best) ** 2 * valid).mean()
        return self.learn(loss)

    def learn(self, loss: Any) -> Any:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updated += 1
        return loss.detach().numpy()

    def start_epoch_action(self, **kwargs: Any) -> None:
        self.memory.add_empty()
        if kwargs["epoch"] % 3 == 0:
            self.target.load_state_dict(self.local.state_dict())

    def save(self, file_path: Any) -> None:
        torch.save(self.state_dict(), file_path)


class Line:
    def create_world(self) -> None:
        self.total_reward, self.prize, self.is_done = 0.0, 3, False


class Entity:
    has_transitions = True

    def transition(self, world: Line) -> None:
        world.prize = (world.prize + 1) % CELLS


class Agent:
    has_transitions = True

    def __init__(self, model: Any) -> None:
        self.model = model
        self.location = (0, 0, 0)

    def reset(self) -> None:
        self.model.reset()

    def pov(self, world: Line) -> Any:
        state = np.zeros(CELLS, np.float32)
        state[self.location[0]], state[world.prize] = 1.0, 2.0
        return state.reshape(1, -1)

    def act(self, world: Line, action: int) -> float:
        at = min(max(self.location[0] + (1 if action else -1), 0), CELLS - 1)
        self.location = (at, 0, 0)
        return float(at == world.prize)

    def transition(self, world: Line) -> None:
        memory, state = self.model.memory, self.pov(world)
        action = self.model.take_action(np.vstack((memory.current_state(), state)).reshape(1, -1))
        reward = self.act(world, action)
        world.total_reward += reward
        extras = {"positions": self.location[:2]} if "positions" in memory.extra_data else {}
        memory.add(state, action, reward, world.is_done, **extras)


class Environment:
    """sorrel's Environment: `run_experiment` is its loop, line by line, without GIFs."""

    def __init__(self, config: Any, agents: list[Any], stop_if_done: bool = False) -> None:
        self.config, self.agents, self.stop_if_done = config, agents, stop_if_done
        self.world, self.entities, self.turn = Line(), [Entity()], 0
        self._epoch_turn_stats: list[Any] = []
        self._active_logger: Any = None
        self.world.create_world()

    def reset(self) -> None:
        self.turn = 0
        self.world.create_world()
        for agent in self.agents:
            agent.location = (0, 0, 0)
            agent.reset()
        self._epoch_turn_stats = []

    def take_turn(self, epoch: int = 0) -> None:
        self.turn += 1
        for one in (*self.entities, *self.agents):
            one.transition(self.world)
        if self._active_logger is not None:
            last = [agent.model.memory.last_transition() for agent in self.agents]
            stats = SimpleNamespace(epoch=epoch, turn=self.turn, rewards=[one[1] for one in last if one])
            self._epoch_turn_stats.append(stats)
            self._active_logger.record_step(stats)

    def _model_start_epoch_action(self, agent: Any, epoch: int) -> None:
        agent.model.start_epoch_action(epoch=epoch)

    def _model_end_epoch_action(self, agent: Any, epoch: int) -> None:
        agent.model.end_epoch_action(epoch=epoch)

    def _model_train_step(self, agent: Any) -> Any:
        return agent.model.train_step()

    def aggregate_epoch_stats(self) -> dict[str, float]:
        rewards = [reward for stats in self._epoch_turn_stats for reward in stats.rewards]
        return {"turn_reward_mean": float(np.mean(rewards)), "turn_reward_max": max(rewards)} if rewards else {}

    def run_experiment(self, logger: Any, animate: bool = False, logging: bool = True, output_dir: Any = None) -> None:
        self._active_logger = logger
        for epoch in range(self.config.experiment.epochs + 1):
            self.reset()
            for agent in self.agents:
                self._model_start_epoch_action(agent, epoch)
            while self.turn < self.config.experiment.max_turns:
                self.take_turn(epoch)
                if self.world.is_done and self.stop_if_done:
                    break
            self.world.is_done = True
            for agent in self.agents:
                self._model_end_epoch_action(agent, epoch)
            total_loss = sum(self._model_train_step(agent) for agent in self.agents)
            logger.record_epoch(
                epoch, total_loss, self.world.total_reward, self.agents[0].model.epsilon, **self.aggregate_epoch_stats()
            )
            for agent in self.agents:
                agent.model.epsilon_decay(self.config.model.epsilon_decay)
        self._active_logger = None


class Logger:
    """Like sorrel's TensorboardLogger, it holds what cannot be pickled."""

    def __init__(self) -> None:
        self.writer = threading.Lock()
        self.epochs: list[tuple[Any, ...]] = []
        self.values: list[dict[str, Any]] = []

    def record_epoch(self, epoch: int, loss: Any, reward: Any, epsilon: float = 0, **values: Any) -> None:
        self.epochs.append((epoch, float(loss), float(reward), epsilon))
        self.values.append(values)

    def record_step(self, stats: Any) -> None:
        pass


class StepLogger(Logger):
    def __init__(self) -> None:
        super().__init__()
        self.turns: list[tuple[int, int]] = []

    def record_step(self, stats: Any) -> None:
        self.turns.append((stats.epoch, stats.turn))


def make(agents: int = 2, epochs: int = 5, max_turns: int = 8, model: Any = Model, **options: Any) -> Environment:
    """An environment whose models are the same at each call."""
    torch.manual_seed(0)
    return Environment(config(epochs, max_turns, **options), [Agent(model()) for _ in range(agents)])
