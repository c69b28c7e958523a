"""marlcore beside RLlib's APPO, IMPALA and PPO on two local Ray nodes: `python -m bench.cluster_peers`.

Every side trains on CartPole with as many actors and copies, an actor on each node, one torch thread, niceness 0, the
same two networks for policy and critic, and one pass over batches of the same size. The sides take turns, each on a new
cluster. CPU-seconds are those of all processes of a side, Ray's own too; those of the start are given apart.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Literal

import gymnasium
import torch
from rich.table import Table

from .cpu_time import TreeTime
from .machine import describe_machine, parse_if_idle, publish
from .peers import rllib

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

NODES = 2
LOOK_S = 0.2  # between looks at the CPU time
LONGEST_START_S = 180.0
GOALS = {"APPO": 20, "PPO": 5}  # times whose rate per CPU-second marlcore's must be

Tell = Callable[[int, int, float], bool]  # takes steps sampled and trained so far, and a mean return; False: stop


@dataclass(frozen=True)
class Work:
    """What all sides do: `batch` rows from one policy to the next, in steps on `minibatch` of them."""

    batch: int
    minibatch: int
    hidden: int = 256  # units in each of two layers
    copies: int = 16  # of the environment, of each actor
    vectorized: bool = False  # all copies of an actor are stepped by one call of NumPy's
    actors: int = NODES
    activation: Literal["tanh"] = "tanh"
    learning_rate: float = 3e-4
    gamma: float = 0.99


@dataclass(frozen=True)
class Mark:
    """A side at a moment."""

    time: float
    cpu_s: float
    sampled: int
    trained: int
    returns: float


@dataclass(frozen=True)
class Figures:
    """A side's rates between two moments, and what had been spent before the first."""

    side: str
    against: str
    sampled_per_s: float
    trained_per_s: float
    sampled_per_cpu_s: float
    trained_per_cpu_s: float
    cores: float
    start_cpu_s: float
    returns: float  # mean return at the end

    @classmethod
    def between(cls, side: str, against: str, first: Mark, last: Mark) -> "Figures":
        seconds, cpu_s = last.time - first.time, last.cpu_s - first.cpu_s
        sampled, trained = last.sampled - first.sampled, last.trained - first.trained
        rates = sampled / seconds, trained / seconds, sampled / cpu_s, trained / cpu_s
        return cls(side, against, *rates, cpu_s / seconds, first.cpu_s, last.returns)


def train_ours(work: Work, address: str, tell: Tell) -> None:
    """marlcore's PPO, an actor on this node and one on the other."""
    import marlcore as mc

    torch.set_num_threads(1)
    ppo = mc.PPO(
        learning_rate=work.learning_rate, hidden=(work.hidden, work.hidden), activation=work.activation, epochs=1,
        batch_size=work.batch, minibatch_size=work.minibatch,
    )  # fmt: skip
    cluster = mc.ClusterConfig(address, nodes=1, actors_per_node=work.actors - 1, lease_seconds=16.0)
    with tempfile.TemporaryDirectory() as folder:
        config = mc.Config(
            total_steps=10**9,
            run_dir=str(Path(folder) / "run"),
            actor=mc.ActorConfig(envs=work.copies),
            learner=mc.LearnerConfig(gamma=work.gamma, device="cpu"),
            cluster=cluster,
        )
        env = vectors(work) if work.vectorized else mc.NamedEnvironment("gymnasium:CartPole-v1")
        with mc.start(env, ppo, config) as run:
            goes_on = True
            while goes_on:
                time.sleep(1.0)
                status = run.status()
                if not status.running:
                    break
                trained = sum(status.updates.values()) * work.minibatch
                goes_on = tell(status.steps, trained, sum(status.returns.values()))


def vectors(work: Work) -> Callable[[], Any]:
    return partial(gymnasium.make_vec, "CartPole-v1", work.copies, vectorization_mode="vector_entry_point")


def take_part(train: Callable[[str, Tell], None], pipe: Connection) -> None:
    """The program of a side: starts its cluster, and trains until its parent has seen enough."""
    from ray_nodes import RayNodes

    def tell(*figures: float) -> bool:
        pipe.send(figures)
        return bool(pipe.recv())

    with RayNodes(NODES, cpus=1) as nodes:
        train(nodes.address, tell)


