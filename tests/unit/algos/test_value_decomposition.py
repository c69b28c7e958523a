"""VDN and QMIX against plain NumPy: the mixer, targets, loss and priorities, of members with and without memory."""

from dataclasses import replace

import batches
import numpy as np
import pytest
import torch
from batches import SMALL, acted, batch_of, huber, made_batch, made_obs, made_trainer
from batches import team_spaces as spaces_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import marlcore as mc
from marlcore.algos.networks.recurrent import PREVIOUS_ACTION
from marlcore.algos.networks.teams import MEMBER, TeamSpaces
from marlcore.algos.qmix import Mixer
from marlcore.interfaces import PREVIOUS_REWARD, ReplaySource
from marlcore.observations import ALONE, rows_at
from marlcore.replay import Prioritized
from marlcore.spaces import JOINT, MASK
from marlcore.spec import Field

pytestmark = pytest.mark.usefixtures("seeded_torch")

BOTH = pytest.mark.parametrize("name", ["vdn", "qmix"])
MEMORY = {"units": 6, "length": 8, "burn_in": 3, "period": 4, "n_step": 3}
ALIVE = "observation__alive"
CELLS = pytest.mark.parametrize("cell", [None, "gru"])


def made(name, **changes):
    if name == "softmax":
        name, changes = "qmix", {"positive": "softmax", **changes}
    return replace(SMALL[name][0], **changes)


def newest(part, spaces):
    return (part[-1] if spaces.stack > 1 else part).numpy()


def plain_values(acting, obs, row):
    """Returns the values of all members' actions in one observation of the team, by one call for each member."""
    found = []
    for group, network in zip(acting.team.groups, acting.networks, strict=True):
        for number, member in enumerate(range(group.rows.start, group.rows.stop)):
            own = obs[group.part][row : row + 1].select(-2, member)
            code = torch.eye(group.size)[number].expand(*own.shape[:-1], -1)
            found.append(network({ALONE: own, MEMBER: code} if group.size > 1 else own)[0].detach().numpy())
    return np.array(found)


def plain_mixed(network, values, obs, row, alive=None):
    """Returns the team's value of its members' values, in NumPy."""
    spaces = network.team.spaces
    values = values * (newest(obs[ALIVE][row], spaces) if alive is None else alive)
    if not isinstance(network.mixer, Mixer):
        return values.sum()
    weights = {name: part.numpy() for name, part in network.mixer.state_dict().items()}

    def linear(name, x):
        return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]

    def two(name):
        return linear(f"{name}.2", np.maximum(linear(f"{name}.0", state), 0))

    state = newest(obs[JOINT][row], spaces)
    first, last = two("weights").reshape(len(values), -1), two("last_weights")
    if network.mixer.softmax:
        first, last = np.exp(first), np.exp(last)
        first, last = first / first.sum(0), len(values) * last / last.sum()
    first, last = np.abs(first), np.abs(last)
    hidden = values @ first + linear("biases", state)
    return np.where(hidden > 0, hidden, np.exp(np.minimum(hidden, 0)) - 1) @ last + two("last_bias")[0]


def plain_best(values, obs, row, team):
    """Returns each member's best action among its own choices that the mask allows."""
    mask = np.ones(sum(team.choices), bool) if MASK not in obs else newest(obs[MASK][row], team.spaces)
    parts = np.split(mask, np.cumsum(team.choices)[:-1])
    return [max(np.flatnonzero(part), key=lambda a, own=own: own[a]) for part, own in zip(parts, values, strict=True)]


def allow_some(obs, choices):
    """Changes masks so that every member has an allowed choice, as environments ensure."""
    if MASK in obs:
        first = np.cumsum([0, *choices[:-1]])
        obs[MASK][..., first] |= ~torch.stack([part.any(-1) for part in obs[MASK].split(choices, -1)], -1)


