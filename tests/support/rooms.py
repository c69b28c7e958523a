"""An environment that returns one wrong value, and what is said of it by copies and by `check_env`."""

import numpy as np
import torch
from gymnasium import spaces as gym

MISSING = object()


class Room:
    """Agents "a" and "b" act in turns, "a" with a mask. A `field` of turn 3, or the mask of turn 4, is another value.

    MISSING leaves the field out; "step" and "reset" raise the value.
    """

    def __init__(self, field="", value=None):
        self.field, self.value = field, value
        self.agents = value if field == "agents" else ("a", "b")
        empty = {"more": gym.Box(-1, 1, (0,), np.float32)}
        place = {"place": gym.Box(-1, 1, (2,), np.float32), "room": gym.Discrete(3), "doors": gym.MultiBinary(2)}
        space = gym.Dict(place | empty)
        self.observation_spaces = dict.fromkeys("a" if field == "spaces" else "ab", space)
        self.action_spaces = {"a": gym.Discrete(3), "b": gym.Box(-1, 1, (2,), np.float32)}
        self.agent = None
        self.rng, self.turn = np.random.default_rng(0), 0

    def reset(self, seed=None):
        if self.field == "reset":
            raise self.value
        if seed is not None and self.field != "seed":
            self.rng = np.random.default_rng(seed)
        if self.field != "no reset":
            self.turn = 0
        self.agent = "a"
        self.look()

    def look(self):
        self.place = self.rng.uniform(-1, 1, 2).astype(np.float32)

    def last(self):
        fields = {"doors": np.int8([0, 1]), "place": self.place, "room": 2, "reward": float(self.turn)}
        fields["terminated"] = self.turn >= 6
        if self.agent == "a":
            fields["action_mask"] = np.ones(3, np.int8)
        if self.turn == 3 + (self.field == "action_mask"):
            fields[self.field] = self.value
        fields = {name: value for name, value in fields.items() if value is not MISSING}
        obs = {name: fields[name] for name in ("doors", "place", "room") if name in fields}
        obs["more"] = np.zeros(0, np.float32)
        masks = [fields[name] for name in ("action_mask", "mask of b") if name in fields]
        info = {"action_mask": masks[0]} if masks else {}
        result = obs, fields["reward"], fields["terminated"], False, info
        return result[:4] if self.field == "short" else result

    def step(self, action):
        if self.field == "step":
            raise self.value
        if self.field != "after the end" and ((action is None) != (self.turn >= 6) or self.agent is None):
            raise ValueError("step: expected another action")
        self.turn += 1
        self.agent = None if self.turn == 8 else "ab"[self.turn % 2]
        if self.turn == 3 and self.field == "stranger":
            self.agent = "z"
        self.look()

    def close(self):
        """Nothing to release."""


PLACE, MASK, REWARD = "b: obs['place']: expected ", "a: action_mask: expected ", "b: reward: expected "
A_MEMBER, FIVE = ("", "a member of "), "expected (observation, reward, terminated, truncated, info), got"
FLOATS, END = f"{PLACE}float32 (2,), got ", "b: terminated: expected a bool, got "
WRONG = {  # by case: the field, its value, what copies say, and what `check_env` says; None: see another case
    "inf": ("place", np.float32([0, -np.inf]), *[f"{PLACE}finite numbers, got -inf in [0.0, -inf]"] * 2),
    "nan": ("place", np.float32([0, np.nan]), *[f"{PLACE}finite numbers, got nan in [0.0, nan]"] * 2),
    "beyond": ("place", np.array([0, 1e39]), f"{PLACE}values in float32's range, got 1e+39", f"{FLOATS}float64 (2,)"),
    "shape": ("place", np.zeros(3, np.float32), f"{FLOATS}shape (3,)", f"{FLOATS}float32 (3,)"),
    "none": ("place", None, f"{FLOATS}shape ()", f"{FLOATS}object ()"),
    "bounds": ("place", np.full(2, 5, np.float32), None, f"{PLACE}a member of Box(-1.0, 1.0, (2,), float32), got [5.0"),
    "kind": ("room", 1.0, *["b: obs['room']: expected int64 (), got " + of for of in ("dtype float64", "float64 ()")]),
    "range": ("room", 3, *["b: obs['room']: expected " + of + "Discrete(3), got 3" for of in A_MEMBER]),
    "bits": ("doors", np.int8([0, 2]), *["b: obs['doors']: expected " + of + "MultiBinary(2)" for of in A_MEMBER]),
    "mask of a Box": ("mask of b", np.ones(2, bool), *["b: action_mask: expected none for the action space Box("] * 2),
    "missing": ("room", MISSING, "b: obs: expected obs['doors'], obs['place'], obs['room'], ", "b: obs: expected Di"),
    "mask length": ("action_mask", np.ones(4, np.int8), *[f"{MASK}bool (3,), got array([1, 1, 1, 1]"] * 2),
    "mask missing": ("action_mask", MISSING, f"{MASK}bool (3,), got None", f"{MASK}a mask in every info or in none, g"),
    "mask of nothing": (
        "action_mask", np.zeros(3, np.int8), *[f"{MASK}an allowed action, got {of}" for of in ("[Fal", "array([0, 0")],
    ),
    "infinite": ("reward", float("inf"), *[f"{REWARD}a finite number of float32, got inf"] * 2),
    "reward beyond": ("reward", 1e39, *[f"{REWARD}a finite number of float32, got 1e+39"] * 2),
    "beyond float": ("reward", 10**400, f"{REWARD}a number, got an integer of 1329", f"{REWARD}a finite number of flo"),
    "no reward": ("reward", None, f"{REWARD}a number, got None", f"{REWARD}a finite number of float32, got None"),
    "text": ("reward", "1", f"{REWARD}a number, got '1'", f"{REWARD}a finite number of float32, got '1'"),
    "texts": ("reward", np.array("1"), f"{REWARD}a number, got array('1', dtype='<U1')", None),
    "complex reward": ("reward", np.complex64(1), f"{REWARD}a number, got ", None),
    "two rewards": ("reward", np.zeros(2), f"{REWARD}a number, got array([0., 0.])", f"{REWARD}a finite number"),
    "rewards of torch": ("reward", torch.zeros(2), f"{REWARD}a number, got tensor([0., 0.])", None),
    "no rewards": ("reward", np.zeros(0), f"{REWARD}a number, got array([], dtype=float64)", None),
    "text for an end": ("terminated", "False", *[f"{END}'False'"] * 2),
    "no end": ("terminated", None, *[f"{END}None"] * 2),
    "number for an end": ("terminated", 0.0, *[f"{END}0.0"] * 2),
    "integer for an end": ("terminated", 0, None, f"{END}0"),
    "step": ("step", RuntimeError("no step"), "a: RuntimeError: no step", None),
    "same names": ("agents", ("a", "a"), None, "agents: expected different names, got ('a', 'a')"),
    "spaces": ("spaces", None, None, "observation_spaces: expected spaces of ('a', 'b'), got spaces of ['a']"),
    "short": ("short", None, f"a: ValueError: last: {FIVE} 4 values", f"last of a: {FIVE} ({{"),
    "after the end": ("after the end", None, None, "step: expected an error for an action of a, whose episode has e"),
    "stranger": ("stranger", None, None, "agent: expected one of ('a', 'b'), got 'z'"),
    "no reset": ("no reset", None, None, "reset: expected a new episode, got a second end of a's episode"),
}  # fmt: skip
