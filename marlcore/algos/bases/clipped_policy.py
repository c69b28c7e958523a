"""The base of PPO, MAPPO, RecurrentPPO and HAPPO: advantages, passes over a batch, and the clipped objective.

Schulman et al. 2017, "Proximal policy optimization algorithms" (arXiv:1707.06347); Huang et al. 2022, "The 37
implementation details of proximal policy optimization" (the ICLR blog track). Transitions of older policies are
corrected as in Espeholt et al. 2018 (arXiv:1802.01561); then ratios divide by the probability just before the update,
not at acting time (Hilton et al. 2022, "Batch size-invariance for policy optimization", arXiv:2110.00641, section 3).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...checks import check_whole
from ...compiled import LOG_PROB
from ...declared import Number, Scheduled
from ...interfaces import Action, QueueSource, ReplaySource, Update
from ...kernels import policies
from ...memory import lib
from ...observations import rows_at
from ...spaces import Spaces
from ...spec import Field, TransitionSpec
from ..advantages import Floats, Steps, ValueNormalizer, following_values, gae, standardized, vtrace
from ..networks.actions import array_of
from ..networks.distributions import distribution_of
from ..networks.initialization import Initialization
from ..networks.policy_value import PolicyNetwork
from ..networks.stand_in import faster
from ..networks.torso import Activation
from .hyperparameters import RATE, ActRequest, AtLeast1, Hyperparameters, Layers, LearningRate, Positive
from .trainers import AdamTrainer, seeded_generator

BONUS = "entropy_coefficient"  # scheduled, as the learning rate is
ADAM_EPS = 1e-5  # Huang et al. 2022, detail 3
METRICS = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")  # of a step
KL = METRICS.index("approx_kl")


@dataclass(frozen=True)
class ClippedPolicy(Hyperparameters):
    """Hyperparameters of all variants of PPO. Each step on a minibatch counts as an update."""

    learning_rate: LearningRate = 1e-3
    """Adam's step size, above 0, usually 1e-4 to 1e-3; a number or a schedule, such as "linear(1e-3, 1e-5, 1000000)".
    `target_kl` bounds what a large step may change."""
    hidden: Layers = (64, 64)
    """Units in each fully connected layer of the policy, and of the critic; usually 64 to 256."""
    activation: Activation = field(default="tanh", kw_only=True)
    """Function after each fully connected layer of the policy and of the critic."""
    initialization: Initialization = field(default="orthogonal", kw_only=True)
    """First weights. Those of the policy's last layer are 0.01 times as large, so that the policy is nearly uniform at
    first (Huang et al. 2022, detail 2)."""
    batch_size: AtLeast1 = 2048
    """Transitions from one policy to the next, over all agents and environment copies that share it; usually 1,000 to
    20,000."""
    epochs: AtLeast1 = 10
    """Passes over each batch, at least 1; usually 3 to 10."""
    minibatch_size: AtLeast1 = 256
    """Transitions of each gradient step, usually 64 to 512; at most batch_size."""
    gae_lambda: Annotated[float, Number(0, 1)] = 0.95
    """Weight of later errors in an advantage, from 0 to 1, usually 0.9 to 1: 0 trusts the critic, 1 the rewards."""
    clip: Positive = 0.2
    """How far an action's probability may move, as a fraction, before its gradient is cut off; above 0, usually 0.1
    to 0.3."""
    clip_value: Annotated[float | None, Number(above=0)] = None
    """How far the critic's prediction may move in an update; None: any distance."""
    entropy_coefficient: Annotated[float | str, Scheduled(0)] = 0.0
    """Weight of the policy's entropy in the loss, at least 0, usually 0 to 0.01; a number or a schedule."""
    value_coefficient: Positive = 0.5
    """Weight of the critic's loss; above 0, usually 0.5 or 1."""
    max_grad_norm: Positive = 0.5
    """Larger gradients are scaled down to this norm; above 0, usually 0.5 to 10."""
    target_kl: Annotated[float | None, Number(above=0)] = 0.02
    """The passes over a batch end once the estimated divergence from the policy before them exceeds this; usually 0.01
    to 0.05; None: never."""
    normalize_advantages: bool = True
    """Subtract the mean of a batch's advantages, and divide by their standard deviation."""
    normalize_values: bool = True
    """The critic predicts values minus the targets' running mean, divided by their running standard deviation (Yu et
    al. 2022, arXiv:2103.01955, section 3). Its loss and clip_value are in these units."""
    reward_scale: Positive = 1.0
    """Factor on rewards, above 0."""
    correction: Literal["vtrace", "gae"] = "vtrace"
    """"vtrace" weights a transition by its action's probability under the present policy, divided by that under the
    policy that acted; if these are the same policy, this is GAE. "gae" ignores the difference. In serial mode, only the
    first transition of each copy in a batch is of an older policy."""
    ratio_clip: Positive = 1.0
    """Largest weight of a transition with V-trace, rho-bar in the paper."""
    trace_clip: Positive = 1.0
    """Largest weight that a transition gives to later ones with V-trace, c-bar in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(f"{self.owner} minibatch_size", self.minibatch_size, 1, self.batch_size)

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """Returns a row's fields, with the action's log-probability. Raises ValueError as `distribution_of` does."""
        extras = distribution_of(self.owner, spaces.action).extras
        return TransitionSpec(spaces.obs, spaces.action_field, {LOG_PROB: Field((), "float32"), **extras})

    def source(self, chosen: ReplaySource) -> QueueSource:
        """Returns a queue that delivers each transition once, in batches of batch_size."""
        return QueueSource(self.batch_size)

    def schedules(self) -> Mapping[str, Any]:
        return {RATE: self.learning_rate, BONUS: self.entropy_coefficient}

    def sampled(self, policy: PolicyNetwork, output: torch.Tensor, request: ActRequest) -> Action:
        """Draws actions from a policy's outputs [k, outputs]."""
        action, log_prob, extras = policy.distribution.sample(output, request.mask, request.generator)
        return Action(action, {LOG_PROB: log_prob, **extras})


