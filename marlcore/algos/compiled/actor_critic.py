"""Makes the updates of SAC and TD3 by chains; bases/actor_critic.py and sac.py make the same updates in torch."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from ...compiled import LOG_SQRT_2PI, LOG_STD, Chain, Floats, Inputs, padded_zeros
from ...interfaces import Update
from ..networks.actor_critic import Critics, DeterministicPolicy
from ..networks.torso import Torso
from ..sac import GaussianPolicy
from .plain import OTHER_SIZES, NotPlain, arrays_of, chain_of, layers_of, stacked_layers
from .trainer import CompiledTrainer, Descent


def critic_chains(critics: Critics, trains: bool) -> list[Chain]:
    """Returns a chain for each critic; it maps padded rows, each an observation and an action, to values."""
    stack = [*critics.layers]
    chains = [Chain(stacked_layers(stack, critics.activation), trains) for _ in range(critics.networks)]
    weights, gradients = arrays_of(stack), arrays_of(stack, gradients=True) if trains else []
    for network, chain in enumerate(chains):
        chain.bind(*([array[network] for array in arrays] for arrays in (weights, gradients)))
    return chains


def values_of(chains: Sequence[Chain], x: Floats) -> Floats:
    """Returns every critic's values of B rows, [chains, B], by the critics' present weights."""
    return np.stack([chain.repacked(x)[:, 0] for chain in chains])


class CompiledActorCritic(CompiledTrainer):
    """The base of SAC and TD3: critics are fitted to targets, and the policy is moved to raise the critics' values."""

    policy_class: type[nn.Module]

    def networks(self) -> list[Any]:
        return [self.trainer.policy, self.trainer.critics]

    def build(self) -> None:
        trainer, policy, critics = self.trainer, self.trainer.policy, self.trainer.critics
        for module, kind in ((policy, self.policy_class), (policy.torso, Torso), (critics, Critics)):
            if type(module) is not kind:
                raise NotPlain(type(module).__name__)
        if type(critics.encoder) is not Torso or layers_of(critics.encoder)[0]:
            raise NotPlain(type(critics.encoder).__name__)
        self._inputs = Inputs(policy.torso.spaces)
        self._size = policy.actions.size
        self._middle, self._reach = (bound.numpy() for bound in (policy.actions.middle, policy.actions.reach))
        self.policy = chain_of(policy.torso, policy.output, trains=True)
        self.critics = critic_chains(critics, trains=True)
        self.target_critics = critic_chains(self.target_modules()[0], trains=False)
        if (self.policy.inputs, self.critics[0].inputs) != (self._inputs.size, self._inputs.size + self._size):
            raise NotPlain(OTHER_SIZES)
        most, targets = self.hyper.max_grad_norm, [[*module.parameters()] for module in self.target_modules()]
        self.critics_descent = Descent(trainer.critics_optimizer, most, targets[0])
        self.policy_descent = Descent(trainer.policy_optimizer, most, *targets[1:])
        self._rows = 0

    def target_modules(self) -> list[Any]:
        """Returns the critics' target network and, if there is one, the policy's target network."""
        return [self.trainer.target]

    def compiled(self, batch: Any) -> Update:
        """Makes the trainer's update; see SACTrainer and DelayedPolicyTrainer."""
        rows, columns = len(batch.reward), self._inputs.size
        self.trainer.follow_schedules(batch)
        if rows != self._rows:
            self._rows = rows
            matrices = (padded_zeros(rows, columns + self._size) for _ in range(2 + len(self.critics)))
            self._x, self._next, *self._x_gradients = matrices
            self._of_action = slice(columns, columns + self._size)
        self._inputs.fill(batch.obs, self._x)
        self._inputs.fill(batch.next_obs, self._next)
        target = batch.reward * np.float32(self.hyper.reward_scale) + batch.discount * self.future(self._next)
        action = (batch.action.reshape(rows, self._size) - self._middle) / self._reach
        self._x[:, self._of_action] = action
        values = values_of(self.critics, self._x)
        errors = target - values
        weighted = batch.weight * errors
        for chain, slope in zip(self.critics, weighted * np.float32(-2.0 / rows), strict=True):
            chain.gradient[:rows, 0] = slope
            chain.backward(self._x)
        self.trainer.updates += 1
        metrics = {
            "loss": float((weighted * errors).sum()) / rows,
            "q_mean": float(values.mean()) / self.hyper.reward_scale,
            "grad_norm": self.critics_descent.step(self.share()),
        }
        metrics |= self.improve_policy(self._x)
        return Update(metrics, np.abs(errors).mean(0))

    @abstractmethod
    def future(self, x: Floats) -> Floats:
        """Chooses actions for the next observations in `x`, writes the actions into `x`, and returns the values [B]."""

    def share(self) -> float:
        """Returns the fraction, from 0 to 1, by which this update moves the targets towards the trained weights."""
        return self.hyper.tau  # type: ignore[no-any-return]

    @abstractmethod
    def improve_policy(self, x: Floats) -> dict[str, float]:
        """Makes a gradient step of the policy if one is due; returns the step's metrics, {} without a step."""

    def noise(self, rows: int) -> Floats:
        drawn: Floats = self.trainer.normal(rows, self._size).numpy()
        return drawn

    def slopes_of_actions(self, x: Floats, gradient: Floats) -> Floats:
        """Returns the gradient of the actions in `x`, [B, size], given that of the first n critics' values, [n, B]."""
        for chain, slope, of_x in zip(self.critics, gradient, self._x_gradients, strict=False):
            chain.gradient[: len(x), 0] = slope
            chain.backward(x, of_x)
        return sum(slopes[:, self._of_action] for slopes in self._x_gradients[: len(gradient)])  # type: ignore[return-value]


