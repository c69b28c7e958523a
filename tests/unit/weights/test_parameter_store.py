"""The parameter store: published weights arrive whole, whatever happens to models, processes and slots."""

import contextlib
import copy
import pickle
from functools import partial
from itertools import product

import numpy as np
import pytest
from filled import CYCLE, MODELS, fill, value_of, words, words_of_row
from mapped import Mapped
from meanwhile import Rang, soon
from refused import Refused, check_refused, each_bad, refusals, stale_in_a_fork
from tiers import long_but
from victims import at_instruction

import marlcore as mc
from marlcore.weights.layout import RowLayout

torch = pytest.importorskip("torch")  # an extra of the core
nn = torch.nn

MODES = {"snapshot": 1, "double_buffer": 2, "triple_buffer": 3}


class Odd(nn.Module):
    """A model with tied weights, an integer buffer, mixed dtypes, and a frozen, an empty and a transposed tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.hidden = nn.Linear(5, 5).requires_grad_(False)
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 7)
        self.head.weight = self.embedding.weight
        self.brief = nn.Parameter(torch.randn(3).to(torch.bfloat16))
        self.transposed = nn.Parameter(torch.randn(4, 3).t())
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("phase", torch.randn(2, dtype=torch.complex64), persistent=False)
        self.register_buffer("absent", None)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.hidden(self.embedding(tokens))))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: tensor.detach().clone() for name, tensor in named}


def assert_equal(model: nn.Module, other: nn.Module) -> None:
    expected, got = values(model), values(other)
    assert expected.keys() == got.keys()
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), name


@pytest.fixture
def model():
    torch.manual_seed(0)
    return mlp()


@pytest.fixture
def store(model):
    with mc.ParameterStore.create(model) as store:
        yield store


@pytest.fixture
def publisher(store, model):
    with store.publisher(model) as publisher:
        yield publisher


@pytest.fixture
def subscriber(store):
    return store.subscriber(mlp())


@pytest.fixture(params=["copied", "in turn"])
def either_way(request, monkeypatch):
    """Small modules are pulled in both ways: by a copy, and by two rows that take turns."""
    if request.param == "in turn":
        monkeypatch.setattr("marlcore.weights.modules.SWAP_BYTES", 0)


def addresses(model: nn.Module) -> list[int]:
    return [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]


@pytest.mark.parametrize("mode", MODES)
def test_what_is_published_is_what_is_pulled(mode, either_way):
    torch.manual_seed(1)
    model, local = Odd(), Odd()
    objects = dict(local.named_parameters())
    with mc.ParameterStore.create(model, mode, {"epsilon": (), "obs_mean": (4,)}) as store:
        assert (store.mode, store.version) == (mode, 0)
        with store.publisher(model) as publisher, mc.ParameterStore.attach(store.handle) as attached:
            subscriber = attached.subscriber(local)
            assert not subscriber.pull() and subscriber.version == 0 and subscriber.extras == {}
            for version in range(1, 8):
                for tensor in [*model.parameters(), *model.buffers()]:
                    tensor.data.copy_(torch.randint(0, 2, tensor.shape))
                assert publisher.publish(epsilon=version / 2, obs_mean=np.arange(4) + version) == version
                assert attached.version == publisher.version == version
                assert subscriber.pull() and subscriber.version == version
                assert_equal(model, local)
                assert type(subscriber.extras["epsilon"]) is float and subscriber.extras["epsilon"] == version / 2
                np.testing.assert_array_equal(subscriber.extras["obs_mean"], np.arange(4) + version)
                assert not subscriber.pull()
    assert all(parameter is objects[name] for name, parameter in local.named_parameters())
    assert local.head.weight is local.embedding.weight and not local.hidden.weight.requires_grad


def test_a_flattened_model_keeps_values_and_ties():
    torch.manual_seed(2)
    model = Odd()
    before, objects = values(model), dict(model.named_parameters())
    with mc.ParameterStore.create(model) as store, store.publisher(model):
        after = values(model)
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert all(parameter is objects[name] for name, parameter in model.named_parameters())
        assert model.head.weight is model.embedding.weight
        assert not model.hidden.weight.requires_grad and model.head.weight.requires_grad
        storages = {tensor.untyped_storage().data_ptr() for tensor in model.parameters() if tensor.numel()}
        assert len(storages) == 1
        assert all(tensor.data_ptr() % 64 == 0 for tensor in [*model.parameters(), *model.buffers()])


def test_two_parameters_with_the_same_memory_stay_tied():
    model = mlp()
    model.twin = nn.Parameter(model[0].weight.data)
    with mc.ParameterStore.create(model) as store, store.publisher(model):
        model.twin.data.fill_(3)
        assert (model[0].weight == 3).all()
        assert len(store.layout.tensors) == 4


def test_a_model_without_tensors_can_have_extras():
    with mc.ParameterStore.create(nn.ReLU(), extras={"epsilon": ()}) as store:
        subscriber = store.subscriber(nn.ReLU())
        with store.publisher(nn.ReLU()) as publisher:
            publisher.publish(epsilon=0.25)
        assert subscriber.pull() and subscriber.extras == {"epsilon": 0.25}


@pytest.mark.parametrize("mode", MODES)
def test_a_continued_store_goes_on_with_the_versions(mode):
    model = nn.Linear(2, 2)
    with mc.ParameterStore.create(model, mode, begins_after=41) as store:
        local = store.subscriber(nn.Linear(2, 2))
        assert store.version == 0 and not local.pull() and not local.wait(newer_than=0, timeout=0.0)
        with pytest.raises(mc.NotEnoughData), local.in_place():
            pass
        with mc.ParameterStore.attach(store.handle).publisher(model) as publisher:
            assert publisher.version == 0
            for version in range(42, 48):
                assert publisher.publish() == store.version == publisher.version == version
                assert local.pull() and local.version == version
            assert not local.pull_version(41)
        with local.in_place() as view:
            assert view.version == 47 and torch.equal(view.tensors["weight"], model.weight)
        assert view.valid()


def train(model: nn.Module, steps: int, after_step=lambda: None) -> None:
    generator = torch.Generator().manual_seed(5)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(steps):
        tokens = torch.randint(0, 7, (16,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), tokens).backward()
        optimizer.step()
        after_step()


def test_a_flattened_model_trains_as_any_other():
    torch.manual_seed(3)
    plain = Odd()
    flat = copy.deepcopy(plain)
    with mc.ParameterStore.create(flat) as store, store.publisher(flat) as publisher:
        before = addresses(flat)
        train(plain, 20)
        train(flat, 20, publisher.publish)
        assert addresses(flat) == before, "nothing moved"
        assert_equal(plain, flat)
        local = Odd()
        assert store.subscriber(local).pull()
        assert_equal(plain, local)
        assert local.norm.num_batches_tracked == 20


@pytest.mark.long
def test_states_and_copies_of_a_flattened_model_are_plain(tmp_path, publisher, model):
    publisher.publish()
    before = addresses(model)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    plain = mlp()
    plain.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert_equal(plain, model)
    other = mlp()
    model.load_state_dict(other.state_dict())
    assert_equal(other, model)
    copied, unpickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    model[0].weight.data.fill_(7)
    assert_equal(copied, other)
    assert_equal(unpickled, other)
    assert addresses(model) == before


@pytest.mark.long
def test_inference_mode_leaves_a_flat_model_trainable(publisher, store, either_way):
    publisher.publish()
    local = mlp()
    with torch.inference_mode():
        subscriber = store.subscriber(local)
        assert subscriber.pull()
    publisher.publish()
    assert subscriber.pull()
    local(torch.ones(1, 3)).sum().backward()
    torch.optim.SGD(local.parameters(), lr=0.1).step()


def exchange(model):
    model.a.data, model.b.data = model.b.data, model.a.data


HARMLESS = {
    "to double and back": lambda model: model.double().float(),
    "a state assigned": lambda model: model.load_state_dict(
        {name: tensor + 1 for name, tensor in model.state_dict().items()}, assign=True
    ),
    "a parameter replaced": lambda model: setattr(model[0], "weight", nn.Parameter(torch.full((8, 3), 5.0))),
    "data replaced": lambda model: setattr(model[2].bias, "data", torch.full((2,), 6.0)),
    "a submodule replaced": lambda model: setattr(model, "2", nn.Linear(8, 2)),
    "shared": lambda model: model.share_memory(),
    "other strides": lambda model: setattr(model[0].bias, "data", model[0].bias.data.flip(0)),
    "data exchanged": exchange,
    "transposed in place": lambda model: setattr(model.a, "data", model.a.data.t()),
    "a submodule copied": lambda model: setattr(model, "0", copy.deepcopy(model[0])),
    "a buffer reassigned": lambda model: setattr(model, "steps", model.steps + 1),
}


def rich() -> nn.Module:
    model = mlp()
    model.a, model.b = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
    model.register_buffer("steps", torch.zeros((), dtype=torch.int64))
    return model


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_replaced_tensors_are_published_and_filled(change, either_way):
    model, local = rich(), rich()
    with mc.ParameterStore.create(model, extras={"epsilon": ()}) as store, store.publisher(model) as publisher:
        subscriber = store.subscriber(local)
        publisher.publish(epsilon=0.5)
        change(model)
        expected = copy.deepcopy(model)
        assert publisher.publish() == 2
        assert subscriber.pull()
        assert_equal(expected, local)
        assert_equal(expected, model)
        assert subscriber.extras == {"epsilon": 0.5}, "the last value is kept across the move"
        before = addresses(model)
        fill(model, 3)
        publisher.publish()
        assert subscriber.pull()
        assert_equal(model, local)
        assert addresses(model) == before, "what was taken in stays"
        change(local)
        publisher.publish()
        assert subscriber.pull()
        assert_equal(model, local)


HARMFUL = {
    "double": (lambda model: model.double(), "a float32 (4, 4), got a float64 (4, 4)"),
    "a parameter more": (lambda model: setattr(model[1], "scale", nn.Parameter(torch.ones(2))), "got 1.scale float32"),
    "a buffer more": (lambda model: model.register_buffer("last", torch.ones(2)), "0.weight float32 (8, 3), got last"),
    "a submodule more": (lambda model: model.append(nn.Linear(2, 2)), "expected no further tensor, got 3.weight"),
    "a parameter less": (lambda model: setattr(model[2], "bias", None), "got no further tensor"),
    "a submodule less": (lambda model: model.pop(2), "got no further tensor"),
    "grown": (lambda model: setattr(model, "2", nn.Linear(8, 3)), "float32 (2, 8), got 2.weight float32 (3, 8)"),
    "shrunk in place": (
        lambda model: setattr(model[2].bias, "data", model[2].bias.data[:1]), "float32 (2,), got 2.bias float32 (1,)"
    ),
    "reinterpreted": (
        lambda model: setattr(model.steps, "data", model.steps.data.view(torch.float64)), "got steps float64"
    ),
    "tied": (lambda model: setattr(model, "b", nn.Parameter(model.a.data)), "got steps"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "says"), HARMFUL.values(), ids=HARMFUL)
def test_a_changed_model_is_a_layout_mismatch(change, says, either_way):
    model, local = rich(), rich()
    with mc.ParameterStore.create(model) as store, store.publisher(model) as publisher:
        subscriber = store.subscriber(local)
        publisher.publish()
        other = copy.deepcopy(model)
        for changed in (model, local, other):
            change(changed)
        for call in 2 * (publisher.publish, subscriber.pull) + (lambda: store.subscriber(other),):
            check_refused(call, mc.LayoutMismatch, says)
        assert store.version == publisher.version == 1


def test_an_interrupted_publish_stages_replaced_tensors_again(monkeypatch, store, model):
    def interrupted(tensor):
        monkeypatch.undo()
        raise Rang

    with store.publisher(model) as publisher:
        publisher.publish()
        model.load_state_dict({name: tensor + 1 for name, tensor in model.state_dict().items()}, assign=True)
        monkeypatch.setattr(torch.Tensor, "numpy", interrupted)
        with pytest.raises(Rang):
            publisher.publish()
        publisher.publish()
        local = copy.deepcopy(model)
        assert store.subscriber(local).pull()
        assert_equal(local, model)


HERE, ELSEWHERE = contextlib.nullcontext(), torch.device("cpu")  # a default device has torch call Python everywhere


@pytest.mark.parametrize(
    ("kind", "place", "moves"), [*((kind, HERE, kind == "large") for kind in MODELS), ("large", ELSEWHERE, False)]
)
def test_an_interrupted_pull_leaves_one_version(kind, place, moves):
    """After any interrupt, the next pull of a large module fills the row that the module does not use."""
    model, local = MODELS[kind](), fill(MODELS[kind](), 1)
    with mc.ParameterStore.create(model) as store, store.publisher(model) as publisher, place:
        subscriber, came, number = store.subscriber(local), True, 0
        while came:
            number += 1
            fill(model, 2 * number)
            publisher.publish()
            came, _ = at_instruction(subscriber.pull, number, lambda file: "/weights/" in file or "/_device.py" in file)
            assert value_of(words(local)) in (2 * number - 1, 2 * number)
            before = words(local)[0].ctypes.data
            fill(model, 2 * number + 1)
            publisher.publish()
            assert subscriber.pull() and value_of(words(local)) == 2 * number + 1
            assert (words(local)[0].ctypes.data != before) is moves
        assert number > 100


def test_an_earlier_state_can_be_assigned():
    """The state's tensors lie in the row that the next pull would fill, and keep their values."""
    model, local = MODELS["large"](), MODELS["large"]()
    with mc.ParameterStore.create(model) as store, store.publisher(model) as publisher:
        subscriber, states = store.subscriber(local), []
        for version in (1, 2, 3):
            fill(model, version)
            publisher.publish()
            assert subscriber.pull() and value_of(words(local)) == version
            states.append(local.state_dict())
            local.load_state_dict(states[0], assign=True)
            assert value_of(words(local)) == 1


