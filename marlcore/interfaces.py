"""The interfaces of environments, algorithms and trainers, as actors and learners use them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .checks import check_whole
from .observations import rows_at
from .spec import Sequence as Windows
from .spec import TransitionSpec

if TYPE_CHECKING:
    import gymnasium
    import torch

    from .observations import Values
    from .replay import Hindsight, Prioritized
    from .spaces import Spaces

PRIORITY = "priority"  # the extra in which a row stores the first priority that its actor computed
RETURN = "discounted_return"  # the extra for the discounted rewards of the episode so far, with learner.reward_norm
MEMBER_REWARDS = "member_rewards"  # the extra for the reward of each member of a team, and its key in the team's info
OF_OUTCOMES = (RETURN, MEMBER_REWARDS)  # the extras that the loop fills
PREVIOUS_REWARD = "previous_reward"  # the part of a recurrent state that the loop sets to the last action's reward


class Environment(Protocol):
    """One copy of an environment whose agents act one after another (PettingZoo's agent-environment cycle).

    In an episode, call `reset`; then, while `agent` is not None, read `last` and call `step` with that agent's action.
    An agent whose `last` is terminated or truncated gets one more turn, with the action None.
    """

    agents: tuple[str, ...]  # every agent that may ever act, in a fixed order
    observation_spaces: Mapping[str, gymnasium.Space]  # by agent
    action_spaces: Mapping[str, gymnasium.Space]  # by agent

    @property
    def agent(self) -> str | None:
        """The agent that acts next; None when the episode is over for all agents."""

    def reset(self, seed: int | None = None) -> None:
        """Begins an episode; a seed makes this episode and all later ones reproducible."""

    def last(self) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """Returns `agent`'s (observation, reward since its last action or reset, terminated, truncated, info).

        A reward before the agent's first action counts in the episode's return, but no row holds it. If actions are
        masked, the mask is `observation["action_mask"]`, beside `observation["observation"]`, or
        `info["action_mask"]`, needed only for the agent that acts next.
        """

    def step(self, action: Any) -> None:
        """Performs an action of `agent`: a value of its action space, or None if the agent's episode has ended."""

    def close(self) -> None:
        """Releases the environment's resources."""


class Outcome(NamedTuple):
    """The results of an agent's last actions in some copies of the environment.

    Attributes:
        copies: int64 [k], ascending: the numbers of the copies.
        reward: float [k], the agent's rewards since its last action.
        terminated, truncated: bool [k]: whether the agent's episode ended, and how.
        final_obs: the observations [k, ...] after these actions, valid only where the episode ended; None if no
            episode ended. A mask that is missing or allows no action is replaced by one that allows all. These
            arrays stay unchanged until the next `observe`.
        infos: pairs (copy, numbers by name) of the episodes that ended.
        member_rewards: for a team, [k, members]: the rewards of each member.
        acted: False if no action caused `reward`: the agent earned it before its first action or after its end, and
            the episode is over. The return includes this reward, but no row holds it. `terminated` and `truncated`
            are False.
    """

    agent: str
    copies: NDArray[np.int64]
    reward: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_obs: Values | None
    infos: Sequence[tuple[int, Mapping[str, float]]] = ()
    member_rewards: Sequence[Any] = ()
    acted: bool = True

    def part(self, which: NDArray[np.bool_]) -> Outcome:
        """Returns the results in the copies that `which`, bool [k], marks."""
        copies, ends = self.copies[which], (self.terminated[which], self.truncated[which])
        final_obs = None if self.final_obs is None else rows_at(self.final_obs, which)
        infos = [info for info in self.infos if info[0] in copies] if self.infos else ()
        of_members = [*compress(self.member_rewards, which)]
        return Outcome(self.agent, copies, self.reward[which], *ends, final_obs, infos, of_members, self.acted)


class Turn(NamedTuple):
    """An agent's observations in the copies in which it acts now.

    Attributes:
        copies: int64 [k], ascending: the numbers of the copies.
        obs: [k, ...] in the form of `Spaces.obs`, with the mask if there is one; unchanged until the turn's action or,
            with several copies, until the next `observe`.
        begins: bool [k], whether this is the agent's first turn of an episode.
        tags: by copy, the tags of episodes that begin, from the "tag" of the agent's info, if any; see
            ReplayConfig.mixture.
    """

    agent: str
    copies: NDArray[np.int64]
    obs: Values
    begins: NDArray[np.bool_]
    tags: Mapping[int, str] = {}

    def part(self, which: NDArray[np.bool_]) -> Turn:
        """Returns the turn in the copies that `which`, bool [k], marks."""
        return self._replace(copies=self.copies[which], obs=rows_at(self.obs, which), begins=self.begins[which])


class VectorEnvironment(Protocol):
    """Several copies of an environment, advanced together: the only form in which actors use environments.

    Call `observe`, then `act` once for each turn that it returned, and repeat. After an episode's end, a copy begins
    the next episode without a call. If it has a `state_space`, a Box, and a method `states()`, critics see
    the environment's state; see envs/joint_vector.py.

    Attributes:
        copies: the number of copies.
        agents: every agent that may ever act, in a fixed order.
        spaces: the mc.Spaces of each agent, by name.
        episodes: episodes that ended since `reset`, in all copies together.
        ended: int64 [copies], episodes that ended in each copy.
    """

    copies: int
    agents: tuple[str, ...]
    spaces: Mapping[str, Spaces]
    episodes: int
    ended: NDArray[np.int64]

    def reset(self, seed: int) -> None:
        """Begins an episode in every copy; the seed determines this episode and all later ones."""

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        """Returns the results of earlier actions, and the turns of the agents that act now.

        Each action has one outcome, which comes no later than the agent's next turn in that copy. Exception: if the
        episode ends for all agents before the environment reports the outcome, the action has none. A copy's outcomes
        in one call belong to one episode, which began in an earlier call. A copy has no turn if no agent acts in its
        next episode.

        Raises EnvironmentFailed if a copy raised, or returned a value outside its space.
        """

    def act(self, turn: Turn, action: NDArray[Any]) -> None:
        """Performs the actions [k, ...] of a turn. Raises EnvironmentFailed if a copy raised."""

    def close(self) -> None:
        """Releases the environment's resources."""


class Action(NamedTuple):
    """An algorithm's choices for k observations.

    Attributes:
        action: [k, ...], of the action space; in a Discrete or MultiDiscrete, actions count from 0.
        extras: [k, ...] by name, for the row: the extras of `Algorithm.transition`. Leave out an extra that has the
            name of a part of the state: rows store that part as it was before these observations.
        state: the recurrent state after these observations, [k, ...] by name; None without one.
        values: [k] by name, the input of `Algorithm.first_priority`; not stored.
    """

    action: NDArray[Any]
    extras: Mapping[str, NDArray[Any]] = {}
    state: Mapping[str, torch.Tensor] | None = None
    values: Mapping[str, NDArray[Any]] = {}


@dataclass(frozen=True, init=False)
class Update:
    """The result of an update.

    Attributes:
        metrics: detached scalars or floats, logged; at least "loss".
        priority: for prioritized replay, each row's new priority, float32 [B]: a detached tensor or an array; None
            changes no priority.
        updates: gradient steps made, at least 1; each of them counts as an update.
    """

    metrics: Mapping[str, torch.Tensor | float]
    priority: torch.Tensor | NDArray[np.float32] | None = None
    updates: int = 1

    def __init__(
        self, metrics: Mapping[str, torch.Tensor | float], priority: torch.Tensor | NDArray[np.float32] | None = None,
        updates: int = 1,
    ) -> None:  # fmt: skip
        fields = vars(self)  # takes half the time of a frozen dataclass's own __init__
        fields["metrics"], fields["priority"], fields["updates"] = metrics, priority, updates


class Trainer(Protocol):
    """The learning half of an algorithm, for one policy."""

    def update(self, batch: Any) -> Update:
        """Learns from a batch.

        Args:
            batch: B transitions as returned by `Batch.torch`, on the network's device: `obs` and `next_obs` in the
                network's input shape (a dict of tensors if the observation has several parts or a mask), `action`
                [B, ...], `reward` float32 [B] (the discounted n-step sum), `discount` float32 [B] of `next_obs`, 0
                where the episode terminated, `weight` float32 [B], 1 by default, `extras` by name. From a queue also
                `continues` bool [B]: whether the next row is the episode's next transition. `numbers`: the scheduled
                numbers by name, as last published, with the run's "step" and "stage" (0 without `Config.stages`) and
                the policy's "updates" at that time. With `learner.reward_norm` also `raw_reward`: the rewards before
                the normalization.
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that resuming needs beside the network, such as the optimizer's, as tensors and scalars."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`."""


@dataclass(frozen=True)
class ReplaySource:
    """How a learner samples its replay; the arguments of `ReplayBuffer.sampler`.

    Attributes:
        n_step: rewards in each return.
        prioritized: draws in proportion to priorities; None draws uniformly.
        sequence: draws windows of consecutive transitions; None draws single ones.
        hindsight: replaces goals of rows; None keeps all goals.
    """

    n_step: int = 1
    prioritized: Prioritized | None = None
    sequence: Windows | None = None
    hindsight: Hindsight | None = None


@dataclass(frozen=True)
class QueueSource:
    """How an on-policy learner reads its queue: each transition once, in the order of writing.

    Each update uses one batch, and its weights are published at once. In serial mode the actors wait for the update,
    so that transitions come from the newest weights; in async mode they continue, at most `ahead` batches ahead.

    Attributes:
        batch_size: transitions of a batch, over all agents and copies of the policy; unrolls if `length` is given.
        length: transitions of an unroll; None reads consecutive single transitions from each lane.
        ahead: number of unread batches at which actors wait.
    """

    batch_size: int
    length: int | None = None
    ahead: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "ahead", *(["length"] if self.length is not None else [])):
            check_whole(f"source {name}", getattr(self, name))


