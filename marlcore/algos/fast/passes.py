"""Forward and backward passes of a value network: written out for fully connected layers, by autograd for others."""

import copy
from itertools import chain
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch import nn

from ..networks.qnetwork import Head, QNetwork
from ..networks.torso import Dense, Torso
from .stand_in import faster, is_plain, linear, plan_of

Outputs: TypeAlias = tuple[torch.Tensor, torch.Tensor | None]

TRAINING = attrgetter("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")
TRAINED_ALONE = (True, None, None)  # without hooks

_threshold_backward = torch.ops.aten.threshold_backward.default  # looked up once: that takes longer than running it


def passes(network: nn.Module) -> "LayersPass | AutogradPass":
    """Returns an object with the network's forward and backward pass; call both without recording by autograd.

    `forward` returns the outputs [B, outputs], and outputs for further observations, which the backward pass ignores;
    `backward` takes the loss's gradient with respect to the outputs and writes the parameters' gradients into their
    `grad`, which the caller zeroed. If any part is hooked, replaced, compiled or frozen, autograd makes the passes.
    """
    plan = plan_of(network)
    if plan is not None:
        if plan.kept is None:
            plan.kept = _written_out(network)
        if plan.kept and plan.kept.trains_all():
            return plan.kept  # type: ignore[no-any-return]
    return AutogradPass(network)


def _written_out(network: Any) -> "LayersPass | bool":
    """Returns the passes of a torso and a head whose layers have ReLU between them; False for other networks."""
    if type(network).forward is not QNetwork.forward:
        return False
    torso, head = network.torso, network.head
    if type(torso) is not Torso or type(head) is not Head or type(torso.dense) is not Dense:
        return False
    layers = (*torso.dense.layers, head.hidden, head.output)
    activations = torso.dense.activation, head.activation
    plain = all(map(is_plain, (torso, head, torso.dense, torso.dense.layers, *activations, *layers)))
    if not plain or {*map(type, activations)} != {nn.ReLU} or {*map(type, layers)} != {nn.Linear}:
        return False
    encoder = copy.copy(faster(network).torso)
    vars(encoder)["dense"] = lambda x: x
    written = LayersPass(encoder, head, [layer._parameters for layer in layers])
    return written if written.covers(network) else False


class AutogradPass:
    def __init__(self, network: nn.Module) -> None:
        self._network = network

    def forward(self, obs: Any, further: Any = None) -> Outputs:
        network = faster(self._network)
        others = None if further is None else network(further)
        with torch.enable_grad():
            self._outputs = network(obs)
        return self._outputs.detach(), others

    def backward(self, gradient: torch.Tensor) -> None:
        torch.autograd.backward(self._outputs, gradient)


class LayersPass:
    """Computes the passes of a torso and a head whose layers have ReLU between them; gradients equal autograd's.

    For two layers of 64 units, the matrix products take a quarter of the time that autograd takes for the passes.
    `encoder` is the torso without its layers; `parameters` has each layer's `_parameters`.
    """

    def __init__(self, encoder: Torso, head: Head, parameters: list[dict[str, Any]]) -> None:
        self._encoder, self._head, self._parameters = encoder, head, parameters
        self._inputs: list[torch.Tensor] = []  # of each layer, in the last forward pass

    def covers(self, network: nn.Module) -> bool:
        """Returns whether the layers have all parameters of the network, each of them once."""
        tensors = [tensor for layer in self._parameters for tensor in layer.values()]
        return sorted(map(id, tensors)) == sorted(map(id, network.parameters()))

    def trains_all(self) -> bool:
        """Returns whether autograd would do exactly the same: all parameters are trained, and none has a hook."""
        tensors = chain.from_iterable(map(dict.values, self._parameters))
        return all(map(TRAINED_ALONE.__eq__, map(TRAINING, tensors)))

    def forward(self, obs: Any, further: Any = None) -> Outputs:
        x = self._encoder(obs)
        rows = len(x)
        if further is not None:  # two small products take longer than one of both
            x = torch.cat((x, self._encoder(further)))
        inputs = [x]
        for tensors in self._parameters[:-1]:
            x = linear(tensors, x).relu_()
            inputs.append(x)
        outputs = self._head.combined(linear(self._parameters[-1], x))
        if further is None:
            self._inputs = inputs
            return outputs, None
        self._inputs = [layer[:rows] for layer in inputs]
        return outputs[:rows], outputs[rows:]

    def backward(self, gradient: torch.Tensor) -> None:
        gradient = self._of_outputs(gradient)
        for tensors in reversed(self._parameters):
            weight, x = tensors["weight"], self._inputs.pop()
            torch.mm(gradient.t(), x, out=weight.grad)
            torch.sum(gradient, 0, out=tensors["bias"].grad)
            if self._inputs:  # x is the output of a ReLU: positive where its input was
                gradient = _threshold_backward(torch.mm(gradient, weight), x, 0)

    def _of_outputs(self, gradient: torch.Tensor) -> torch.Tensor:
        """Converts a gradient with respect to the head's values [B, actions] to one for its last layer's outputs."""
        head = self._head
        if not head.dueling:
            return gradient
        transposed = head.aggregate.t()
        if head.few:
            return torch.matmul(gradient, transposed)
        outputs = torch.matmul(gradient.sum(-1, keepdim=True), transposed)
        outputs[..., :-1] += gradient
        return outputs