def test_a_refused_publisher_gives_the_lane_back(store, model):
    before = model[0].weight.data_ptr()
    for other in (nn.Linear(3, 8), nn.Sequential(*mlp(), nn.Linear(2, 2))):
        with pytest.raises(mc.LayoutMismatch):
            store.publisher(other)
    assert model[0].weight.data_ptr() == before
    store.publisher(model).close()


@pytest.fixture
def extras_store():
    declared = {"epsilon": (), "mean": (2,), "count": mc.Field((), "int32"), "done": mc.Field((), "bool")}
    with mc.ParameterStore.create(mlp(), extras=declared) as store:
        yield store


@pytest.fixture
def extras_publisher(extras_store):
    with extras_store.publisher(mlp()) as publisher:
        yield publisher


GIVEN = {"epsilon": 0.5, "mean": [1.0, 2.0], "count": 3, "done": True}


@pytest.mark.long
def test_later_publishes_keep_the_last_extras(extras_store, extras_publisher):
    """The first publish needs every extra; NaN and infinity are allowed."""
    check_refused(lambda: extras_publisher.publish(epsilon=0.5), ValueError, "missing ['count', 'done', 'mean']")
    assert extras_publisher.publish(**GIVEN) == 1
    subscriber = extras_store.subscriber(mlp())
    assert extras_publisher.publish(epsilon=np.nan, mean=[np.inf, -np.inf]) == 2
    assert subscriber.pull() and np.isnan(subscriber.extras["epsilon"]) and np.isinf(subscriber.extras["mean"]).all()
    assert extras_publisher.publish(epsilon=1, mean=[1.0, 2.0]) == 3
    assert subscriber.pull()
    assert subscriber.extras.pop("mean").tolist() == [1.0, 2.0]
    assert subscriber.extras == {"epsilon": 1.0, "count": 3, "done": True}


