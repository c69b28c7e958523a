"""Stable-Baselines3's replay buffer on marlcore's lanes: frames are stored once, truncation bootstraps correctly.

    model = DQN("MlpPolicy", env, replay_buffer_class=marlcore.compat.stable_baselines3.ReplayBuffer)

Use DictReplayBuffer for dict observations, and HerReplayBuffer for goals. Other processes read the same memory through
`buffer.replay`.
"""

import math
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common import buffers
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her import HerReplayBuffer as _HerReplayBuffer
from stable_baselines3.her.goal_selection_strategy import KEY_TO_GOAL_STRATEGY, GoalSelectionStrategy

from ..checks import brief, names_error
from ..declared import Number, Whole, listed
from ..errors import NotEnoughData
from ..memory import TERMINATED, TRUNCATED
from ..observations import ALONE, put_rows
from ..replay import Hindsight, Sampler
from ..spec import Field, TransitionSpec, as_field
from .replays import ViewedReplay, from_bytes, to_bytes

_NAME = "sb3"  # of the replays
_STEP = "step"  # the extra that numbers a row's info
_NO_HER = "expected no argument of hindsight: use marlcore.compat.stable_baselines3.HerReplayBuffer"
_REFUSED = {
    "prioritized": "not supported, since Stable-Baselines3's algorithms report no TD errors and ignore importance "
    "weights; draw from buffer.replay.sampler(..., prioritized=...) in a train() of your own",
    **dict.fromkeys(("env", "n_sampled_goal", "goal_selection_strategy", "copy_info_dict"), _NO_HER),
}

Obs = dict[str, NDArray[Any]]  # by the names of the spec's fields, each [rows, *shape]


class _Newest(NamedTuple):
    """The part of each environment's newest step that the lanes do not hold yet."""

    next_obs_bytes: list[bytes]  # by field; bytes are faster to make and to compare than arrays
    ended_bytes: bytes
    followed: bool = True  # whether the next rows may continue the episodes; not after a load or an interrupt

    @property
    def ended(self) -> NDArray[np.bool_]:
        return np.frombuffer(self.ended_bytes, np.bool_)

    def next_obs(self, fields: Mapping[str, Field]) -> Obs:
        named = zip(fields.items(), self.next_obs_bytes, strict=True)
        return {name: np.frombuffer(raw, field.numpy).reshape(-1, *field.shape) for (name, field), raw in named}


