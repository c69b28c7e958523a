"""cpprb's `train`: the loop of an agent, an environment and a buffer in one process."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...checks import is_number
from ...declared import Whole
from ..ring import whole_number
from .base import RingBuffer
from .prioritized import PrioritizedBuffer

_log = logging.getLogger("marlcore")

Transition = Mapping[str, Any]


def train(
    buffer: RingBuffer,
    env: Any,
    get_action: Callable[[Any, int, int, bool], Any],
    update_policy: Callable[[dict[str, Any], int, int], Any],
    *,
    max_steps: int = 1_000_000,
    max_episodes: int | None = None,
    batch_size: int = 64,
    n_warmups: int = 0,
    after_step: Callable[[Any, Any, Any, int, int], Transition] | None = None,
    done_check: Callable[[Transition], Any] | None = None,
    obs_update: Callable[[Transition], Any] | None = None,
    rew_sum: Callable[[float, Transition], float] | None = None,
    episode_callback: Callable[[int, int, float], Any] | None = None,
    logger: logging.Logger | None = None,
) -> None:
    """Steps the environment, adds each transition to the buffer, and updates the policy with one sample per step.

    Args:
        buffer: any buffer of this module. In a prioritized one, the result of `update_policy` sets the priorities.
        env: has Gymnasium's interface, or gym's, where `reset` returns only the observation and `step` four values.
        get_action: get_action(obs, step, episode, warming_up) returns the action.
        update_policy: update_policy(sample, step, episode) returns absolute TD errors, [batch_size] or one for all.
        max_steps, max_episodes: the loop ends at the first limit reached; None for any number of episodes.
        batch_size: rows of a sample.
        n_warmups: steps before the first update.
        after_step: after_step(obs, action, result of env.step, step, episode) returns the transition to add; by default
            its fields are obs, act, rew, next_obs and done, and done excludes truncation.
        done_check: done_check(transition) returns whether the episode is over: by default, if done or truncated.
        obs_update: obs_update(transition) returns the next observation; by default next_obs.
        rew_sum: rew_sum(return so far, transition) returns the episode's return; by default the sum.
        episode_callback: called with (episode, index of its last step, its return).
        logger: gets one line of level INFO per episode; the logger "marlcore" by default.

    Raises: ValueError: a number is out of range.
    """
    last_step = Whole(0, 2**64 - 2)("max_steps", max_steps)
    last_episode = whole_number("max_episodes", max_episodes, 0) if max_episodes is not None else 0
    whole_number("n_warmups", n_warmups, 0)
    log = logger or _log
    episode = length = 0
    total, started = 0.0, time.perf_counter()
    obs = _first_obs(env)
    for step in range(last_step):
        warming_up = step < n_warmups
        action = get_action(obs, step, episode, warming_up)
        outcome = env.step(action)
        truncated = after_step is None and len(outcome) == 5 and bool(outcome[3])  # gym's `done` includes it
        if after_step is not None:
            transition = after_step(obs, action, outcome, step, episode)
        else:
            next_obs, reward, done, *_ = outcome
            transition = {"obs": obs, "act": action, "rew": reward, "next_obs": next_obs, "done": done}
        buffer.add(**transition)
        if not warming_up and buffer.get_stored_size():  # Nstep may hold back the first steps
            sample = buffer.sample(batch_size)
            errors = update_policy(sample, step, episode)
            if isinstance(buffer, PrioritizedBuffer):
                each = np.full(len(sample["indexes"]), errors) if is_number(errors) else errors
                buffer.update_priorities(sample["indexes"], each)
        length += 1
        total = total + transition["rew"] if rew_sum is None else rew_sum(total, transition)
        if not (transition["done"] or truncated if done_check is None else done_check(transition)):
            obs = transition["next_obs"] if obs_update is None else obs_update(transition)
            continue
        rate = length / max(time.perf_counter() - started, 1e-9)
        log.info("episode %d: %d steps (%d in all), return %s, %.5g steps/s", episode, length, step + 1, total, rate)
        if episode_callback is not None:
            episode_callback(episode, length - 1, total)
        buffer.on_episode_end()
        episode += 1
        if episode == last_episode:
            return
        obs = _first_obs(env)
        length, total, started = 0, 0.0, time.perf_counter()


def _first_obs(env: Any) -> Any:
    begun = env.reset()
    gymnasium = isinstance(begun, tuple) and len(begun) == 2 and isinstance(begun[1], dict)
    return begun[0] if gymnasium else begun
