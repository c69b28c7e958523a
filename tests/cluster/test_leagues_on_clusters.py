"""Self-play and mixtures on a cluster: opponents reach every machine, and every game the learner's table."""

import os
import re
import signal
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from arena import Arena, Marking, episodes_of
from arena_games import check_opponents, check_parts, check_table, marks, played, table
from processes import until
from refused import check_refused
from whole_clusters import Drive, called, kill, leaves_nothing, result_of
from whole_runs import LONG, checkpoint, opponents_of, policy_of, steps_of, values_of

import marlcore as mc
from marlcore.cluster import Bookings, DirectLink, Ingest, Porter
from marlcore.cluster.nodes import actors
from marlcore.loops import build_model
from marlcore.processes import BEATS
from marlcore.run import RunSpec, transition_spec
from marlcore.self_play import make_beside_anchors, odds_fields, published_numbers

LEAGUE = """
from functools import partial
from pathlib import Path
from arena import Arena, Marking, weak

settings = {"pool": 64, "admit_updates": 25, "latest": 0.2, "anchors": {weak: 0.2}, "draw": "uniform"}

def league(steps, resume=None, make=Arena, nodes=1, **changes):
    config = configured(
        sys.argv[2], steps, nodes, actor=mc.ActorConfig(processes=0, envs=4, sync_interval=5),
        learner=mc.LearnerConfig(
            device="cpu", n_step=1, publish_interval=5, batch_size=16, warmup=50, checkpoint_interval=40
        ),
        supervision=mc.SupervisionConfig(max_restarts=100, backoff=0.0, actor_timeout=600.0),
        replay=mc.ReplayConfig(capacity=48_000, save=True, mixture={"anchor": 0.25, "pool": 0.75}),
        self_play=mc.SelfPlayConfig(**{**settings, **changes}),
    )
    return mc.start(partial(make, Path(sys.argv[3])), Marking(), config, resume=resume)
"""


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where each game is noted by the machine that plays it."""
    return tmp_path / "notes"


@LONG
def test_a_league_of_machines_plays_as_one(drive: Drive, notes: Path) -> None:
    """All actors are on other machines; their notes agree with the learner's table, pool and replay."""
    run_dir, result = drive.run_dir, drive.result(LEAGUE, "told(league(4_000, nodes=2).wait())", args=[notes])
    assert result["steps"] >= 4_000 and not any(result["restarts"].values())
    check_opponents(run_dir, notes)
    check_table(run_dir, notes)
    check_parts(run_dir, notes)
    assert not any(sum(values_of(run_dir, f"games_lost/node-{i}")) for i in (0, 1))


KILLED = """
class Gated(Arena):
    # Rests until the test is about to kill, and again until successors live and opponents are there to play, since the
    # run could have ended by then. A killed actor and its successor take at most 2 * 62 episodes * 4 copies * 9 steps
    # until then, of 12,000.
    def reset(self, **options):
        for gate, episode in {"about_to_kill": 40, "succeeded": 60}.items():
            while self._episode > episode and not self._path.parent.with_name(gate).exists():
                time.sleep(0.01)
        return super().reset(**options)

run = league(12_000, make=Gated, pool=128, admit_updates=10, latest=0.0, anchors={})
until(lambda: words(run, "node-0")[0] > 1_000, lambda: run.status().running)
print("working", flush=True)
told(run.wait())
"""
# A killed actor loses at most a result of each of its copies; porters none; a program those since its last answer.
LOSES = {"porters and an actor": 4, "a program": 12_000}


@LONG
@pytest.mark.parametrize("killed", LOSES)
def test_no_game_counts_twice_whatever_is_killed(killed: str, drive: Drive, notes: Path) -> None:
    nodes, run_dir, driver = drive.nodes, drive.run_dir, drive(LEAGUE, KILLED, args=[notes])
    assert driver.line() == "working"
    titles = ["marlcore.cluster.nodes"] if killed == "a program" else ["ray::PorterActor", "marlcore actor"]
    victims = {pid: title for title in titles for pid in called(nodes, title)}
    notes.with_name("about_to_kill").touch()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    awaited = Counter(victims.values())
    until(
        lambda: all(len({*called(nodes, title)} - victims.keys()) >= awaited[title] for title in titles),
        lambda: driver.running,
    )
    until(lambda: len(opponents_of(run_dir)) > 6, lambda: driver.running)
    notes.with_name("succeeded").touch()
    assert result_of(driver)["steps"] >= 12_000
    seen, counted = played(notes), table(run_dir)
    assert all(0 <= seen[kind] - counted[kind] <= LOSES[killed] for kind in seen), (seen, counted)
    frozen = {acted[0] for sides in episodes_of(notes).values() for acted in sides.values() if acted[0] % 1 == 0}
    assert len(frozen) > 5 and frozen <= {*marks(run_dir).values()}
    leaves_nothing(nodes)


GOES_ON = "told(league(int(sys.argv[4]), sys.argv[2], latest=0.0, anchors={}).wait())"