def test_an_extra_that_changes_in_place_is_published_when_it_is_given(extras_store, extras_publisher):
    mean = np.array([1.0, 2.0])
    extras_publisher.publish(**(GIVEN | {"mean": mean}))
    mean[:] = 7.0
    extras_publisher._row = None  # as after a tensor was replaced
    extras_publisher.publish()
    subscriber = extras_store.subscriber(mlp())
    assert subscriber.pull() and subscriber.extras["mean"].tolist() == [1.0, 2.0]


WRONG_EXTRAS: dict[str, tuple[dict[str, object], type[Exception], str]] = {
    "unknown": ({"epsilom": 0.1}, ValueError, "extras: expected ['count', 'done', 'epsilon', 'mean'], got unknown ['"),
    "too long": ({"mean": [1.0, 2.0, 3.0]}, ValueError, "extras mean: expected float64 (2,), got shape (3,)"),
    "a scalar": ({"mean": 1.0}, ValueError, "extras mean: expected float64 (2,), got shape ()"),
    "no scalar": ({"epsilon": [0.1]}, ValueError, "extras epsilon: expected float64 (), got shape (1,)"),
    "complex": ({"epsilon": 1j}, TypeError, "extras epsilon: expected float64 (), got dtype complex128"),
    "text": ({"epsilon": "a"}, TypeError, "extras epsilon: expected float64 (), got dtype <U1"),
    "a fraction": ({"count": 2.5}, TypeError, "extras count: expected int32 (), got dtype float64"),
    "too large": ({"count": 2**31}, ValueError, "extras count: expected values in int32's range, got 2147483648"),
}


