"""Word frequency without Spark: fragments, what is offered by the clock, the reference's counts, latencies."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.word_frequency import plan
from benchmarks.word_frequency.bench import BENCHMARK
from benchmarks.word_frequency.cell import Batch, Cell, Outcome
from benchmarks.word_frequency.check import Texts, expected, wrong
from benchmarks.word_frequency.source import START_S, Reader
from benchmarks.word_frequency.summary import latencies_s, summarise
from benchmarks.word_frequency.windows import WINDOWS, Window
from benchmarks.word_frequency.words import BYTES, Pool, Wanted, dictionary, fragments, generated, of_text
from headrace.bench.model import OURS
from headrace.errors import HeadraceError

SMALL = Wanted(words=300, fragments=2_000)


def words_of(texts: tuple[str, ...]) -> list[str]:
    return " ".join(texts).split()


def test_fragments_have_140_bytes_and_words_follow_zipfs_law() -> None:
    pool = generated(SMALL)
    assert {len(text.encode()) for text in (*pool.head, *pool.body)} == {BYTES}
    known = dictionary(300, SMALL.seed)
    assert sorted(words_of(pool.head)) == sorted(known), "the head has each word once"
    counted = Counter(words_of(pool.body))
    total = counted.total()
    harmonic = sum(1 / rank for rank in range(1, 301))
    for rank in (1, 2, 10, 100):
        assert counted[known[rank - 1]] / total == pytest.approx(1 / rank / harmonic, rel=0.25)


def test_the_same_seed_gives_the_same_fragments() -> None:
    assert generated(SMALL) == generated(SMALL)
    assert generated(SMALL) != generated(replace(SMALL, seed=2))


def test_frequent_words_are_short_and_all_differ() -> None:
    known = dictionary(10_000, 1)
    assert len(set(known)) == 10_000
    assert np.mean([len(word) for word in known[:100]]) < 5 < 6 < np.mean([len(word) for word in known])


def test_a_few_words_are_repeated_when_skew_is_asked_for() -> None:
    counted = Counter(words_of(generated(replace(SMALL, skew=0.8, hot=2)).body))
    top = sum(times for _, times in counted.most_common(2))
    assert top / counted.total() > 0.8


def test_a_text_keeps_its_words_and_their_order(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("First set\nsecond set " + "x" * 200, encoding="utf-8")
    pool = of_text(path)
    assert words_of(pool.body) == ["first", "set", "second", "set", "x" * BYTES]
    assert pool.words == 4
    assert len(fragments(["ü" * 100])[0].encode()) == BYTES


@pytest.mark.parametrize("content", [None, "  \n"])
def test_a_text_that_is_not_there_or_empty_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(HeadraceError, match="--text"):
        of_text(path)


def written(tmp_path: Path) -> tuple[str, Pool]:
    pool = generated(SMALL)
    return str(pool.write(tmp_path / "pool.arrow")), pool


def cell(tmp_path: Path, window: str = "30s", **more: Any) -> Cell:
    path, pool = written(tmp_path)
    return Cell(OURS, WINDOWS[window], 300, path, len(pool.head), **more)


def reader(made: Cell, folder: Path) -> Reader:
    return Reader({**{name: str(value) for name, value in vars(made.offer(folder)).items()}, "parts": "2"})


def test_the_clock_says_how_many_fragments_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cell(tmp_path, rate=100.0, seconds=10.0, settle_s=2.0)
    source = reader(made, tmp_path)
    assert source.latestOffset({"n": 0}, None) == {"n": made.head}, "the head is there at once"
    assert source.latestOffset({"n": made.head}, None) == {"n": made.head}, "nothing more before the gun"
    (tmp_path / "gun").write_text("1000.0")
    for now_s, offered in ((1000.0, 0), (1000.5, 50), (1007.0, 700), (5000.0, 1200)):
        monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
        assert source.latestOffset({"n": made.head}, None) == {"n": made.head + offered}


def test_without_a_rate_each_batch_has_its_rows(tmp_path: Path) -> None:
    made = cell(tmp_path, rows=70)
    (tmp_path / "gun").write_text("1000.0")
    assert reader(made, tmp_path).latestOffset({"n": made.head + 70}, None) == {"n": made.head + 140}


def test_partitions_hold_each_fragment_once_and_go_round_the_pool(tmp_path: Path) -> None:
    made = cell(tmp_path, rate=100.0)
    source = reader(made, tmp_path)
    begin, end = made.head - 3, made.head + 2_500
    read = pa.Table.from_batches([b for part in source.partitions({"n": begin}, {"n": end}) for b in source.read(part)])
    assert read["n"].to_pylist() == list(range(begin, end))
    pool = generated(SMALL)
    assert read["text"].to_pylist() == [*pool.head[-3:], *pool.body, *pool.body[:500]]
    at_s = read["at"].cast(pa.int64()).to_numpy() / 1e6
    assert at_s[3 + 250] == START_S + 2.5
    assert source.partitions({"n": 5}, {"n": 5}) == []


def plainly(texts: list[str], made: Cell, fragments_s: float) -> dict[tuple[str, int], int]:
    """Counts word by word and window by window: slow, but obviously right."""
    found: Counter[tuple[str, int]] = Counter()
    window = made.window
    span_s = window.size_s if window.slides and window.size_s else 0
    for number, text in enumerate(texts):
        at_s = number * span_s / made.head if number < made.head else span_s + (number - made.head) / fragments_s
        for word in text.split():
            if window.size_s is None:
                found[word, 0] += 1
                continue
            last = int((START_S + at_s) // window.advance_s) * window.advance_s
            for start in range(last, last - window.size_s, -window.advance_s):
                found[word, start] += 1
    return dict(found)


@pytest.mark.parametrize("window", [WINDOWS["running"], WINDOWS["30s"], Window("sliding", 60, 20)])
def test_the_reference_counts_as_one_would_by_hand(tmp_path: Path, window: Window) -> None:
    made = replace(cell(tmp_path, rows=200), window=window)
    texts = Texts(Path(made.pool), made.head)
    number = made.head + 4_700
    every = texts.head + (texts.body * 3)[: number - made.head]
    assert expected(texts, made, number) == plainly(every, made, 200 / made.step_s)


def delivered(counts: dict[tuple[str, int], int]) -> pa.Table:
    rows = [{"word": word, "start": start, "count": times} for (word, start), times in counts.items()]
    return pa.Table.from_pylist(rows)


def test_a_wrong_a_missing_and_an_extra_count_are_noticed(tmp_path: Path) -> None:
    made = cell(tmp_path, rate=100.0)
    texts = Texts(Path(made.pool), made.head)
    right = expected(texts, made, made.head + 50)
    batches = [Batch(0, made.head, 1.0, 1.0), Batch(made.head, made.head + 50, 2.0, 1.0)]
    key = next(iter(right))
    less = {other: times for other, times in right.items() if other != key}
    for counts, complaint in (
        (right, ""),
        (right | {key: 77}, "77 instead of"),
        (less, "None"),
        (right | {("", 0): 1}, "1 instead of None"),
    ):
        assert complaint in wrong(Outcome(made, 0.0, batches, [delivered(counts)]), texts)
    assert not wrong(Outcome(made, 0.0, batches, [delivered(right | {key: 1}), delivered(right)]), texts), "the later result counts"


def test_windows_that_are_due_must_have_closed_and_only_once(tmp_path: Path) -> None:
    made = cell(tmp_path, "15min", rows=100)
    texts = Texts(Path(made.pool), made.head)
    number = made.head + 300
    batches = [Batch(0, made.head, 1.0, 1.0), Batch(made.head, number - 100, 2.0, 1.0), Batch(number - 100, number, 3.0, 1.0)]
    all_of_them = expected(texts, made, number)
    due = {key: times for key, times in all_of_them.items() if key[1] + 900 <= START_S + 900 + 15}
    assert not wrong(Outcome(made, 0.0, batches, [delivered(due)]), texts)
    assert "twice" in wrong(Outcome(made, 0.0, batches, [delivered(due), delivered(due)]), texts)
    early = {key: times for key, times in due.items() if key[1] + 900 <= START_S + 900}
    assert "are due" in wrong(Outcome(made, 0.0, batches, [delivered(early)]), texts)


def test_latency_is_from_creation_to_delivery(tmp_path: Path) -> None:
    made = cell(tmp_path, rate=10.0, settle_s=1.0)
    head = made.head
    batches = [Batch(head, head + 10, 101.5, 1.0), Batch(head + 10, head + 20, 102.0, 1.0)]
    # Fragments 10 to 19 are created at 101.0 to 101.9; those before came while the query settled.
    assert latencies_s(made, batches, 100.0) == pytest.approx(np.linspace(1.0, 0.1, 10))
    later = Batch(head + 20, head + 30, 109.0, 1.0)
    seen = summarise(Outcome(made, 100.0, [*batches, later], [], failed_s=105.0, recovery_s=4.0), "", 20.0, tmp_path)
    assert seen.latency_ms["max"] == pytest.approx(1000.0), "what a failure delayed does not count"
    assert seen.behind_s == pytest.approx(0.0)


def options(**more: Any) -> dict[str, Any]:
    return {**BENCHMARK.options, "seconds": 6.0, **more}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rates", "fast"),
        ("rates", "0"),
        ("words", ""),
        ("parts", "speed"),
        ("windows", "2h"),
        ("window", "1h"),
        ("skew", 1.5),
        ("intervals", "-1"),
    ],
)
def test_bad_options_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(HeadraceError, match=f"--{name}"):
        plan.read(options(**{name: value}))


def test_the_cells_of_a_plan_put_engines_side_by_side(tmp_path: Path) -> None:
    asked = options(rates="100,500", words="300", intervals="0,10", windows="running,1h", baselines="spark-memory")
    read = plan.read(asked)
    cells = plan.Cells(read, {300: written(tmp_path)})
    assert [made.name for made in cells.latency()][:3] == ["ours", "ours, no sync", "spark-memory"]
    assert [made.rate for made in cells.latency()] == [100.0] * 3 + [500.0] * 3
    assert [(made.interval_s, made.seconds) for made in cells.interval()] == [(0.0, 6.0), (10.0, 30.0)]
    assert [made.rows for made in cells.throughput()] == [100_000] * 2 + [plan.SLIDING_ROWS] * 2
