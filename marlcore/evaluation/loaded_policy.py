"""Trained policies for use outside a run, read from a run's directory or from a live run's shared memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..checks import brief, check_finite
from ..config import AssignedPolicy, Config, compiled_of, hides_joint, numbers_at, schedules_of
from ..envs import NamedEnvironment
from ..envs.agent_view import AgentView, fault_of
from ..errors import TimedOut
from ..fixed import fixed
from ..interfaces import Action, Algorithm, CompiledPolicy
from ..loops import ActingPolicy, Network, PolicyModel, TorchNetwork, build_model, exploration_of
from ..memory import SegmentHandle
from ..observations import ALONE, Pad, Values, by_name, in_form
from ..processes import dumps
from ..record import (
    UNPICKLED,
    WEIGHTS,
    checkpoint_path,
    described_policies,
    load_checkpoint,
    open_run,
    read_sealed,
    saved_checkpoints,
    write_policies,
    write_sealed,
)
from ..spaces import JOINT, MASK, Spaces
from ..spec import Field, as_field
from ..unpickling import unpickled
from ..weights import ParameterStore
from .export import export_policy

FIRST_WEIGHTS_S = 60.0
PICKLED = "checkpoints/run.pickle"
_ALWAYS, _CRITICS = 2**26, 100  # allowed bytes of a network: always, and per byte of a checkpoint without critics


@fixed()
@dataclass(eq=False, repr=False)
class LoadedPolicy:
    """A trained policy that acts greedily in one environment or in several.

    `load_policy` and `Run.policy` return it. Each call acts with the run's number of torch threads, `learner.threads`
    (1 by default), and then restores the program's number.

    Attributes:
        spaces: the spaces of the policy's agents.
    """

    _algorithm: Algorithm
    _model: PolicyModel
    spaces: Spaces
    _pad: Pad
    _numbers: Mapping[str, float]  # exploration parameters published with these weights
    _threads: int = 1
    _compiled: CompiledPolicy | None = None  # acts instead of the model, by the same weights

    def __post_init__(self) -> None:
        self.reset()

    def reset(self, ended: Any = None) -> None:
        """Begins an episode: clears the stack of observations and the recurrent state.

        Args:
            ended: bool [B], the environments of a batch in which a new episode begins; None: all.
        """
        if ended is None:
            self._player = self.player(1)
            self._begins = np.ones(1, np.bool_)
        else:
            self._begins |= as_field("ended", Field(self._begins.shape, "bool"), ended)

    def act(self, obs: Any, mask: Any = None, reward: Any = 0.0) -> int | NDArray[Any]:
        """Returns the action for an observation, as the environment's `step` takes it: an int for a Discrete.

        For a batch of observations, whose arrays have a leading axis [B, ...], returns actions [B, ...]. A policy with
        a recurrent state or a stack keeps one for each of the B environments, so B may change only at a `reset`.

        Args:
            obs: an observation of the space: an array, or a dict or tuple of arrays; it includes the mask of allowed
                actions if the environment puts the mask there.
            mask: the mask of allowed actions if the environment gives it elsewhere: [choices], or [B, choices].
            reward: the reward of the previous action, a float or [B]; some recurrent policies take it as an input.
                Ignored where an episode begins.

        Raises: ValueError, TypeError: the observation is not of the space, or the reward is not finite. Floats need
            only be finite, as in training: values beyond a Box's bounds are accepted.
        """
        values, rows, alone = _as_rows(self.spaces, obs, mask, hides_joint(self._algorithm, self.spaces))
        rewards = as_field("reward", Field((rows,), "float64"), reward if np.ndim(reward) else np.full(rows, reward))
        check_finite("reward", rewards)
        if rows != len(self._begins):
            if self._player.remembers and not self._begins.all():
                raise ValueError(f"obs: expected {len(self._begins)} observations until a reset, got {rows}")
            self._player, self._begins = self.player(rows), np.ones(rows, np.bool_)
        self._player.reward(rewards, slice(None))
        chosen = self._player.choose(values, slice(None), self._begins)
        self._begins = np.zeros(rows, np.bool_)
        actions = self.spaces.shifted(chosen.action)
        action = actions[0] if alone else actions
        return int(action) if action.ndim == 0 and action.dtype.kind in "iu" else np.asarray(action)

    def player(self, copies: int, seed: int = 0, explore: bool = False) -> ActingPolicy:
        """Makes a player that acts by the policy in several copies of the environment.

        Args:
            seed: seeds the algorithm's random draws.
            explore: act as actors do with these weights; otherwise greedily.
        """
        network: Network = self._compiled or self._of_torch
        generator, numbers = np.random.default_rng(seed), self._numbers if explore else None
        return ActingPolicy(network, self.spaces, copies, self._pad, generator, numbers)

    @property
    def _of_torch(self) -> TorchNetwork:
        return _WithThreads(self._algorithm, self._model, torch.device("cpu"), threads=self._threads)

    def export(self, path: str | Path) -> dict[str, NDArray[Any]]:
        """Writes the greedy policy as a program for other runtimes: ONNX to a file .onnx, TorchScript to a file .pt.

        Its inputs are arrays with a first axis B of any length: `obs`, or `obs_<name>` for each part of a Dict or
        Tuple, [B, *shape], or with a stack [B, stack, *shape], oldest first; `action_mask`, bool [B, choices], if
        there is a mask; and for recurrent policies `state_<name>`, float32 [B, ...], zeros where an episode begins.
        Its outputs are `action`, [B, ...], as the environment takes it, and `next_state_<name>`. If there is a
        `next_state_previous_reward`, set it to the action's reward before the next call. The program normalizes
        observations. A TorchScript program takes and returns a dict of tensors.

        Returns: example inputs of one row, by name, with the zero state.

        Raises: ValueError: the file has another ending or no directory, torch cannot export the user's network, or the
            algorithm is the user's own and has no method `greedy`. ImportError: a package that ONNX needs is not
            installed.
        """
        return export_policy(path, replace(self.player(1), network=self._of_torch))

    def __repr__(self) -> str:
        return f"<LoadedPolicy for {self.spaces.observation}, {self.spaces.action}>"


@dataclass(kw_only=True)
class _WithThreads(TorchNetwork):
    """Acts with `threads` torch threads: on a busy machine, several threads make small networks ten times slower."""

    threads: int

    def act(self, obs: Values, **given: Any) -> Action:
        threads_of_program = torch.get_num_threads()
        torch.set_num_threads(self.threads)  # takes a fraction of a microsecond
        try:
            return super().act(obs, **given)
        finally:
            torch.set_num_threads(threads_of_program)


def _as_rows(spaces: Spaces, obs: Any, mask: Any, joint: bool) -> tuple[Values, int, bool]:
    """Checks observations; returns them as rows [k, ...], the number k, and whether `obs` is a single observation."""
    if mask is None and spaces.masked and isinstance(obs, Mapping) and MASK in obs:
        obs, mask = obs[ALONE] if obs.keys() == {MASK, ALONE} else obs, obs[MASK]
    unseen = joint and not (isinstance(obs, Mapping) and {ALONE, JOINT} <= obs.keys())  # `obs` lacks the joint part
    part = next(part for part in spaces.parts if not (joint and part.name == JOINT))
    shape: tuple[int, ...] = ()
    with suppress(KeyError, IndexError, TypeError, ValueError):  # `Spaces.values` names the error
        shape = np.shape(part.of({ALONE: obs} if unseen else obs))
    lead = shape[:1] if len(shape) == len(part.field.shape) + 1 else ()  # of a batch
    if lead == (0,):
        raise ValueError("obs: expected at least one observation, got none")
    if unseen:
        obs = {ALONE: obs, JOINT: by_name(spaces.obs)[JOINT].zeros(*lead)}
    if mask is not None:
        if not spaces.masked:
            raise ValueError(f"mask: expected None, since the policy learned without masks, got {brief(mask)}")
        mask = AgentView("", spaces, "info", False).mask(mask, lead).astype(bool)
    label = "" if isinstance(spaces.obs, Mapping) else "obs"
    arrays, fields = by_name(spaces.values(obs, mask)), by_name(spaces.obs)
    wide = {name: Field((*lead, *field.shape), field.dtype) for name, field in fields.items()}
    parts = {name: as_field(label or name, wide[name], array) for name, array in arrays.items()}
    values = in_form(parts if lead else {name: part[None] for name, part in parts.items()}, spaces.obs)
    fault = fault_of(spaces, values, acting=True)
    if fault is not None:
        raise ValueError(fault[1])
    return values, lead[0] if lead else 1, not lead


@dataclass(frozen=True)
class SavedRun:
    """Holds the environment and policies saved in a run's directory; `of` reads them."""

    path: Path
    policies: tuple[AssignedPolicy, ...]
    config: Config
    pickled_env_fn: bytes | None = None  # None if it cannot be pickled
    described: bool = False  # read from policies.json, which is not trusted

    @classmethod
    def of(cls, run_dir: str | Path, *, trust: bool = False, weights_only: bool = False) -> SavedRun:
        """Reads a run's directory; see `load_policy`. Raises ValueError if it has no run of this version."""
        path = open_run(run_dir, WEIGHTS if weights_only else UNPICKLED, trust)
        if weights_only:
            return cls(path, *described_policies(path), described=True)
        try:
            saved = unpickled(read_sealed(path / PICKLED), apart=True)
            return cls(path, saved["policies"], saved["config"], saved["env_fn"])
        except Exception as error:  # unpickling may raise anything
            if isinstance(error, ImportError) and not (error.name or "marlcore").startswith("marlcore"):
                where = "load the run where this import works, such as in the directory where it was trained"
                raise ValueError(f"run_dir: {str(run_dir)!r} needs code not found here ({error}): {where}") from None
            expected = f"run_dir: expected a run's directory with {PICKLED}"
            pickled = (path / PICKLED).exists()
            inside = [] if pickled else sorted(each.parent.name for each in path.glob("*/config.json"))
            reason = f", which holds the runs {brief(inside)}" if inside else f" ({_reason(error)})"
            raise ValueError(f"{expected}, got {str(run_dir)!r}{reason}") from None

    @property
    def env_fn(self) -> Callable[[], Any]:
        """The function that makes environments. Raises ValueError if it was not pickled or cannot be unpickled."""
        reason = "it could not be pickled"
        if self.pickled_env_fn is not None:
            try:
                env_fn: Callable[[], Any] = unpickled(self.pickled_env_fn, apart=True)
                if isinstance(made_by := getattr(env_fn, "env_fn", env_fn), NamedEnvironment):  # within teams, if any
                    made_by.function()  # otherwise its failed import would seem to be the environment's
                return env_fn
            except Exception as error:  # unpickling may raise anything
                reason = f"{_reason(error)}; start where you trained, or set PYTHONPATH"
        raise ValueError(f"env_fn: {str(self.path)!r} has no environment function ({reason}); pass env_fn= or --env")

    def policy(self, name: str, which: str | int = "last") -> LoadedPolicy:
        assigned = named(name, self.policies)
        path = checkpoint_path(self.path, assigned.name, str(which))
        state = load_checkpoint(path)
        if not state:
            expected = f"which: expected one of the checkpoints of {assigned.name!r} in {path.parent}"
            there = saved_checkpoints(self.path, assigned.name)
            found = brief(there) if there else "but there are none yet"
            raise ValueError(f"{expected}, {found}, got {brief(which)}")
        if self.described:
            _check_claimed(assigned, self.config, path)
        model = build_model(assigned, self.config)
        model.restore(state)
        schedules = schedules_of(assigned.algorithm, self.config.of(assigned.name))
        numbers = numbers_at(schedules, int(state.get("step", 0)), int(state.get("updates", 0)))
        return _loaded(assigned, model.acting, self.config, numbers)


