"""Control words and metrics, from a worker to the parent."""

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from mapped import Mapped
from refused import check_refused, refused

from marlcore import WorkerContext, Workers
from marlcore.errors import LaneBusy, SegmentCorrupt
from marlcore.memory import LINE, LaneGeometry, Segment, Shared
from marlcore.processes import STEPS, UPDATES, Control, Metric, Reporter, Telemetry, encoded_name, fitting_name
from marlcore.processes.telemetry import AT_ONCE, NAME_BYTES, ROWS


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    with Telemetry.create(["a"]) as made:
        yield made


@pytest.fixture
def reporter(telemetry: Telemetry) -> Reporter:
    return telemetry.reporter("a")


def test_workers_count_and_everybody_reads() -> None:
    with Control.create(["actor-0", "actor-1", "learner-a"]) as control, Control.attach(control.handle) as other:
        other.workers["actor-0"].store(STEPS, 40)
        other.workers["actor-1"].store(STEPS, 2)
        other.workers["learner-a"].store(UPDATES, 7)
        assert control.steps == 42 and control.workers["learner-a"].load(UPDATES) == 7
        assert not other.stopping
        control.stop()
        assert other.stopping


FOREIGN = [None, 3, "ab", {"a": 0}, ["a", 1], ["a", None], [["a"]], ["a", "a"], [str(i) for i in range(1000)]]
UNFIT = [(kind, {"workers": workers, "about": {}}) for kind in (Control, Telemetry) for workers in FOREIGN]
UNFIT += [(Control, {"workers": ["a"], "tallies": [], "about": about}) for about in (None, 3, "run", [1])]


@pytest.mark.parametrize(("kind", "description"), UNFIT, ids=lambda value: str(value)[:30])
def test_a_segment_with_an_unfit_description_is_refused(kind: type[Shared], description: dict[str, object]) -> None:
    """Its list of workers is wrong or too long, or it does not describe a run."""
    room_for_two = LINE * 5 if kind is Control else LaneGeometry(2, ROWS, (88,)).nbytes
    segment = Segment.create("foreign", {"kind": kind.kind, "tallies": [], **description}, room_for_two)
    for attach in (kind.attach, kind.watch):
        with pytest.raises(SegmentCorrupt, match=f"expected a {kind.kind}, got another kind of segment"):
            attach(segment.handle)
    segment.close()


def test_metrics_arrive_in_order_and_once() -> None:
    sent = [Metric(float(i), i, f"agent_{i % 2}", "loss", i / 7) for i in range(100)]
    with Telemetry.create(["a", "b"]) as telemetry:
        reporters = [telemetry.reporter(name) for name in ("a", "b")]
        for i, metric in enumerate(sent):
            reporters[i % 2].report(metric)
        assert telemetry.tail() == sent
        assert telemetry.tail() == [] and telemetry.lost == 0


def test_threads_report_beside_each_other(telemetry: Telemetry, reporter: Reporter) -> None:
    def work(number: int) -> None:
        for value in range(1000):
            reporter.report(Metric(0.0, number, str(number), "count", 1000.0 * number + value))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(interval)
    metrics = telemetry.tail()
    assert sorted(metric.value for metric in metrics) == [
        1000.0 * number + value for number in range(4) for value in range(1000)
    ]
    assert all(metric.agent == str(metric.step) == str(int(metric.value // 1000)) for metric in metrics)


def test_values_reported_together_arrive_as_metrics_of_their_own(telemetry: Telemetry, reporter: Reporter) -> None:
    values = [i / 7 for i in range(2 * AT_ONCE + 1)]
    reporter.report_each(1.5, 3, "agent_0", "episode_return", values)
    reporter.report_each(2.5, 4, "agent_0", "episode_return", [])
    assert telemetry.tail() == [Metric(1.5, 3, "agent_0", "episode_return", value) for value in values]


def test_metrics_that_nobody_read_in_time_are_counted_as_lost(telemetry: Telemetry, reporter: Reporter) -> None:
    for i in range(ROWS + 10):
        reporter.report(Metric(0.0, i, "", "x", 0.0))
    assert [metric.step for metric in telemetry.tail()] == list(range(10 + AT_ONCE, ROWS + 10))
    assert telemetry.lost == 10 + AT_ONCE  # more than must be: the rows that the worker might be writing now


def test_a_worker_dead_while_reporting_hangs_no_parent(telemetry: Telemetry, reporter: Reporter) -> None:
    for i in range(ROWS + 10):
        reporter.report(Metric(0.0, i, "", "x", 0.0))
    counters = Mapped(telemetry).counters()
    assert counters[1] == counters[0]
    counters[1] += AT_ONCE  # as if it had begun further rows
    del counters
    assert len(telemetry.tail()) == ROWS - AT_ONCE


def test_a_worker_has_one_reporter(telemetry: Telemetry, reporter: Reporter) -> None:
    check_refused(lambda: telemetry.reporter("a"), LaneBusy, "lane 0 has a living writer")
    reporter.close()
    telemetry.reporter("a").close()


def test_a_name_that_does_not_fit_is_refused(telemetry: Telemetry, reporter: Reporter) -> None:
    for name in ("x" * 65, "\xfc" * 33, "lone \ud800"):
        with refused(ValueError, f"agent: expected at most 64 bytes of UTF-8, got {name!r}"):
            reporter.report(Metric(0.0, 0, name, "loss", 0.0))
    assert telemetry.tail() == []


@pytest.mark.parametrize(
    ("name", "fits"), [("\xfc" * 33, "\xfc" * 32), ("a\ud800", "a?"), ("x" + "\u20ac" * 30, "x" + "\u20ac" * 21)]
)
def test_a_name_is_made_to_fit_by_its_bytes(name: str, fits: str) -> None:
    assert fitting_name(name) == fits
    assert encoded_name("name", fits) == fits.encode()


@pytest.mark.parametrize("place", [Reporter.report, Reporter.report_each, Workers.start_named, WorkerContext.report])
def test_the_documented_limit_of_a_name_is_the_true_one(place: Callable[..., None]) -> None:
    assert {*re.findall(r"(\d+) bytes", place.__doc__ or "")} <= {str(NAME_BYTES)}


def test_damaged_rows_and_counters_end_no_tail(telemetry: Telemetry, reporter: Reporter) -> None:
    reporter.report(Metric(1.0, 1, "agent", "loss", 2.0))
    mapped, geometry = Mapped(telemetry), LaneGeometry(1, ROWS, (152,))
    mapped.body[geometry.column_offset(0) + 24 :][:128] = 0xFF  # neither name is text
    assert telemetry.tail()[0].name == "\ufffd" * 64
    reporter.report(Metric(1.0, 1, "agent", "loss", 2.0))
    counters = mapped.counters()
    counters[1] += 3 * ROWS  # as if whatever is read were overwritten at once
    assert telemetry.tail() == []
    counters[0] = 2**62
    check_refused(telemetry.tail, SegmentCorrupt, "contradict")