def check_update(hyper, spaces, seed):
    """Asserts that an update's loss and priorities are those of a loop over the rows."""
    network, trainer = made_trainer(hyper, spaces)
    batch, team, number = made_batch(spaces, 6, seed), network.team, range(network.team.count)
    for obs in (batch.obs, batch.next_obs):
        allow_some(obs, team.choices)
    errors = []
    for row in range(6):
        taken = plain_values(network.acting, batch.obs, row)[number, batch.action[row]]
        slow = plain_values(trainer.target.acting, batch.next_obs, row)
        chooser = plain_values(network.acting, batch.next_obs, row) if hyper.double else slow
        following = slow[number, plain_best(chooser, batch.next_obs, row, team)]
        future = plain_mixed(trainer.target, following, batch.next_obs, row)
        target = hyper.reward_scale * float(batch.reward[row]) + float(batch.discount[row]) * future
        errors.append(target - plain_mixed(network, taken, batch.obs, row))
    update = trainer.update(batch)
    loss = (batch.weight.numpy() * huber(np.array(errors))).mean()
    assert update.metrics["loss"].item() == pytest.approx(loss, rel=1e-3, abs=1e-5)
    np.testing.assert_allclose(update.priority, np.abs(errors), rtol=1e-3, atol=1e-4)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["vdn", "qmix", "softmax"]),
    double=st.booleans(),
    shared=st.booleans(),
    masked=st.booleans(),
    stack=st.sampled_from([1, 2]),
    choices=st.sampled_from([(3, 2, 3), (2, 2, 4, 4), (3, 3, 3)]),
    seed=st.integers(0, 2**16),
)
def test_the_loss_is_that_of_a_plain_loop(name, double, shared, masked, stack, choices, seed):
    torch.manual_seed(seed)
    check_update(made(name, double=double, shared=shared), spaces_of(choices, masked=masked, stack=stack), seed)


BROKEN = {
    "members that do not act": ("alive", lambda self, obs: torch.ones(*obs[ALIVE].shape)),
    "masks and unlike choices": ("allowed", lambda self, mask, like: None),
}


@BOTH
@pytest.mark.parametrize("rule", BROKEN)
def test_the_plain_loop_finds_a_rule_left_out(name, rule, monkeypatch):
    monkeypatch.setattr(TeamSpaces, *BROKEN[rule])
    with pytest.raises(AssertionError):
        check_update(made(name), spaces_of(masked=True), 0)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["qmix", "softmax"]),
    seed=st.integers(0, 2**16),
    member=st.integers(0, 2),
    more=st.floats(0, 50, width=32),
)
def test_the_mixed_value_grows_with_each_members(name, seed, member, more):
    low, high = mixed_before_and_after(name, seed, [member], more)
    assert (high >= low - 1e-4 * (1 + low.abs())).all()


def mixed_before_and_after(name, seed, members, more):
    """Returns a random mixer's values [5] of random values, and those after some members' values grow by `more`."""
    torch.manual_seed(seed)
    spaces = spaces_of()
    _, trainer = made_trainer(made(name, initialization="xavier"), spaces)
    obs, values = made_obs(spaces, 5, np.random.default_rng(seed)), torch.randn(5, 3)
    obs[ALIVE][:] = 1
    higher = values.clone()
    higher[:, members] += more
    return [trainer.target.mixed(each, obs) for each in (values, higher)]


@pytest.mark.parametrize("seed", range(5))
def test_by_a_softmax_it_grows_no_faster_than_a_sum(seed):
    """All members' values grow alike. With absolute weights the mixed value may grow faster."""
    for name in ("softmax", "qmix"):
        low, high = mixed_before_and_after(name, seed, [0, 1, 2], 7.0)
        assert ((high - low).max() <= 3 * 7.0 + 1e-3) == (name == "softmax")


def test_without_absolute_weights_it_does_not_grow(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "abs", lambda tensor: tensor)
    with pytest.raises(AssertionError):
        test_the_mixed_value_grows_with_each_members.hypothesis.inner_test("qmix", 0, 0, 5.0)


def values_of(network, batch, held):
    """The members' values [B, T + 1, members, actions]."""
    most = max(network.team.choices)
    return batches.stepped_values(network.acting.stepped, network.acting.acted, batch, held, network.team.count, most)


def plain_errors(hyper, batch, held, network, target):
    """The errors [B, T] of the transitions that each window holds, one after another."""
    values, slow = (values_of(each, batch, held) for each in (network, target))
    number = range(network.team.count)

    def later(row, step):
        after = rows_at(batch.next_obs, row)
        chosen = plain_best((values if hyper.double else slow)[row, step], after, step - 1, network.team)
        return plain_mixed(target, slow[row, step][number, chosen], after, step - 1)

    errors = np.where(held, batches.plain_returns(hyper, batch, held, later), 0)
    for row, step in np.argwhere(held):
        taken = values[row, step][number, batch.action[row, step]]
        errors[row, step] -= plain_mixed(network, taken, rows_at(batch.obs, row), step)
    return errors