class Evaluated(NamedTuple):
    """Results of the model for B transitions, each [B]; values are in the critic's units."""

    log_prob: torch.Tensor
    entropy: torch.Tensor
    value: torch.Tensor


class Minibatch(NamedTuple):
    """Transitions and other inputs of an update, each [B, ...]; `value` and `target` are in the critic's units."""

    obs: Any
    action: torch.Tensor
    extras: dict[str, torch.Tensor]
    log_prob: torch.Tensor
    value: torch.Tensor
    advantage: torch.Tensor
    target: torch.Tensor


class ClippedPolicyTrainer(AdamTrainer):
    """Makes passes over each batch with the clipped objective."""

    saved: ClassVar[tuple[str, ...]] = ("optimizer", "generator", "normalizer")
    epsilon = ADAM_EPS

    def __init__(self, hyper: ClippedPolicy, model: Any, trained: Any = None) -> None:
        """Makes an optimizer of `trained`, a part of the model; None: of the whole model."""
        super().__init__(hyper)
        self.model = model
        self.optimizer = self.adam((model if trained is None else trained).parameters())
        self.normalizer = ValueNormalizer()
        self.generator = seeded_generator()

    def update(self, batch: Any) -> Update:
        """Makes up to `epochs` passes over a batch, with one step on each minibatch.

        Returns: means over the steps of loss, policy_loss, value_loss, entropy, approx_kl (Schulman's estimate of the
            divergence from the policy before the update), clip_fraction, and grad_norm before clipping; and
            explained_variance, the part of the targets' variance that the critic explained before the update.
        """
        hyper = self.hyper
        self.follow_schedules(batch)
        single = hyper.epochs == 1 and hyper.minibatch_size >= len(batch.reward)
        with torch.set_grad_enabled(single):  # one step needs no second pass through the network
            evaluated = self.evaluate(batch)
        rows, explained = self.prepare(batch, Evaluated(*(values.detach() for values in evaluated)))
        bonus = batch.numbers[BONUS]
        if single:
            steps = [self._step(evaluated, rows, bonus)]
        else:
            steps = self._passes(rows, lambda part: self.step(part, bonus), KL)
        metrics = dict(zip(METRICS, torch.stack(steps).mean(0), strict=True))
        return Update({**metrics, "explained_variance": explained}, updates=len(steps))

    def evaluate(self, rows: Any) -> Evaluated:
        """Returns the log-probabilities of the rows' actions, the policy's entropies and the values."""
        output, value = self.outputs(rows)
        policy = self.model.acting
        log_prob, entropy = policy.distribution(output, policy.spaces.mask_in(rows.obs), rows)
        return Evaluated(log_prob, entropy, value)

    def outputs(self, rows: Any) -> Any:
        return faster(self.model)(rows.obs)

    def values_after(self, batch: Any, which: torch.Tensor) -> Any:
        """Returns the values of the next observations of the rows `which`, in the critic's units."""
        return faster(self.model.critic)(rows_at(batch.next_obs, which))

    @torch.no_grad()
    def prepare(self, batch: Any, evaluated: Evaluated) -> tuple[Minibatch, torch.Tensor]:
        """Computes advantages and targets, given the model's results for the batch.

        Returns the whole batch as a Minibatch, and the critic's explained variance.
        """
        device = evaluated.value.device

        def on_device(array: NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        def values_after(which: NDArray[np.int64]) -> Any:
            return array_of(self.values_after(batch, on_device(which)))

        fields = {name: array_of(getattr(batch, name)) for name in ("reward", "discount", "continues")}
        arrays = SimpleNamespace(**fields, extras={LOG_PROB: array_of(batch.extras[LOG_PROB])})
        value, log_prob = array_of(evaluated.value), array_of(evaluated.log_prob)
        *results, explained = self.advantages(arrays, value, log_prob, values_after)
        old, advantage, target = map(on_device, results)
        rows = Minibatch(batch.obs, batch.action, batch.extras, old, evaluated.value, advantage, target)
        return rows, torch.tensor(explained)

    @np.errstate(over="ignore", invalid="ignore")  # numbers that are not finite show in the loss
    def advantages(
        self, batch: Any, predicted: Floats, log_prob: Floats, values_after: Callable[[NDArray[np.int64]], Floats]
    ) -> tuple[Floats, Floats, Floats, float]:
        """Computes the numbers that stay fixed during an update on `batch`, a batch of arrays.

        Args:
            predicted: the present critic's values, and `log_prob`, the present policy's log-probabilities, both [B].
            values_after: gets row numbers, and returns the values of these rows' next observations.

        Returns: log-probabilities before the update, advantages and targets, each [B], and the part of the targets'
            variance that the critic explains. Predicted values and targets are in the critic's units.
        """
        hyper, norm, acted = self.hyper, self.normalizer, batch.extras[LOG_PROB]
        value = norm.denormalized(predicted)
        next_value = following_values(batch, value, lambda which: norm.denormalized(values_after(which)))
        reward = batch.reward if hyper.reward_scale == 1.0 else np.float32(hyper.reward_scale) * batch.reward
        steps = Steps(reward, batch.discount, value, next_value, batch.continues)
        if hyper.correction == "vtrace":
            old, ratio = log_prob, np.exp(log_prob - acted)
            advantage, target = vtrace(steps, ratio, hyper.gae_lambda, hyper.ratio_clip, hyper.trace_clip)
        else:
            old = acted
            advantage, target = gae(steps, hyper.gae_lambda)
        if hyper.normalize_values:
            norm.update(target)
        if hyper.normalize_advantages:
            # The mean is not weighted as V-trace weights the rows: so weighted, LunarLander ends lower.
            advantage = standardized(advantage)
        (_, spread), (_, error) = policies.moments(target), policies.moments(target - value)
        explained = 1 - error / spread if spread > 1e-8 * norm.deviation**2 else 0.0  # 0 if the targets hardly differ
        return old, advantage, norm.normalized(target), explained

    def _passes(self, rows: Minibatch, step: Callable[[Minibatch], torch.Tensor], kl: int) -> list[torch.Tensor]:
        """Makes up to `epochs` passes, which call `step` with each minibatch, and returns the results.

        Item `kl` of a result is the KL divergence. Stops after a pass whose mean divergence exceeds `target_kl`.
        """
        steps: list[torch.Tensor] = []
        for _ in range(self.hyper.epochs):
            of_pass = [step(part) for part in self.minibatches(rows)]
            steps += of_pass
            if self.hyper.target_kl is not None and torch.stack(of_pass).mean(0)[kl] > self.hyper.target_kl:
                break
        return steps

    def minibatches(self, rows: Minibatch) -> Iterator[Minibatch]:
        """Yields minibatches of the rows in a new order."""
        order = torch.randperm(len(rows.value), generator=self.generator).to(rows.value.device)
        shuffled = Minibatch(*(rows_at(values, order) for values in rows))
        for first in range(0, len(order), self.hyper.minibatch_size):
            part = slice(first, first + self.hyper.minibatch_size)
            yield Minibatch(*(rows_at(values, part) for values in shuffled))

    def step(self, rows: Minibatch, bonus: Any) -> torch.Tensor:
        """Makes a gradient step on a minibatch (see `_step`); CUDA graphs may capture this step."""
        return self._step(self.evaluate(rows), rows, bonus)

    def _step(self, evaluated: Evaluated, rows: Minibatch, bonus: Any) -> torch.Tensor:
        """Makes a gradient step on `rows`, given the model's results; returns METRICS. `bonus` weights the entropy."""
        hyper = self.hyper
        policy_loss, kl, clipped = self._policy_loss(evaluated.log_prob, rows, torch.mean)
        value_loss, entropy = self._value_loss(evaluated.value, rows), evaluated.entropy.mean()
        loss = policy_loss + hyper.value_coefficient * value_loss - bonus * entropy
        grad_norm = self.descend(self.optimizer, loss)
        with torch.no_grad():
            return torch.stack([loss, policy_loss, value_loss, entropy, kl, clipped, grad_norm])

    def _policy_loss(
        self, log_prob: torch.Tensor, rows: Minibatch, mean: Callable[[torch.Tensor], torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the clipped loss, the KL divergence and the share of clipped rows; `mean` averages over rows."""
        logratio = (log_prob - rows.log_prob).clamp(max=lib.MC_MOST_LOG_RATIO)
        ratio = torch.exp(logratio)
        clipped = ratio.clamp(1 - self.hyper.clip, 1 + self.hyper.clip)
        loss = -mean(torch.minimum(rows.advantage * ratio, rows.advantage * clipped))
        with torch.no_grad():
            return loss, mean(ratio - 1 - logratio), mean((ratio != clipped).float())

    def _value_loss(self, value: torch.Tensor, rows: Minibatch) -> torch.Tensor:
        """Returns half the mean squared error.

        With `clip_value`, a row's error is the larger of those with and without clipping (Huang et al. 2022, detail 9).
        """
        errors = (value - rows.target).square()
        clip = self.hyper.clip_value
        if clip is not None:
            clipped = rows.value + (value - rows.value).clamp(-clip, clip)
            errors = torch.maximum(errors, (clipped - rows.target).square())
        return 0.5 * errors.mean()