@pytest.mark.parametrize(("wrong", "error", "says"), WRONG_EXTRAS.values(), ids=WRONG_EXTRAS)
def test_a_wrong_extra_publishes_nothing(extras_store, extras_publisher, wrong, error, says):
    check_refused(lambda: extras_publisher.publish(**{**GIVEN, **wrong}), error, says)
    extras_publisher.publish(**GIVEN)
    check_refused(lambda: extras_publisher.publish(**{"epsilon": 0.25, **wrong}), error, says)
    assert extras_publisher.version == 1
    extras_publisher.publish()
    subscriber = extras_store.subscriber(mlp())
    assert subscriber.pull() and subscriber.extras["epsilon"] == 0.5


def create(make=mlp, mode="double_buffer", **options):
    return mc.ParameterStore.create(make(), mode, **options)


def on_a_store(call):
    with create() as store:
        call(store)


def attach_to_replay() -> None:
    with mc.ReplayBuffer.create(mc.TransitionSpec(mc.Field(), mc.Field()), 8) as replay:
        mc.ParameterStore.attach(replay.handle)


def partly_shared() -> nn.Module:
    model = mlp()
    model.register_buffer("row", model[0].weight.data[1])
    return model


NO_MEMORY = "weight: expected a tensor with memory; run the model or initialise it first"
SLOTS = "snapshot, double_buffer, triple_buffer or a number of slots"
TWINS = {"tensors": [["a", [2], "float32"]] * 2, "extras": []}
REFUSED: list[Refused] = [
    (partial(create, partly_shared), "0.weight, row: expected tensors that share all of their memory, or none"),
    (partial(create, lambda: nn.LazyLinear(3)), NO_MEMORY),
    (partial(create, lambda: nn.Linear(2, 2, device="meta")), NO_MEMORY),
    (partial(create, extras=3), TypeError, "extras: expected a dict of shapes or Fields by name, got 3"),
    (partial(create, name="x" * 201), "name: expected at most 200 characters, got 201"),
    (partial(create, lambda: None), TypeError, "model: expected a torch module or a mapping of arrays, got None"),
    (partial(create, extras={"": ()}), "extras: expected names of at least one character, got ''"),
    (partial(create, extras={"a": (0,)}), "expected a tuple of positive integers, got (0,)"),
    (partial(RowLayout.from_dict, TWINS), "tensors: expected names that differ"),
    (attach_to_replay, mc.SegmentCorrupt, "expected a parameter store, got another kind of segment"),
    *each_bad(lambda slot: on_a_store(lambda store: store.slot_tensor(slot)), "0 to 1", slot=[-1, 2]),
    (partial(on_a_store, lambda store: store.subscriber(mlp()).pull_version(0)),
        "version: expected an integer of at least 1, got 0"),
    (partial(on_a_store, lambda store: store.publisher(mlp()).publish(weights={})), TypeError,
        "weights: expected none, since the publisher has a module, got {}"),
    *each_bad(create, SLOTS, mode=[0, -1, True, 2.0, 2**63, "quadruple", None]),
    *each_bad(create, "an integer from 0 to 2305843009213693952", begins_after=[-1, 2**62, 1.5, True, "3"]),
]  # fmt: skip
test_refuses = refusals(REFUSED)


