"""Makes the updates of PPO and MAPPO by chains; bases/clipped_policy.py makes the same updates in torch."""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...compiled import Floats, Inputs, padded_zeros, pointer
from ...interfaces import Update
from ...memory import ffi, lib
from ...observations import rows_at
from ..bases.clipped_policy import BONUS, KL, METRICS, ClippedPolicy
from ..networks.distributions import DRAWN, Categorical, Gaussian
from ..networks.policy_value import PolicyNetwork, PolicyValue, ValueNetwork
from .plain import NotPlain, chain_of, check_deviations
from .trainer import CompiledTrainer, Descent

C_TYPES = {"f": ffi.typeof("float[]"), "l": ffi.typeof("int64_t[]"), "?": ffi.typeof("uint8_t[]")}  # by dtype


class CompiledPPO(CompiledTrainer):
    """Makes the updates of PPO's and MAPPO's trainer."""

    def networks(self) -> list[Any]:
        return [self.trainer.model]

    def build(self) -> None:
        model = self.trainer.model
        if type(model) is not PolicyValue:
            raise NotPlain(type(model).__name__)
        check_deviations(model.acting.distribution)
        self._networks = [BatchChain(network) for network in (model.acting, model.critic)]
        self._critic_after = BatchChain(model.critic)  # separate, since it must not overwrite the batch's values
        self._descent = Descent(self.trainer.optimizer, self.hyper.max_grad_norm)

    def compiled(self, batch: Any) -> Update:
        hyper, rows = self.hyper, len(batch.reward)
        self.trainer.follow_schedules(batch)
        outputs, values = (network.forward(network.fill(batch.obs, rows)) for network in self._networks)
        policy, critic = (network.chain.gradient for network in self._networks)
        arrays = {"output": outputs, "output_gradient": policy, "prediction": values, "prediction_gradient": critic}
        objective, kept = objective_of(hyper, self.trainer.model.acting, batch, arrays)
        objective.bonus = batch.numbers[BONUS]
        log_prob, predicted = np.empty(rows, np.float32), values[:, 0].copy()
        lib.mc_clipped_judge(objective, rows, pointer(log_prob))
        *fixed, explained = self.trainer.advantages(batch, predicted, log_prob, partial(self._values_after, batch))
        for name, array in zip(("value", "before", "advantage", "target"), (predicted, *fixed), strict=True):
            kept.append(np.ascontiguousarray(array))
            setattr(objective, name, pointer(kept[-1]))
        if hyper.epochs == 1 and hyper.minibatch_size >= rows:  # the only step uses the outputs above
            steps = np.empty((1, len(METRICS)))
            self._step(objective, np.arange(rows), [network.x for network in self._networks], steps[0])
        else:
            steps = np.concatenate(self._passes(objective, rows))
        del kept  # the core has read these arrays
        metrics = dict(zip(METRICS, steps.mean(0).tolist(), strict=True))
        return Update({**metrics, "explained_variance": explained}, updates=len(steps))

    def _values_after(self, batch: Any, which: NDArray[np.int64]) -> Floats:
        return self._critic_after.forward(self._critic_after.fill(rows_at(batch.next_obs, which), len(which)))[:, 0]

    def _passes(self, objective: Any, rows: int) -> list[NDArray[np.float64]]:
        """Makes the trainer's passes over the batch; returns an array [steps, METRICS] for each pass."""
        hyper, passes = self.hyper, []
        for _ in range(hyper.epochs):
            order = torch.randperm(rows, generator=self.trainer.generator).numpy()
            inputs = [network.shuffle(order) for network in self._networks]
            steps = np.empty((-(-rows // hyper.minibatch_size), len(METRICS)))
            for number, first in enumerate(range(0, rows, hyper.minibatch_size)):
                part = slice(first, first + hyper.minibatch_size)
                parts = [x[part] for x in inputs]
                for network, x in zip(self._networks, parts, strict=True):
                    network.forward(x)
                self._step(objective, order[part], parts, steps[number])
            passes.append(steps)
            if hyper.target_kl is not None and steps[:, KL].mean() > hyper.target_kl:
                break
        return passes

    def _step(
        self, objective: Any, numbers: NDArray[np.int64], inputs: list[Floats], metrics: NDArray[np.float64]
    ) -> None:
        """Makes a gradient step on the rows `numbers`, whose forward pass is done; writes METRICS into `metrics`."""
        of_batch, means = ffi.from_buffer("int64_t[]", numbers), ffi.from_buffer("double[]", metrics)
        lib.mc_clipped_slopes(objective, len(numbers), of_batch, means)
        for network, x in zip(self._networks, inputs, strict=True):
            network.chain.backward(x)
        metrics[-1] = self._descent.step()


class BatchChain:
    """Holds the chain of a policy or a critic, and the chain's inputs for a batch."""

    def __init__(self, network: PolicyNetwork | ValueNetwork) -> None:
        self.chain = chain_of(network.torso, network.head, trains=True)
        self.forward = self.chain.repacked
        torso: Any = network.torso
        self._inputs = Inputs(torso.spaces, torso.without)
        self._memory = self._shuffled = padded_zeros(0, self._inputs.size)

    def fill(self, obs: Any, rows: int) -> Floats:
        """Writes a batch's observations into a padded matrix, which it keeps and returns."""
        if len(self._memory) < rows:
            self._memory, self._shuffled = (padded_zeros(rows, self._inputs.size) for _ in range(2))
        self.x = self._memory[:rows]
        self._inputs.fill(obs, self.x)
        return self.x

    def shuffle(self, order: NDArray[np.int64]) -> Floats:
        """Returns the batch's rows in this order; the next call overwrites the result."""
        out = self._shuffled[: len(order)]
        return np.take(self.x, order, 0, out=out, mode="clip")  # mode="raise" would copy once more


def objective_of(
    hyper: ClippedPolicy, policy: PolicyNetwork, batch: Any, arrays: dict[str, Any]
) -> tuple[Any, list[Any]]:
    """Returns a C struct of a batch's objective, and objects that must live as long as the struct.

    `arrays` holds the networks' outputs and the outputs' gradients, by the names of the struct's fields. The caller
    sets the struct's `bonus`, and `value`, `before`, `advantage` and `target`, which stay fixed in an update.
    """
    distribution, rows, mask = policy.distribution, len(batch.reward), policy.spaces.mask_in(batch.obs)
    arrays |= {"slopes": np.empty(2 * distribution.outputs, np.float32)}
    if isinstance(distribution, Gaussian):
        log_std: Any = distribution.log_std
        arrays |= {"log_std": log_std.detach().numpy(), "log_std_gradient": log_std.grad.numpy()}  # views
        arrays["drawn"] = action = batch.extras[DRAWN].reshape(rows, -1)
    else:
        arrays["action"] = action = batch.action.reshape(rows, -1).astype(np.int64, copy=False)
    if isinstance(distribution, Categorical):
        arrays["sizes"] = np.array(distribution.sizes)
    if mask is not None:
        arrays["allowed"] = mask
    fields = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    pointers = {name: ffi.from_buffer(C_TYPES[array.dtype.char], array) for name, array in fields.items()}
    numbers = {
        "outputs": distribution.outputs,
        "components": action.shape[1],
        "clip": hyper.clip,
        "clip_value": math.inf if hyper.clip_value is None else hyper.clip_value,
        "value_coefficient": hyper.value_coefficient,
    }
    return ffi.new("struct mc_clipped *", numbers | pointers), [pointers]
