"""Recurrent layers, and the first layers of a recurrent network, which also see the last action and reward."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeAlias

import gymnasium
import torch
from gymnasium import spaces as gym
from numpy.typing import NDArray
from torch import nn

from ...checks import brief, check_whole
from ...interfaces import PREVIOUS_REWARD
from ...observations import each
from ...spaces import Spaces
from ...spec import Field
from .actions import BoxActions
from .custom import TRIED, check_form, custom_function, made_module, torso_of, tried
from .torso import Flat, OneHot, rows_in

State = Mapping[str, torch.Tensor]  # a recurrent state's parts by name, each [k, ...]
Stepped = tuple[torch.Tensor, dict[str, torch.Tensor]]  # features, and the state after them
Unroll = Callable[[Callable[..., Stepped], torch.Tensor, State], Stepped]

PARTS = {"lstm": ("hidden", "cell"), "gru": ("hidden",)}  # of a recurrent layer's state
PREVIOUS_ACTION = "previous_action"  # the part of the state that holds the last action, encoded; zeros at the start
EPSILON = 1e-3  # of the linear part of `rescaled`, which makes the inverse continuous


def cell_function(label: str, cell: Any) -> Any:
    """Returns a built-in layer's name, or a user's function (see `custom_function`). Raises ValueError otherwise."""
    expected = "lstm, gru, a function of inputs and units, or its module:name"
    if isinstance(cell, str) and ":" not in cell:
        if cell not in PARTS:
            raise ValueError(f"{label}: expected {expected}, got {brief(cell)}")
        return cell
    return custom_function(label, cell, expected)


Cell: TypeAlias = Annotated[str | Callable[[int, int], nn.Module], cell_function]


class Recurrent(nn.Module):
    """Maps features of steps [k, inputs] or windows [k, T, inputs], and a state, to outputs [..., units] and a state.

    The state's parts, float32 [k, units], are `hidden` and, for an LSTM, `cell`; both are 0 where an episode begins.
    The bias of the gate that keeps the state begins at about 1, so that gradients reach far back (Jozefowicz et al.
    2015, "An empirical exploration of recurrent network architectures").
    """

    def __init__(self, cell: str, inputs: int, units: int) -> None:
        super().__init__()
        self.parts = PARTS[cell]
        self.sizes = dict.fromkeys(self.parts, units)
        self.layer = (nn.LSTM if cell == "lstm" else nn.GRU)(inputs, units, batch_first=True)
        gates: Any = self.layer.bias_ih_l0
        with torch.no_grad():  # the second gate keeps the state: forget gate of an LSTM, update gate of a GRU
            gates[units : 2 * units] += 1.0

    def forward(self, x: torch.Tensor, state: State) -> Stepped:
        """Returns the features, and the state after the last step; no window reaches across an episode's end."""
        before = tuple(state[name][None] for name in self.parts)
        windows = x if x.ndim == 3 else x[:, None]
        output, after = self.layer(windows, before if len(before) > 1 else before[0])
        parts = after if len(before) > 1 else (after,)
        state_after = {name: part[0] for name, part in zip(self.parts, parts, strict=True)}
        return output if x.ndim == 3 else output[:, 0], state_after


class CustomCell(nn.Module):
    """A user's recurrent layer, from inputs of one step and a state to `units` features and the next state.

    Raises: ValueError: the user's function makes no module, the module's `state` is no dict of sizes by name, or a call
        with zeros fails or returns a result of another form.
    """

    def __init__(self, hyper: Any, inputs: int) -> None:
        super().__init__()
        label = f"{hyper.owner} cell"
        self.cell = made_module(label, hyper.cell, inputs, hyper.units)
        sizes = getattr(self.cell, "state", None)
        if not isinstance(sizes, Mapping) or not sizes:
            raise ValueError(f"{label}: expected an attribute state with sizes by name, got {brief(sizes)}")
        self.sizes: dict[str, int] = dict(sizes)
        self.parts = tuple(sizes)
        for name, size in self.sizes.items():
            if name in (PREVIOUS_ACTION, PREVIOUS_REWARD):
                raise ValueError(f"{label}: expected state names other than {name!r}, which is taken")
            check_whole(f"{label} state[{name!r}]", size, 1)
        zeros = {name: torch.zeros(TRIED, size) for name, size in self.sizes.items()}
        result = tried(label, self.cell, torch.zeros(TRIED, inputs), dict(zeros))
        check_form(label, result, (torch.zeros(TRIED, hyper.units), zeros))

    def forward(self, x: torch.Tensor, state: State) -> Stepped:
        state = {name: state[name] for name in self.parts}
        if x.ndim == 2:
            return self.cell(x, state)  # type: ignore[no-any-return]
        outputs = []
        for step in x.unbind(1):
            output, state = self.cell(step, state)
            outputs.append(output)
        return torch.stack(outputs, 1), dict(state)