@pytest.mark.parametrize(("mode", "slots"), MODES.items())
def test_a_slot_in_place_is_valid_until_it_is_reused(mode, slots):
    torch.manual_seed(4)
    model, local = Odd().eval(), Odd().eval()
    with mc.ParameterStore.create(model, mode, {"epsilon": ()}) as store, store.publisher(model) as publisher:
        subscriber = store.subscriber(local)
        with pytest.raises(mc.NotEnoughData, match="nothing was published"), subscriber.in_place():
            pass
        publisher.publish(epsilon=0.5)
        tokens = torch.arange(7)
        with subscriber.in_place() as view:
            assert view.version == 1 and view.extras == {"epsilon": 0.5} and view.valid()
            assert view.tensors.keys() == values(model).keys(), "every name, tied ones too"
            flat = store.slot_tensor(0)
            assert flat.dtype == torch.uint8 and flat.shape == (store.layout.nbytes,)
            offsets = [tensor.data_ptr() - flat.data_ptr() for tensor in view.tensors.values() if tensor.numel()]
            assert min(offsets) >= 0 and max(offsets) < store.layout.nbytes, "the same memory"
            output = torch.func.functional_call(local, dict(view.tensors), tokens)
            for _ in range(slots - 1):
                publisher.publish()
                assert view.valid()
        assert view.valid()
        publisher.publish()
        assert view.valid(), "what happens after the block does not matter"
        assert torch.equal(output, model(tokens))
        assert subscriber.version == 0 and not torch.equal(local.brief, model.brief), "the local model is untouched"
        with subscriber.in_place() as view:
            assert view.version == slots + 1
            for _ in range(slots):
                publisher.publish()
            assert not view.valid()
        assert not view.valid()


