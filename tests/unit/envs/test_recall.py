"""The test of memory: what it shows and rewards, and its vector form beside plain copies."""

import numpy as np
import pytest
from random_play import assert_same, play

from marlcore.envs import Recall, make, vectorize
from marlcore.envs.copies import Copies
from marlcore.envs.recall import Recalls
from marlcore.testing import check_env


@pytest.mark.parametrize(("cues", "delay"), [(2, 1), (4, 20)])
def test_only_the_last_action_counts_and_must_name_the_cue(cues, delay):
    env, rng, shown = Recall(cues, delay), np.random.default_rng(0), set()
    for episode in range(60):
        obs, _ = env.reset(seed=7 if episode == 0 else None)
        cue = int(obs.argmax())
        shown.add(cue)
        assert obs.tolist() == np.eye(cues + 1)[cue].tolist() and cue < cues
        for step in range(1, delay + 1):
            obs, reward, terminated, truncated, _ = env.step(np.int64(rng.integers(cues)))
            assert (reward, terminated, truncated) == (0.0, False, False)
            assert obs.tolist() == [0.0] * cues + [float(step == delay)]
        answer = int(rng.integers(cues))
        _, reward, terminated, _, _ = env.step(np.int64(answer))
        assert terminated and reward == float(answer == cue)
    assert shown == set(range(cues))


def test_copies_computed_together_are_the_plain_copies():
    make_env = lambda: Recall(cues=3, delay=4)  # noqa: E731
    together = vectorize(make_env, 5)
    assert isinstance(together, Recalls)
    apart = Copies([make("recall", cues=3, delay=4) for _ in range(5)])
    for seed in (0, 11):
        mine, its = play(together, 60, seed)[0], play(apart, 60, seed)[0]
        assert mine.keys() == its.keys()
        for key in its:
            assert_same(mine[key], its[key])
    check_env(make_env)


@pytest.mark.parametrize(("options", "line"), [({"cues": 1}, "cues"), ({"delay": 0}, "delay")])
def test_a_bad_option_is_named(options, line):
    with pytest.raises(ValueError, match=rf"^Recall {line}: expected an integer of at least \d, got \d$"):
        make("recall", **options)
