"""What the documentation shows as a user's program, core, training and cluster; nothing runs it.

mypy --strict accepts it (a test), and so does pyright, against an installed wheel (by hand, before a release).
"""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import marlcore as mc
from marlcore import cluster, planning, testing


def role(agent: str) -> str:
    return "thief" if agent == "agent_0" else "guard"


def stop_at(metric: mc.Metric) -> None:
    print(metric.step, metric.agent, metric.name, metric.value)


class Steering:
    def on_evaluation(self, evaluation: mc.EvaluationEvent) -> mc.Stop | None:
        return mc.Stop("solved") if evaluation.returns["agent_0"] >= 475 else None

    def on_checkpoint(self, checkpoint: mc.CheckpointEvent) -> None:
        print(checkpoint.path)


def trained() -> mc.Result:
    mc.train("gymnasium:CartPole-v1", "dqn", mc.Config(total_steps=300_000))
    explores = mc.ExplorationConfig(epsilon="linear(1, 0.05, 50000)", schedules={"noise": "linear(1, 0, 9)"})
    learners, actor = {"guard": mc.LearnerConfig(n_step=1)}, mc.ActorConfig(envs=16)
    config = mc.Config(seed=1, policies=role, learners=learners, actor=actor, exploration=explores, run_dir="runs/demo")
    mc.Config(policies={"agent_0": "thief", "agent_1": "guard"}, exploration=mc.ExplorationConfig(epsilon=0.1))
    mc.Config(exploration=mc.ExplorationConfig(epsilon=lambda step: 1 / (1 + step)))
    mc.Config(exploration=mc.ExplorationConfig(epsilon=mc.Linear(1.0, 0.05, 50_000), schedules={"noise": 0.2}))
    shares: dict[str, float | str] = {"puck:idle": 0.1, "puck:chaser": "linear(0.4, 0.1, 200000)"}
    mc.Config(self_play=mc.SelfPlayConfig(pool=8, anchors=shares, latest=mc.Linear(0.0, 0.3, 200_000), block=5))
    mc.train("treasure_hunt", mc.PPO(learning_rate="linear(3e-4, 0, 300000)"), config, callback=stop_at)
    until_solved = mc.StopConfig(threshold=475.0, seconds=3600.0)
    mc.train("gymnasium:CartPole-v1", "dqn", mc.Config(stop=until_solved), callback=Steering(), init_from="runs/a")
    state = torch.nn.Linear(4, 2).state_dict()
    weights: dict[str, Path | dict[str, torch.Tensor]] = {"agent_0": Path("runs/a"), "agent_1": state}
    mc.train("treasure_hunt", "dqn", init_from=weights, init_strict=False)
    return mc.train("treasure_hunt", {"thief": mc.IQN(), "guard": mc.DQN()}, config, resume=Path("runs/demo"))


class Torso(torch.nn.Module):
    def __init__(self, spaces: mc.Spaces) -> None:
        super().__init__()
        self.layers = torch.nn.Linear(spaces.stack * 4, 64)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers(obs))


def with_own_networks() -> tuple[mc.Algorithm, ...]:
    return mc.PPO(network=Torso, layer_norm=True), mc.DQN(network="my_module:Torso", activation="elu"), mc.SAC()


def started() -> float:
    with mc.start("gymnasium:CartPole-v1", "dqn", mc.Config(total_steps=300_000)) as run:
        run.status()
        policy = run.policy("agent_0")
        run.wait(timeout=600)
        run.stop()
    policy = mc.load_policy(run.run_dir, "agent_0", which="best")
    action: int | np.ndarray[tuple[int, ...], np.dtype[np.generic]] = policy.act(np.zeros(4, np.float32))
    policy.reset()
    print(action)
    shaping: float = 0.1 * (1.0 - mc.run_step().fraction)
    print(mc.best_run([run.run_dir], "eval_return").name, shaping)
    return mc.evaluate(run.run_dir, episodes=10).mean["agent_0"]


def replayed() -> torch.Tensor:
    spec = mc.TransitionSpec(mc.Field((4,)), mc.Field((), "int64"))
    with mc.ReplayBuffer.create(spec, 1_000) as replay:
        batch = replay.sampler(8).sample().torch()
    obs = batch.obs
    return torch.cat(list(obs.values())) if isinstance(obs, dict) else obs


