"""Updates of SAC and TD3 on chains; the text is bases/actor_critic.py and sac.py."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from ...compiled import LOG_SQRT_2PI, LOG_STD, Chain, Floats, Inputs, padded_zeros
from ...interfaces import Update
from ..networks.actor_critic import Critics, DeterministicPolicy
from ..networks.torso import Torso
from ..sac import GaussianPolicy
from .plain import NotPlain, arrays_of, layers_of, stacked_layers
from .trainer import CompiledTrainer, OptimizerArrays


class CriticChains:
    """The chains of some critics' networks, from the padded rows of an observation and an action to a value."""

    def __init__(self, critics: Critics, trains: bool) -> None:
        stack = [*critics.layers]
        layers = stacked_layers(stack, critics.activation)
        self._chains = [Chain(layers, trains) for _ in range(critics.networks)]
        for network, chain in enumerate(self._chains):
            weights = arrays_of(stack)
            gradients = arrays_of(stack, gradients=True) if trains else []
            chain.bind(*([array[network] for array in arrays] for arrays in (weights, gradients)))

    def pack(self) -> None:
        for chain in self._chains:
            chain.pack()

    def values(self, x: Floats, count: int | None = None) -> Floats:
        """Returns the values [count, B] of rows by the first `count` networks; None: by all."""
        return np.stack([chain.forward(x)[:, 0] for chain in self._chains[:count]])

    def backward(self, x: Floats, gradient: Floats, x_gradients: Sequence[Floats] = ()) -> None:
        """Sets the gradients of the weights or, if they are given, of x instead, by that of the values [count, B]."""
        for number, slope in enumerate(gradient):
            chain = self._chains[number]
            chain.gradient[: len(x), 0] = slope
            chain.backward(x, x_gradients[number] if x_gradients else None, trains=not x_gradients)


class CompiledActorCritic(CompiledTrainer):
    """The base: critics learn towards targets, and a policy climbs the critics' values of its actions."""

    policy_class: type[nn.Module]

    def networks(self) -> list[Any]:
        return [self.trainer.policy, self.trainer.critics]

    def build(self) -> None:
        trainer, policy, critics = self.trainer, self.trainer.policy, self.trainer.critics
        for module, kind in ((policy, self.policy_class), (critics, Critics)):
            if type(module) is not kind:
                raise NotPlain(type(module).__name__)
        if type(critics.encoder) is not Torso or layers_of(critics.encoder)[0]:
            raise NotPlain(type(critics.encoder).__name__)
        layers, modules = layers_of(policy.torso, policy.output)
        self._inputs = Inputs(policy.torso.spaces)
        self._size = policy.actions.size
        self._middle, self._reach = (bound.numpy() for bound in (policy.actions.middle, policy.actions.reach))
        self.policy = Chain(layers, trains=True)
        self.policy.bind(arrays_of(modules), arrays_of(modules, gradients=True))
        self.critics = CriticChains(critics, trains=True)
        self.target_critics = CriticChains(self.target_modules()[0], trains=False)
        targets = [[*module.parameters()] for module in self.target_modules()]
        self.critics_optimizer = OptimizerArrays(trainer.critics_optimizer, targets[0])
        self.policy_optimizer = OptimizerArrays(trainer.policy_optimizer, *targets[1:])
        self._rows = 0

    def target_modules(self) -> list[Any]:
        """Returns the target of the critics and, if the policy has one, that of the policy."""
        return [self.trainer.target]

    def compiled(self, batch: Any) -> Update:
        """Makes the trainer's update; see SACTrainer and DelayedPolicyTrainer."""
        rows, columns = len(batch.reward), self._inputs.size
        self.trainer.follow_schedules(batch)
        if rows != self._rows:
            self._rows = rows
            self._x, self._next, *self._x_gradients = (padded_zeros(rows, columns + self._size) for _ in range(4))
            self._x_gradients = self._x_gradients[: self.trainer.critics.networks]
            self._of_action = slice(columns, columns + self._size)
        self._inputs.fill(batch.obs, self._x)
        self._inputs.fill(batch.next_obs, self._next)
        self.policy.pack()
        self.target_critics.pack()
        target = batch.reward * np.float32(self.hyper.reward_scale) + batch.discount * self.future(self._next)
        action = (batch.action.reshape(rows, self._size) - self._middle) / self._reach
        self._x[:, self._of_action] = action
        self.critics.pack()
        values = self.critics.values(self._x)
        errors = target - values
        weighted = batch.weight * errors
        self.critics.backward(self._x, weighted * np.float32(-2.0 / rows))
        metrics = {
            "loss": float((weighted * errors).sum()) / rows,
            "q_mean": float(values.mean()) / self.hyper.reward_scale,
            "grad_norm": self.critics_optimizer.step(self.hyper.max_grad_norm),
        }
        self.trainer.updates += 1
        metrics |= self.improve_policy(self._x)
        return Update(metrics, np.abs(errors).mean(0))

    def future(self, x: Floats) -> Floats:
        """Returns the next observations' values [B], whose actions it writes into x."""
        raise NotImplementedError

    def improve_policy(self, x: Floats) -> dict[str, float]:
        """Makes a step of the policy and moves the targets, if that is due; returns metrics."""
        raise NotImplementedError

    def noise(self, rows: int) -> Floats:
        drawn: Floats = self.trainer.normal(rows, self._size).numpy()
        return drawn

    def slopes_of_actions(self, x: Floats, gradient: Floats) -> Floats:
        """Returns the gradient of the actions [B, size] in x by that of the critics' values [count, B]."""
        self.critics.backward(x, gradient, self._x_gradients[: len(gradient)])
        return sum(slopes[:, self._of_action] for slopes in self._x_gradients[: len(gradient)])  # type: ignore[return-value]