@pytest.mark.parametrize("shared", [True, False])
@BOTH
def test_windows_give_what_an_actor_computes_step_by_step(name, shared):
    """Loss and priorities of windows are those of values computed step by step; the burn-in does not count."""
    options = {"cell": "lstm", "double": name == "vdn"} if shared else {"cell": "gru", "double": name == "qmix"}
    hyper = made(name, shared=shared, eta=0.8, **options, **MEMORY)
    spaces = spaces_of(masked=shared, stack=1 + shared)
    network, trainer = made_trainer(hyper, spaces)
    batch = batches.made_windows(hyper, spaces, 4, 1, prioritized=Prioritized()).torch()
    for obs in (batch.obs, batch.next_obs):
        allow_some(obs, network.team.choices)
    batch.weight = torch.rand(4)
    errors = plain_errors(hyper, batch, batch.valid[..., -1].numpy(), network, trainer.target)
    batches.check_window_update(trainer.update(batch), batch, errors)


def check_the_dead_are_ignored(name, cell):
    """Observations and actions of a member that does not act change neither the loss nor a gradient."""
    hyper = made(name, cell=cell, **(MEMORY if cell else {}))
    spaces, gradients = spaces_of(), []
    for change in (0, 1):
        torch.manual_seed(0)
        network, trainer = made_trainer(hyper, spaces)
        batch = batch_of(hyper, spaces)
        for obs in (batch.obs, batch.next_obs):
            obs[ALIVE][..., 1] = 0
            obs["observation__members_0"][..., 1, :] += 7 * change
        batch.action[..., 1] = change
        loss = trainer.update(batch).metrics["loss"]
        gradients.append([loss, *(parameter.grad.clone() for parameter in network.parameters())])
    assert any(gradient.any() for gradient in gradients[0])
    assert all(map(torch.equal, *gradients))


@BOTH
@CELLS
def test_members_that_do_not_act_contribute_nothing(name, cell, monkeypatch):
    check_the_dead_are_ignored(name, cell)
    monkeypatch.setattr(TeamSpaces, "alive", lambda self, obs: torch.ones(*obs[ALIVE].shape))
    with pytest.raises(AssertionError):
        check_the_dead_are_ignored(name, cell)


@BOTH
@CELLS
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_members_choose_among_their_allowed_actions(name, cell, epsilon):
    hyper, spaces = made(name, cell=cell), spaces_of((3, 2, 5), masked=True)
    model = hyper.make_model(spaces).acting
    obs = made_obs(spaces, 40, np.random.default_rng(0))
    allow_some(obs, model.team.choices)
    explore = {"epsilon": np.array([0.0, epsilon] * 20)} if epsilon else None
    chosen = acted(hyper, model, obs, obs[MASK], 1, explore=explore).action
    first = np.cumsum([0, 3, 2])
    assert obs[MASK].numpy()[np.arange(40)[:, None], first + chosen].all()
    values = model.stepped(obs, None)[0] if cell else model(obs)
    greedy = np.array([plain_best(values[row].detach(), obs, row, model.team) for row in range(40)])
    same = (chosen == greedy).all(1)
    assert same[::2].all() and same[1::2].all() == (epsilon == 0), "epsilon is of each row"


@BOTH
def test_members_explore_each_for_itself(name):
    """Members explore uniformly among their own choices, also without masks."""
    hyper, spaces = made(name), spaces_of((3, 2, 4))
    obs = made_obs(spaces, 2000, np.random.default_rng(0))
    chosen = acted(hyper, hyper.make_model(spaces), obs, explore={"epsilon": 1.0}).action
    for member, choices in enumerate((3, 2, 4)):
        assert (abs(np.bincount(chosen[:, member], minlength=choices) - 2000 / choices) < 100).all()
    pairs = np.bincount(chosen[:, 0] * 4 + chosen[:, 2], minlength=12)
    assert (abs(pairs - 2000 / 12) < 60).all(), "and no member's draw is another's"


@BOTH
def test_rows_of_members_with_memory_hold_their_states(name):
    hyper, spaces = made(name, cell="lstm", **MEMORY), spaces_of()
    parts = {"hidden": (3, 6), "cell": (3, 6), PREVIOUS_ACTION: (3, 3), PREVIOUS_REWARD: ()}
    assert hyper.transition(spaces).extras == {name: Field(shape, every=4) for name, shape in parts.items()}
    assert hyper.source(ReplaySource(4)) == ReplaySource(1, sequence=mc.Sequence(8, 3, 4))
    obs, model = made_obs(spaces, 5, np.random.default_rng(0)), hyper.make_model(spaces)
    chosen = acted(hyper, model, obs)
    assert {part: tuple(value.shape[1:]) for part, value in chosen.state.items()} == parts
    again = acted(hyper, model, obs, state=chosen.state)
    np.testing.assert_array_equal(again.state[PREVIOUS_ACTION], np.eye(3)[again.action])
    assert not torch.equal(again.state["hidden"], chosen.state["hidden"])
