"""The kernels against an oracle of plain Python, in which a replay is lists of episodes of rows."""

import ctypes
import json
import mmap
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from model import SPECS, Model, chi_square_limit, fill, random_row

import marlcore
from marlcore import ReplayBuffer
from marlcore.kernels import columns, powers, random, uniform
from marlcore.kernels.jit import Kernel, jit
from marlcore.transitions import ReadPlan, Window


@jit
def next_random(state):
    return random.next_random(state)


@jit
def draw_below(state, bound, draws):
    for i in range(len(draws)):
        draws[i] = random.below(state, bound)


@jit
def raise_all(values, exponent, count):
    powers.raise_all(values, exponent, count)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(12)


@pytest.fixture
def few(rng) -> Iterator[tuple[ReplayBuffer, Model]]:
    """A replay in which only three rows have 1800 further steps, and its model."""
    spec = SPECS["vector"]
    with ReplayBuffer.create(spec, 2000) as replay, replay.writer() as writer:
        model = Model(spec, 1, 2000)
        for i in range(1500):
            row = random_row(spec, rng, 0.0)
            row["terminated"] = i == 2
            writer.add(**row)
            model.add(0, **row)
        yield replay, model


def test_batches_are_right_where_few_rows_may_be_drawn(few, monkeypatch):
    """Random draws fail here, so the sampler lists the rows; slots that were filled before stay as they were."""
    replay, model = few
    allowed = model.sampleable(1, 1800)
    assert set(allowed) == {0, 1, 2}
    for seed in range(20):
        sampler = replay.sampler(4, n_step=1800, seed=seed)
        for _ in range(2):
            model.check(sampler.sample(), 1, 1800, allowed=allowed)
    monkeypatch.setattr(uniform, "draw", lambda *args: (0, 0))  # as chance draws among many more rows would
    counts = np.bincount(replay.sampler(300, n_step=1800, seed=0).sample().index, minlength=3)
    assert ((counts - 100) ** 2 / 100).sum() <= chi_square_limit(3)


def test_a_list_without_room_stays_empty(few):
    plan = ReadPlan(few[0].view(), Window(), 4)
    plan.read_windows()
    around = np.full((2, 3), -1)
    assert uniform.list_sampleable(plan.plan, around[:, 1:1]) == 0 and (around == -1).all()


def test_a_listed_row_overwritten_meanwhile_is_replaced(few, monkeypatch):
    """The list has a row that cannot be drawn, as if a writer had come between list and copy; every slot is filled."""
    (replay, model), list_sampleable = few, uniform.list_sampleable

    def list_one_more(*args):
        tickets = args[-1]
        listed = list_sampleable(*args)
        tickets[:, listed] = 0, 1000
        return listed + 1

    allowed = model.sampleable(1, 1800)
    sampler = replay.sampler(64, n_step=1800, seed=0)
    monkeypatch.setattr(uniform, "list_sampleable", list_one_more)
    for _ in range(5):
        model.check(sampler.sample(), 1, 1800, allowed=allowed)


MASK = 2**64 - 1


@pytest.mark.parametrize("window", [{}, {"stack": 3}, {"n_step": 4}])
def test_a_draw_reads_nothing_behind_the_records(window, monkeypatch):
    """The records are moved to the end of readable memory: a read behind them ends this process."""
    spec, real, keep = SPECS["vector"], uniform.draw, []

    def draw(plan, columns, out, rows):
        nbytes = int(plan["record_stride"][0] * plan["capacity"][0] * plan["lanes"][0])
        readable = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        keep.append(mmap.mmap(-1, readable + mmap.PAGESIZE))
        first = np.frombuffer(keep[-1], np.uint8).ctypes.data + readable - nbytes
        records = int(plan["records"][0])
        ctypes.memmove(first, records, nbytes)
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(first + nbytes), mmap.PAGESIZE, 0) == 0
        moved, there = plan.copy(), columns.copy()
        moved["records"], there["base"] = first, columns["base"] + first - records
        return real(moved, there, out, rows)

    monkeypatch.setattr(uniform, "draw", draw)
    with ReplayBuffer.create(spec, 64, 2) as replay:
        for lane in range(2):
            with replay.writer(lane) as writer:
                for _ in range(32):
                    writer.add(**random_row(spec, np.random.default_rng(lane), 0.0) | {"terminated": True})
        assert len(np.unique(replay.sampler(256, seed=0, **window).sample().index)) > 50


def xoshiro256plusplus(state: list[int]) -> int:
    """Implements Blackman and Vigna's reference in Python's integers."""

    def rotl(x, k):
        return ((x << k) | (x >> (64 - k))) & MASK

    result = (rotl((state[0] + state[3]) & MASK, 23) + state[0]) & MASK
    t = (state[1] << 17) & MASK
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= t
    state[3] = rotl(state[3], 45)
    return result


@pytest.mark.parametrize("seed", [[1, 2, 3, 4], [MASK] * 4, [0, 0, 0, 1], [2**63, 5, MASK, 77]])
def test_the_generator_is_xoshiro256plusplus(seed):
    """Other implementations' tests list the same first numbers."""
    state, reference = np.array(seed, np.uint64), list(seed)
    expected = [xoshiro256plusplus(reference) for _ in range(1000)]
    assert [int(next_random(state)) for _ in range(1000)] == expected
    assert state.tolist() == reference
    assert seed[0] != 1 or expected[:4] == [41943041, 58720359, 3588806011781223, 3591011842654386]