class ReplayBuffer(buffers.ReplayBuffer):
    """A `replay_buffer_class` for Stable-Baselines3's off-policy algorithms, with one lane per environment.

    Like SB3's buffer, it draws uniformly from all steps held, including the newest one. `observations`, `actions` and
    the other arrays are read-only copies. docs/drop-ins.md lists the differences.

    Args:
        buffer_size, observation_space, action_space, device, n_envs, handle_timeout_termination: as in SB3.
        optimize_memory_usage: accepted but not needed: frames are always stored once.
        n_steps, gamma: n-step returns like NStepReplayBuffer's; `discounts` is 0 where `dones` is 1.
        seed: the seed of the draws; by default a number from NumPy's global generator, which `model.seed` seeds.

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
        self.buffer_size: int = max(buffer_size // Whole(1)("n_envs", n_envs), 1)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self.n_steps = Whole(1)("n_steps", n_steps)
        self.gamma = Number(0, 1)("gamma", gamma)
        self._rng = np.random.default_rng(np.random.randint(2**31) if seed is None else Whole(0)("seed", seed))
        action = Field((self.action_dim,), np.dtype(self._maybe_cast_dtype(action_space.dtype)).name)
        self._spec = TransitionSpec(self._obs_fields(), action, self._extra_fields)
        self._start()

    def __init_subclass__(cls, **options: Any) -> None:
        if issubclass(cls, _HerReplayBuffer) and not hasattr(cls, "_judge"):
            raise TypeError(f"{cls.__name__}: expected a subclass of marlcore.compat.stable_baselines3.HerReplayBuffer")
        super().__init_subclass__(**options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} buffer_size={self.buffer_size} n_envs={self.n_envs} in {self.replay!r}>"

    def _start(self) -> None:
        rows = max(self.buffer_size, self.n_steps + 1)  # of a lane, which holds at least a step and its successor
        self._tickets = np.full((self.buffer_size, self.n_envs), -1, np.int64)  # of the steps, by position
        self._open(cast(ViewedReplay, ViewedReplay.create(self._spec, rows * self.n_envs, self.n_envs, name=_NAME)))

    def _open(self, replay: ViewedReplay, newest: _Newest | None = None) -> None:
        """Opens a writer for the replay and makes the value checks; `newest` is the newest step in its lanes."""
        self.replay = replay
        self._writer = replay.vector_writer()
        self._samplers: dict[int, Sampler] = {}
        self._newest = newest
        fields = self._spec.action_fields | {"reward": Field((), "float32"), "done": Field((), "bool")}
        for name, field in self._spec.obs_fields.items():
            key = f"[{self._keys[name]!r}]" if self._keys else ""
            fields |= {f"obs{key}": field, f"next_obs{key}": field}
        self._checks = {label: _rows_check(label, field, self.n_envs) for label, field in fields.items()}

    def reset(self) -> None:
        """Deletes all transitions."""
        super().reset()
        self.close()
        self._start()

    def close(self) -> None:
        """Releases the shared memory; dropping the last reference to the buffer does the same."""
        self.replay.close()

    def size(self) -> int:
        """Returns the number of steps held per environment; the mean, if environments hold different numbers."""
        steps: int = min(self.buffer_size if self.full else self.pos, len(self.replay) // self.n_envs)
        return steps

    @property
    def observations(self) -> Any:
        """A read-only copy of the observations by position: [buffer_size, n_envs, *shape], or a dict of such arrays.

        Here and in the other arrays, a position without a step holds zeros. A full buffer has such positions because
        each episode's last observation takes a row.
        """
        return self._observations()

    @property
    def next_observations(self) -> Any:
        """A read-only copy of the next observations by position; at an episode's end, its last observation."""
        return self._observations(later=1)

    @property
    def actions(self) -> NDArray[Any]:
        """A read-only copy of the actions by position: [buffer_size, n_envs, action_dim]."""
        return _frozen(self._by_position(self._actions()))

    @property
    def rewards(self) -> NDArray[np.float32]:
        """A read-only copy of the rewards by position: float32 [buffer_size, n_envs]."""
        return _frozen(self._by_position(self.replay.rewards()))

    @property
    def dones(self) -> NDArray[np.float32]:
        """A copy of the ends of episodes by position: float32 [buffer_size, n_envs], 1 at a termination or truncation.

        The copy is read-only, except with optimize_memory_usage: SB3's algorithms then write a truncation into it. The
        write has no effect, since `add` detects the truncation by itself.
        """
        dones = self._flagged(TERMINATED | TRUNCATED)
        return dones if self.optimize_memory_usage else _frozen(dones)

    @property
    def timeouts(self) -> NDArray[np.float32]:
        """A read-only copy of the truncations by position: float32 [buffer_size, n_envs]."""
        return _frozen(self._flagged(TRUNCATED))

    def _actions(self) -> NDArray[Any]:
        return self.replay.columns("action")["action"]

    def _flagged(self, flags: int) -> NDArray[np.float32]:
        flagged: NDArray[np.bool_] = (self._by_position(self.replay.flags()) & flags) != 0
        return flagged.astype(np.float32)

    def _observations(self, later: int = 0) -> Any:
        """Returns read-only observations by buffer position; each is read `later` rows after the row of its step."""
        obs = {name: self._by_position(column, later) for name, column in self.replay.columns("obs").items()}
        if later and self._newest is not None:
            waiting, next_obs = ~self._newest.ended, self._newest.next_obs(self._spec.obs_fields)
            for name, array in obs.items():
                array[self.pos - 1, waiting] = next_obs[name][waiting]
        frozen = {self._keys.get(name, name): _frozen(array) for name, array in obs.items()}
        return frozen if self._keys else frozen[ALONE]

    def _by_position(self, column: NDArray[Any], later: int = 0) -> NDArray[Any]:
        lo, hi = self.replay.windows()
        tickets = self._tickets + later
        position, lane = ((self._tickets >= lo) & (tickets < hi)).nonzero()
        rows: NDArray[Any] = np.zeros((*tickets.shape, *column.shape[2:]), column.dtype)
        rows[position, lane] = column[lane, tickets[position, lane] % column.shape[1]]
        return rows

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
            infos: one dict per environment; "TimeLimit.truncated" in it says that done is a truncation.

        Raises: ValueError, TypeError: the message names the field and both values; nothing was added.
        """
        # Everything is checked before the first write, since a gap between episodes is written separately.
        ended = self._ended(done, infos)
        obs, next_obs = self._checked("obs", obs), self._checked("next_obs", next_obs)
        action, reward = self._checks["action"](action), self._checks["reward"](reward)
        if not all(map(math.isfinite, reward.tolist())):
            raise ValueError(f"reward: expected finite numbers, got {reward}")
        newest = self._newest
        try:
            if newest is not None:
                self._bridge_gaps(obs, newest)
            ended_bytes = ended.tobytes()
            ends = (*self._ends(ended, infos), _fields(next_obs)) if 1 in ended_bytes else ()
            self._tickets[self.pos] = self._writer.add(_fields(obs), action, reward, *ends, **self._extras(infos))
            self._newest = _Newest([*map(np.ndarray.tobytes, next_obs.values())], ended_bytes)
        except BaseException:  # an interrupt may come after the rows, which later rows do not continue
            self._writer.new_episode()
            self._newest = newest and newest._replace(followed=False)
            raise
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True
            self.pos = 0

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draws a batch like SB3's buffer, on the buffer's device; normalized by `env` if given.

        Raises:
            NotEnoughData: nothing was added yet. ValueError: `env` scales rewards, which n-step returns sum unscaled.
        """
        return self._samples(self._draw(Whole(0)("batch_size", batch_size), self._ready(env)), env)

    def _get_samples(self, batch_inds: NDArray[Any], env: VecNormalize | None = None) -> Any:
        """Returns a batch of the steps at `batch_inds`, positions that a subclass chose, in random environments."""
        newest, positions = self._ready(env), np.asarray(batch_inds)
        envs = self._rng.integers(self.n_envs, size=len(positions))
        ahead = (positions[:, None] + np.arange(self.n_steps)) % self.buffer_size
        return self._samples(self._transitions(ahead, envs, newest), env)

    def _ready(self, env: VecNormalize | None) -> _Newest:
        """Returns the newest step. Raises as `sample` does."""
        if env is not None and env.norm_reward and self.n_steps > 1:
            raise ValueError("env: expected norm_reward=False, since n_steps > 1, got norm_reward=True")
        if self._newest is None:
            raise NotEnoughData("sample: expected at least one step, got an empty buffer")
        return self._newest

    def _samples(self, drawn: Any, env: VecNormalize | None) -> Any:
        discounts = {"discounts": self._column(drawn.discount)} if self.n_steps > 1 else {}
        return self._samples_class(
            observations=self._tensors(drawn.obs, env),
            actions=self.to_torch(drawn.action, copy=False),
            next_observations=self._tensors(drawn.next_obs, env),
            dones=self._column(drawn.terminated.astype(np.float32)),
            rewards=self._column(self._normalize_reward(drawn.reward, env)),
            **discounts,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Returns all state, with a save of the replay: a pickle contains the transitions and shares no memory."""
        state = {**vars(self), "_saved": to_bytes(self.replay)}
        for name in ("replay", "_writer", "_samplers", "_checks"):
            del state[name]  # `_open` makes it anew
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved, newest = state.pop("_saved"), state.pop("_newest")
        self.__dict__.update(state)
        self._open(from_bytes(saved, _NAME, ViewedReplay), newest and newest._replace(followed=False))

    def _ended(self, done: Any, infos: Any) -> NDArray[np.bool_]:
        ended = done if done.__class__ is np.ndarray else np.asarray(done)
        if ended.dtype.kind in "iuf" and np.isin(ended, (0, 1)).all():
            ended = ended.astype(np.bool_)
        ended = self._checks["done"](ended)
        if self.handle_timeout_termination and len(() if infos is None else infos) != self.n_envs:
            raise ValueError(f"infos: expected {self.n_envs} dicts, one for each environment, got {brief(infos)}")
        return ended

    def _ends(self, ended: NDArray[np.bool_], infos: Any) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        truncated = np.zeros(self.n_envs, np.bool_)
        if self.handle_timeout_termination:
            for i in ended.nonzero()[0]:
                truncated[i] = bool(infos[i].get("TimeLimit.truncated", False))
        return ended & ~truncated, truncated

    def _bridge_gaps(self, obs: Obs, newest: _Newest) -> None:
        """Keeps the newest steps sampleable if `obs` does not follow them, as after a load or where learn() restarted.

        The method writes such a step again, as a truncated step with its next observation. The sampler never draws the
        first copy, since its lane continues with another episode.
        """
        if newest.followed and [*map(np.ndarray.tobytes, obs.values())] == newest.next_obs_bytes:
            return
        gaps, after = ~newest.ended, newest.next_obs(self._spec.obs_fields)
        for i in range(self.n_envs) if newest.followed else ():
            gaps[i] &= any(array[i].tobytes() != after[name][i].tobytes() for name, array in obs.items())
        lanes = gaps.nonzero()[0]
        if not len(lanes):
            return
        rows = self._tickets[self.pos - 1, lanes] % self.replay.rewards().shape[1]
        again = {name: column[lanes, rows] for name, column in self.replay.columns("obs").items()}
        final_obs = {name: array[lanes] for name, array in after.items()}
        self._writer.new_episode(lanes)
        self._tickets[self.pos - 1, lanes] = self._writer.add(
            _fields(again), self._actions()[lanes, rows], self.replay.rewards()[lanes, rows],
            truncated=np.ones(len(lanes), np.bool_), final_obs=_fields(final_obs), lanes=lanes,
            **{name: column[lanes, rows] for name, column in self.replay.columns("extra").items()},
        )  # fmt: skip

    def _transitions(self, ahead: NDArray[np.int64], envs: NDArray[np.int64], newest: _Newest) -> SimpleNamespace:
        """Returns some fields of a Batch for the steps at positions `ahead`, int64 [B, steps], of `envs`, int64 [B].

        A reward is the sum over a row's steps, up to the episode's end or the newest step.
        """
        lo, hi = self.replay.windows()
        lanes = envs[:, None]
        tickets = self._tickets[ahead, lanes]
        first = tickets[:, 0]
        if (gone := first < lo[envs]).any():
            raise ValueError(f"batch_inds: expected positions of held rows, as sample() draws, got {ahead[gone, 0][0]}")
        flags, rewards = self.replay.flags(), self.replay.rewards()
        capacity = rewards.shape[1]
        ends = (flags[lanes, tickets % capacity] & (TERMINATED | TRUNCATED)) != 0
        ends |= ahead == (self.pos - 1) % self.buffer_size
        ends[:, -1] = True
        count = ends.argmax(axis=1) + 1
        last = tickets[np.arange(len(envs)), count - 1]
        powers = np.arange(ahead.shape[1])
        weights = np.where(powers < count[:, None], self.gamma**powers, 0.0)
        terminated = (flags[envs, last % capacity] & TERMINATED) != 0
        columns = self.replay.columns("obs")
        next_obs = {name: column[envs, (last + 1) % capacity] for name, column in columns.items()}
        waiting = last + 1 >= hi[envs]  # where the next observation is not in the lanes yet
        for name, array in newest.next_obs(self._spec.obs_fields).items():
            next_obs[name][waiting] = array[envs[waiting]]
        return SimpleNamespace(
            obs=_fields({name: column[envs, first % capacity] for name, column in columns.items()}),
            next_obs=_fields(next_obs),
            action=self._actions()[envs, first % capacity],
            reward=(rewards[lanes, tickets % capacity] * weights).sum(axis=1).astype(np.float32),
            terminated=terminated,
            discount=np.where(terminated, 0, self.gamma**count).astype(np.float32),
        )

    def _draw(self, batch_size: int, newest: _Newest) -> Any:
        """Draws uniformly from all steps: steps with a successor are in the lanes, the others in `newest`."""
        waiting = np.flatnonzero(~newest.ended)
        count = self._rng.binomial(batch_size, min(1.0, len(waiting) / len(self.replay))) if len(waiting) else 0
        if count == batch_size:
            return self._of_newest(waiting, batch_size, newest)
        try:
            batch = self._sampler(batch_size).sample()
        except NotEnoughData:  # the lanes hold too few steps for n_step, or are too short
            if not len(waiting):
                raise
            return self._of_newest(waiting, batch_size, newest)
        if count:
            for name, rows in vars(self._of_newest(waiting, count, newest)).items():
                put_rows(getattr(batch, name), slice(count), rows)
        return batch

    def _sampler(self, batch_size: int) -> Sampler:
        if batch_size not in self._samplers:
            seed = int(self._rng.integers(2**63))
            self._samplers[batch_size] = self.replay.sampler(
                batch_size, n_step=self.n_steps, gamma=self.gamma, seed=seed, min_size=1, hindsight=self._hindsight()
            )
        return self._samplers[batch_size]

    def _of_newest(self, envs: NDArray[np.int64], count: int, newest: _Newest) -> SimpleNamespace:
        ahead = np.full((count, 1), (self.pos - 1) % self.buffer_size)
        return self._transitions(ahead, self._rng.choice(envs, count), newest)

    def _column(self, numbers: NDArray[np.float32]) -> torch.Tensor:
        column: torch.Tensor = self.to_torch(numbers.reshape(-1, 1), copy=False)
        return column

    def _tensors(self, obs: Any, env: VecNormalize | None) -> Any:
        if not self._keys:
            return self.to_torch(self._normalize_obs(obs, env), copy=False)
        spaced = self._normalize_obs({self._keys[name]: array for name, array in obs.items()}, env)
        return {key: self.to_torch(array, copy=False) for key, array in spaced.items()}

    # Overridden for dict observations and goals

    _samples_class: Callable[..., Any] = ReplayBufferSamples
    _keys: Mapping[str, str] = {}  # a field's name in the spec: its key in the space
    _extra_fields: Mapping[str, Field] = {}

    def _extras(self, infos: Any) -> dict[str, NDArray[Any]]:
        return {}

    def _hindsight(self) -> Hindsight | None:
        return None

    def _obs_fields(self) -> Field | dict[str, Field]:
        return _field(self.obs_shape, self.observation_space)

    def _checked(self, role: str, obs: Any) -> Obs:
        if not self._keys:
            return {ALONE: self._checks[role](obs)}
        if obs.keys() != self.obs_shape.keys():
            raise names_error(role, self.obs_shape, obs)
        return {name: self._checks[f"{role}[{key!r}]"](obs[key]) for name, key in self._keys.items()}


class DictReplayBuffer(ReplayBuffer):
    """ReplayBuffer for dict observation spaces."""

    _samples_class = DictReplayBufferSamples

    _name = "key_{0}"  # keys may be any text, but a Field's name is an identifier

    def _obs_fields(self) -> dict[str, Field]:
        self._keys = {self._name.format(i, key): key for i, key in enumerate(self.observation_space.spaces)}
        return {name: _field(self.obs_shape[key], self.observation_space[key]) for name, key in self._keys.items()}


class HerReplayBuffer(DictReplayBuffer, _HerReplayBuffer):
    """A `replay_buffer_class` for goals, like Stable-Baselines3's HerReplayBuffer; see `marlcore.Hindsight`.

    Unlike SB3's buffer, this one also draws the steps of an unfinished episode, except the newest step; their goals
    come from the steps so far.

    Args:
        observation_space: with the keys observation, achieved_goal and desired_goal; all keys are identifiers.
        env: `compute_reward(achieved, desired, infos)` of its first environment gets a whole batch in one call.
        n_sampled_goal: the number of relabelled rows for each row that keeps its goal.
        goal_selection_strategy: "future", "final" or "episode", or SB3's enum.
        copy_info_dict: passes each step's info, kept in this process, to `compute_reward`; otherwise empty dicts.
        buffer_size, action_space, device, n_envs, optimize_memory_usage, handle_timeout_termination, seed: see
            ReplayBuffer.
    """

    _name = "{1}"  # `Hindsight` knows the goals by their names

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        env: Any,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
        *,
        seed: int | None = None,
    ) -> None:
        self.env = env
        self.copy_info_dict = copy_info_dict
        self.n_sampled_goal = Whole(1)("n_sampled_goal", n_sampled_goal)
        strategy = getattr(goal_selection_strategy, "name", str(goal_selection_strategy)).lower()
        if strategy not in KEY_TO_GOAL_STRATEGY:
            expected = listed(KEY_TO_GOAL_STRATEGY)
            raise ValueError(f"goal_selection_strategy: expected {expected}, got {brief(goal_selection_strategy)}")
        self.goal_selection_strategy = KEY_TO_GOAL_STRATEGY[strategy]
        if copy_info_dict:
            self._extra_fields = {_STEP: Field((), "int64")}
            self.infos = np.full((max(buffer_size // n_envs, 1), n_envs), None, object)
        DictReplayBuffer.__init__(
            self, buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage,
            handle_timeout_termination, seed=seed,
        )  # fmt: skip

    def truncate_last_trajectory(self) -> None:
        """Does nothing: `add` notices by itself where an episode broke off."""

    def __getstate__(self) -> dict[str, Any]:
        """Returns all state but `env`, as in SB3: call `set_env` after unpickling."""
        return {**super().__getstate__(), "env": None}

    def _start(self) -> None:
        Hindsight().check_goals(self._spec)
        super()._start()

    def _extras(self, infos: Any) -> dict[str, NDArray[Any]]:
        if not self.copy_info_dict:
            return {}
        self.infos[self.pos] = infos
        return {_STEP: self.pos * self.n_envs + np.arange(self.n_envs)}

    def _draw(self, batch_size: int, newest: _Newest) -> Any:
        return self._sampler(batch_size).sample()

    def _hindsight(self) -> Hindsight:
        strategy: Any = self.goal_selection_strategy.name.lower()
        return Hindsight(self.n_sampled_goal, strategy, partial(HerReplayBuffer._judge, cast(Any, weakref.proxy(self))))

    def _judge(self, achieved: NDArray[Any], desired: NDArray[Any], extras: Mapping[str, NDArray[Any]]) -> Any:
        if self.env is None:
            raise ValueError("env: expected a VecEnv, got None; call set_env after unpickling")
        infos: Any = self.infos.flat[extras[_STEP]] if self.copy_info_dict else [{}] * len(achieved)
        return self.env.env_method("compute_reward", achieved, desired, infos, indices=[0])[0]


def _fields(obs: Obs) -> Any:
    return obs[ALONE] if len(obs) == 1 and ALONE in obs else obs  # the fields of goals include this name, too


def _field(shape: Any, space: spaces.Space[Any]) -> Field:
    if isinstance(space, spaces.Dict) or space.dtype is None:
        raise TypeError(f"observation_space: expected a space of arrays (DictReplayBuffer for a Dict), got {space}")
    return Field(shape, np.dtype(space.dtype).name)


def _rows_check(label: str, field: Field, rows: int) -> Callable[[Any], NDArray[Any]]:
    """Returns a function that makes values an array [rows, *shape] of the field; reshapes values of the right size."""
    dtype, whole = field.numpy, Field((rows, *field.shape), field.dtype)
    shape, size = whole.shape, math.prod(whole.shape)

    def check(value: Any) -> NDArray[Any]:
        if value.__class__ is np.ndarray and value.shape == shape and value.dtype == dtype:
            return value
        array: NDArray[Any] = np.asarray(value)
        if array.shape != shape and array.size == size:
            array = array.reshape(shape)
        return as_field(label, whole, array)

    return check


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