def test_a_wait_ends_with_a_newer_version_or_in_time(store, publisher, subscriber):
    assert not subscriber.wait(newer_than=0, timeout=0.01)
    publisher.publish()
    assert subscriber.wait(newer_than=0, timeout=0)
    with soon(publisher.publish):
        assert subscriber.wait(newer_than=1, timeout=600)


def test_closed_things_say_so(store, model):
    publisher, subscriber = store.publisher(model), store.subscriber(mlp())
    publisher.publish()
    with subscriber.in_place() as view:
        pass
    publisher.close()
    publisher.close()
    check_refused(publisher.publish, mc.ClosedError, "publisher was closed")
    successor = store.publisher(model)
    store.close()
    for action in (
        successor.publish, subscriber.pull, lambda: subscriber.wait(0, 0), lambda: store.version,
        lambda: store.slot_tensor(0), lambda: store.subscriber(mlp()), lambda: store.publisher(model),
        lambda: subscriber.in_place().__enter__(),
    ):  # fmt: skip
        check_refused(action, mc.ClosedError, "closed")
    assert view.valid() and torch.equal(view.tensors["0.weight"], model[0].weight)
    successor.close()


def test_a_store_has_one_publisher_at_a_time(store, model):
    publisher = store.publisher(model)
    publisher.publish()
    with mc.ParameterStore.attach(store.handle) as attached:
        check_refused(lambda: attached.publisher(mlp()), mc.LaneBusy, "the store has a living publisher")
        publisher.close()
        with attached.publisher(mlp()) as successor:
            assert successor.version == 1 and successor.publish() == 2


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_may_not_publish_and_its_parent_goes_on(store, publisher, model):
    publisher.publish()
    assert stale_in_a_fork(publisher.publish)
    check_refused(lambda: store.publisher(mlp()), mc.LaneBusy, "the store has a living publisher")
    assert publisher.publish() == 2


class Held(nn.Module):
    """Holds a module by the name that torch.compile gives it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._orig_mod(x)


class Host(nn.Module):
    """A host's module, whose part is wrapped."""

    def __init__(self, wrap) -> None:
        super().__init__()
        self.module = nn.Linear(3, 3)
        self.policy = wrap(mlp())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.policy(self.module(x))


