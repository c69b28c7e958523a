"""Actor and learners of an experiment of sorrel, in turn in one process, against the double's own sequential loop."""

import math
import os
import signal
import threading
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sorrel_double as double
import torch
from refused import Refused, check_refused, each_bad, refusals
from torch.utils._pytree import tree_leaves

from marlcore import ClosedError
from marlcore.cli import top
from marlcore.compat.sorrel import Buffer, run_experiment_mp
from marlcore.compat.sorrel.actor import Actor, play
from marlcore.compat.sorrel.experiment import Session
from marlcore.compat.sorrel.learner import Learner
from marlcore.compat.sorrel.messages import framed
from marlcore.compat.sorrel.options import Options
from marlcore.compat.sorrel.packing import move
from marlcore.compat.sorrel.section import chosen_options
from marlcore.errors import TimedOut
from marlcore.memory import interrupt_waits_with
from marlcore.processes import Control, Interrupts
from marlcore.weights import Subscriber


class Repeatable(double.Model):
    """A model that draws no random numbers, so that any loop that does the same work has the same result."""

    def __init__(self) -> None:
        super().__init__(capacity=600)
        self.acted = 0
        self.epochs_begun = 0

    def take_action(self, state: Any) -> int:
        self.acted += 1
        return self.acted // 3 % 2 if (self.acted * 0.381966) % 1 < self.epsilon else self.greedy(state)

    def train_step(self) -> Any:
        states, rewards = torch.tensor(self.memory.states), torch.tensor(self.memory.rewards)
        inputs = torch.cat([states[:-1], states[1:]], 1)
        return self.learn(
            ((self.local(inputs).max(1).values - rewards[1:] - 0.1 * self.target(inputs).mean(1)) ** 2).mean()
        )

    def start_epoch_action(self, **kwargs: Any) -> None:
        super().start_epoch_action(**kwargs)
        self.epochs_begun += 1


class InTurn(ExitStack):
    """A session whose roles run in this process, one after another."""

    def __init__(self, env: Any, logger: Any = None, **options: Any) -> None:
        super().__init__()
        self.callback(interrupt_waits_with, None)
        chosen = Options(**{"ahead": 0, "seed": 0} | options)
        self.session = Session(self, env, env.config, chosen, Interrupts(), logger)
        self.spec = self.session._spec
        self.actors = [self.role(Actor, f"actor-{i}") for i in range(self.spec.options.actors)]
        self.learners = [self.role(Learner, f"learner-{i}") for i in range(len(self.spec.models))]

    def role(self, kind: Any, name: str, attempt: int = 1) -> Any:
        return self.enter_context(closing(kind(name, self.session._envs[name], self.spec, attempt)))

    @property
    def actor(self) -> Any:
        return self.actors[0]

    @property
    def ended(self) -> int:
        return self.session.counts()["epochs"]

    def epoch(self) -> bool:
        stepped = [actor.step() for actor in self.actors]
        self.learn()
        return any(stepped)

    def learn(self) -> None:
        for learner in self.learners:
            while may_step(learner):
                learner.step()
        self.session._read_mail()

    def finish(self) -> None:
        while self.epoch():
            pass
        for learner in self.learners:
            learner.finish()
        self.session.hand_back()


def may_step(learner: Learner) -> bool:
    """Whether `step` need not wait: there is a next epoch, and it has ended."""
    epoch = learner._epoch
    return epoch < learner.spec.epochs and learner._have_ended(learner.spec.must_have_ended(epoch))


def states_of(env: Any) -> list[Any]:
    return [{name: array.tolist() for name, array in agent.model.state_dict().items()} for agent in env.agents]


def repeatable(shared: bool) -> Any:
    env = double.make(model=Repeatable, agents=3, epochs=9)
    for agent in env.agents if shared else ():
        agent.model = env.agents[0].model
    return env


def check_equal(ours: Any, our_log: double.StepLogger, theirs: Any, their_log: double.StepLogger) -> None:
    """Epochs, turns and weights; torch's sums differ in the last digit."""
    np.testing.assert_allclose(our_log.epochs, their_log.epochs, rtol=1e-5)
    assert our_log.values == their_log.values and our_log.turns == their_log.turns
    assert len({row[1] for row in our_log.epochs}) == len(our_log.epochs), "it learns"
    for mine, other in zip(ours.agents, theirs.agents, strict=True):
        torch.testing.assert_close(mine.model.state_dict(), other.model.state_dict())
        memory, others = mine.model.memory, other.model.memory
        assert (memory.idx, memory.size) == (others.idx, others.size)
        np.testing.assert_array_equal(memory.states, others.states)