@LONG
def test_a_league_goes_on_after_its_driver_was_killed(drive: Drive, notes: Path) -> None:
    """With the table of the last checkpoint, and with the opponents, which reach the machines again."""
    run_dir, later = drive.run_dir, notes.with_name("later")

    def saved() -> dict[int, list[int]]:
        path = run_dir / "checkpoints" / "main.pt"
        return checkpoint(run_dir, "main")["self_play"]["payoff"]["totals"] if path.exists() else {}

    driver = drive(LEAGUE, "league(10**9, latest=0.0, anchors={}).wait()", args=[notes])
    until(lambda: sum(map(sum, saved().values())) > 200 and len(opponents_of(run_dir)) > 4, lambda: driver.running)
    kill(driver)
    before, admitted = saved(), {*marks(run_dir).values()}
    steps = max(steps_of(run_dir), checkpoint(run_dir, "main")["step"]) + 3_000
    result = result_of(drive(LEAGUE, GOES_ON, args=[later, steps]))
    assert result["steps"] >= steps
    counts = {kind: sum(one[i] for one in before.values()) for i, kind in enumerate(("wins", "draws", "losses"))}
    assert table(run_dir) == Counter({kind: counts[kind] + played(later)[kind] for kind in ("wins", "draws", "losses")})
    acted = {acted[0] for sides in episodes_of(later).values() for acted in sides.values()}
    assert len(admitted & acted) > 2, "restored opponents have played, with their own weights"
    leaves_nothing(drive.nodes)


LACKED = "print(refusal(lambda: league(1_000, anchors={sys.argv[4]: 0.2})))"


@LONG
def test_an_anchor_that_a_machine_lacks_is_refused(drive: Drive) -> None:
    """In one line that names it and the machine, before the run has a directory."""
    (drive.folder / "only_here.py").write_text("def bot(obs): ...")
    here = "sys.path.insert(0, sys.argv[3]); import only_here; sys.path.pop(0)"
    said = drive(here, LEAGUE, LACKED, args=[drive.folder, "only_here:bot"]).finish()
    assert re.fullmatch(
        r"env_fn: expected an environment that .*\(.*self_play\.anchors: .* got 'only_here:bot' .*", said
    ), said
    assert not drive.run_dir.exists()
    leaves_nothing(drive.nodes)


def test_a_machine_needs_the_checkpoints_of_anchors(tmp_path: Path) -> None:
    checkpoint, make = str(tmp_path / "bot.pt"), partial(make_beside_anchors, lambda: "made")
    says = f"self_play.anchors: expected a checkpoint, got {checkpoint!r}, which does not exist"
    check_refused(lambda: make(["arena:weak", checkpoint]), ValueError, says)
    Path(checkpoint).touch()
    assert make(["arena:weak", checkpoint]) == "made"


class Held(Porter):
    """A porter that gives out nothing until it is released."""

    released = False

    def fetch(self, newer_than: int, timeout: float) -> Any:
        return super().fetch(newer_than, timeout) if self.released else time.sleep(0.01)


@LONG
def test_a_node_awaits_the_opponents_that_its_weights_name(tmp_path: Path) -> None:
    """No game is played against another one meanwhile, and its report has each game once."""
    make = partial(Arena, tmp_path)
    cluster = mc.ClusterConfig("auto", flush_seconds=0.05)
    settings = mc.SelfPlayConfig(pool=2, latest=0.0)
    config = mc.Config(2_000, updates_per_step=None, actor=mc.ActorConfig(envs=2), self_play=settings, cluster=cluster)
    policy = policy_of("main", Marking(), make, config)
    with ExitStack() as stack:
        replay = stack.enter_context(mc.ReplayBuffer.create(transition_spec(policy, config), 8_000, 2 * config.lanes))
        bookings = stack.enter_context(Bookings.create(replay.lanes))
        ingest = stack.enter_context(Ingest(replay, bookings, [range(4, 8)]))
        model, numbers = build_model(policy, config).acting, published_numbers(policy.algorithm, config)
        store = stack.enter_context(mc.ParameterStore.create(model, extras=numbers | odds_fields(settings)))
        pool = Held(stack.enter_context(mc.ParameterStore.create(model, 2, numbers)), every=True)
        for each, extras in ((store, {"opponents": [0, 1, 0], "odds": [0.0, 1.0, 0.0]}), (pool.store, {})):
            with each.publisher(model) as publisher:
                publisher.publish(**dict.fromkeys(numbers, 0.0), **extras)
        address: Any = SimpleNamespace(rows=lambda _: DirectLink(ingest), weights=lambda _: Porter(store))
        orders = actors.ActorOrders(2_000, 0, {policy.name: address})
        node = actors.ActorNode(
            stack, orders, spec=RunSpec(make, (policy,), config), seat=0, epoch=1, taken=0, elapsed=0.0,
            descriptions={policy.name: store.description}, opponents=pool,
        )  # fmt: skip
        until(lambda: node._control.workers["actor-1"].load(BEATS) > 5, lambda: node.beat(orders).failed is None)
        assert node.beat(orders).steps == 0
        pool.released = True
        games: list[tuple[int, int]] = []

        def ended() -> bool:
            status = node.beat(orders)
            games.extend(status.results)
            assert status.failed is None and not status.figures["games_lost"]
            return status.done

        until(ended)
    seen = played(tmp_path)
    assert Counter({1: seen["wins"], -1: seen["losses"]}) == Counter(result for _, result in games)
    assert {opponent for opponent, _ in games} == {1} and sum(seen.values()) > 50
