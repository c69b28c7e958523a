"""EMPO's two tabular functions with their names, signatures and results, computed by marlcore.planning.

    from marlcore.compat.empo import compute_human_policy_prior, get_dag_parallel
    WorldModel.get_dag_parallel = get_dag_parallel      # EMPO's class; EMPO itself is not needed

Differences from EMPO:

- Where some action profiles are impossible, an agent expects only the possible ones; EMPO raises an error there.
- Results are the same for any number of workers. A worker's exception is raised, never swallowed.
- `prior.values` and its parts are read-only mappings, which look up a value only on access.
"""

import os
import pickle
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import compress, product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ..declared import Declared, Number, Whole
from ..planning import AgentPolicies, Graph, backward_induction, build_graph

ARCHIVE = "vh_values.pkl"
Goal = Any
Values = Mapping[Hashable, Mapping[int, Mapping[Goal, Any]]]


def get_dag_parallel(world_model: Any, return_probabilities: bool = False, num_workers: int | None = None) -> Any:
    """Returns all states that the world model can reach, and their successors, as Python lists.

    Args:
        return_probabilities: also return the transitions.
        num_workers: processes; None: one for each processor. One process builds a small graph in any case.

    Returns: (states, state_to_idx, successors), or (states, state_to_idx, successors, transitions). successors[i] is
        the sorted list of the numbers of states[i]'s successors, all above i; transitions[i] has (action profile,
        probabilities, successor numbers) for each possible profile.

    Raises: see `marlcore.planning.build_graph`.
    """
    with build_graph(world_model, workers=num_workers, progress=False) as graph:
        states, index, successors, transitions = graph.to_lists()
    return (states, index, successors, transitions) if return_probabilities else (states, index, successors)


def compute_human_policy_prior(
    world_model: Any,
    human_agent_indices: Sequence[int],
    possible_goal_generator: Any = None,
    believed_others_policy: Callable[[Any, int, int], Sequence[tuple[float, Any]]] | None = None,
    *,
    beta_h: float = 10.0,
    gamma_h: float | None = None,
    rho_h: float | None = None,
    parallel: bool = False,
    num_workers: int | None = None,
    level_fct: Callable[[Any], int] | None = None,
    return_Vh: bool = False,  # noqa: N803
    optimistic: bool = False,
    use_float16: bool = True,
    quiet: bool = False,
    progress_callback: Callable[[int, int], None] | None = None,
    return_attainment_cache: bool = False,
    use_attainment_cache: bool = True,
    archive_dir: str | None = None,
    min_free_memory_fraction: float = 0.1,
    memory_check_interval: int = 100,
    memory_pause_duration: float = 60.0,
    memory_profile: bool = False,
    use_disk_slicing: bool = False,
    disk_cache_dir: str | None = None,
    use_compression: bool = False,
) -> Any:
    """Computes goal-conditioned Boltzmann policies of the human agents; all other agents are robots.

    Args:
        possible_goal_generator: its `generate(state, agent_index)` returns (goal, weight) pairs, and
            `goal.is_achieved(state)` returns 0 or 1; by default `world_model.possible_goal_generator`.
        believed_others_policy: (state, agent_index, action) -> (probability, action profile) pairs; by default the
            other humans act at random.
        gamma_h, rho_h: the discount of a duration of 1, or its rate -ln(gamma_h); at most one of them. With a discount,
            the durations are the world model's `transition_durations(state, actions, transitions)`, if it has them.
        parallel, num_workers: computes in `num_workers` processes if `parallel`, otherwise in one.
        level_fct: see `marlcore.planning.build_graph`.
        return_Vh: also return the values, by state, agent and goal.
        optimistic: expect the best of the robots instead of the worst.
        use_float16: round the transitions' probabilities to float16; without a discount, also round sums, as NumPy 2
            does in EMPO. Values are always stored as float16, and policies as float64.
        progress_callback: called with (states done, all states).
        return_attainment_cache: also return an `AttainmentCache`, or None without `use_attainment_cache`.
        archive_dir: the directory, made if missing, for the file `vh_values.pkl` with the values by level. EMPO's
            `load_archived_value_slices` reads it. An earlier file is replaced; EMPO appends to it.
        min_free_memory_fraction: see `marlcore.planning.build_graph`; raises NotEnoughMemory, where EMPO pauses.
        memory_check_interval, memory_pause_duration, memory_profile: no effect; memory is checked four times a second
            while states are enumerated, and nothing pauses or is profiled.
        use_disk_slicing, disk_cache_dir, use_compression: no effect; a graph takes about 570 bytes a state, in arrays
            that are not sliced. As in EMPO, slicing needs `level_fct`.

    Returns: the prior, or a tuple of the prior and the values or cache that were asked for.

    Raises: see `marlcore.planning.backward_induction`. ValueError: there is no goal generator, or a keyword's value is
        wrong. NotEnoughMemory: see `min_free_memory_fraction`. OSError: the archive cannot be written.
    """
    _Keywords(
        return_Vh, return_attainment_cache, use_attainment_cache, archive_dir, memory_check_interval,
        memory_pause_duration, memory_profile, use_disk_slicing, disk_cache_dir, use_compression,
    )  # fmt: skip
    if use_disk_slicing and level_fct is None:
        raise ValueError("level_fct: expected a function for use_disk_slicing, got None")
    of_model = getattr(world_model, "possible_goal_generator", None)
    if (generator := of_model if possible_goal_generator is None else possible_goal_generator) is None:
        raise ValueError("possible_goal_generator: expected a generator here or in world_model, got None")
    workers = num_workers if parallel else 1
    if archive_dir is not None:
        Path(archive_dir).mkdir(parents=True, exist_ok=True)
    undiscounted = gamma_h in (None, 1.0) and rho_h in (None, 0.0)
    has_durations = hasattr(world_model, "transition_durations")
    with build_graph(
        world_model, workers=workers, progress=not quiet, level_fct=level_fct,
        min_free_memory_fraction=min_free_memory_fraction,
    ) as graph:  # fmt: skip
        humans = [int(agent) for agent in human_agent_indices]
        if use_float16 and graph.probability is not None:
            graph.probability = _rounded(graph.probability)
        with backward_induction(
            graph, generator.generate, humans,
            robots=[agent for agent in range(graph.agents) if agent not in humans],
            optimistic=optimistic, believed=believed_others_policy, beta=beta_h, gamma=gamma_h, rho=rho_h,
            durations=partial(_durations, world_model, use_float16) if has_durations else None,
            dtype="float16", policy_dtype="float64", sums="float16" if use_float16 and undiscounted else "float64",
            workers=workers, progress=progress_callback,
        ) as policies:  # fmt: skip
            arrays = {agent: policies[agent] for agent in humans}  # the arrays keep the memory when its name is gone
        acting = np.diff(graph.row_start) > 0
        policies_by, values_by = (
            _ByState(graph.states, graph.index, acting | values, arrays, values) for values in (False, True)
        )
        if archive_dir is not None:
            _archive(Path(archive_dir) / ARCHIVE, graph, values_by)
        cache = AttainmentCache(graph.profiles, graph.row_start, graph.profile, graph.start, graph.successor, arrays)
    prior = TabularHumanPolicyPrior(world_model, humans, generator, policies_by)
    results = [prior, *[values_by] * return_Vh, *[cache if use_attainment_cache else None] * return_attainment_cache]
    return tuple(results) if len(results) > 1 else prior