@pytest.mark.parametrize("shared", [False, True], ids=["three models", "one model"])
def test_in_lock_step_everything_is_what_sorrels_loop_gives(shared: bool) -> None:
    """Epochs, turns, scores, losses, epsilon, weights, optimizer, memories.

    sorrel's own branch left the actor's epsilon as it was, and trained on zeros, since pickling made a new memory.
    """
    theirs, ours = repeatable(shared), repeatable(shared)
    their_log, our_log = double.StepLogger(), double.StepLogger()
    for experiment in (1, 2):  # the second continues where the first ended
        theirs.run_experiment(their_log)
        with InTurn(ours, our_log) as run:
            assert len(run.learners) == (1 if shared else 3)
            run.finish()
        check_equal(ours, our_log, theirs, their_log)
        assert len(our_log.epochs) == 10 * experiment
        for mine, other in zip(ours.agents, theirs.agents, strict=True):
            assert mine.model.epsilon == other.model.epsilon
            assert mine.model.epochs_begun == other.model.epochs_begun
            moments = [one.optimizer.state[one.local.weight]["exp_avg"] for one in (mine.model, other.model)]
            torch.testing.assert_close(*moments)
            assert isinstance(mine.model.memory, double.Buffer)
            mine.model.acted = other.model.acted  # what a model counts while it acts stays in the actor
        assert len({id(agent.model) for agent in ours.agents}) == (1 if shared else 3)
    ours.run_experiment(double.Logger())  # and sorrel's loop can take over


class RolloutBuffer(double.Buffer):
    """As sorrel's: actions come with their log probabilities."""

    def clear(self) -> None:
        super().clear()
        self.log_probs = np.zeros(self.capacity, np.float32)

    def add(self, obs: Any, action: Any, reward: float, done: bool, **extras: Any) -> None:
        self.log_probs[self.idx] = action[1]
        super().add(obs, action[0], reward, done)


class OnPolicy(Repeatable):
    """As sorrel's PyTorchPPO: it clears its memory before an epoch, and cuts it after that."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = RolloutBuffer(12, (double.CELLS,), 2)

    def take_action(self, state: Any) -> Any:
        return super().take_action(state), float(self.local.bias[0].detach())

    def start_epoch_action(self, **kwargs: Any) -> None:
        self.memory.clear()

    def end_epoch_action(self, **kwargs: Any) -> None:
        rows = self.memory.size - kwargs["epoch"] % 2
        for name in ("states", "actions", "rewards", "dones", "log_probs"):
            setattr(self.memory, name, getattr(self.memory, name)[:rows])

    def train_step(self) -> Any:
        with torch.no_grad():
            self.target.bias += torch.tensor(self.memory.log_probs).sum()
        return super().train_step()


def test_rollouts_reach_the_learner_by_epoch() -> None:
    """In lock step all is as in sorrel's loop, and the caller's memory holds the last rollout."""
    theirs, ours = (double.make(model=OnPolicy, epochs=9) for _ in range(2))
    their_log, our_log = double.StepLogger(), double.StepLogger()
    theirs.run_experiment(their_log)
    with InTurn(ours, our_log) as run:
        run.finish()
    check_equal(ours, our_log, theirs, their_log)
    memories = [agent.model.memory for agent in ours.agents]
    assert [(len(memory.states), memory.idx, memory.size) for memory in memories] == [(7, 8, 8)] * 2


def test_a_killed_learner_learns_from_the_same_rollout_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While several actors play ahead, in copies, each rollout waits for its learner."""
    env = double.make(agents=1, model=OnPolicy, epochs=19)
    with InTurn(env, actors=2, copies=2, ahead=3) as run:
        seen: list[Any] = []
        taken = Learner._update

        def update(learner: Any, agent: Any) -> float:
            seen.append((learner._epoch, agent.model.memory.states.copy()))
            return taken(learner, agent)

        monkeypatch.setattr(Learner, "_update", update)
        for actor in run.actors:
            actor.step()
        run.learners[0].step()
        run.learners[0]._publish = lambda: None
        run.learners[0].step()  # killed before it published
        run.learners[0].close()
        run.learners[0] = run.role(Learner, "learner-0", attempt=2)
        run.finish()
    assert [epoch for epoch, _ in seen] == [0, 1, 1, *range(2, 20)]
    np.testing.assert_array_equal(seen[1][1], seen[2][1])
    assert [len(states) for _, states in seen[2:]] == [8 - epoch % 2 for epoch in range(1, 20)]


