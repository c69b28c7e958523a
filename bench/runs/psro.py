"""`python -m bench psro`: Leduc poker by `mc.psro` beside OpenSpiel's PSRO, in exact exploitability and CPU-seconds.

OpenSpiel runs in its own environment, with its DQN, and with its exact best responses.
"""

import argparse
import json
import tempfile
from functools import partial
from typing import Any

import marlcore as mc
from marlcore.envs import OpenSpielGame

from .. import ROOT
from ..figures import FOLDER, markdown, write
from ..machine import cpu_seconds, made, say
from ..peers.install import SPIEL, WITH_MARLCORE
from ..processes import run_fresh

STORE = "keep the figures for docs/guides/psro.md"
ITERATIONS, STEPS, GAMES, HIDDEN, BATCH, EPSILON = 16, 8_000, 300, (64, 64), 128, 0.7
PEERS = {"hidden_layers_sizes": HIDDEN, "batch_size": BATCH, "epsilon_start": EPSILON, "epsilon_end": EPSILON}
PEERS |= {"optimizer_str": "adam", "learning_rate": 1e-3, "replay_buffer_capacity": 100_000}
PEERS |= {"learn_every": 6, "update_target_network_every": 6, "weight_update_coeff": 0.02}  # about 0.25 updates a step
COLUMNS = ["exploitability, by seed", "mixture, by Nash", "the same policies, uniform", "first policies"]
COLUMNS += ["steps of a response", "CPU seconds"]


def ours(seed: int) -> list[float]:
    game, dqn = OpenSpielGame("leduc_poker"), mc.DQN(hidden=HIDDEN, learning_rate=f"linear(3e-3, 1e-4, {STEPS})")
    with tempfile.TemporaryDirectory() as folder:
        config = mc.Config(
            total_steps=STEPS,
            seed=seed,
            mode="serial",
            run_dir=f"{folder}/psro",
            policies={"player_0": "first", "player_1": "second"},
            updates_per_step=0.25,
            actor=mc.ActorConfig(envs=64),
            learner=mc.LearnerConfig(batch_size=BATCH, warmup=1_000, n_step=1, gamma=1.0),
            exploration=mc.ExplorationConfig(epsilon=EPSILON),
        )
        options: Any = {"games": GAMES, "min_gain": None, "progress": False}
        used = cpu_seconds()
        result = mc.psro("openspiel:leduc_poker", dqn, config, iterations=ITERATIONS, **options)
        cpu = cpu_seconds() - used

    def act(policy: mc.LoadedPolicy, state: Any) -> dict[int, float]:
        return {int(policy.act(game.seen(state, state.current_player()))): 1.0}

    players = [[partial(act, policy) for policy in seat.policies] for seat in result.populations]
    exploitability = partial(mc.exploitability, game.game.new_initial_state())
    mixture = exploitability(players, [seat.mixture.tolist() for seat in result.populations])
    found = mixture, exploitability(players), exploitability([own[:1] for own in players])
    return [*(round(value, 2) for value in found), STEPS, round(cpu)]


def theirs(oracle: str, seed: int) -> list[float]:
    terms = json.dumps({"iterations": ITERATIONS, "steps": STEPS, "games": GAMES, **PEERS})
    return list(SPIEL.run(ROOT / "bench/peers/open_spiel_psro.py", oracle, seed, terms, env=WITH_MARLCORE)["row"])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])


def main(options: argparse.Namespace) -> None:
    exact, learnt = (partial(theirs, oracle) for oracle in ("exact", "dqn"))
    sides = {"marlcore, DQN": partial(run_fresh, ours), "OpenSpiel, DQN": learnt, "OpenSpiel, exact responses": exact}
    rows: dict[str, list[list[float]]] = {name: [] for name in sides}
    for seed in options.seeds:
        for name, side in sides.items():
            rows[name].append(side(seed))
            say(f"seed {seed}, {name}: {rows[name][-1]}")
    table = [[name, *map(list, zip(*by_seed, strict=True))] for name, by_seed in rows.items()]
    say(markdown(COLUMNS, table))
    if options.store:
        origin = {"command": "python -m bench psro", **made(options.load_before)}
        write(FOLDER / "psro.json", {"origin": origin, "columns": COLUMNS, "rows": table})
