"""Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495): goals of drawn rows are relabelled."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..checks import brief
from ..declared import Declared, Whole
from ..kernels import hindsight as kernels
from ..spec import TransitionSpec
from ..transitions import Batch, BatchMemory, LaneView, ReadPlan, Window, address_of

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
STRATEGIES = {"future": kernels.FUTURE, "final": kernels.FINAL, "episode": kernels.EPISODE}

Compute = Callable[[Any, Any, Any], Any]


def _function(label: str, value: Any) -> Any:
    if not callable(value):
        expected = "a function of achieved goals, desired goals and info, or None"
        raise TypeError(f"{label}: expected {expected}, got {brief(value)}")
    return value


@dataclass(frozen=True)
class Hindsight(Declared):
    """How a sampler replaces transitions' goals by goals that their own episodes achieved.

    Of k + 1 drawn transitions, k on average get another goal, drawn anew each time; the others keep theirs. The
    observation is a dict with `desired_goal` and `achieved_goal`, as in Gymnasium-Robotics' GoalEnv. Achieved goals
    are drawn from the rows that the lane still holds; in an unfinished episode, the newest row is the last. Source:
    Andrychowicz et al. 2017 (arXiv:1707.01495), sections 4.2 and 4.5.

    For each batch, `compute_reward(achieved, desired, info)` is called once, and so is `compute_terminated` if it is
    given. `achieved` [B, *shape] are the achieved goals of next_obs, `desired` [B, *shape] the desired goals, and
    `info` the batch's extras by name. The functions return [B] numbers and [B] bools, which are used for relabelled
    transitions only. The functions must not change the arrays.

    Attributes:
        k: relabelled transitions for each one that keeps its goal, from 1 to 2^31 - 1.
        strategy: the new goal is the achieved goal of a random later observation of the episode ("future"), of its last
            observation ("final"), or of any of its observations that follows an action ("episode").
        compute_reward: computes rewards. In a run, None takes the environment's function; elsewhere, None is an error.
        compute_terminated: computes whether the episode ends with the row. None keeps the stored ends, which is right
            unless reaching the goal ends episodes. In a run, None takes the environment's function if it computes a
            value for each row.
    """

    k: Annotated[int, Whole(1, 2**31 - 1)] = 4
    strategy: Literal["future", "final", "episode"] = "future"
    compute_reward: Annotated[Compute | None, _function] = None
    compute_terminated: Annotated[Compute | None, _function] = None

    def check(self, spec: TransitionSpec, window: Window) -> None:
        """Raises ValueError if rows of the spec have no goals, or the window is not of single steps."""
        self.check_goals(spec)
        if window.n_step != 1 or window.length is not None:
            got = "a sequence" if window.length is not None else f"n_step={window.n_step}"
            raise ValueError(f"hindsight: expected single transitions with n_step=1, got {got}")

    def check_goals(self, spec: TransitionSpec) -> None:
        """Raises ValueError if rows of the spec have no goals, or do not follow one another."""
        goals = [spec.obs_fields.get(name) for name in (ACHIEVED, DESIRED)]
        if None in goals or goals[0] != goals[1]:
            got = {name: field.describe() for name, field in spec.obs_fields.items()}
            raise ValueError(f"hindsight: expected {ACHIEVED} and {DESIRED} of one shape and dtype in obs, got {got}")
        if spec.reward.shape:
            raise ValueError(f"hindsight: expected rewards that are numbers, got {spec.reward.describe()}")
        if spec.next_obs:
            raise ValueError("hindsight: expected None, since rows of a spec with next_obs do not follow one another")


class Relabelling:
    """Applies hindsight for one sampler: changes goals in rows after each draw, and a batch's rewards at the end."""

    def __init__(self, options: Hindsight, lanes: LaneView, window: Window, read_plan: ReadPlan) -> None:
        options.check(lanes.spec, window)
        if options.compute_reward is None:
            raise ValueError("hindsight.compute_reward: expected a function, got None")
        self._compute_reward, self._compute_terminated = options.compute_reward, options.compute_terminated
        self._read_plan = read_plan
        self._stack, self._gamma = window.stack, window.gamma
        names = [place.name for place in lanes.layout.of_role("obs")]
        self._record = np.zeros(1, kernels.HINDSIGHT)
        self._record["strategy"], self._record["k"] = STRATEGIES[options.strategy], options.k
        self._record["achieved"], self._record["desired"] = names.index(ACHIEVED), names.index(DESIRED)
        self._search: list[Any] = []
        self.resize(read_plan.chosen.shape[1])

    def resize(self, count: int) -> None:
        """Makes room for draws of `count` rows."""
        self._search.append(np.zeros((3, count), np.int64))
        for name, array in zip(("last", "end", "step"), self._search[-1], strict=True):
            self._record[name] = address_of(array)
        del self._search[:-1]  # now: an interrupt above leaves addresses of older ones

    def draw(self, memory: BatchMemory, rows: NDArray[np.int64], filled: int) -> None:
        """Draws goals for the first `filled` of `rows`, after these were drawn and before they are validated."""
        d = self._read_plan
        self._record["relabelled"] = address_of(memory.relabelled)
        kernels.relabel(d.plan, d.columns, memory.address, rows, filled, self._record)

    def batch(self, memory: BatchMemory) -> Batch:
        """Returns the batch in a filled memory, with the rewards and ends that follow from its goals.

        Raises ValueError: a function's result is wrong.
        """
        fields, where = memory.fields, memory.relabelled
        achieved, desired = fields["next_obs"][ACHIEVED], fields["obs"][DESIRED]
        if self._stack > 1:
            achieved, desired = achieved[:, -1], desired[:, -1]
        given = achieved, desired, fields["extras"]
        reward = _checked("compute_reward", "numbers", "biuf", self._compute_reward(*given), where)
        np.copyto(fields["reward"], reward, casting="same_kind", where=where)
        if self._compute_terminated is not None:
            ended = _checked("compute_terminated", "bools", "b", self._compute_terminated(*given), where)
            np.copyto(fields["terminated"], ended, where=where)
            np.copyto(fields["discount"], np.where(ended, np.float32(0), np.float32(self._gamma)), where=where)
        batch = memory.batch()
        batch.relabelled = where.copy()
        return batch


def _checked(label: str, what: str, kinds: str, result: Any, where: NDArray[np.bool_]) -> NDArray[Any]:
    values = np.asarray(result)
    if values.shape != where.shape or values.dtype.kind not in kinds:
        raise ValueError(f"{label}: expected {what} [{len(where)}], got {values.dtype} {list(values.shape)}")
    return values