def _check_claimed(policy: AssignedPolicy, config: Config, path: Path) -> None:
    """Raises ValueError if a network, which is not yet allocated, would be far larger than its checkpoint."""
    with torch.device("meta"):
        tensors = build_model(policy, config).whole.state_dict().values()
    claimed, stored = sum(tensor.nbytes for tensor in tensors), path.stat().st_size
    if claimed > max(_ALWAYS, _CRITICS * stored):
        expected = f"weights_only: expected a network of the size of its checkpoint, {stored:,} bytes"
        raise ValueError(f"{expected}, got a network of {claimed:,} bytes for {str(path)!r}")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def load_policy(
    run_dir: str | Path, name: str, which: str | int = "last", *, trust: bool = False, weights_only: bool = False
) -> LoadedPolicy:
    """Loads a policy from a run's checkpoint.

    A run's directory is code: its algorithm is unpickled, which can execute anything. So a run that another user could
    have changed is refused. See docs/security.md.

    Args:
        run_dir: the run's directory; the run may still be training.
        name: the policy's name, or the name of one of its agents.
        which: "last"; "best", by the run's evaluations; or the step count of a kept checkpoint.
        trust: also load a run that another user could have changed.
        weights_only: neither unpickle nor import anything of the run, so that any run may be loaded. This works only
            for built-in algorithms, and leaves out exploration schedules that are functions.

    Raises: ValueError: there is no such run, policy or checkpoint, or the run is not trusted.
    """
    saved = SavedRun.of(run_dir, trust=trust, weights_only=weights_only)
    try:
        return saved.policy(name, which)
    except (KeyError, MemoryError, OSError, OverflowError, RuntimeError, TypeError) as error:
        if not weights_only:
            raise
        expected = "weights_only: expected a policy and weights that fit it"
        raise ValueError(f"{expected}, got {str(run_dir)!r} ({brief(error)})") from None