def _rounded(probability: Any) -> NDArray[np.float64]:
    return np.asarray(probability, np.float16).astype(np.float64)


def _durations(
    world_model: Any, use_float16: bool, state: Any, profile: tuple[int, ...], outcomes: list[tuple[float, Any]]
) -> Any:
    if use_float16:
        outcomes = [(float(_rounded(probability)), successor) for probability, successor in outcomes]
    return world_model.transition_durations(state, [*profile], outcomes)


@dataclass(frozen=True)
class _Keywords(Declared):
    return_Vh: bool  # noqa: N815
    return_attainment_cache: bool
    use_attainment_cache: bool
    archive_dir: str | None
    memory_check_interval: Annotated[int, Whole(1)]
    memory_pause_duration: Annotated[float, Number(0)]
    memory_profile: bool
    use_disk_slicing: bool
    disk_cache_dir: str | None
    use_compression: bool


def _archive(path: Path, graph: Graph, values: "_ByState") -> None:
    """Writes a header, then the levels, successors first: for each state, a list of each agent's values by goal.

    The file appears whole; the next call removes a half-written file of a killed process.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    for left in path.parent.glob(f".{path.name}.*"):
        if not Path("/proc", left.suffix[1:]).exists():
            left.unlink(missing_ok=True)
    try:
        with open(aside, "wb") as file:
            for numbers in graph.levels:
                header = {"level_value": int(graph.level[numbers[0]]), "state_indices": numbers.tolist()}
                pickle.dump({**header, "num_states": len(numbers)}, file, protocol=5)
                for number in numbers:
                    its = values[graph.states[number]]
                    pickle.dump([{**its.get(agent, {})} for agent in range(graph.agents)], file, protocol=5)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


@dataclass(eq=False)
class AttainmentCache:
    """Says which successors achieve which goals, in place of EMPO's `SlicedAttainmentCache`; one slice has all states.

    `cache[state][profile]`, both by number, maps each goal to int8 [successors], in the order of the transitions.
    The cache reads and keeps the graph's arrays.
    """

    num_action_profiles: int
    row_start: NDArray[np.int64]
    profile: NDArray[np.int32]
    start: NDArray[np.int64]
    successor: NDArray[np.int32]
    arrays: dict[int, AgentPolicies]

    @cached_property
    def columns(self) -> dict[Goal, tuple[AgentPolicies, int]]:
        return {goal: (its, i) for its in self.arrays.values() for i, goal in enumerate(its.goals)}

    def get(self, state_index: int, action_profile_index: int, goal: Goal) -> NDArray[np.int8] | None:
        """Returns which successors achieve the goal; None if the profile is impossible or no state offers the goal."""
        low, high = self.row_start[[state_index, state_index + 1]]
        row = low + np.searchsorted(self.profile[low:high], action_profile_index)
        if row == high or self.profile[row] != action_profile_index or goal not in self.columns:
            return None
        its, i = self.columns[goal]
        return its.achieves(self.successor[self.start[row] : self.start[row + 1]], i)

    def get_slice(self, slice_id: object) -> "AttainmentCache":
        return self

    def num_states(self) -> int:
        return len(self.row_start) - 1

    def __contains__(self, state_index: int) -> bool:
        return 0 <= state_index < self.num_states()

    def __getitem__(self, state_index: int) -> list[dict[Goal, NDArray[np.int8]]]:
        return [
            {goal: its for goal in self.columns if (its := self.get(state_index, profile, goal)) is not None}
            for profile in range(self.num_action_profiles)
        ]


@dataclass(eq=False)
class TabularHumanPolicyPrior:
    """A callable prior: `prior(state, agent, goal)` is the probability of each action.

    Attributes:
        values: policies by state, agent and goal; terminal states have none.
        world_model, human_agent_indices, possible_goal_generator: as given. A pickle does not contain the world model.
    """

    world_model: Any
    human_agent_indices: list[int]
    possible_goal_generator: Any
    values: Values

    def __call__(self, state: Any, human_agent_index: int, possible_goal: Goal | None = None) -> NDArray[np.float64]:
        """Returns the probability of each action, float64 [actions]; without a goal, the weighted mean over goals.

        Raises: KeyError: the state is terminal or unknown, or does not offer the goal.
        """
        by_goal = self.values[state][human_agent_index]
        if possible_goal is not None:
            policy: NDArray[np.float64] = by_goal[possible_goal]
            return policy
        offers = [*self.possible_goal_generator.generate(state, human_agent_index)]
        total: NDArray[np.float64] = sum(weight * by_goal[goal] for goal, weight in offers)
        total /= sum(weight for _, weight in offers)
        return total

    def sample(self, state: Any, human_agent_index: int | None = None, possible_goal: Goal | None = None) -> Any:
        """Draws an agent's action by NumPy's global generator; without an agent, a list of all humans' actions."""
        if human_agent_index is None:
            if possible_goal is not None:
                raise ValueError("possible_goal: expected None where all humans' actions are drawn")
            return [self.sample(state, agent) for agent in self.human_agent_indices]
        p = self(state, human_agent_index, possible_goal)
        return int(np.random.choice(len(p), p=p / p.sum()))

    def profile_distribution(self, state: Any) -> list[tuple[float, list[int]]]:
        """Returns the humans' possible action profiles with their probabilities; humans act independently."""
        return self.profile_distribution_with_fixed_goal(state, None, None)

    def profile_distribution_with_fixed_goal(
        self, state: Any, human_agent_index: int | None, possible_goal: Goal
    ) -> list[tuple[float, list[int]]]:
        """As `profile_distribution`, but one human pursues the given goal."""
        goals = {human_agent_index: possible_goal}
        policies = [self(state, agent, goals.get(agent)) for agent in self.human_agent_indices]
        profiles = product(*(range(len(policy)) for policy in policies))
        every = ((float(np.prod([*map(np.take, policies, profile)])), [*profile]) for profile in profiles)
        return [(p, profile) for p, profile in every if p > 0.0]

    def set_world_model(self, world_model: Any) -> None:
        self.world_model = world_model

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "world_model": None}


