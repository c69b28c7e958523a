"""Gymnasium environments as environments with one agent, and functions that make them by name."""

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

import gymnasium

from .agent_view import Adapter, AgentView, Result, check_action, result_of
from .per_agent import has_agents

# Prefix of an environment's id: the package that registers the id when imported.
PACKAGES = {
    "ALE": "ale-py",
    "BabyAI": "minigrid",
    "FlappyBird": "flappy-bird-gymnasium",
    "Foraging": "lbforaging",
    "MiniGrid": "minigrid",
    "highway": "highway-env",
    "rware": "rware",
}

# Word of a message about a missing package: the extra of marlcore that installs it.
EXTRAS = {"ale-py": "atari", "opencv": "atari", "box2d": "box2d", "mujoco": "mujoco"}

AGENT = "agent_0"


class GymnasiumEnvironment(Adapter):
    """A Gymnasium environment as an `Environment` with one agent, "agent_0".

    Raises: ValueError: marlcore does not support a space.
    """

    def __init__(self, env: Any) -> None:
        AgentView.of(AGENT, env.observation_space, env.action_space)
        self.agents: tuple[str, ...] = (AGENT,)
        self.observation_spaces: Mapping[str, gymnasium.Space] = {AGENT: env.observation_space}
        self.action_spaces: Mapping[str, gymnasium.Space] = {AGENT: env.action_space}
        self.agent: str | None = None
        self._env = env

    def reset(self, seed: int | None = None) -> None:
        obs, info = result_of("reset", self._env.reset(seed=seed))
        self._last = (obs, 0.0, False, False, info)
        self.agent = AGENT

    def last(self) -> Result:
        return self._last

    def step(self, action: Any) -> None:
        ended = self.agent is not None and bool(self._last[2] or self._last[3])
        self.act(check_action(self.agent, action, ended), action)

    def round(self) -> Mapping[str, Result]:
        """Returns the agent's present result by name, {} after the episode; see `ParallelRounds.round`."""
        return {} if self.agent is None else {AGENT: self._last}

    def act(self, agent: str, action: Any) -> None:
        if action is None:
            self.agent = None
        else:
            self._last = result_of("step", self._env.step(action))


def make_gymnasium(id: str, /, **options: Any) -> Any:
    """Makes the registered environment `id`, such as CartPole-v1, with `options`.

    Raises: ValueError: the id is not registered. ImportError: a package that the environment needs is not installed.
    """
    _import_what_registers(id)
    try:
        env = gymnasium.make(id, **options)
        if has_agents(env):  # Gymnasium's checker refuses a reward for each agent
            env.close()
            env = gymnasium.make(id, **{"disable_env_checker": True, **options})
        return env
    except gymnasium.error.DependencyNotInstalled as error:  # the id is right
        raise not_installed(f"gymnasium:{id}", str(error)) from None
    except gymnasium.error.Error as error:
        expected = "gymnasium:<id> such as gymnasium:CartPole-v1, or gymnasium:<package that registers it>:<id>"
        raise ValueError(f"environment: expected {expected}, got 'gymnasium:{id}' ({error})") from None


def make_atari(game: str, /, **options: Any) -> Any:
    """Makes the game with observations uint8 [84, 84] and the sticky actions of Machado et al. 2018 (arXiv:1709.06009).

    Each action is repeated for 4 frames, of which the last two are merged; in each frame the game repeats the previous
    frame's action with probability 0.25. As in Mnih et al. 2015, an episode begins with up to 30 frames without an
    action; it ends with the game, not with a life. Rewards are the game's points. If the environment is given by
    name, replays and queues stack four frames, unless `replay.stack` says otherwise.

    Args:
        game: such as Pong, for the environment ALE/Pong-v5 of ale-py.
        options: arguments of `gymnasium.make`, such as repeat_action_probability, mode, difficulty, full_action_space.

    Raises:
        ValueError: no such game exists. ImportError: ale-py or opencv-python is not installed.
    """
    from gymnasium.wrappers import AtariPreprocessing

    env = make_gymnasium(f"ALE/{game}-v5", **{"frameskip": 1, **options})
    try:
        return AtariPreprocessing(
            env, noop_max=30, frame_skip=4, screen_size=84, terminal_on_life_loss=False, scale_obs=False
        )
    except gymnasium.error.DependencyNotInstalled as error:
        env.close()
        raise not_installed(f"atari:{game}", str(error)) from None


def not_installed(name: str, reason: str) -> ImportError:
    """Returns an ImportError for environment `name`: it names marlcore's extra to install, if any, else `reason`."""
    extra = next((extra for word, extra in EXTRAS.items() if word in reason.lower()), None)
    if extra is not None:
        reason = f"a package that it needs is not installed; try: pip install 'marlcore[{extra}]'"
    return ImportError(f"environment: {name!r}: {' '.join(reason.split())}")


def make_gymnasium_vector(id: str, copies: int, /, **options: Any) -> Any:
    """Makes the vector form of the registered environment `id`; returns None if there is none with these options."""
    _import_what_registers(id)
    try:
        spec = gymnasium.spec(id)
    except gymnasium.error.Error:
        return None  # `make_gymnasium` gives the reasons
    if spec.vector_entry_point is None or options.get("max_episode_steps") == -1:  # vector forms always have a limit
        return None
    options.pop("disable_env_checker", None)  # vector forms have no checker
    return gymnasium.make_vec(id, num_envs=copies, vectorization_mode="vector_entry_point", **options)


def is_registered(id: str) -> bool:
    return id in gymnasium.registry


def _import_what_registers(id: str) -> None:
    """Imports the package that registers `id`, if the id tells the package's name.

    Raises ImportError if a package in PACKAGES is not installed.
    """
    if ":" in id or id in gymnasium.registry:
        return
    namespace, slash, _ = id.partition("/")
    package = PACKAGES.get(namespace if slash else id.partition("-")[0])
    module = package.replace("-", "_") if package else namespace if slash else ""
    if module.isidentifier() and importlib.util.find_spec(module) is not None:
        importlib.import_module(module)
    elif package:
        install = f"'marlcore[{EXTRAS[package]}]'" if package in EXTRAS else package
        raise ImportError(f"environment: 'gymnasium:{id}' comes with {package}; try: pip install {install}")