class CompiledPolicy(Protocol):
    """A form of an algorithm's policy that acts without torch; it is picklable, and has no weights until `load`.

    Its methods make the same random draws in the same order as the algorithm's, and so choose the same actions.

    Attributes:
        weights: the arrays given to `load`.
    """

    weights: Mapping[str, Any]

    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Takes the published tensors by name, after each pull; the arrays stay unchanged until the next `load`."""

    def act(
        self, obs: Any, *, explore: Mapping[str, Any] | None, mask: NDArray[np.bool_] | None,
        generator: np.random.Generator,
    ) -> Action:  # fmt: skip
        """Does `Algorithm.act` on arrays; normalizes observations by the published mean and variance."""

    def first_priority(
        self, before: Mapping[str, NDArray[Any]], reward: NDArray[Any], discount: float,
        after: Mapping[str, NDArray[Any]],
    ) -> NDArray[np.float32]:  # fmt: skip
        """See `Algorithm.first_priority`; takes the environment's rewards, not normalized. By default returns NaN."""
        return np.full(len(reward), np.nan, np.float32)


class Algorithm(Protocol):
    """Hyperparameters, with functions that make the model, choose actions and make the trainer.

    Each policy has its own model: the policy's learner trains the model, and its actors use copies of it. So
    an algorithm keeps no state. Derive from this class to get `transition`, `source` and `schedules` by default.
    Preferably write a frozen dataclass in a module: then `marlcore train --algo module:Class` offers its fields as
    options, and `--resume` can import it again. Example: examples/custom_algorithm.py.

    `LoadedPolicy.export` needs one more method, `greedy(model, obs, state, mask)`. It uses only torch's operations, and
    returns the pair (actions [k, ...], next state or None) that `act` gives for these arguments without exploration.
    """

    wants_joint: ClassVar[bool] = False  # observations have a part "joint_observation" for critics; see envs/joint.py
    wants_team: ClassVar[bool] = False  # agents are teams, by default one team of all; see envs/team.py

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """Returns a row's fields; by default no extras. Raises ValueError if the algorithm cannot use these spaces."""
        return TransitionSpec(obs=spaces.obs, action=spaces.action_field)

    def source(self, chosen: ReplaySource) -> ReplaySource | QueueSource:
        """Returns how the learner samples its replay or reads its queue; by default `chosen`, as configured."""
        return chosen

    def schedules(self) -> Mapping[str, Any]:
        """Returns further numbers for `explore`, or other defaults for configured numbers; by default none.

        Learners publish these numbers with the weights; trainers find them in the batch's `numbers`, beside step and
        stage.

        The values, by name, are numbers, or schedules in the form of the configuration's `exploration.schedules`;
        configured ones take precedence.
        """
        return {}

    @abstractmethod
    def make_model(self, spaces: Spaces) -> torch.nn.Module:
        """Makes an untrained model, on the CPU. Its attribute `acting`, if it has one, is the part that actors need.

        Its inputs are observations in the shapes and dtypes of `spaces.obs`, not scaled: [B, *shape], or
        [B, stack, *shape] when spaces.stack > 1; a dict of these if the observation has several parts or a mask.
        """

    def compiled(self, spaces: Spaces, settings: Any) -> CompiledPolicy | None:
        """Returns the policy's form that acts without torch; by default None: actors then call `act`.

        `settings` is the policy's `LearnerConfig`, whose `obs_norm` and `reward_norm` add published tensors.
        """
        return None

    @abstractmethod
    def act(
        self,
        model: torch.nn.Module,
        obs: Any,
        *,
        explore: Mapping[str, Any] | None,
        state: Mapping[str, torch.Tensor] | None,
        mask: torch.Tensor | None,
        generator: np.random.Generator,
    ) -> Action:
        """Chooses actions for k observations.

        Args:
            model: the model's acting part.
            obs: the model's input, on its device.
            explore: the scheduled numbers of exploration, such as "epsilon": a float, or float64 [k]; None acts
                greedily.
            state: the recurrent state, with zeros for new episodes; None in the first call, and for models without a
                state. A part named "previous_reward", float32 [k], already holds the last action's reward.
            mask: bool [k, actions], which actions are allowed; None allows all.
            generator: the actor's own random generator, seeded, so that its draws can be repeated.
        """

    def first_priority(
        self,
        before: Mapping[str, NDArray[Any]],
        reward: NDArray[Any],
        discount: float,
        after: Mapping[str, NDArray[Any]],
    ) -> NDArray[np.float32]:
        """Returns first priorities [k] of transitions; actors store them if rows have an extra "priority".

        Args:
            before, after: `Action.values` of the observation acted on, and of the next observation; `after` is 0 where
                the episode terminated, and NaN where it was truncated.
            reward: [k], the rewards.
            discount: the discount of one step.

        Returns: priorities of at least 0; NaN, the default, means the highest priority so far.
        """
        return np.full(len(reward), np.nan, np.float32)

    @abstractmethod
    def make_trainer(self, model: torch.nn.Module) -> Trainer:
        """Makes a trainer that updates `model` in place, on its device.

        The published tensors are already views of one flat tensor: change their values, do not replace them.
        """
