"""Makes environments by name, adapts those of other packages, and vectorizes them.

`vectorize` makes the several copies that an actor advances together. Each ecosystem has its own file, and a third-party
package is imported when one of its environments is made.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..checks import brief, check_whole, did_you_mean
from ..errors import EnvironmentFailed
from ..interfaces import Environment, Outcome, Turn, VectorEnvironment
from ..references import is_importable, resolve
from .agent_view import AgentView, Wrapper
from .at_once import is_vector
from .copies import Copies
from .gymnasium import GymnasiumEnvironment, is_registered, make_atari, make_gymnasium, make_gymnasium_vector
from .gymnasium_vector import EnvPool, GymnasiumVector, is_envpool, is_gymnasium_vector
from .joint import JointObservations
from .lockstep import Lockstep
from .openspiel import OpenSpielGame
from .per_agent import PerAgent, by_agents
from .pettingzoo import AECEnvironment, ParallelEnvironment, is_parallel, make_pettingzoo
from .recall import Recall
from .run_step import RunStep, RunStepProvider, run_step
from .team import Teams
from .treasure_hunt import TreasureHunt
from .two_player import TwoPlayer
from .vmas import VMASEnvironment

KINDS = (
    "treasure_hunt, recall, gymnasium:<id>, atari:<game>, pettingzoo:<module>, pettingzoo-parallel:<module>, "
    "openspiel:<game>, vmas:<scenario> or <module>:<function>"
)
OWN: dict[str, Any] = {"treasure_hunt": TreasureHunt, "recall": Recall}
MAKERS: dict[str, Callable[..., Any]] = {  # by the word before the colon; called with the text after it and the options
    "gymnasium": make_gymnasium,
    **{kind: partial(make_pettingzoo, kind) for kind in ("pettingzoo", "pettingzoo-parallel")},
    "openspiel": OpenSpielGame,
    "vmas": partial(VMASEnvironment, copies=1),
}


def make(name: str, /, *, wrappers: Sequence[str] = (), **options: Any) -> Environment:
    """Makes an environment by its name, with `options`.

    Args:
        name: treasure_hunt, see `TreasureHunt`; recall, see `Recall`; or one of
            gymnasium:<id>, such as gymnasium:CartPole-v1, made by `gymnasium.make`. The package of the id is
            imported if its name follows from the id; otherwise name it: gymnasium:<package>:<id>;
            atari:<game>, such as atari:Pong, or gymnasium:ALE/Pong-v5: with the usual preprocessing (see `make_atari`).
            Without preprocessing: gymnasium:ale_py:ALE/Pong-v5;
            pettingzoo:<module>, pettingzoo-parallel:<module>, such as pettingzoo:mpe2.simple_spread_v3, made by the
            module's `env` or `parallel_env`;
            openspiel:<game>, such as openspiel:kuhn_poker, see `OpenSpielGame`;
            vmas:<scenario>, such as vmas:balance, see `VMASEnvironment`;
            <module>:<function>, made by the function (see `adapt`).
        wrappers: functions, each <module>:<function>, that take the environment as its package made it, and return
            another; the first one is applied first.
        options: arguments of the class or function that makes the environment.

    Raises:
        ValueError: the name is unknown, or marlcore does not support the environment's spaces.
        ImportError: the environment's package is not installed.
    """
    return adapt(NamedEnvironment(name, options, wrappers)())


@dataclass(frozen=True)
class NamedEnvironment:
    """A picklable function that makes a named environment; its repr shows the name.

    Attributes:
        name, options, wrappers: arguments of `make`.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Sequence[str] = ()

    def __call__(self) -> Any:
        """Makes the environment by its package and applies the wrappers; `adapt` can turn it into an Environment."""
        wrappers = [resolve("wrappers", wrapper) for wrapper in self.wrappers]
        env = self._bare()
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    def _bare(self) -> Any:
        name, options = self.name, dict(self.options)
        kind, _, id = name.partition(":")
        if name in OWN:
            return OWN[name](**options)
        if game := self._atari_game():
            return make_atari(game, **options)
        if kind in MAKERS and id:
            return MAKERS[kind](id, **options)
        if (function := self.function()) is not None:
            try:
                return function(**options)
            except TypeError as error:
                raise TypeError(f"environment: {name!r}: {error}") from error
        hint = f"; did you mean gymnasium:{name}?" if is_registered(name) else did_you_mean(name, OWN)
        raise ValueError(f"environment: expected {KINDS}, got {brief(name)}{hint}")

    def function(self) -> Any:
        """Returns what a name <module>:<function> stands for, else None. Raises ValueError if it cannot be imported."""
        own = self.name.partition(":")[0] not in (*MAKERS, "atari") and is_importable(self.name)
        return resolve("environment", self.name) if own else None

    def _atari_game(self) -> str:
        if self.name.startswith("gymnasium:ALE/") and self.name.endswith("-v5"):
            return self.name.removeprefix("gymnasium:ALE/").removesuffix("-v5")
        return self.name.removeprefix("atari:") if self.name.startswith("atari:") else ""

    @property
    def stack(self) -> int:
        """The default number of observations in a network's input: 4 for Atari (Mnih et al. 2015), otherwise 1."""
        return 4 if self._atari_game() else 1

    def vectorized(self, copies: int) -> Any:
        """Returns the vector environment of a Gymnasium id or a VMAS scenario; None if the name has none."""
        kind, _, id = self.name.partition(":")
        if kind == "vmas" and id and not self.wrappers:
            return VMASEnvironment(id, copies, **self.options)
        if kind != "gymnasium" or not id or self.wrappers or self._atari_game():
            return None
        return make_gymnasium_vector(id, copies, **self.options)


