"""Evaluates the policies of a live run, or of a run's directory."""

import os
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ..checks import brief, check_whole
from ..envs import factory, vectorize
from ..envs.joint import JointObservations
from ..envs.team import Teams
from ..loops import Evaluation, Player, ScriptedPlayer, play
from ..references import is_importable, resolve
from .loaded_policy import LoadedPolicy, SavedRun
from .mixed_player import MixedPlayer


class Bot(Protocol):
    """A scripted player; its method `reset()`, if any, is called when an episode begins."""

    def act(self, obs: Any) -> Any: ...


@runtime_checkable
class LiveRun(Protocol):
    """A run that `start` returned."""

    env_fn: Callable[[], Any]

    @property
    def saved(self) -> SavedRun: ...

    def policy(self, name: str) -> LoadedPolicy: ...


Replacement: TypeAlias = LoadedPolicy | Bot | type[Bot] | Callable[[Any], Any] | str


def evaluate(
    run_or_dir: LiveRun | str | Path,
    episodes: int = 100,
    *,
    which: str | int = "last",
    envs: int = 8,
    seed: int = 0,
    explore: bool = False,
    policies: Mapping[str, Replacement] | None = None,
    env_fn: Callable[[], Any] | str | None = None,
    trust: bool = False,
    watch: Callable[[int], object] = lambda ended: None,
) -> Evaluation:
    """Plays whole episodes with a run's policies, greedily; each agent acts by its policy.

    Each copy of the environment contributes its first episodes, the same number for all copies, so that short episodes
    are not favoured.

    A run's directory is code: its environment and algorithm are unpickled, which can execute anything. So a run that
    another user could have changed is refused. See docs/security.md.

    Args:
        run_or_dir: a run that `start` returned, or a run's directory; the run may still be training.
        episodes: the number of episodes.
        which: "last": the newest published weights of a `Run`, or the last checkpoints of a directory; "best": the
            best checkpoints by the run's evaluations; or the step of a kept checkpoint.
        envs: the number of environment copies.
        seed: the same seed plays the same episodes.
        explore: act as actors do with these weights, instead of greedily.
        policies: replacements, by name of a policy or an agent: a policy of `load_policy`; a script, which is a
            function of an observation, or a class or object with a method `act(obs)` (each environment copy gets its
            own object); module:name of a script; or the directory of a run, whose policy of that name or agent acts by
            its last checkpoint. A script gets the mask of the allowed actions, if any, as obs["action_mask"] beside
            obs["observation"]; its method `reset()`, if any, is called when an episode begins.
        env_fn: makes the environments, to which the run's teams apply; by default the run's own function.
        trust: also load a directory that another user could have changed.
        watch: called after each round of steps with the number of episodes that have ended, to show progress.

    Raises: ValueError, TypeError: the input is bad, the run is not trusted, or its environment function could not be
        pickled. EnvironmentFailed: the environment raised an error. Errors that a script raises are passed on.
    """
    for label, value in {"episodes": episodes, "envs": envs}.items():
        check_whole(label, value)
    check_whole("seed", seed, 0)
    run = EvaluatedRun(run_or_dir, str(which), policies or {}, env_fn, trust)
    with closing(vectorize(run.env_fn, min(envs, episodes))) as env:
        seeds = np.random.SeedSequence([seed, *b"players"]).generate_state(len(env.agents))  # unlike the copies' seeds
        pairs = zip(env.agents, seeds.tolist(), strict=True)
        players = {agent: run.player(agent, env.copies, child, explore) for agent, child in pairs}
        outcome = play(env, players, episodes, seed, watch=watch)
    assert outcome is not None
    return outcome


class EvaluatedRun:
    """Holds a run's environment function and policies; arguments and errors are those of `evaluate`."""

    def __init__(
        self,
        run_or_dir: LiveRun | str | Path,
        which: str | int = "last",
        policies: Mapping[str, Replacement] | None = None,
        env_fn: Callable[[], Any] | str | None = None,
        trust: bool = False,
    ) -> None:
        live = run_or_dir if isinstance(run_or_dir, LiveRun) else None
        saved = run_or_dir.saved if isinstance(run_or_dir, LiveRun) else SavedRun.of(run_or_dir, trust=trust)
        run = live or saved
        self.env_fn = factory(run.env_fn) if env_fn is None else _as_seen(run, factory(env_fn))
        load = live.policy if live and which == "last" else partial(saved.policy, which=which)
        self._load: Callable[[str], LoadedPolicy] = cache(load)
        # In a league, all policies play every agent; the first policy acts here.
        self._policy_of = {agent: policy for policy in reversed(saved.policies) for agent in policy.agents}
        self._named = self._policy_of | {policy.name: policy for policy in self._policy_of.values()}
        self._instead = {name: self._checked(name, player, trust) for name, player in (policies or {}).items()}

    def player(self, agent: str, copies: int, seed: int, explore: bool = False) -> Player:
        """Makes a player for an agent; see `LoadedPolicy.player`. Raises ValueError if the run has no such agent."""
        if agent not in self._policy_of:
            raise ValueError(f"env_fn: expected the agents {sorted(self._policy_of)}, got {agent!r}")
        policy = self._policy_of[agent]
        chosen = self._instead.get(agent, self._instead.get(policy.name))
        if chosen is None:
            chosen = self._load(policy.name)
        if isinstance(chosen, LoadedPolicy | MixedPlayer):
            return chosen.player(copies, seed, explore)
        return ScriptedPlayer(f"policies[{agent!r}]", chosen, policy.spaces, copies, policy.hides_joint)

    def _checked(self, name: str, player: Any, trust: bool) -> Any:
        """Resolves and checks a replacement for `name`, an agent or a policy. Raises ValueError or TypeError."""
        label = f"policies[{brief(name)}]"
        if name not in self._named:
            raise ValueError(f"policies: expected names among {sorted(self._named)}, got {brief(name)}")
        if isinstance(player, str):
            if is_importable(player):
                player = resolve(label, player)
            elif os.path.isdir(player):
                player = SavedRun.of(player, trust=trust).policy(name)
            else:
                raise ValueError(f"{label}: expected module:name or the directory of a run, got {brief(player)}")
        spaces = self._named[name].spaces
        if not isinstance(player, LoadedPolicy | MixedPlayer):
            ScriptedPlayer(label, player, spaces, 1)  # it checks the script
        elif replace(player.spaces, stack=1) != replace(spaces, stack=1):
            raise ValueError(f"{label}: expected a policy for {spaces}, got one for {player.spaces}")
        return player


def _as_seen(run: LiveRun | SavedRun, env_fn: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a function that makes the caller's environments with the run's teams and joint observations."""
    with suppress(ValueError):  # raised if the run's function was not pickled, so that its teams are unknown
        return wrapped(run.env_fn, env_fn)
    return env_fn


def wrapped(made: Any, env_fn: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a function that makes the environments of `env_fn` with the teams and joint observations of `made`."""
    if isinstance(made, JointObservations) or (isinstance(made, Teams) and not isinstance(env_fn, Teams)):
        return replace(made, env_fn=wrapped(made.env_fn, env_fn))
    return env_fn