def recurrent_layer(hyper: Any, inputs: int) -> Recurrent | CustomCell:
    return Recurrent(hyper.cell, inputs, hyper.units) if hyper.cell in PARTS else CustomCell(hyper, inputs)


class Windows(NamedTuple):
    """The actions and rewards [B, N - 1, ...] between the N observations of B windows, and the length of the burn-in.

    `known`, bool [B], marks windows that need no burn-in, since an episode begins there.
    """

    action: torch.Tensor
    reward: torch.Tensor
    burn_in: int
    known: torch.Tensor

    def unroll(self, core: Callable[..., Stepped], inputs: torch.Tensor, state: State) -> Stepped:
        """Runs the recurrent layer on inputs [B * N, inputs] from the stored state, which the first steps warm up.

        No gradient passes from later steps to the first `burn_in` steps (Kapturowski et al. 2019, section 3), except in
        windows that are `known`.
        """
        rows, steps = self.reward.shape
        x = inputs.view(rows, steps + 1, -1)
        if not 0 < self.burn_in <= steps:
            return core(x, state)
        first, warm = core(x[:, : self.burn_in], state)
        warm = {name: torch.where(self.known[:, None], part, part.detach()) for name, part in warm.items()}
        later, after = core(x[:, self.burn_in :], warm)
        return torch.cat([first, later], 1), after

    def of_rows(self, rows: slice) -> "Windows":
        """Selects the team's members `rows`, a slice of `size`; returns their windows, [B * size, ...]."""
        size = rows.stop - rows.start
        reward, known = (part.repeat_interleave(size, 0) for part in (self.reward, self.known))
        return Windows(self.action[:, :, rows].transpose(1, 2).flatten(0, 1), reward, self.burn_in, known)


@dataclass(frozen=True)
class Histories:
    """M observations, each with its history in its window, as an input of networks with memory.

    If observations are dicts, `histories[name]` is a part of the M observations, [M, ...].

    Attributes:
        obs: the N observations of each of B windows, [B, N, ...].
        state: the recurrent state before the windows, [B, ...] by name.
        at: for each of the M observations, the number of its window, and its place in the window: two int64 arrays [M].
    """

    obs: Any
    state: State
    windows: Windows
    at: tuple[torch.Tensor, torch.Tensor]

    def __getitem__(self, name: str) -> torch.Tensor:
        part: torch.Tensor = self.obs[name][self.at]
        return part


def seen_by(network: Any, obs: Any) -> torch.Tensor:
    """Returns a network's outputs: [B, ...] for observations, [M, ...] for Histories.

    Histories go through the network's method `stepped` or, if it has none, through the function `stepped`.
    """
    if not isinstance(obs, Histories):
        return network(obs)  # type: ignore[no-any-return]
    step = network.stepped if hasattr(network, "stepped") else partial(stepped, network)
    outputs, _ = step(obs.obs, obs.state, obs.windows)
    return outputs[obs.at]


def state_fields(hyper: Any, spaces: Spaces, every: int) -> dict[str, Field]:
    """Returns the row fields of a RecurrentTorso's state; only every `every`-th row stores the state."""
    with torch.random.fork_rng(devices=[]):
        layer = {name: (size,) for name, size in recurrent_layer(hyper, 1).sizes.items()}
    parts: dict[str, tuple[int, ...]] = {**layer, PREVIOUS_ACTION: (_encoder(spaces.action).size,), PREVIOUS_REWARD: ()}
    return {name: Field(shape, "float32", every) for name, shape in parts.items()}


