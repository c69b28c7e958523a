"""Presets: settings that come with the package, as the arguments of `train`."""

from typing import NamedTuple

from .. import algos
from ..config import Config, read_preset
from ..declared import changed
from ..interfaces import Algorithm


class Preset(NamedTuple):
    """The first three arguments of `train` and `start`, in their order."""

    env: str
    algorithm: Algorithm
    config: Config


def preset(name: str) -> Preset:
    """Returns a preset's environment, algorithm and settings: `mc.train(*mc.preset("cartpole-ppo"))` trains it.

    docs/zoo.md and `marlcore train --preset list` list the presets and their measured results; each preset is a file
    of settings in marlcore/presets.

    Raises: ValueError: no preset has this name.
    """
    settings = read_preset(name)
    assert settings.env is not None and settings.algo is not None
    return Preset(settings.env, changed(algos.make(settings.algo), settings.algorithm), settings.config)