@pytest.mark.parametrize("saved", [True, False])
def test_a_killed_learners_successor_continues(saved: bool) -> None:
    """It has the optimizer of the last save, if there is one, and the newer weights of the last publication."""
    with InTurn(env := double.make(agents=2, epochs=6), save_seconds=1e-9 if saved else 1e9) as run:
        run.epoch()
        run.epoch()
        killed = run.learners[0]
        moments = killed._model.optimizer.state[killed._model.local.weight]["exp_avg"].clone()
        killed._save_at = math.inf
        run.epoch()
        before = {name: tensor.clone() for name, tensor in killed._model.state_dict().items()}
        with torch.no_grad():
            killed._model.local.weight += 1  # an update that was never published
        killed.close()
        successor = run.learners[0] = run.role(Learner, "learner-0", attempt=2)
        assert (successor._epoch, successor._updates) == (3, 3)
        model = successor._model
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        if saved:
            assert torch.equal(model.optimizer.state[model.local.weight]["exp_avg"], moments)
        else:
            assert model.optimizer.state == {}
        assert model.epsilon == pytest.approx(0.5 * 0.9**3)
        run.finish()
        assert run.session.counts()["updates"] == 2 * 7
        assert all("(deleted)" in os.readlink(path) for path in run.spec.models[0].saves)
    assert env.agents[0].model.epsilon == pytest.approx(0.5 * 0.9**7)


@pytest.mark.parametrize("copies", [1, 2])
def test_each_actor_has_lanes_of_its_own(copies: int) -> None:
    """The epochs of a world that counts them: each once, in the ring of the actor and copy that played it."""
    with InTurn(
        double.make(agents=2, epochs=10, max_turns=5), actors=3, copies=copies, logger=(log := double.Logger())
    ) as run:
        acted = [world.agents[0].model for actor in run.actors for world in actor._worlds]
        assert len({id(model.memory) for model in acted}) == 3 * copies
        run.actor.step()
        assert [ring.size for ring in run.spec.models[0].rings] == [6] * copies + [0] * 2 * copies
        run.actors[2].step()
        before = run.spec.models[1].rings[2 * copies].states.copy()
        run.actors[1].close()  # killed before it ended an epoch
        run.actors[1] = run.role(Actor, "actor-1", attempt=2)
        run.actors[1].step()
        np.testing.assert_array_equal(run.spec.models[1].rings[2 * copies].states, before)
        run.learn()
        run.finish()
        assert run.session.counts() == {"epochs": 11, "steps": 11 * 5 * 2, "updates": 22, "restarts": 0}
    assert [row[0] for row in log.epochs] == list(range(11))


def test_in_turn_the_learners_wait_for_every_actor() -> None:
    with InTurn(double.make(epochs=7), actors=3, copies=2) as run:
        run.actor.step()
        assert not may_step(run.learners[0])
        assert run.spec.must_have_ended(0) == {0: 2, 1: 2, 2: 2}
        assert run.spec.must_have_ended(6) == {0: 3, 1: 3, 2: 2}
        ahead = run.spec._replace(options=Options(actors=3, copies=2))
        assert ahead.must_have_ended(5) == {2: 2}


@pytest.mark.parametrize("interval", [None, 3])
def test_weights_are_refreshed_between_turns(interval: int | None) -> None:
    env = double.make(agents=1, epochs=1, model=Threadsafe)
    with InTurn(env, ahead=2, sync_interval=interval) as run:
        (learner,) = run.learners
        model = run.actor._worlds[0].agents[0].model
        seen = []

        def act(state: Any) -> int:
            seen.append(model.local.bias[0].item())
            with torch.no_grad():
                learner._model.local.bias[0] = len(seen)
            learner._model.epsilon = len(seen)
            learner._publish()
            return 0

        model.take_action = act
        run.actor.step()
        assert seen[1:] == ([seen[0]] * 7 if interval is None else [seen[0]] * 2 + [3] * 3 + [6] * 2)
        assert model.epsilon == (env.agents[0].model.epsilon if interval is None else 6)
        assert model._version == (1 if interval is None else 3)


