"""The shares of a run's steps: how many each actor takes, on this machine and on others."""

from collections.abc import Sequence

from ..config import Config, actor_names, node_names
from ..processes import SHARE, STEPS, Control


def deal_steps(control: Control, config: Config, nodes: Sequence[str]) -> None:
    """Deals what is left of a run's steps out to this machine's actors and to the nodes at work; others get no more."""
    weights = dict.fromkeys(actor_names(config), 1) | dict.fromkeys(nodes, config.cluster.actors_per_node)
    steps = {name: control.workers[name].load(STEPS) for name in [*actor_names(config), *node_names(config)]}
    by_others = sum(taken for name, taken in steps.items() if name not in weights)
    shares = dealt(config.total_steps - by_others, [steps[name] for name in weights], [*weights.values()])
    for name, share in (dict.fromkeys(steps, 0) | dict(zip(weights, shares, strict=True))).items():
        control.notes[name].store(SHARE, share)


def dealt(total: int, steps: Sequence[int], weights: Sequence[int]) -> list[int]:
    """The steps at which each of several is done, so that together they reach `total`; each has taken `steps`.

    What is left is dealt out by their weights; single steps that remain go to those that have taken fewest.
    """
    left, whole = max(0, total - sum(steps)), sum(weights)
    parts = [left * weight // whole for weight in weights]
    behind = sorted(range(len(parts)), key=lambda i: steps[i] / weights[i])
    for i in behind[: left - sum(parts)]:
        parts[i] += 1
    return [taken + part for taken, part in zip(steps, parts, strict=True)]