def with_state(hyper: Any, extras: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the recurrent state's fields to a row's extras. Raises ValueError if a name occurs in both."""
    for name in extras.keys() & state.keys():
        raise ValueError(f"{hyper.owner} cell: expected state names other than {name!r}, which is taken")
    return {**extras, **state}


class RecurrentTorso(nn.Module):
    """Maps observations, each with the action and reward before it, to features [..., size], through a recurrent layer.

    Action and reward are inputs as in Kapturowski et al. 2019, section 2.3; `rescaled` converts the reward. Layers of
    the sizes `hidden`, or a user's network, come before the recurrent layer.
    """

    def __init__(self, hyper: Any, spaces: Spaces, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.torso = torso_of(hyper, spaces, hidden)
        self.actions = _encoder(spaces.action)
        inputs = self.torso.size + self.actions.size + 1
        self.core = recurrent_layer(hyper, inputs)
        self.size = hyper.units
        self._sizes = {**self.core.sizes, PREVIOUS_ACTION: self.actions.size}

    def forward(self, obs: Any, state: State | None, unroll: Unroll | None = None) -> Stepped:
        """Returns features [k, size] of k observations, and the next state, to which `acted` adds the actions.

        Args:
            state: the parts of `state_fields`, each [k, ...]; None: every row begins an episode.
            unroll: runs the recurrent layer, given the layer, its inputs [k, inputs] and the state; None: each row is a
                separate step.
        """
        if state is None:
            rows, some = rows_in(obs), next(self.parameters())
            state = {name: some.new_zeros(rows, size) for name, size in self._sizes.items()}
            state[PREVIOUS_REWARD] = some.new_zeros(rows)
        reward = rescaled(state[PREVIOUS_REWARD])[:, None]
        inputs = torch.cat([self.torso(obs), state[PREVIOUS_ACTION], reward], 1)
        stepped: Stepped = self.core(inputs, state) if unroll is None else unroll(self.core, inputs, state)
        return stepped

    def beginning(self, state: State) -> State:
        """Returns the state with which the network begins a window, given the state that the window's rows store."""
        return state

    def acted(self, state: State, action: torch.Tensor | NDArray[Any]) -> dict[str, torch.Tensor]:
        """Adds the chosen actions [k, ...] to the state that `forward` returned, and returns the result."""
        encoded = self.actions(torch.as_tensor(action, device=next(iter(state.values())).device))
        return {**state, PREVIOUS_ACTION: encoded, PREVIOUS_REWARD: encoded.new_zeros(encoded.shape[0])}

    def before_each(self, action: torch.Tensor, reward: torch.Tensor, state: State) -> State:
        """Returns a state with the action and reward before each of the windows' observations, both [B * N, ...]."""
        encoded = self.actions(action.flatten(0, 1)).view(*action.shape[:2], -1)
        actions = torch.cat([state[PREVIOUS_ACTION][:, None], encoded], 1)
        rewards = torch.cat([state[PREVIOUS_REWARD][:, None], reward], 1)
        return {**state, PREVIOUS_ACTION: actions.flatten(0, 1), PREVIOUS_REWARD: rewards.flatten()}


class CriticTorso(RecurrentTorso):
    """The first layers of critics with memory; they begin each window with zeros, since actors run no critics."""

    def beginning(self, state: State) -> State:
        """See `RecurrentTorso.beginning`; the state of a team holds each member's last action."""
        rows = state[PREVIOUS_REWARD].shape[0]
        zeros = {name: state[PREVIOUS_REWARD].new_zeros(rows, size) for name, size in self._sizes.items()}
        return {**state, **zeros, PREVIOUS_ACTION: state[PREVIOUS_ACTION].flatten(1)}


def stepped(torso: Any, obs: Any, state: State | None, windows: Windows | None = None) -> Stepped:
    """Runs a RecurrentTorso or its stand-in on observations [k, ...] and a state; returns features and the next state.

    With `windows`, observations are [B, N, ...], the state is the one before the windows, features are [B, N, size].
    """
    if windows is None:
        return torso(obs, state)  # type: ignore[no-any-return]
    assert state is not None
    flat, begins = each(lambda part: part.flatten(0, 1), obs), torso.beginning(state)
    return torso(flat, torso.before_each(windows.action, windows.reward, begins), windows.unroll)  # type: ignore[no-any-return]


def first_layers(hyper: Any, spaces: Spaces, hidden: tuple[int, ...], kind: type[RecurrentTorso], **whole: Any) -> Any:
    """Makes first layers of this kind if the hyperparameters name a recurrent layer; otherwise calls `torso_of`."""
    if getattr(hyper, "cell", None) is not None:
        return kind(hyper, spaces, hidden)
    return torso_of(hyper, spaces, hidden, **whole)


class _BoundedActions(BoxActions):
    """Scales the actions of a bounded Box to [-1, 1], since larger numbers would saturate a recurrent layer."""

    forward = BoxActions.encode


def _encoder(space: gymnasium.Space) -> Flat | OneHot | _BoundedActions:
    """Returns the encoder of stored actions; rows store Discrete and MultiDiscrete actions as numbers from 0."""
    if isinstance(space, gym.Discrete):
        return OneHot(gym.Discrete(space.n), 1)
    if isinstance(space, gym.MultiDiscrete):
        return OneHot(gym.MultiDiscrete(space.nvec), 1)
    if isinstance(space, gym.Box) and space.dtype.kind == "f" and space.is_bounded():
        return _BoundedActions("previous action", space)
    return Flat(space, 1)


def rescaled(value: torch.Tensor) -> torch.Tensor:
    """Returns h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, so that large returns are learnable without clipping.

    Pohlen et al. 2018, "Observe and look further" (arXiv:1805.11593), proposition A.2.
    """
    return value.sign() * ((value.abs() + 1.0).sqrt() - 1.0) + EPSILON * value


def restored(value: torch.Tensor) -> torch.Tensor:
    """Inverts `rescaled`.

    The paper's form, (sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2 epsilon), loses half of float32's digits by
    cancellation. The form used here is equal, without cancellation.
    """
    size = value.abs() + (1.0 + EPSILON)
    root = 2.0 * size / ((1.0 + 4.0 * EPSILON * size).sqrt() + 1.0)
    return value.sign() * (root.square() - 1.0)
