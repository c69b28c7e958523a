"""Settings that the package brings along, as the arguments of `train`."""

from typing import NamedTuple

from .. import algos
from ..config import Config, read_preset
from ..declared import changed
from ..interfaces import Algorithm


class Preset(NamedTuple):
    """The arguments of `train` and `start`."""

    env: str
    algorithm: Algorithm
    config: Config


def preset(name: str) -> Preset:
    """A preset, such as `mc.train(*mc.preset("cartpole-ppo"))`: its environment, its algorithm and its settings.

    docs/zoo.md lists them with what they have learned, and so does `marlcore train --preset list`; each is a file of
    settings in marlcore/presets.

    Raises: ValueError: no preset has this name.
    """
    settings = read_preset(name)
    assert settings.env is not None and settings.algo is not None
    return Preset(settings.env, changed(algos.make(settings.algo), settings.algorithm), settings.config)