def factory(env_fn: Any) -> Callable[[], Any]:
    """Returns a function that makes environments: `env_fn` itself, or a NamedEnvironment if `env_fn` is a name.

    Raises: TypeError: `env_fn` is neither a function nor a name. Environments are refused, since actors make their own.
    """
    if isinstance(env_fn, str):
        return NamedEnvironment(env_fn)
    is_environment = not isinstance(env_fn, type) and hasattr(env_fn, "reset") and hasattr(env_fn, "step")
    if callable(env_fn) and not is_environment:
        made: Callable[[], Any] = env_fn
        return made
    got = f"an environment, {type(env_fn).__name__}" if is_environment else brief(env_fn)
    raise TypeError(
        "env_fn: expected a function that makes an environment, such as "
        f"lambda: gymnasium.make('CartPole-v1'), or a name, such as 'gymnasium:CartPole-v1', got {got}"
    )


def adapt(env: Any) -> Environment:
    """Returns `env` as an Environment, wrapped if it is from PettingZoo (AEC or Parallel) or Gymnasium.

    A Gymnasium environment with a tuple of actions has several agents; see `PerAgent`.

    Raises: TypeError: `env` is of another kind. ValueError: marlcore does not support the environment's spaces.
    """
    env = by_agents(env)
    if hasattr(env, "possible_agents"):
        return ParallelEnvironment(env) if is_parallel(env) else AECEnvironment(env)
    if hasattr(env, "observation_spaces") and hasattr(env, "last"):
        adapted: Environment = env
        return adapted
    if hasattr(env, "observation_space") and hasattr(env, "reset") and not hasattr(env, "num_envs"):
        return GymnasiumEnvironment(env)
    raise TypeError(f"env_fn: expected a marlcore, PettingZoo or Gymnasium environment, got {brief(env)}")


def vectorize(env_fn: Callable[[], Any], copies: int) -> VectorEnvironment:
    """Returns a VectorEnvironment: several copies of the environment that `env_fn` makes, advanced together.

    A VectorEnvironment, a Gymnasium vector environment or an EnvPool sets the number of copies itself. An environment
    with a method `vectorized(copies)`, or a Gymnasium id with a vector form, makes the copies in its own way; teams and
    joint observations then join the arrays of all copies. Other environments are made `copies` times, each by a call of
    `env_fn`.

    Raises:
        EnvironmentFailed: `env_fn` raised. ValueError: marlcore does not support the environment's spaces.
        TypeError: `env_fn` made an environment of an unknown kind.
    """
    check_whole("copies", copies)
    first = _made(env_fn, copies)
    if is_vector(first):
        vector: VectorEnvironment = first
        return vector
    envs = [first]
    with _closed_on_error(envs):
        adapt(first)  # raises for an object that is no environment, and for unsupported spaces
        for _ in range(copies - 1):
            envs.append(_attempt(env_fn))
        return Copies([env if is_parallel(env) else adapt(env) for env in map(by_agents, envs)])


def _made(env_fn: Callable[[], Any], copies: int) -> Any:
    """Makes all copies as a VectorEnvironment if `env_fn` allows it; otherwise makes an environment of one copy."""
    if isinstance(env_fn, (Teams, JointObservations)):
        env = _made(env_fn.env_fn, copies)
        with _closed_on_error([env]):
            return _attempt(env_fn.around, env)
    several = _attempt(env_fn.vectorized, copies) if isinstance(env_fn, NamedEnvironment) else None
    env = _attempt(env_fn) if several is None else several
    with _closed_on_error([env]):
        return _in_vector_form(env, copies)


@contextmanager
def _closed_on_error(envs: Sequence[Any]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with ExitStack() as stack:
            for env in envs:
                stack.callback(getattr(env, "close", lambda: None))
        raise


def checked(env: VectorEnvironment) -> VectorEnvironment:
    """Wraps a user's VectorEnvironment so that its values are checked; marlcore's environments check their own."""
    return env if isinstance(env, (Copies, GymnasiumVector, Lockstep)) else _Checked(env)


class _Checked(Wrapper):
    """A user's VectorEnvironment; `observe` raises EnvironmentFailed for values that are not finite or out of range."""

    def __init__(self, env: VectorEnvironment) -> None:
        self._env = env
        self._checks = {agent: AgentView(agent, spaces) for agent, spaces in env.spaces.items()}

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        outcomes, turns = self._env.observe()
        for outcome in outcomes:
            self._checks[outcome.agent].check_outcome(outcome)
        for turn in turns:
            self._checks[turn.agent].check(turn.copies, turn.obs, acting=True)
        return outcomes, turns


def _in_vector_form(env: Any, copies: int) -> Any:
    """Returns `env` as a VectorEnvironment if it has several copies or can make several itself; otherwise `env`."""
    if "vectorized" in vars(type(env)):  # an inherited method may not fit the subclass's rules
        env = env.vectorized(copies)
    if is_vector(env):
        return env
    if is_envpool(env):
        return EnvPool(env)
    return GymnasiumVector(env) if is_gymnasium_vector(env) else env


def _attempt(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        raise EnvironmentFailed(f"env_fn: {type(error).__name__}: {error}") from error