@dataclass(eq=False)
class _ByGoal(Mapping[Goal, Any]):
    its: AgentPolicies
    columns: Mapping[Goal, int]
    state: int
    wants_values: bool

    def __getitem__(self, goal: Goal) -> Any:
        i = self.columns[goal]
        if not self.its.offers(self.state, i):
            raise KeyError(goal)
        return float(self.its.values[self.state, i]) if self.wants_values else self.its.policy[self.state, i].copy()

    def __iter__(self) -> Iterator[Goal]:
        return (self.its.goals[i] for i in self.its.on_offer(self.state))

    def __len__(self) -> int:
        return len(self.its.on_offer(self.state))


@dataclass(eq=False)
class _ByState(Mapping[Hashable, Any]):
    """Maps state, agent and goal, one after another, to a value or a policy; terminal states have no policies."""

    states: list[Any]
    index: dict[Any, int]
    has: NDArray[np.bool_]
    arrays: dict[int, AgentPolicies]
    wants_values: bool

    @cached_property
    def columns(self) -> dict[int, dict[Goal, int]]:
        return {agent: {goal: i for i, goal in enumerate(its.goals)} for agent, its in self.arrays.items()}

    def __getitem__(self, state: Hashable) -> dict[int, Mapping[Goal, Any]]:
        i = self.index[state]
        if not self.has[i]:
            raise KeyError(state)
        return {agent: _ByGoal(its, self.columns[agent], i, self.wants_values) for agent, its in self.arrays.items()}

    def __iter__(self) -> Iterator[Hashable]:
        return compress(self.states, self.has)

    def __len__(self) -> int:
        return int(self.has.sum())