def published_policy(policy: AssignedPolicy, weights: SegmentHandle, config: Config) -> LoadedPolicy:
    """Returns a policy with the newest weights of a live run; see `Run.policy`."""
    model = build_model(policy, config)
    with ParameterStore.attach(weights) as store:
        subscriber = store.subscriber(model.acting)
        if not subscriber.wait(newer_than=0, timeout=FIRST_WEIGHTS_S) or not subscriber.pull():
            raise TimedOut(f"policy: {policy.name} has published no weights after {FIRST_WEIGHTS_S:g} seconds")
        numbers = exploration_of(subscriber.extras)
    return _loaded(policy, model.acting, config, numbers)


def _loaded(policy: AssignedPolicy, model: PolicyModel, config: Config, numbers: Mapping[str, float]) -> LoadedPolicy:
    compiled = compiled_of(policy, config)
    if compiled is not None:
        named = chain(model.named_parameters(), model.named_buffers())
        compiled.load({name: tensor.numpy(force=True) for name, tensor in named})
    given = policy.spaces, config.replay.pad, numbers, config.learner.threads, compiled
    return LoadedPolicy(policy.algorithm, model, *given)


def save_policies(
    run_dir: Path, env_fn: Callable[[], Any], policies: tuple[AssignedPolicy, ...], config: Config
) -> None:
    """Saves the files that `SavedRun` reads, without the environment function if it cannot be pickled."""
    try:
        pickled = dumps(env_fn, for_file=True)  # separately, since policies can act without it
    except Exception:  # pickling may raise anything; a run in serial mode works without a pickle
        pickled = None
    write_policies(run_dir, policies, config)
    policies = tuple(replace(policy, compiled=None) for policy in policies)  # compiled forms change between versions
    write_sealed(run_dir / PICKLED, dumps({"env_fn": pickled, "policies": policies, "config": config}, for_file=True))


def named(name: str, policies: Any) -> Any:
    """Returns the policy with this name, or with an agent of this name. Raises ValueError if there is none."""
    agents = {agent: policy for policy in reversed(policies) for agent in policy.agents}  # in a league: the first
    named = agents | {policy.name: policy for policy in policies}
    if not isinstance(name, str) or name not in named:
        raise ValueError(f"policy: expected one of {sorted(named)}, got {brief(name)}")
    return named[name]