def test_an_inlined_function_cannot_be_called_from_python():
    with pytest.raises(TypeError, match="not callable"):
        random.next_random(np.ones(4, np.uint64))


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 64, 100, 3 * 2**30])
def test_below_is_uniform(bound):
    """For 3 * 2^30, `below` must reject a quarter of all draws, or every third number would come twice as often."""
    state = np.array([1, 2, 3, 4], np.uint64)
    draws = np.empty(30_000, np.int64)
    draw_below(state, bound, draws)
    assert draws.min() >= 0 and draws.max() < bound
    bins = min(bound, 100)
    for numbers, count in [(draws * bins // bound, bins)] + [(draws % 3, 3)] * (bound % 3 == 0):
        expected = len(draws) / count
        deviations = (np.bincount(numbers, minlength=count) - expected) ** 2 / expected
        assert deviations.sum() <= chi_square_limit(count)


@pytest.mark.parametrize("exponent", [0.0, 0.01, 0.4, 0.6, 1.0, 2.5, 3.0, 5.0, 7.0, 30.0])
def test_powers_are_those_of_the_c_library(exponent, rng):
    """The numbers lie inside and outside the polynomials' range, which ends at 2^200."""
    samples = [2.0 ** rng.uniform(-spread, spread, 1000) for spread in (1.0, 40.0, 150.0, 600.0)]
    for extreme in (0.0, 5e-324, 2.0**-201, 2.0**-200, 2.0**200, 2.0**201, 1e300):
        samples.append(np.array([1.0, extreme, 2.0, 3.0, 0.1]))
    for numbers in samples:
        values = np.concatenate([[1.0, 2.0, 0.5], numbers])
        with np.errstate(over="ignore"):
            expected = values**exponent
        raise_all(values, exponent, len(values))
        np.testing.assert_allclose(values, expected, rtol=1e-13)
        assert values[0] == 1.0


def test_the_power_of_1_is_exact_and_only_so_many_are_raised(rng):
    numbers = rng.random(1000)
    values = numbers.copy()
    raise_all(values, 1.0, len(values))
    assert (values == numbers).all()
    raise_all(values, 2.0, 5)
    np.testing.assert_allclose(values[:5], numbers[:5] ** 2, rtol=1e-13)
    assert (values[5:] == numbers[5:]).all()


CACHED = """
    import json, sys
    import numpy as np
    from marlcore import ReplayBuffer
    from marlcore.kernels import uniform
    replay = ReplayBuffer.attach(sys.argv[1])
    batch = replay.sampler(16, stack=2, n_step=2, seed=5).sample()
    hits = {name: sum(getattr(uniform, name).stats.cache_hits.values()) for name in ("draw", "draw_listed")}
    misses = sum(sum(getattr(uniform, name).stats.cache_misses.values()) for name in ("draw", "draw_listed"))
    print(json.dumps([batch.index.tolist(), batch.obs.tolist(), batch.reward.tolist(), hits, misses]))
"""


CHANGED = """
    import sys
    sys.path.insert(0, sys.argv[1])
    import marlcore
    assert marlcore.__file__.startswith(sys.argv[1])
    import numpy as np
    from marlcore.kernels import columns, plan
    row, out = np.array([1.0, 3.0] * 5), np.zeros(80, np.uint8)
    column = np.zeros(1, plan.COLUMN)
    column["base"], column["size"] = row.ctypes.data, out.nbytes
    columns.gather(column, 1, np.zeros(1, np.int64), out)
    print(out.view(np.float64)[0])
"""


PLANNED = """
    import sys
    sys.path.insert(0, sys.argv[1])
    from marlcore.planning import backward_induction, build_graph
    from marlcore.planning.warmup import ONE_STEP
    graph = build_graph(ONE_STEP, workers=1)
    with backward_induction(graph, {0: [lambda state: state == 1]}) as policies:
        print(policies[0].values[0, 0])
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "file", "line", "changed"),
    [
        (CHANGED, "kernels/gather.py", "copy_bytes(to, source, size)", "copy_bytes(to, source + 8, size - 8)"),
        (PLANNED, "planning/kernels/expectations.py", "total[goal] += p * (", "total[goal] += 3.0 * p * ("),
    ],
)
def test_a_change_in_an_imported_kernel_is_compiled_in(program, tmp_path, monkeypatch, code, file, line, changed):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("NUMBA_OPT", "1")  # which compiles sooner
    package = Path(marlcore.__file__).parent
    shutil.copytree(package, tmp_path / "marlcore", ignore=shutil.ignore_patterns("compat", "envs", "algos"))
    values = [float(program(code, args=[tmp_path]).finish())]
    source = tmp_path / "marlcore" / file
    source.write_text(source.read_text().replace(line, changed))
    values += [float(program(code, args=[tmp_path]).finish()) for _ in range(2)]
    assert values == [1.0, 3.0, 3.0]


@pytest.mark.long
def test_cached_kernels_work_in_another_process(program, rng):
    spec = SPECS["vector"]
    with ReplayBuffer.create(spec, 50) as replay:
        fill(replay, Model(spec, 1, 50), rng, [40])
        here = replay.sampler(16, stack=2, n_step=2, seed=5).sample()
        for _ in range(2):
            there = json.loads(program(CACHED, args=[replay.handle.path]).finish())
            assert there[:3] == [here.index.tolist(), here.obs.tolist(), here.reward.tolist()]
            assert there[3:] == [{"draw": 1, "draw_listed": 0}, 0]
        del here


def test_kernels_are_pickled_by_name_before_their_first_use() -> None:
    assert pickle.loads(pickle.dumps(jit(columns.gather.py_func))) is columns.gather


def test_what_fails_in_a_kernels_making_is_said() -> None:
    """If importing Numba raised AttributeError, as with another NumPy, it once showed as a recursion."""
    with pytest.raises(AttributeError, match="'no_maker'"):
        Kernel("no_maker", lambda: None)()