def test_a_killed_actors_successor_repeats_its_epoch() -> None:
    logger = double.Logger()
    with InTurn(double.make(epochs=5), logger) as run:
        run.epoch()
        run.epoch()
        assert next(play(run.actor._worlds[0], 2, run.spec, animate=False)) is None
        run.actor.close()
        for ring in run.spec.models:
            ring.rings[0].release()
        run.actors[0] = run.role(Actor, "actor-0", attempt=2)
        assert run.ended == 2
        run.epoch()
        assert run.actor._worlds[0].agents[0].model.epsilon == pytest.approx(0.5 * 0.9**2)
        run.finish()
    assert [row[0] for row in logger.epochs] == list(range(6))


def test_torn_weights_are_waited_for_and_learned_again(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """The only slot of a snapshot store, whose publisher was killed while it wrote."""

    with InTurn(double.make(agents=1, epochs=3), publish_mode="snapshot") as run:

        def torn(*_: Any) -> None:
            run.session._control.stop()
            raise TimedOut("torn")

        run.epoch()
        run.learners.pop().close()
        monkeypatch.setattr(Subscriber, "pull", torn)
        run.learners = [run.role(Learner, "learner-0", attempt=2)]
        assert run.learners[0]._epoch == 0
        check_refused(run.actor.step, ClosedError, "told to stop")  # where it waits
        run.session.hand_back()
    assert [record.getMessage() for record in caplog.records] == [
        "learner-0: the published weights are torn, so it starts again from the initial weights",
        "agents[0].model: the published weights are torn, so the model keeps its earlier weights",
    ]


@pytest.mark.parametrize(("rate", "updates"), [(1, 6), (2, 12), (0.5, 3), (1.5, 9)])
def test_updates_for_each_epoch_are_held(rate: float, updates: int) -> None:
    with InTurn(double.make(agents=2), updates_per_epoch=rate) as run:
        run.finish()
        assert run.session.counts() == {"epochs": 6, "steps": 6 * 8 * 2, "updates": 2 * updates, "restarts": 0}


def test_a_learner_that_runs_free_learns_while_it_waits() -> None:
    with InTurn(double.make(agents=1, epochs=1), updates_per_epoch=None, publish_interval=3) as run:
        run.actor.step()
        (learner,) = run.learners
        learner.step()
        update = learner._update

        def act_after_three(agent: Any) -> float:
            if learner._updates == 3:
                run.actor.step()
            return update(agent)

        learner._update = act_after_three
        learner.step()
        assert learner._updates > 3 and learner._epoch == 2
        assert learner._publisher.version >= 2 + (learner._updates - 2) // 3
        learner.finish()


def test_copies_of_the_world_share_networks_and_nothing_else() -> None:
    with InTurn(env := double.make(agents=2, epochs=6), copies=3) as run:
        worlds = run.actor._worlds
        run.epoch()
        for first, second, third in zip(*(world.agents for world in worlds), strict=True):
            models = [first.model, second.model, third.model]
            assert len({id(model) for model in models}) == len({id(model.memory) for model in models}) == 3
            assert models[0].local.weight is models[1].local.weight is models[2].local.weight
        assert worlds[0].world is not worlds[1].world
        run.finish()
        assert run.session.counts()["epochs"] == 7 and run.session.counts()["updates"] == 14
        assert [model.rings[0].capacity for model in run.spec.models] == [21, 21]
    assert env.agents[0].model.memory.size > 40


class Transformer(double.Model):
    """As sorrel's: it learns from sequences of its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = double.TransformerBuffer(64, (double.CELLS,), 2)

    def train_step(self) -> Any:
        if len(self.memory) < 4 + 2 + 1:
            return 0.0
        states, actions, next_actions, next_states, _, _, agents = self.memory.sample_transformer(4)
        assert agents is None and (actions[:, 1:] == next_actions[:, :-1]).all()
        assert (states[:, double.CELLS :] == next_states[:, : double.CELLS]).all()
        return self.learn(self.local(torch.from_numpy(next_states).float()).square().mean())


@pytest.mark.parametrize("copies", [1, 2])
def test_a_transformer_learns_from_sequences(copies: int) -> None:
    with InTurn(env := double.make(model=Transformer, epochs=15), copies=copies) as run:
        run.finish()
    model = env.agents[0].model
    assert type(model.memory) is double.TransformerBuffer and model.memory.size == 64 and int(model.updated) > 10


class Threadsafe(double.Model):
    """As sorrel's threadsafe models: a lock, and a snapshot of the policy that is renewed where a version changes."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._version, self._copied, self._snapshot = 0, -1, torch.zeros(())

    def start_epoch_action(self, **kwargs: Any) -> None:
        super().start_epoch_action(**kwargs)
        self._version += 1

    def take_action(self, state: Any) -> int:
        if self._copied != self._version:
            self._copied, self._snapshot = self._version, self.local.weight.detach().clone()
        return super().take_action(state)


@pytest.mark.parametrize("copies", [1, 2])
def test_threadsafe_models_act_with_the_newest_weights(copies: int) -> None:
    with InTurn(env := double.make(model=Threadsafe, epochs=9), copies=copies) as run:
        while run.epoch():
            for world in run.actor._worlds[: 1 if run.ended == 10 else copies]:
                model = world.agents[0].model
                assert torch.equal(model._snapshot, model.local.weight) and model.local.weight.abs().sum() > 0
        run.finish()
    assert env.agents[0].model._lock.acquire(blocking=False)
    env.agents[0].model._lock.release()


class WithNet(double.Plain):
    """A model that is no module, but has one."""

    def __init__(self) -> None:
        super().__init__(capacity=20)
        self.net = torch.nn.Linear(7, 2)

    def train_step(self) -> float:
        with torch.no_grad():
            self.net.bias += 1
        return 0.5


def test_a_model_that_is_no_module_is_trained_too() -> None:
    """Beside one that learns nothing, and one that is a module."""
    random, model, mine = double.Plain(), double.Model(), WithNet()
    bias = mine.net.bias.detach().clone()
    with InTurn(double.Environment(double.config(epochs=9), list(map(double.Agent, (random, model, mine))))) as run:
        run.finish()
    assert int(model.updated) > 0 and random.memory.size == 1 and model.memory.size == 64
    torch.testing.assert_close(mine.net.bias.detach(), bias + 10)


class Reluctant(double.Model):
    """A model that cannot be unpickled."""

    def __setstate__(self, state: Any) -> None:
        raise ArithmeticError("not\nagain")


def test_what_cannot_be_handed_back_costs_nothing_else(caplog: Any) -> None:
    """Models come first; a model that cannot be read again still gets its weights, and a memory costs only itself."""
    env = double.make(agents=3, epochs=9)
    with InTurn(env) as run:
        while run.epoch():
            pass
        run.learners[1]._model.__class__ = Reluctant
        for learner in run.learners:
            learner.finish()
        env.agents[0].model.memory.states.flags.writeable = False
        run.session.hand_back()
    models = [agent.model for agent in env.agents]
    for model, learner in zip(models, run.learners, strict=True):
        assert torch.equal(model.local.weight, learner._model.local.weight) and int(model.updated) > 0
        assert model.epsilon == learner._model.epsilon
    assert [len(model.optimizer.state) for model in models] == [2, 0, 2]
    assert [model.memory.size for model in models] == [0, 64, 64]
    assert [record.getMessage() for record in caplog.records] == [
        "agents[1].model: only its weights and epsilon are handed back (ArithmeticError('not\\nagain'))",
        "agents[0].model.memory: its rows are lost (ValueError('assignment destination is read-only'))",
    ]


class Alarming(double.Model):
    """A model during whose unpickling a signal comes."""

    def __setstate__(self, state: Any) -> None:
        signal.raise_signal(signal.SIGALRM)


def test_a_signal_during_hand_back_is_raised_at_the_end() -> None:
    """The first one, once every other model and memory was handed back."""
    raised = []

    def handler(*_: Any) -> None:
        raised.append(TimeoutError(f"limit {len(raised)}"))
        raise raised[-1]

    before = signal.signal(signal.SIGALRM, handler)
    env = double.make(agents=3, epochs=9)
    with InTurn(env) as run:
        for learner in run.learners:
            learner._model.__class__ = Alarming
        check_refused(run.finish, TimeoutError, "limit 0")
    signal.signal(signal.SIGALRM, before)
    assert len(raised) == 3 and [agent.model.memory.size for agent in env.agents] == [64, 64, 64]


def test_the_callers_environment_is_untouched_until_the_end() -> None:
    env = double.make(epochs=3)
    before, memory, world = states_of(env), env.agents[0].model.memory, env.world
    with InTurn(env) as run:
        run.epoch()
        assert states_of(env) == before and memory.size == 0
        run.finish()
    for tensor in env.agents[0].model.parameters():  # no longer a part of a row of the store
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
    assert states_of(env) != before and env.agents[0].model.memory is memory and memory.size > 0
    assert env.world is world and env._active_logger is None


def test_a_marlcore_buffer_as_memory_stays_the_callers() -> None:
    env = double.make(agents=1, epochs=3)
    memory = env.agents[0].model.memory = Buffer(64, (7,), 2)
    with InTurn(env) as run:
        run.epoch()
        assert len(memory) == 8 + 1  # add_empty counts as one
        run.finish()
    assert env.agents[0].model.memory is memory and len(memory) == 4 * 9
    memory.close()


def test_actor_and_learners_wait_for_each_other() -> None:
    def stop() -> None:
        raise ClosedError("it waits")

    with InTurn(double.make()) as run:
        first, second = run.learners
        interrupt_waits_with(stop)
        check_refused(first.step, ClosedError, "it waits")  # for the end of an epoch
        run.actor.step()
        first.step()
        check_refused(run.actor.step, ClosedError, "it waits")  # for the second learner
        second.step()
        assert run.actor.step() and run.ended == 2
        run.session._control.stop()
        check_refused(run.actor.step, ClosedError, "told to stop")


def test_top_shows_an_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose rows and weights lie in shared memory: the messages of its pipes hold numbers alone."""
    logger, sent = double.Logger(), []
    monkeypatch.setattr("marlcore.compat.sorrel.role.framed", lambda *content: sent.append(content) or framed(*content))
    with InTurn(double.make(), logger) as run, closing(top.WatchedRun(Control.attach(run.spec.control.handle))) as seen:
        run.finish()
        figures = seen.figures()
    assert (figures["steps"], figures["workers"]["learner-1"]["updates"]) == (6 * 8 * 2, 6)
    assert figures["returns"] == {"world": np.mean([row[2] for row in logger.epochs])}
    assert len(sent) == 6 * 3 and not any(isinstance(leaf, (np.ndarray, torch.Tensor)) for leaf in tree_leaves(sent))


class OwnLoop(double.Environment):
    """As sorrel's iowa, whose loop saves every model in every period."""

    saved = 0

    def run_experiment(self, *args: Any, **options: Any) -> None:
        super().run_experiment(*args, **options)
        self.saved, self.ran_with = self.saved + 1, self.config


class Settings(dict[str, Any]):
    """As OmegaConf's, a mapping with attributes."""

    __getattr__ = dict.__getitem__


class Development(double.Environment):
    """As sorrel's development branch, which has all but this method."""

    aggregate_epoch_stats = property()  # type: ignore[assignment]


def own_loop(kind: Any = OwnLoop, **section: Any) -> Any:
    env = double.make(epochs=3, model=Repeatable)
    env.__class__ = kind
    env.config.multiprocessing = section
    return env


def test_enabled_false_runs_the_environments_own_loop() -> None:
    theirs, ours, log = double.make(epochs=3, model=Repeatable), own_loop(enabled=False), double.StepLogger()
    ours.config = Settings(vars(ours.config))
    theirs.run_experiment(their_log := double.StepLogger())
    done = run_experiment_mp(ours, logger=log)
    assert ours.saved == 1 and states_of(ours) == states_of(theirs) and ours.ran_with is ours.config
    assert (log.epochs, log.turns, log.values) == (their_log.epochs, their_log.turns, their_log.values)
    assert (done.epochs, done.steps, done.updates, done.restarts) == (4, 4 * 8 * 2, 8, 0)
    assert done.scores == [row[2] for row in log.epochs] and done.losses == [row[1] for row in log.epochs]


def test_the_configurations_section_sets_the_options() -> None:
    section = {"enabled": True, "mode": "snapshot", "train_interval": 4, "num_learner_processes": 2, "ahead": 1}
    env = own_loop(**section)
    chosen = chosen_options(env, env.config, {"ahead": 0, "replace_loop": True})
    assert chosen == (True, Options(publish_mode="snapshot", publish_interval=4, ahead=0, replace_loop=True))
    assert chosen_options(env, SimpleNamespace(multiprocessing=None), {}) == (True, Options())


def test_the_section_takes_every_name_of_the_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timeouts and devices are options; the rest is set elsewhere, and may be repeated here."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    timeouts = {"actor_timeout": 10.0, "learner_timeout": 20}
    same = {"num_agents": 3, "buffer_capacity": 600, "batch_size": 4, "learning_rate": 0.01, "epsilon_decay": 0.05}
    nulls = dict.fromkeys(("epsilon_min", "epsilon_decay_freq", "target_update_freq", "model_config", "log_interval"))
    env = double.make(model=Repeatable, agents=3, epsilon_decay=0.05)
    section = {**timeouts, **same, **nulls, "device_per_agent": True, "logging": False, "sync_interval": 50}
    chosen = chosen_options(env, vars_with(env.config, multiprocessing=section), {})[1]
    assert chosen.timeout == {"actor": 10.0, "learner": 20.0} and (chosen.logging, chosen.sync_interval) == (False, 50)
    assert chosen.device == {"learner-0": "cuda:0", "learner-1": "cuda:1", "learner-2": "cuda:0"}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert chosen_options(env, vars_with(env.config, multiprocessing=section), {})[1].device is None


def vars_with(config: Any, **others: Any) -> Any:
    return SimpleNamespace(**{**vars(config), **others})


def test_a_replaced_loop_saves_and_logs_as_that_of_iowa(tmp_path: Path) -> None:
    """Which saves every model in every record_period without being asked, and logs what its agents met."""
    logger, env = double.Logger(), own_loop()
    del env.config.multiprocessing
    for i, agent in enumerate(env.agents):
        agent.encounters = {"DeckA": i, "DeckB": 0}
    with InTurn(env, logger, replace_loop=True, output_dir=tmp_path) as run:
        run.finish()
    assert [values["encounters"] for values in logger.values] == [{"DeckA": 1, "DeckB": 0}] * 4
    saved = sorted(file.name.partition("-agent-")[2] for file in (tmp_path / "checkpoints").iterdir())
    assert {"0.pkl", "1.pkl"} == {*saved}


def test_options_by_process() -> None:
    modes = {"learner-1": "snapshot", "learner": "triple_buffer"}
    with InTurn(double.make(), publish_mode=modes, device={"actor": "cpu"}, timeout={"learner": 9}) as run:
        assert [model.weights.mode for model in run.spec.models] == ["triple_buffer", "snapshot"]
        options = run.spec.options
        assert [options.of("timeout", name) for name in ("learner-1", "actor-0")] == [9, 300]
        assert [options.of("device", name) for name in ("learner-1", "actor-0")] == [None, "cpu"]
        run.finish()


def test_a_model_moves_with_its_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    # Parameters stay the same objects also on this device, as they do on a GPU.
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    env = double.make(agents=1, model=Repeatable)
    model, device = env.agents[0].model, torch.device("meta")  # any other than the CPU
    model.device = "cpu"
    model.train_step()
    parameters = [*model.parameters()]
    move(model, device)
    assert model.device == device and all(tensor.is_meta for tensor in model.state_dict().values())
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    assert all(state["exp_avg"].is_meta for state in model.optimizer.state.values())


def with_model(**attributes: Any) -> Any:
    env = double.make()
    env.agents[1].model = SimpleNamespace(**attributes)
    return env


INTEGER = "an integer of at least"
run = partial(run_experiment_mp, logger=double.Logger())
REFUSED: list[Refused] = [
    (lambda: run(with_model(memory=double.Buffer(4, (7,)))), TypeError,
        "agents[1].model: expected a model with train_step, got SimpleNamespace without it"),
    (lambda: run(with_model(train_step=int)), TypeError,
        "agents[1].model: expected a model with a memory, got SimpleNamespace without it"),
    (lambda: run(with_model(train_step=int, memory=type("Rollouts", (double.Buffer,), {})(4, (7,)))), TypeError,
        "agents[1].model.memory: expected sorrel's Buffer, RolloutBuffer or marlcore.compat.sorrel.Buffer, got Rollo"),
    (lambda: run(double.make(agents=0)), ValueError, "env: expected agents, got Environment with none"),
    (lambda: run(double.make(max_turns=None)), "config: expected experiment.max_turns, got a configuration without it"),
    (lambda: run(double.make(max_turns=0)), ValueError, f"experiment.max_turns: expected {INTEGER} 1"),
    (lambda: run(double.make(epochs=-1)), ValueError, f"experiment.epochs: expected {INTEGER} 0"),
    (lambda: run(3), TypeError, "env: expected an Environment of sorrel, got int without take_turn"),
    (lambda: run(own_loop(Development)), TypeError, "env: expected an Environment of sorrel "
        "1.6, got Development without aggregate_epoch_stats; sorrel's earlier releases and its development branch are "
        "not supported"),
    (lambda: run(own_loop()), ValueError, "env: expected sorrel's own run_experiment, but OwnLoop overrides it: "
        "pass replace_loop=True to run sorrel's standard loop in its place, or call env.run_experiment"),
    (lambda: run(double.make(), steps=3), TypeError, "unexpected keyword argument 'steps'"),
    (lambda: run(double.make(), log_dir=3), ValueError, "log_dir: expected a path, got 3"),
    (lambda: run(double.make(), log_dir=__file__), ValueError, "log_dir: expected a directory, got a"),
    (lambda: run(double.make(), timeout={"actor": 0}), ValueError, "timeout.actor: expected a number above 0, got 0"),
    (lambda: run(double.make(), timeout={"learner-2": 9}), "timeout: expected the fields ['actor', 'actor-0', 'learn"),
    (lambda: run(double.make(model=OnPolicy), updates_per_epoch=None), ValueError,
        "updates_per_epoch: expected a number, since agents[0].model learns from rollouts, got None"),
    *(row for expected, values in (
        (f"{INTEGER} 0", {"ahead": [-1]}), (f"{INTEGER} 1", {"actors": [0], "sync_interval": [0], "copies": [0]}),
        ("True or False", {"fork": ["spawn"]}), ("a finite number above 0", {"updates_per_epoch": [0]}),
        ("a number above 0", {"timeout": [0]}), ("a device of torch", {"device": ["gpu"]}),
        ("snapshot, double_buffer or triple_buffer", {"publish_mode": ["twice"]}),
    ) for row in each_bad(lambda **options: run(double.make(), **options), expected, **values)),
    (lambda: run(own_loop(mod=1)), "config: multiprocessing: expected the fields ['actor_timeout', 'actors', 'ahead',"),
    (lambda: run(own_loop(mode="snapshot", publish_mode="snapshot")),
        "config: multiprocessing: expected mode or publish_mode, got both"),
    (lambda: run(own_loop(enabled="no")), TypeError, "config: multiprocessing.enabled: expected true or false, got"),
    *((partial(lambda name, value: run(own_loop(**{name: value})), name, value),
        f"config: multiprocessing.{name}: expected {expected}, got {value!r}") for name, value, expected in (
        ("num_agents", 3, "null or 2, the number of agents"),
        ("buffer_capacity", 10_000, "null or 600, the capacity of each model's memory"),
        ("batch_size", 64, "null or 4, the batch_size of each model"),
        ("learning_rate", 0.00025, "null or 0.01, the rate of each model's optimizer"),
        ("epsilon_decay", 0.0001, "null or 0.1, model.epsilon_decay of the configuration"),
        ("epsilon_min", 0.01, "null, the epsilon_min of each model"),
        ("epsilon_decay_freq", 100, "null, since sorrel's loop decays epsilon once in an epoch"),
        ("target_update_freq", 4, "null, since each model's train_step updates its target"),
        ("model_config", {}, "null, since the section model of the configuration has it"),
        ("log_interval", 100, "null, since the logger gets every epoch"),
    )),
    (lambda: run(own_loop(device_per_agent=2)), TypeError,
        "config: multiprocessing.device_per_agent: expected true or false, got 2"),
    (lambda: run(own_loop(actor_timeout=1, timeout=2)),
        "config: multiprocessing: expected actor_timeout or timeout, got both"),
    (lambda: run(own_loop(num_learner_processes=3)),
        "config: multiprocessing.num_learner_processes: expected null or 2, one for each model, got 3"),
]  # fmt: skip
test_refuses = refusals(REFUSED)