def actor(context: mc.WorkerContext, replay: mc.ReplayBuffer, lane: int) -> None:
    with replay.writer(lane) as writer:
        while not context.stopping:
            writer.add(np.zeros(4), action=lane, reward=1.0, truncated=True, final_obs=np.ones(4))


def embedded() -> float:
    obs, state = {"image": mc.Field((8, 8), "uint8"), "speed": mc.Field()}, mc.Field((2, 64), "float32", every=20)
    spec = mc.TransitionSpec(obs=obs, action=mc.Field((), "int64"), extras={"state": state})
    limiter = mc.RateLimiter(samples_per_insert=8, min_size=1000, tolerance=512)
    replay = mc.ReplayBuffer.create(spec, capacity=1_000, lanes=4, limiter=limiter)
    with replay, mc.Workers() as workers, replay.vector_writer(lanes=range(4)) as writer:
        workers.start(actor, replay, 0)
        writer.add({"image": np.zeros((4, 8, 8)), "speed": np.zeros(4)}, action=np.zeros(4), reward=np.zeros(4))
        workers.check()
        chosen, windows = mc.Prioritized(alpha=0.9, beta=0.6), mc.Sequence(length=80, burn_in=40, period=40)
        sampler: mc.Sampler = replay.sampler(batch_size=32, stack=4, n_step=3, prioritized=chosen, sequence=windows)
        with mc.Prefetch(sampler) as prefetch:
            batch: mc.Batch = prefetch.sample(timeout=1.0)
            prefetch.update_priorities(batch.index, np.ones(32))
        again: mc.Batch = replay.read(sampler.sample().index, missing="skip", stack=4)
        rewards = [episode.reward.sum() for episode in replay.episodes()] + [b.reward.sum() for b in replay.batches(64)]
        whole = replay.sampler(8, sequence=mc.Sequence(100, whole=True), replace=False).sample(len(again), timeout=1.0)
        assert whole.mask is not None and len(rewards)
        replay.clear()
        mixed = mc.Mixture([replay, replay], fractions=[1 / 3, 2 / 3], batch_size=256).sample()
        replay.save("replay.marlcore", sampler)
    return float(mixed.reward.mean() + batch.discount.mean())


def queued_and_published(spec: mc.TransitionSpec, model: torch.nn.Module) -> int:
    with mc.TrajectoryQueue.create(spec, 1_000, when_full="drop_oldest") as queue:
        reader: mc.TrajectoryReader = queue.reader(batch_size=16, length=128)
        print(reader.read().obs)
    weights = {"w": np.zeros((4, 2), np.float32)}
    with mc.ParameterStore.create(model) as store, mc.ParameterStore.create(weights) as arrays:
        changed: bool = arrays.subscriber(weights).pull()
        with store.publisher(model) as publisher:
            version: int = publisher.publish(epsilon=0.1)
    return version + changed


def caught() -> str:
    try:
        testing.check_env("treasure_hunt", steps=100)
    except (mc.LaneBusy, mc.NotEnoughData, mc.SharedMemoryFull, mc.WorkerFailed) as error:
        return str(error)
    except mc.MarlcoreError as error:
        return type(error).__name__
    return ""


class Walk:
    agents = ("walker",)
    action_space: Any = None

    def reset(self) -> object:
        return None

    def get_state(self) -> Hashable:
        return 0

    def set_state(self, state: Any) -> None: ...

    def transition_probabilities(
        self, state: Any, action_profile: Sequence[int]
    ) -> list[tuple[float, Hashable]] | None:
        return None


def planned() -> int:
    graph: planning.Graph = planning.build_graph(Walk(), workers=2)
    with graph:
        return len(graph)


def on_many_machines(replay: mc.ReplayBuffer, link: cluster.Link) -> mc.Config:
    with cluster.Relay(replay, link) as relay:
        print(relay.stats.rows)
    return mc.Config(cluster=mc.ClusterConfig("auto", nodes=4, actors_per_node=8, compress="lz4"))


def mistaken(policy: mc.LoadedPolicy, batch: mc.Batch) -> None:
    """Mistakes that mypy must find: it reports needless ignores, such as where a type is Any."""
    action: str = policy.act(np.zeros(4, np.float32))  # type: ignore[assignment]
    obs: str = batch.torch().obs  # type: ignore[assignment]
    print(action, obs)
