"""What every algorithm refuses, by name and in one line: hyperparameters out of their range, spaces of another kind."""

import math
import pickle

import numpy as np
import pytest
from gymnasium import spaces as gym
from refused import Refused, refusals

from marlcore.algos import ALGORITHMS
from marlcore.spaces import Spaces

OF_VALUES, CONTINUOUS = ("CQL", "DQN", "IQN", "R2D2"), ("SAC", "TD3", "TD3BC")
ON_POLICY = ("PPO", "MAPPO", "RecurrentPPO")
ALL_PPO = (*ON_POLICY, "HAPPO")
OF_TEAMS, BY_CRITICS = ("VDN", "QMIX"), ("MATD3", "MADDPG", "COMA")
WINDOWED = ("R2D2", *OF_TEAMS, *CONTINUOUS, "MATD3", "MADDPG")
EVERY = (*OF_VALUES, *CONTINUOUS, *ON_POLICY, *OF_TEAMS, *BY_CRITICS, "HAPPO")
WHOLE, POSITIVE, UNIT = "an integer of at least 1", "a finite number above 0", "a number from 0 to 1"
SIZES, NOT_NEGATIVE = "a tuple of at least one size", "a finite number of at least 0"
RANGES = [
    ((*EVERY, "BC"), "learning_rate", POSITIVE, [-1e-3, 0.0, math.nan, True]),
    ((*ALL_PPO, "COMA"), "entropy_coefficient", NOT_NEGATIVE, [-0.1, math.inf]),
    ((*OF_VALUES, *CONTINUOUS, *BY_CRITICS), "tau", "a number in (0, 1]", [0.0, 1.5, 2]),
    (OF_VALUES, "target_update_freq", "an integer of at least 0", [-1, 2.5]),
    ((*EVERY, "BC"), "max_grad_norm", POSITIVE, [0.0]),
    (EVERY, "reward_scale", POSITIVE, [math.inf]),
    ((*EVERY, "BC"), "hidden", SIZES, [(), 64]),
    (EVERY, "hidden", WHOLE, [(64, 0)]),
    (["CQL"], "alpha", NOT_NEGATIVE, [-1.0, math.nan]),
    (["TD3BC"], "alpha", POSITIVE, [0.0]),
    (["IQN"], "kappa", POSITIVE, [0]),
    *((["IQN"], name, WHOLE, [0]) for name in ("n_cos", "n_tau", "n_tau_prime", "n_policy")),
    (
        (*WINDOWED, "RecurrentPPO"),
        "cell",
        "lstm, gru, a function of inputs and units, or its module:name",
        ["rnn", 3],
    ),
    ((*WINDOWED, "RecurrentPPO"), "units", WHOLE, [0]),
    *((WINDOWED, name, WHOLE, [0]) for name in ("length", "n_step")),
    (WINDOWED, "burn_in", "an integer of at least 0", [-1]),
    (WINDOWED, "period", "an integer of at least 2", [1]),
    (WINDOWED, "eta", UNIT, [1.5]),
    ((*OF_TEAMS, *BY_CRITICS), "shared", "True or False", ["no"]),
    (WINDOWED, "burn_in", "less than the length 40", [40]),
    *((["QMIX"], name, WHOLE, [0]) for name in ("mixing_units", "hyper_units")),
    (["QMIX"], "positive", "absolute or softmax", ["none"]),
    *((["COMA"], name, WHOLE, [0]) for name in ("batch_size", "epochs", "minibatch_size")),
    (["COMA"], "td_lambda", UNIT, [1.5]),
    (["TD3"], "noise", NOT_NEGATIVE, [-0.1]),
    (["TD3"], "target_noise", NOT_NEGATIVE, [math.inf]),
    (["TD3"], "target_noise_clip", NOT_NEGATIVE, ["wide"]),
    (["TD3"], "policy_delay", WHOLE, [0]),
    (["SAC"], "temperature", POSITIVE, [0.0]),
    (["SAC"], "target_entropy", "a finite number", [math.nan]),
    *((ALL_PPO, name, POSITIVE, [0.0]) for name in ("clip", "value_coefficient", "ratio_clip", "trace_clip")),
    *((ALL_PPO, name, POSITIVE, [-1.0]) for name in ("clip_value", "target_kl")),
    (ALL_PPO, "minibatch_size", "an integer from 1 to 2048", [4096]),
    *((ALL_PPO, name, WHOLE, [0]) for name in ("epochs", "batch_size", "minibatch_size")),
    (ALL_PPO, "gae_lambda", UNIT, [1.5]),
    (EVERY, "activation", "tanh, relu, elu, gelu or silu", ["sine"]),
    (EVERY, "layer_norm", "True or False", ["yes"]),
    (EVERY, "initialization", "default, orthogonal or xavier", ["zeros"]),
    *((EVERY, name, SIZES, [(), 3]) for name in ("channels", "kernels", "strides")),
    (EVERY, "channels", "as many as kernels and strides", [(8,)]),
    (EVERY, "image_side", WHOLE, [0]),
    (EVERY, "network", "a function of mc.Spaces, or its module:name", [3]),
    (EVERY, "network", "module:name of something that can be imported", ["torso"]),
    (EVERY, "network", "something that can be imported", ["math:torso"]),
    (ALL_PPO, "correction", "vtrace or gae", ["none"]),
    (["RecurrentPPO"], "unroll", WHOLE, [0]),
]
VALUES: dict[str, Refused] = {
    f"{name} {field}={value!r}": (
        lambda name=name, field=field, value=value: ALGORITHMS[name.lower()](**{field: value}),
        f"{name} {field}: expected {expected}, got {0 if value == (64, 0) else repr(value)}",
    )
    for names, field, expected, values in RANGES
    for name in names
    for value in values
}

