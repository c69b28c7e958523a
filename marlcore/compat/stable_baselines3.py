"""Stable-Baselines3's replay buffer on marlcore's lanes: frames are stored once, truncation bootstraps correctly.

    model = DQN("MlpPolicy", env, replay_buffer_class=marlcore.compat.stable_baselines3.ReplayBuffer)

For dict observations, use DictReplayBuffer. Other processes read the same memory through `buffer.replay`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common import buffers
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her import HerReplayBuffer as _HerReplayBuffer

from ..checks import came, names_error
from ..errors import NotEnoughData
from ..memory import BOUNDARY, TERMINATED, TRUNCATED
from ..observations import ALONE
from ..replay import Sampler
from ..spec import Field, TransitionSpec
from ..transitions import Batch
from .checks import number, whole_number
from .inplace import InPlace
from .saved import from_bytes, to_bytes
from .steps import Positions, Step, Transitions, flags, frozen, pick, put, put_at, rows_check

__all__ = ["DictReplayBuffer", "ReplayBuffer"]

_NAME = "sb3"  # of the replays
_EMPTY = "sample: expected at least one step, got an empty buffer"
_NO_HER = (
    "hindsight relabelling is not supported, since it rewrites stored goals: use stable_baselines3.HerReplayBuffer"
)
_REFUSED = {
    "prioritized": "not supported, since Stable-Baselines3's algorithms report no TD errors and ignore importance "
    "weights; draw from buffer.replay.sampler(..., prioritized=...) in a train() of your own",
    **dict.fromkeys(("env", "n_sampled_goal", "goal_selection_strategy", "copy_info_dict"), _NO_HER),
}
_NUMBER = Field((), "float32")
_FLAG = Field((), "bool")
_OPENED = (
    "replay",
    "_lanes",
    "_positions",
    "_samplers",
    "_check_obs",
    "_check_next_obs",
    "_check_action",
    "_check_reward",
    "_check_done",
)  # set by _open


class ReplayBuffer(buffers.ReplayBuffer):
    """A `replay_buffer_class` for Stable-Baselines3's off-policy algorithms, with one lane per environment.

    It draws like SB3's buffer: uniformly over the steps held, the newest one included. With n_steps > 1, the n_steps -
    1 steps before the newest one of an unfinished episode are drawn once the rows that complete their returns are
    added; SB3's buffer cuts their returns short instead. A lane has room for `buffer_size // n_envs` rows, and the last
    observation of an episode takes one of them. `observations`, `actions` and the other arrays are read-only copies.
    HerReplayBuffer, which writes to them, and `prioritized=` are refused.

    Args:
        buffer_size, observation_space, action_space, device, n_envs, handle_timeout_termination: as in SB3.
        optimize_memory_usage: accepted but not needed: frames are always stored once.
        n_steps, gamma: n-step returns like NStepReplayBuffer's; `discounts` is 0 where `dones` is 1.
        seed: of the draws; by default drawn from NumPy's global generator, which `model.seed` seeds.

    Raises: ValueError, TypeError: a space or an option is unsupported, n_steps is below 1 or gamma outside [0, 1].
        SharedMemoryFull: no room for the buffer.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 1,
        gamma: float = 0.99,
        seed: int | None = None,
        **others: Any,
    ) -> None:
        for name in others:
            raise TypeError(f"{name}: {_REFUSED.get(name, 'expected no such argument')}")
        # BaseBuffer's constructor, since ReplayBuffer's would allocate the arrays that the lanes replace.
        buffers.BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs)
        self.pos: int = 0
        self.buffer_size: int = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self.n_steps = whole_number("n_steps", n_steps, 1)
        self.gamma = number("gamma", gamma, most=1)
        self._rng = np.random.default_rng(np.random.randint(2**31) if seed is None else seed)
        action = Field((self.action_dim,), np.dtype(self._maybe_cast_dtype(action_space.dtype)).name)
        self._spec = TransitionSpec(self._obs_fields(), action)
        self._open(self._empty())

    def __init_subclass__(cls, **options: Any) -> None:
        if issubclass(cls, _HerReplayBuffer):
            raise TypeError(f"{cls.__name__}: {_NO_HER}")
        super().__init_subclass__(**options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} buffer_size={self.buffer_size} n_envs={self.n_envs} in {self.replay!r}>"

    def _empty(self) -> InPlace:
        rows = max(self.buffer_size, self.n_steps + 1)  # of a lane, which holds at least a step and its successor
        return cast(InPlace, InPlace.create(self._spec, rows * self.n_envs, self.n_envs, name=_NAME))

    def _open(self, replay: InPlace, newest: Step | None = None, tickets: NDArray[np.int64] | None = None) -> None:
        """Opens this process's ends of a replay's lanes; `newest` is its last step, `tickets` the steps by position."""
        if tickets is None:
            tickets = np.full((self.buffer_size, self.n_envs), -1, np.int64)
        self.replay = replay
        self._positions = Positions(replay, tickets)
        self._lanes = replay.lanes_writer()
        self._samplers: dict[int, Sampler] = {}
        self._newest: Step | None = None
        if newest is not None:
            self._lanes.restore(newest)
            self._newest = self._lanes.step
        self._check_obs, self._check_next_obs = self._obs_checks("obs"), self._obs_checks("next_obs")
        self._check_action = rows_check("action", self._spec.action, self.n_envs)
        self._check_reward = rows_check("reward", _NUMBER, self.n_envs)
        self._check_done = rows_check("done", _FLAG, self.n_envs)

    def reset(self) -> None:
        """Deletes every transition."""
        super().reset()
        self.close()
        self._open(self._empty())

    def close(self) -> None:
        """Releases the shared memory; the end of the buffer does so too."""
        self.replay.close()

    def size(self) -> int:
        """Steps held of each environment; their mean if the last observations of episodes take unequal room."""
        held: int = min(self.buffer_size if self.full else self.pos, len(self.replay) // self.n_envs)
        return held

    @property
    def observations(self) -> Any:
        """A read-only copy by position: [buffer_size, n_envs, *shape], or a dict of them.

        This array and the others have zeros at empty positions, and where a full buffer's rows gave way to the last
        observations of episodes.
        """
        return self._read_only(self._positions.observations())

    @property
    def next_observations(self) -> Any:
        """A read-only copy by position of each next observation; where done, the episode's last one."""
        found = self._positions.observations(later=1)
        if self._newest is not None:  # its next observations are not in the lanes yet
            waiting, position = ~self._newest.ended, (self.pos - 1) % self.buffer_size
            put_at(found, (position, waiting), pick(self._newest.next_obs, waiting))
        return self._read_only(found)

    @property
    def actions(self) -> NDArray[Any]:
        """A read-only copy by position: [buffer_size, n_envs, action_dim]."""
        return frozen(self._positions.actions())

    @property
    def rewards(self) -> NDArray[np.float32]:
        """A read-only copy by position: float32 [buffer_size, n_envs]."""
        return frozen(self._positions.rewards())

    @property
    def dones(self) -> NDArray[np.float32]:
        """A copy by position of the ends of episodes, truncations included: float32 [buffer_size, n_envs].

        Read-only, except with optimize_memory_usage: then the algorithms mark a last episode as truncated here, which
        `add` detects by itself.
        """
        found = self._positions.ends(cut_off_alone=False)
        return found if self.optimize_memory_usage else frozen(found)

    @property
    def timeouts(self) -> NDArray[np.float32]:
        """A read-only copy by position of the truncations: float32 [buffer_size, n_envs]."""
        return frozen(self._positions.ends(cut_off_alone=True))

    def _read_only(self, obs: Any) -> Any:
        """Read-only observations under the names of the observation space."""
        for array in obs.values() if isinstance(obs, dict) else (obs,):
            frozen(array)
        return self._spaced(obs)

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """Appends one transition per environment.

        Args:
            obs, action, reward, done: [n_envs, *shape].
            next_obs: like obs; where done, the episode's last observation, not the next episode's first.
            infos: one per environment; its "TimeLimit.truncated" marks done as a truncation.

        Raises: ValueError, TypeError: the message names the field and both values; nothing was added.
        """
        ends = self._ends(done, infos)
        rewards = self._check_reward(reward)
        if not all(map(math.isfinite, rewards.tolist())):
            raise ValueError(f"reward: expected finite numbers, got {rewards}")
        found = self._check_obs(obs)
        rows = [*found, *self._check_next_obs(next_obs), self._check_action(action), rewards]
        if self._newest is not None:
            self._bridge_gaps(found)
        self._positions.tickets[self.pos] = self._lanes.add(rows, ends)
        self._newest = self._lanes.step
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True
            self.pos = 0

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """A batch as from SB3's buffer, on the buffer's device; normalized by `env` if given.

        Raises:
            NotEnoughData: nothing was added yet. ValueError: `env` scales rewards, which n-step returns sum unscaled.
        """
        self._check_scales(env)
        return self._samples(self._draw(batch_size), env)

    def _get_samples(self, batch_inds: NDArray[Any], env: VecNormalize | None = None) -> Any:
        """The steps at positions of `observations`, each of a random environment; for subclasses that choose positions.

        Raises: NotEnoughData: nothing was added yet. ValueError: a position holds no row; otherwise see `sample`.
        """
        self._check_scales(env)
        if self._newest is None:
            raise NotEnoughData(_EMPTY)
        positions = np.asarray(batch_inds)
        envs = self._rng.integers(self.n_envs, size=len(positions))
        ahead = (positions[:, None] + np.arange(self.n_steps)) % self.buffer_size
        found = self._positions.transitions(ahead, envs, (self.pos - 1) % self.buffer_size, self._newest, self.gamma)
        return self._samples(found, env)

    def _check_scales(self, env: VecNormalize | None) -> None:
        if env is not None and env.norm_reward and self.n_steps > 1:
            raise ValueError("env: expected one that leaves rewards alone, since n_steps > 1, got norm_reward=True")

    def _samples(self, found: Transitions | Batch, env: VecNormalize | None) -> Any:
        discounts = {"discounts": self._column(found.discount)} if self.n_steps > 1 else {}
        return self._samples_class(
            observations=self._tensors(self._normalize_obs(self._spaced(found.obs), env)),
            actions=self.to_torch(found.action, copy=False),
            next_observations=self._tensors(self._normalize_obs(self._spaced(found.next_obs), env)),
            dones=self._column(found.terminated.astype(np.float32)),
            rewards=self._column(self._normalize_reward(found.reward, env)),
            **discounts,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Everything, including a save of the replay: a pickle contains the transitions and shares nothing."""
        state = {name: value for name, value in self.__dict__.items() if name not in _OPENED}
        return {**state, "_saved": to_bytes(self.replay), "_tickets": self._positions.tickets}

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved, newest, tickets = (state.pop(name) for name in ("_saved", "_newest", "_tickets"))
        self.__dict__.update(state)
        self._open(from_bytes(saved, _NAME, InPlace), newest, tickets)

    def _ends(self, done: Any, infos: Any) -> bytes:
        """The end flags of each environment's step, for LanesWriter.add."""
        ended = self._check_done(flags(done)).tolist()
        timeouts = self.handle_timeout_termination
        if timeouts and len(infos) != self.n_envs:
            raise ValueError(f"infos: expected {self.n_envs} dicts, one of each environment, got {came(infos)}")
        ends = bytearray(self.n_envs)
        if True in ended:
            for i in [i for i, one in enumerate(ended) if one]:
                cut_off = timeouts and bool(infos[i].get("TimeLimit.truncated", False))
                ends[i] = (TRUNCATED if cut_off else TERMINATED) | BOUNDARY
        return bytes(ends)

    def _bridge_gaps(self, obs: list[NDArray[Any]]) -> None:
        """Keeps the newest steps sampleable if `obs` does not follow them: learn() restarted, or the buffer was loaded.

        Such a step is written again as a truncated one, with its next observation. The first copy is never drawn, since
        its lane continues with another episode.
        """
        for i in self._lanes.gaps(obs):
            self._positions.tickets[self.pos - 1, i] = self._lanes.add_cut_off(i)

    def _draw(self, batch_size: int) -> Transitions | Batch:
        """Draws rows of the lanes, which hold each step with a successor, and the newest steps in proportion."""
        if self._newest is None:
            raise NotEnoughData(_EMPTY)
        waiting = np.flatnonzero(~self._newest.ended)
        held = len(self.replay)
        count = self._rng.binomial(batch_size, min(1.0, len(waiting) / held)) if len(waiting) else 0
        if count == batch_size:
            return self._of_newest(waiting, batch_size)
        try:
            batch = self._sampler(batch_size).sample()
        except NotEnoughData:  # the lanes hold too few steps for n_step, or are too short
            if not len(waiting):
                raise
            return self._of_newest(waiting, batch_size)
        if count:
            newest = self._of_newest(waiting, count)
            for name in ("obs", "next_obs", "action", "reward", "terminated", "discount"):
                put(getattr(batch, name), getattr(newest, name))
        return batch

    def _sampler(self, batch_size: int) -> Sampler:
        if batch_size not in self._samplers:
            seed = int(self._rng.integers(2**63))
            self._samplers[batch_size] = self.replay.sampler(
                batch_size, n_step=self.n_steps, gamma=self.gamma, seed=seed, min_size=1
            )
        return self._samplers[batch_size]

    def _of_newest(self, envs: NDArray[np.int64], count: int) -> Transitions:
        newest = self._newest
        assert newest is not None
        at = self._rng.choice(envs, count)
        discount = np.full(count, self.gamma, np.float32)
        return Transitions(
            pick(newest.obs, at), pick(newest.next_obs, at), newest.action[at], newest.reward[at],
            newest.terminated[at], discount,
        )  # fmt: skip

    def _column(self, numbers: NDArray[np.float32]) -> torch.Tensor:
        column: torch.Tensor = self.to_torch(numbers.reshape(-1, 1), copy=False)
        return column

    # Overridden for dict observations

    _samples_class: Callable[..., Any] = ReplayBufferSamples

    def _obs_fields(self) -> Field | dict[str, Field]:
        return _field(self.obs_shape, self.observation_space)

    def _obs_checks(self, label: str) -> Callable[[Any], list[NDArray[Any]]]:
        """A callable that returns an observation's fields by name as arrays of the spec's shapes and dtypes."""
        check = rows_check(label, self._spec.obs_fields[ALONE], self.n_envs)
        return lambda obs: [check(obs)]

    def _spaced(self, obs: Any) -> Any:
        """Sampled observations under the names of the observation space."""
        return obs

    def _tensors(self, obs: Any) -> Any:
        return self.to_torch(obs, copy=False)


class DictReplayBuffer(ReplayBuffer):
    """ReplayBuffer for dict observation spaces."""

    _samples_class = DictReplayBufferSamples

    def _obs_fields(self) -> dict[str, Field]:
        # Keys may be any text, but a Field's name is an identifier.
        self._names = {f"key_{i}": key for i, key in enumerate(self.observation_space.spaces)}
        return {n: _field(self.obs_shape[key], self.observation_space[key]) for n, key in self._names.items()}

    def _obs_checks(self, label: str) -> Callable[[Any], list[NDArray[Any]]]:
        fields, keys = self._spec.obs_fields, self.obs_shape.keys()
        checks = [
            (key, rows_check(f"{label}[{key!r}]", fields[n], self.n_envs)) for n, key in sorted(self._names.items())
        ]

        def check_all(obs: Any) -> list[NDArray[Any]]:
            if obs.keys() != keys:
                raise names_error(label, keys, obs)
            return [check(obs[key]) for key, check in checks]

        return check_all

    def _spaced(self, obs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {key: obs[name] for name, key in self._names.items()}

    def _tensors(self, obs: dict[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
        return {key: self.to_torch(array, copy=False) for key, array in obs.items()}


def _field(shape: Any, space: spaces.Space[Any]) -> Field:
    if isinstance(space, spaces.Dict) or space.dtype is None:
        raise TypeError(
            f"observation_space: expected a space of arrays (DictReplayBuffer for a Dict of them), got {space}"
        )
    return Field(shape, np.dtype(space.dtype).name)