class CompiledSAC(CompiledActorCritic):
    """Makes the updates of a SACTrainer."""

    policy_class = GaussianPolicy

    def build(self) -> None:
        super().build()
        trainer = self.trainer
        self._temperature = trainer.log_temperature.detach().numpy()
        self._temperature_gradient = trainer.temperature_optimizer.tensors[0].grad.numpy()
        self._temperature_descent = Descent(trainer.temperature_optimizer, self.hyper.max_grad_norm)

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
        action, log_prob, _ = self._sample(self.policy.repacked(x), self.noise(len(x)))
        x[:, self._of_action] = action
        values: Floats = values_of(self.target_critics, x).min(0) - np.exp(self._temperature) * log_prob
        return values

    def improve_policy(self, x: Floats) -> dict[str, float]:
        rows, size = len(x), self._size
        temperature = np.exp(self._temperature)
        noise, outputs = self.noise(rows), self.policy.forward(x)
        action, log_prob, deviation = self._sample(outputs, noise)
        x[:, self._of_action] = action
        values = values_of(self.critics, x)
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
        self.policy_descent.step()
        entropy = -float(log_prob.mean())
        self._temperature_gradient[...] = entropy - self.trainer.target_entropy
        self._temperature_descent.step()
        loss = float((temperature * log_prob - least).mean())
        return {"policy_loss": loss, "entropy": entropy, "temperature": float(temperature)}


class CompiledTD3(CompiledActorCritic):
    """Makes the updates of a DelayedPolicyTrainer."""

    policy_class = DeterministicPolicy

    def build(self) -> None:
        super().build()
        target = self.trainer.target.acting
        self.target_policy = chain_of(target.torso, target.output)

    def target_modules(self) -> list[Any]:
        return [self.trainer.target.critics, self.trainer.target.acting]

    def future(self, x: Floats) -> Floats:
        hyper, noise = self.hyper, self.noise(len(x))
        noise = np.clip(np.float32(hyper.target_noise) * noise, -hyper.target_noise_clip, hyper.target_noise_clip)
        action = np.tanh(self.target_policy.repacked(x)[:, : self._size]) + noise
        x[:, self._of_action] = np.clip(action, -1, 1)
        values: Floats = values_of(self.target_critics, x).min(0)
        return values

    def share(self) -> float:
        return 0.0 if self.trainer.updates % self.hyper.policy_delay else super().share()

    def improve_policy(self, x: Floats) -> dict[str, float]:
        if self.trainer.updates % self.hyper.policy_delay:
            return {}
        rows, size = len(x), self._size
        action = np.tanh(self.policy.repacked(x)[:, :size])
        x[:, self._of_action] = action
        loss = -float(values_of(self.critics[:1], x).mean())
        slopes = self.slopes_of_actions(x, np.full((1, rows), -1 / rows, np.float32))
        self.policy.gradient[:rows, :size] = slopes * (1 - action * action)
        self.policy.backward(x)
        self.policy_descent.step(self.hyper.tau)
        return {"policy_loss": loss}