BOX = gym.Box(-1, 1, (3,))
JOINT, FLOATS = "a Discrete, MultiDiscrete or MultiBinary action space", "a Box of floats as the action space"
ANY = "a Discrete, MultiDiscrete, MultiBinary or Box of floats as action space"
HALF_BOUNDED = gym.Box(np.array([-1, -1], np.float32), np.array([1, np.inf], np.float32))
ACTIONS = [
    (OF_VALUES, gym.Box(-1, 1, (40,)), f"{JOINT}, got Box("),
    (OF_VALUES, gym.MultiDiscrete([64, 65]), "at most 4096 joint actions, got 4160 of MultiDiscrete"),
    (OF_VALUES, gym.MultiBinary(13), "at most 4096 joint actions, got 8192 of MultiBinary"),
    (OF_VALUES, gym.MultiDiscrete([9] * 30), "at most 4096 joint actions, got 4239115827"),
    (CONTINUOUS, gym.Box(-np.inf, np.inf, (2,)), "an action space with finite bounds, got Box(-inf, inf"),
    (CONTINUOUS, HALF_BOUNDED, "an action space with finite bounds, got Box("),
    (CONTINUOUS, gym.Discrete(3), f"{FLOATS}, got Discrete(3)"),
    (CONTINUOUS, gym.MultiBinary(3), f"{FLOATS}, got MultiBinary"),
    (CONTINUOUS, gym.Box(0, 5, (2,), np.int64), f"{FLOATS}, got Box("),
    ((*ON_POLICY, "BC"), gym.Box(0, 9, (2,), np.int64), f"{ANY}, got Box("),
    ((*OF_TEAMS, *BY_CRITICS, "HAPPO"), gym.Discrete(2), "an agent that is a team (see Config.teams), got"),
]
SPACES: dict[str, Refused] = {
    f"{name} {method} {space}": (
        lambda name=name, method=method, space=space: getattr(ALGORITHMS[name.lower()](), method)(Spaces(BOX, space)),
        f"{name}: expected {expected}",
    )
    for names, space, expected in ACTIONS
    for name in names
    for method in ("transition", "make_model")
}
test_a_bad_hyperparameter_is_named_in_one_line = refusals(VALUES)

test_an_action_space_of_another_kind_is_refused = refusals(SPACES)


@pytest.mark.parametrize("name", [*EVERY, "BC"])
def test_hyperparameters_survive_pickling(name):
    hyper = ALGORITHMS[name.lower()](learning_rate=1e-3, hidden=(7,))
    assert pickle.loads(pickle.dumps(hyper)) == hyper