def measure(train: Callable[[str, Tell], None], warm_s: float, seconds: float) -> tuple[Mark, Mark]:
    """Two moments of a side so many seconds apart, the first one so long after its first steps."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=take_part, args=(train, theirs))
    spent, marks, began = TreeTime(multiprocessing.current_process().pid or 0), list[Mark](), 0.0
    process.start()
    theirs.close()
    deadline = time.monotonic() + LONGEST_START_S + warm_s + seconds
    while len(marks) < 2:
        if not ours.poll(LOOK_S):
            spent.look()
            if time.monotonic() > deadline:
                process.kill()
                raise TimeoutError(f"expected steps within {LONGEST_START_S:g} s, got none")
            continue
        mark = Mark(time.monotonic(), spent.look(), *ours.recv())  # raises EOFError if the side failed
        began = began or (mark.time if mark.trained else 0.0)
        wait = seconds if marks else warm_s
        if began and mark.time - (marks[0].time if marks else began) >= wait:
            marks.append(mark)
        ours.send(len(marks) < 2)
    process.join()
    return marks[0], marks[1]


def measure_all(options: argparse.Namespace) -> list[Figures]:
    """A round of each side after another; marlcore with each peer's batches."""
    shape = {"hidden": options.hidden, "copies": options.copies, "vectorized": options.vectorized}
    works = {"APPO": Work(512, 512, **shape), "IMPALA": Work(512, 512, **shape), "PPO": Work(4000, 500, **shape)}
    found = []
    for _ in range(options.rounds):
        for peer in options.peer or works:
            sides = {"marlcore": train_ours, f"RLlib {peer}": partial(rllib.train, peer)}
            for name, train in sides.items():
                if name != "marlcore" and rllib.missing():
                    continue
                first, last = measure(partial(train, works[peer]), options.warm, options.seconds)
                found.append(Figures.between(name, peer, first, last))
                print(found[-1], file=sys.stderr, flush=True)
    return found


def table(figures: list[Figures]) -> Table:
    """Medians of the rounds; a ratio is that of the medians of steps per CPU-second."""
    heads = ["side", "settings of", "sampled/s", "trained/s", "sampled/CPU-s", "trained/CPU-s", "cores", "start CPU-s",
             "return", "x", "asked"]  # fmt: skip
    shown = Table(*heads)
    for side, against in dict.fromkeys((each.side, each.against) for each in figures):
        rounds = [each for each in figures if (each.side, each.against) == (side, against)]
        peers = [each for each in figures if each.against == against and each.side != "marlcore"]

        def middle(name: str, rounds: list[Figures] = rounds) -> float:
            return median(getattr(each, name) for each in rounds)

        rate = middle("sampled_per_cpu_s")
        ratio = f"{rate / middle('sampled_per_cpu_s', peers):.1f}" if peers and side == "marlcore" else ""
        asked = str(GOALS.get(against, "")) if ratio else ""
        rates = [f"{middle(name):,.0f}" for name in ("sampled_per_s", "trained_per_s")]
        rates += [f"{rate:,.0f}", f"{middle('trained_per_cpu_s'):,.0f}", f"{middle('cores'):.2f}"]
        shown.add_row(side, against, *rates, f"{middle('start_cpu_s'):.0f}", f"{middle('returns'):.0f}", ratio, asked)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cluster_peers", description=(__doc__ or "").partition(":")[0]
    )
    parser.add_argument("--peer", action="append", choices=["APPO", "IMPALA", "PPO"], help="beside these alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds from the first update to a measurement")
    parser.add_argument("--hidden", type=int, default=Work.hidden, help="units in each of two layers")
    parser.add_argument("--copies", type=int, default=Work.copies, help="of the environment, of each actor")
    parser.add_argument("--vectorized", action="store_true", help="step an actor's copies by one call")
    options = parse_if_idle(parser)
    if rllib.missing():
        print(f"skipped: {rllib.missing()}")
    torch.set_num_threads(1)  # as on all sides
    machine = describe_machine()
    figures = measure_all(options)
    publish(machine, [table(figures)], 140, options.json, figures=[asdict(each) for each in figures])


if __name__ == "__main__":
    main()
