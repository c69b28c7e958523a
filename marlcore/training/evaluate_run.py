"""Evaluating the policies of a run: of its directory, or of one that goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import check_whole
from ..envs import factory, vectorize
from .episodes import play
from .evaluation import Evaluation
from .loaded import LoadedPolicy, SavedRun
from .run import Run

__all__ = ["EvaluatedRun", "evaluate"]


def evaluate(
    run_or_dir: Run | str | Path,
    episodes: int = 100,
    *,
    which: str | int = "last",
    envs: int = 8,
    seed: int = 0,
    explore: bool = False,
    policies: Mapping[str, LoadedPolicy] | None = None,
    env_fn: Callable[[], Any] | str | None = None,
    trust: bool = False,
) -> Evaluation:
    """Plays whole episodes with a run's policies, greedily; each agent acts by its policy.

    In each copy of the environment the first episodes count, equally many in each, so that short episodes are not
    favoured.

    A run's directory is code: its environment and algorithm are unpickled, which can execute anything. So a run that
    another user could have changed is refused. See docs/security.md.

    Args:
        run_or_dir: a run that `start` made, or a run's directory; either may still go on.
        episodes: how many.
        which: the weights: "last", the newest published ones of a `Run`, the last checkpoints of a directory; "best",
            by the run's evaluations; or the step of a kept checkpoint.
        envs: copies of the environment.
        seed: the same seed plays the same episodes.
        explore: as actors do with these weights, instead of greedily.
        policies: by name of a policy or an agent, others to act instead.
        env_fn: makes environments; by default as the run does.
        trust: also load a directory that another user could have changed.

    Raises:
        ValueError, TypeError: bad input, the run is not trusted, or its environment function could not be pickled, in
            one line.
        EnvironmentFailed: the environment raised.
    """
    for label, value in {"episodes": episodes, "envs": envs}.items():
        check_whole(label, value)
    check_whole("seed", seed, 0)
    run = EvaluatedRun(run_or_dir, str(which), policies or {}, env_fn, trust)
    with closing(vectorize(run.env_fn, min(envs, episodes))) as env:
        players = {
            agent: run.policy(agent).player(env.copies, child, explore)
            for agent, child in zip(env.agents, _seeds(seed, len(env.agents)), strict=True)
        }
        outcome = play(env, players, episodes, seed)
    assert outcome is not None
    return outcome


class EvaluatedRun:
    """The environment and the policies of a run to evaluate; arguments as those of `evaluate`.

    Attributes:
        env_fn: makes environments.

    Raises: ValueError, TypeError: bad input, in one line.
    """

    def __init__(
        self,
        run_or_dir: Run | str | Path,
        which: str = "last",
        policies: Mapping[str, LoadedPolicy] | None = None,
        env_fn: Callable[[], Any] | str | None = None,
        trust: bool = False,
    ) -> None:
        live = run_or_dir if isinstance(run_or_dir, Run) else None
        self._saved = run_or_dir.saved if isinstance(run_or_dir, Run) else SavedRun.of(run_or_dir, trust=trust)
        self._load = live.policy if live is not None and which == "last" else self._from_checkpoint
        self._which = which
        self._loaded: dict[str, LoadedPolicy] = {}
        self._policy_of = {agent: policy.name for policy in self._saved.policies for agent in policy.agents}
        self._given = policies or {}
        for name, policy in self._given.items():
            if name not in self._policy_of and name not in self._policy_of.values():
                known = sorted({*self._policy_of, *self._policy_of.values()})
                raise ValueError(f"policies: expected names among {known}, got {name!r}")
            if not isinstance(policy, LoadedPolicy):
                raise TypeError(f"policies: expected a policy that load_policy returned for {name}, got {policy!r}")
            own = next(one for one in self._saved.policies if name == one.name or name in one.agents).spaces
            if replace(policy.spaces, stack=1) != replace(own, stack=1):
                raise ValueError(f"policies: expected a policy for {own} for {name}, got one for {policy.spaces}")
        if env_fn is not None:
            self.env_fn = factory(env_fn)
        else:
            self.env_fn = live.env_fn if live is not None else self._saved.env_fn

    def policy(self, agent: str) -> LoadedPolicy:
        """The policy of an agent, loaded once for all of its agents. Raises ValueError: there is none."""
        if agent not in self._policy_of:
            raise ValueError(f"env_fn: expected the agents {sorted(self._policy_of)}, got {agent!r}")
        name = self._policy_of[agent]
        given = self._given.get(agent, self._given.get(name))
        if given is not None:
            return given
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _from_checkpoint(self, name: str) -> LoadedPolicy:
        return self._saved.policy(name, self._which)


def _seeds(seed: int, count: int) -> list[int]:
    return [int(child.generate_state(1)[0]) for child in np.random.SeedSequence(seed).spawn(count)]