class CompiledSAC(CompiledActorCritic):
    """Makes the updates of a SACTrainer."""

    policy_class = GaussianPolicy

    def build(self) -> None:
        super().build()
        trainer = self.trainer
        self._temperature = trainer.log_temperature.detach().numpy()
        self._temperature_gradient = trainer.temperature_optimizer.tensors[0].grad.numpy()
        self._temperature_optimizer = OptimizerArrays(trainer.temperature_optimizer)

    def _sample(self, outputs: Floats, noise: Floats) -> tuple[Floats, Floats, Floats]:
        """Returns actions [B, size], their log-densities [B] and the standard deviations; see GaussianPolicy.sample."""
        size = self._size
        log_std = np.clip(outputs[:, size : 2 * size], *LOG_STD)
        deviation = np.exp(log_std)
        x = outputs[:, :size] + deviation * noise
        slope = 2 * (np.float32(math.log(2)) - x - np.logaddexp(np.float32(0), -2 * x))
        density = np.float32(-0.5) * noise * noise - log_std - np.float32(LOG_SQRT_2PI)
        return np.tanh(x), (density - slope).sum(1), deviation

    def future(self, x: Floats) -> Floats:
        action, log_prob, _ = self._sample(self.policy.forward(x), self.noise(len(x)))
        x[:, self._of_action] = action
        values: Floats = self.target_critics.values(x).min(0) - np.exp(self._temperature) * log_prob
        return values

    def improve_policy(self, x: Floats) -> dict[str, float]:
        rows, size, most = len(x), self._size, self.hyper.max_grad_norm
        temperature = np.exp(self._temperature)
        noise, outputs = self.noise(rows), self.policy.forward(x)
        action, log_prob, deviation = self._sample(outputs, noise)
        x[:, self._of_action] = action
        self.critics.pack()
        values = self.critics.values(x)
        least = values.min(0)
        chosen = (values == least).astype(np.float32)
        slopes = self.slopes_of_actions(x, chosen / (np.float32(-rows) * chosen.sum(0)))
        share = np.float32(temperature / rows)  # of a row's log-density
        slopes = slopes * (1 - action * action) + 2 * share * action
        gradient, log_std = self.policy.gradient, outputs[:, size : 2 * size]
        gradient[:rows, :size] = slopes
        gradient[:rows, size : 2 * size] = (slopes * deviation * noise - share) * (
            (log_std >= LOG_STD[0]) & (log_std <= LOG_STD[1])
        )
        self.policy.backward(x)
        self.policy_optimizer.step(most)
        entropy = -float(log_prob.mean())
        self._temperature_gradient[...] = entropy - self.trainer.target_entropy
        self._temperature_optimizer.step(most)
        self.critics_optimizer.move(self.hyper.tau)
        loss = float((temperature * log_prob - least).mean())
        return {"policy_loss": loss, "entropy": entropy, "temperature": float(temperature)}


class CompiledTD3(CompiledActorCritic):
    """Makes the updates of a DelayedPolicyTrainer."""

    policy_class = DeterministicPolicy

    def build(self) -> None:
        super().build()
        target = self.trainer.target.acting
        layers, modules = layers_of(target.torso, target.output)
        self.target_policy = Chain(layers)
        self.target_policy.bind(arrays_of(modules))

    def target_modules(self) -> list[Any]:
        return [self.trainer.target.critics, self.trainer.target.acting]

    def future(self, x: Floats) -> Floats:
        hyper, noise = self.hyper, self.noise(len(x))
        noise = np.clip(np.float32(hyper.target_noise) * noise, -hyper.target_noise_clip, hyper.target_noise_clip)
        self.target_policy.pack()
        action = np.tanh(self.target_policy.forward(x)[:, : self._size]) + noise
        x[:, self._of_action] = np.clip(action, -1, 1)
        values: Floats = self.target_critics.values(x).min(0)
        return values

    def improve_policy(self, x: Floats) -> dict[str, float]:
        if self.trainer.updates % self.hyper.policy_delay:
            return {}
        rows, size = len(x), self._size
        action = np.tanh(self.policy.forward(x)[:, :size])
        x[:, self._of_action] = action
        self.critics.pack()
        loss = -float(self.critics.values(x, count=1).mean())
        slopes = self.slopes_of_actions(x, np.full((1, rows), -1 / rows, np.float32))
        self.policy.gradient[:rows, :size] = slopes * (1 - action * action)
        self.policy.backward(x)
        self.policy_optimizer.step(self.hyper.max_grad_norm)
        self.critics_optimizer.move(self.hyper.tau)
        self.policy_optimizer.move(self.hyper.tau)
        return {"policy_loss": loss}