@contextlib.contextmanager
def one_process_group(path):
    torch.distributed.init_process_group("gloo", f"file://{path}", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


WRAPPERS = {
    "held": Held, "in parallel": nn.DataParallel, "both": lambda module: nn.DataParallel(Held(module)),
    "compiled": partial(torch.compile, backend="eager"), "with autograd": partial(torch.compile, backend="aot_eager"),
    "distributed": nn.parallel.DistributedDataParallel,
}  # fmt: skip


@pytest.mark.parametrize("wrapper", long_but(["held", "in parallel", "both"], WRAPPERS))
@pytest.mark.filterwarnings("ignore::DeprecationWarning", r"ignore:The \.grad attribute of a Tensor:UserWarning")
def test_a_wrapped_module_counts_as_the_module_inside(wrapper, tmp_path):
    """At either end, as a whole and as a part; the wrapped module computes, and trains, with what it pulled."""
    wrap, x = WRAPPERS[wrapper], torch.randn(4, 3)
    with contextlib.ExitStack() as held:
        if wrapper == "distributed":
            held.enter_context(one_process_group(tmp_path / "group"))
        for make in (lambda around: around(mlp()), Host):
            plain, local = make(lambda module: module), make(wrap)
            local(x).sum().backward()
            with mc.ParameterStore.create(plain) as store, store.publisher(plain) as publisher:
                subscriber = store.subscriber(local)
                for _ in range(3):
                    with torch.no_grad():
                        for tensor in plain.parameters():
                            tensor.normal_()
                    publisher.publish()
                    assert subscriber.pull() and torch.equal(local(x), plain(x))
                with subscriber.in_place() as view:
                    assert view.tensors.keys() == local.state_dict().keys(), "the names that `local` has for them"
                optimizer = torch.optim.SGD(local.parameters(), 0.1)
                local(x).sum().backward()
                optimizer.step()
                publisher.close()
                with store.publisher(local) as wrapped:
                    assert wrapped.publish() == 4
                other = make(lambda module: module)
                assert store.subscriber(other).pull() and torch.equal(other(x), local(x))


class Adapted(nn.Module):
    """A frozen model with trained adapters of low rank, in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(8, 2).to(torch.bfloat16))
        self.up = nn.Parameter(torch.randn(2, 8))

    def adapters(self) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in self.named_parameters() if tensor.requires_grad}


@pytest.mark.parametrize("by_state", [False, True])
def test_the_adapters_of_a_model_travel_alone(by_state):
    """As parameters, or as the part of a `state_dict` that has their names; the subscriber's are filled in place."""
    ours, theirs = Adapted(), Adapted()
    base = values(theirs.base)

    def part(model):
        return {name: model.state_dict()[name] for name in model.adapters()} if by_state else model.adapters()

    with mc.ParameterStore.create(part(ours)) as store, store.publisher(part(ours)) as publisher:
        assert [spec.dtype for spec in store.layout.tensors] == ["bfloat16", "float32"]
        subscriber = store.subscriber(part(theirs))
        for version in (1, 2):
            with torch.no_grad():
                ours.up += version
                ours.down += version
            assert publisher.publish() == version and subscriber.pull()
            assert torch.equal(ours.up, theirs.up) and torch.equal(ours.down, theirs.down)
        assert all(torch.equal(tensor, base[name]) for name, tensor in values(theirs.base).items())
        assert theirs.up.requires_grad and theirs.up.grad is None
        says = "weights up: expected a tensor on the CPU to fill, got one on meta"
        check_refused(lambda: store.subscriber(part(theirs) | {"up": ours.up.to("meta")}), TypeError, says)


def test_an_always_lapped_reader_errs_and_keeps_its_model(either_way):
    model, local = mlp(), mlp()
    with mc.ParameterStore.create(model, "snapshot") as store, store.publisher(model) as publisher:
        subscriber = store.subscriber(local)
        publisher.publish()
        before = copy.deepcopy(local)
        # A publisher that died between reserving the slot and committing it leaves reserved = committed + 1.
        counters = Mapped(store).counters()
        counters[1] += 1
        with pytest.raises(TimeoutError, match=r"lapped.*triple_buffer"):
            subscriber.pull(timeout=0.05)
        check_refused(lambda: subscriber.pull(timeout=0), TimeoutError, "lapped")
        assert_equal(before, local)
        assert subscriber.version == 0 and subscriber.extras == {}
        assert publisher.publish() == 2
        assert subscriber.pull()
        assert_equal(model, local)


def test_damaged_counters_are_an_error_and_not_a_model(store, publisher, subscriber):
    publisher.publish()
    Mapped(store).counters()[:] = (1 << 62) + 1
    for call in (subscriber.pull, publisher.publish):
        check_refused(call, mc.SegmentCorrupt, "contradict")


PUBLISHES = """
    import sys
    from filled import MODELS, fill
    from marlcore import ParameterStore

    model = MODELS[sys.argv[2]]()
    publisher = ParameterStore.attach(sys.argv[1]).publisher(model)
    first = publisher.version + 1
    for version in range(first, 2**40):
        fill(model, version)
        publisher.publish(epsilon=float(version))
        if version == first:
            print("publishing", flush=True)
"""


def intact(arrays, epsilon: float, version: int) -> bool:
    return value_of(arrays) == version % CYCLE and epsilon == version


@pytest.mark.parametrize(
    ("kind", "mode", "pulls"),
    long_but(
        QUICK := [("tree", "double_buffer", 20), ("large", "snapshot", 20)], [*QUICK, *product(MODELS, MODES, [60])]
    ),
)
def test_no_torn_weights_are_accepted(kind, mode, pulls, program):
    local = MODELS[kind]()
    with mc.ParameterStore.create(local, mode, {"epsilon": ()}) as store:
        writer = program(PUBLISHES, args=[store.handle.path, kind])
        assert writer.line() == "publishing"
        subscriber = store.subscriber(local)
        pulled = accepted = torn = last = 0
        lapped = mode != "snapshot"  # where a publication is enough to lap a pull, which then leaves the last version
        for _ in range(60_000):
            if pulled < pulls or not lapped:
                assert subscriber.wait(newer_than=last, timeout=600)
                try:
                    pulled += subscriber.pull(timeout=0)
                except TimeoutError:
                    lapped = True
                assert not pulled or intact(words(local), subscriber.extras["epsilon"], subscriber.version)
                assert subscriber.version >= last
                last = subscriber.version
            with subscriber.in_place() as view:
                tensors = words(view.tensors) if kind == "tree" else [t.numpy() for t in view.tensors.values()]
                copies = [array.copy() for array in tensors]
            if view.valid():
                accepted += 1
                assert intact(copies, view.extras["epsilon"], view.version)
            # The control: the slot that the publisher writes next, not validated.
            torn += np.isnan(value_of(words_of_row(store, store.version % MODES[mode])))
            if pulled >= pulls and lapped and accepted >= 20 and torn:
                break
        assert pulled >= pulls and lapped and accepted >= 20
        assert torn, "the control: reading without validation sees torn rows"
        writer.kill()


def test_a_publisher_killed_inside_leaves_older_slots():
    """The dead publisher leaves `reserved` one above `committed`, and a slot with halves of two versions."""
    model, local = MODELS["tree"](), MODELS["tree"]()
    with mc.ParameterStore.create(model, "double_buffer") as store:
        subscriber = store.subscriber(local)
        with store.publisher(model) as publisher:
            for version in (1, 2):
                fill(model, version)
                publisher.publish()
        Mapped(store).counters()[1] += 1
        store.slot_array(0)[: store.layout.nbytes // 2] = 255
        assert subscriber.pull() and value_of(words(local)) == 2
        with store.publisher(fill(model, 3)) as successor:
            assert successor.publish() == 3
        assert subscriber.pull() and value_of(words(local)) == 3


def test_a_model_on_an_accelerator_is_published_and_pulled(cuda):
    if not cuda:
        pytest.skip("needs an accelerator")
    model, local = rich().cuda(), rich().cuda()
    with mc.ParameterStore.create(model, extras={"epsilon": ()}) as store, store.publisher(model) as publisher:
        subscriber = store.subscriber(local)
        for change in (lambda: None, model.cpu, model.cuda):
            change()
            model[0].weight.data.add_(1)
            publisher.publish(epsilon=0.5)
            assert subscriber.pull()
            assert torch.equal(local[0].weight.cpu(), model[0].weight.cpu())
            assert subscriber.extras == {"epsilon": 0.5}
