"""Exports a policy's greedy actions to ONNX or TorchScript, with normalization and recurrent state."""

import copy
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..checks import as_path, brief
from ..config import hides_joint
from ..loops import ActingPolicy, TorchNetwork
from ..observations import ALONE, in_form
from ..spaces import JOINT, MASK

NEEDS = "export: ONNX needs onnx and onnxscript, try: pip install 'marlcore[onnx]'; or name a file .pt"
TRACED, TRIED = 3, 5  # numbers of example rows for tracing a program and for testing it


def export_policy(path: str | Path, policy: ActingPolicy) -> dict[str, NDArray[Any]]:
    file = as_path("path", path)
    if file.suffix not in (".onnx", ".pt"):
        raise ValueError(f"export: expected a file named .onnx or .pt, got {os.fspath(path)!r}")
    if not file.parent.is_dir():
        raise ValueError(f"export: expected a file in an existing directory, got {os.fspath(path)!r}")
    algorithm = getattr(policy.network, "algorithm", None)
    if not hasattr(algorithm, "greedy"):
        kind = type(algorithm).__name__
        raise ValueError(f"export: expected an algorithm with a method greedy, got {kind}; see mc.Algorithm")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own deprecated and new parts
        step = GreedyStep(policy)
        step.check_acts(step.examples(TRIED))
        try:
            (_write_onnx if file.suffix == ".onnx" else _write_torchscript)(step, file)
        except (ImportError, OSError):
            raise
        except Exception as error:  # tracing a user's network may raise anything
            expected = "a network that torch can export, for batches of any length"
            reason = f"{type(error).__name__}: {error.__cause__ or error}".strip().partition("\n")[0]
            raise ValueError(f"export: expected {expected}, got {reason}") from None
        return {name: values.numpy() for name, values in step.examples(1).items()}


def _write_torchscript(step: "GreedyStep", file: Path) -> None:
    trace: Any = torch.jit.trace
    traced = trace(step, (step.examples(TRACED),), strict=False, check_trace=False)
    others = step.examples(TRIED)  # another number of rows, to find sizes that tracing made constant
    for name, expected in step(others).items():
        torch.testing.assert_close(traced(others)[name], expected)
    traced.save(os.fspath(file))


def _write_onnx(step: "GreedyStep", file: Path) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise ImportError(NEEDS) from None
    inputs, batch, log = step.examples(TRACED), torch.export.Dim("batch"), logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # torch warns if torchvision is not installed
    try:
        program = torch.onnx.export(
            step,
            kwargs={"inputs": inputs},  # torch takes a dict at the end of positional arguments for keyword arguments
            dynamo=True,
            dynamic_shapes={"inputs": {name: {0: batch} for name in inputs}},
            input_names=[*inputs],
            output_names=[*step(inputs)],
            verbose=False,
        )
    finally:
        log.setLevel(level)
    assert program is not None
    program.save(os.fspath(file))


class GreedyStep(nn.Module):
    """Maps named observations, masks and state to greedy actions and the next state; see `LoadedPolicy.export`."""

    def __init__(self, policy: ActingPolicy) -> None:
        super().__init__()
        network = policy.network
        assert isinstance(network, TorchNetwork)
        self._algorithm: Any = network.algorithm
        self.model: Any = copy.deepcopy(network.model).requires_grad_(False)  # exported programs compute no gradients
        self._normalizes = network.model.norm is not None and network.model.norm.is_active
        self._policy, self._spaces = policy, policy.spaces
        hidden = JOINT if hides_joint(self._algorithm, policy.spaces) else None
        seen = [part.name for part in policy.spaces.parts if part.name != hidden]
        self._names = {name: "obs" if name == ALONE else f"obs_{name}" for name in seen}  # of the inputs
        self._state: dict[str, torch.Tensor] = {}  # of one row, zeros
        values = self(self.examples(1))
        state = {name: part for name, part in values.items() if name != "action"}
        self._state = {name.removeprefix("next_state_"): torch.zeros_like(part) for name, part in state.items()}

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        obs: Any = {name: inputs[given] for name, given in self._names.items()}
        if self._normalizes:
            obs = self.model.norm.normalized(obs)
        state = {name: inputs[f"state_{name}"] for name in self._state} or None
        obs = in_form(obs, self._spaces.obs)
        action, after = self._algorithm.greedy(self.model.model, obs, state, inputs.get(MASK))
        if self._spaces.action_start.any():
            action = action + torch.tensor(self._spaces.action_start)
        return {"action": action, **{f"next_state_{name}": part for name, part in (after or {}).items()}}

    def examples(self, rows: int) -> dict[str, torch.Tensor]:
        """Returns inputs of `rows` rows: normally distributed floats, samples of other spaces, masks that allow all."""
        spaces, generator = self._spaces, np.random.default_rng(rows)
        lead = (rows, spaces.stack) if spaces.stack > 1 else (rows,)
        inputs = {}
        for part in spaces.parts:
            if part.name in self._names:
                space, field = copy.deepcopy(part.space), part.field
                space.seed(rows)
                values = np.array([space.sample() for _ in range(int(np.prod(lead)))]).reshape(*lead, *field.shape)
                if field.numpy.kind == "f":
                    values = generator.standard_normal(values.shape)
                inputs[self._names[part.name]] = torch.from_numpy(values.astype(field.numpy))
        if spaces.masked:
            inputs[MASK] = torch.ones(rows, spaces.choices, dtype=torch.bool)
        state = {f"state_{name}": part.repeat(rows, *[1] * (part.ndim - 1)) for name, part in self._state.items()}
        return {**inputs, **state}

    def check_acts(self, inputs: dict[str, torch.Tensor]) -> None:
        """Raises ValueError if the actions differ from those of the algorithm's `act`."""
        spaces, fields = self._spaces, self._spaces.obs
        parts = {name: inputs[given].numpy() for name, given in self._names.items()}
        rows = len(next(iter(parts.values())))
        lead = (rows, spaces.stack) if spaces.stack > 1 else (rows,)
        if isinstance(fields, dict):  # adds a mask that allows all, and the parts that only critics see
            parts = {name: np.ones((*lead, *field.shape), field.numpy) for name, field in fields.items()} | parts
        obs = in_form(parts, fields)
        given = {"explore": self._policy.explore, "mask": spaces.mask_in(obs), "generator": self._policy.generator}
        acted = self._policy.network.act(obs, **given)
        expected = spaces.shifted(acted.action)
        got = self(inputs)["action"].numpy()
        if got.shape != expected.shape or not np.allclose(got, expected, rtol=1e-4, atol=1e-5):
            kind = type(self._algorithm).__name__
            says = f"export: expected a method greedy of {kind} that returns the actions of act"
            raise ValueError(f"{says}, {brief(expected.tolist())}, got {brief(got.tolist())}")
