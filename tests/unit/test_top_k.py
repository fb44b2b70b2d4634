"""The parts of the top-k benchmark that need no Spark: lines, the two loops, the reference, and what is made of a run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.top_k import check, views
from benchmarks.top_k.bench import DEFAULTS, check_options, most_visited, order, summary, table
from benchmarks.top_k.offering import Offered, Offering, Taken
from benchmarks.top_k.outcome import ELASTIC, ONE, Batch, Outcome, series
from benchmarks.top_k.plot import draw
from benchmarks.top_k.query import ranked
from headrace.errors import HeadraceError


def offering(folder: Path, batch: int = 2, buffer: int = 3) -> Offering:
    blocks = views.write_blocks(folder / "blocks", [b"en A 1 10", b"de.m B 1 20", b"en C 1 30"], 8, 2)
    return Offering(views.Stream(folder / "source", blocks), Taken(folder / "log"), batch, buffer)


def take(each: Offering, batch: int, names: list[str]) -> None:
    """As Spark notes the files of a batch."""
    each.taken.log.mkdir(exist_ok=True)
    lines = [json.dumps({"path": f"file:///somewhere/{name}", "timestamp": 1, "batchId": batch}) for name in names]
    (each.taken.log / str(batch)).write_text("\n".join(["v1", *lines]))


def test_lines_are_the_seeds_and_their_languages_skewed() -> None:
    lines = views.lines(280, seed=3, count=5_000)
    assert lines == views.lines(280, seed=3, count=5_000)
    assert lines != views.lines(280, seed=4, count=5_000)
    seen = Counter(line.split(b" ")[0].split(b".")[0] for line in lines)
    assert seen.most_common(1)[0][0] == b"en"
    assert 0.42 < seen[b"en"] / 5_000 < 0.52
    assert len(seen) > 100
    assert len(set(views.EDITIONS)) == len(views.EDITIONS) >= 280


def test_a_text_of_ones_own_is_cut_into_blocks(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_bytes(b"en A 1 1\r\n\nfr B 1 2\n")
    blocks = views.write_blocks(tmp_path / "blocks", views.lines_of(str(own)), 2, 3)
    assert [block.read_bytes() for block in blocks] == [b"en A 1 1\nfr B 1 2\nen A 1 1\n", b"fr B 1 2\nen A 1 1\nfr B 1 2\n"]
    for text in ("absent.txt", str(tmp_path / "empty")):
        (tmp_path / "empty").touch()
        with pytest.raises(HeadraceError, match="--text"):
            views.lines_of(text)


def test_an_open_loop_discards_what_finds_the_buffer_full(tmp_path: Path) -> None:
    each = offering(tmp_path)
    each.open(0.05, 100)
    assert [bool(one.name) for one in each.history] == [True, True, True, False, False]
    take(each, 0, [one.name for one in each.history[:2]])
    assert each.waiting == 1
    each.open(0.03, 100)
    assert [bool(one.name) for one in each.history[5:]] == [True, True, False]
    kept = sorted(one.name for one in each.history if one.name)
    assert sorted(path.name for path in each.stream.folder.iterdir()) == kept
    assert [views.time_of(name) for name in kept] == [one.ms for one in each.history if one.name]


def test_a_closed_loop_waits_until_all_was_taken(tmp_path: Path) -> None:
    each = offering(tmp_path)
    each.closed(0.05)
    assert len(each.history) == 2, "a batch, and no more while nobody takes it"
    take(each, 0, [one.name for one in each.history])
    each.closed(0.03)
    assert len(each.history) == 4
    assert all(one.name for one in each.history)
    assert each.end(30).ms > each.history[-2].ms + 60_000


def test_the_reference_counts_what_was_not_discarded_and_notices_mistakes(tmp_path: Path) -> None:
    blocks = views.write_blocks(tmp_path / "blocks", [b"en A 1 10", b"de.m B 1 20", b"ja C 1 30", b"en.m D 1 1"], 1, 4)
    wanted = check.expected([(0, blocks[0]), (29_999, blocks[0]), (30_000, blocks[0])], window_s=30)
    assert wanted == {0: Counter(en=4, de=2, ja=2), 30_000: Counter(en=2, de=1, ja=1)}
    rows = [(0, "ja", 2), (0, "en", 4), (0, "de", 2), (30_000, "de", 1), (30_000, "en", 2), (30_000, "ja", 1)]
    told = ranked(rows)
    assert check.difference(told, wanted) == ""
    assert "('en', 3) instead of ('en', 4)" in check.difference(
        ranked([(0, "en", 3), *(row for row in rows if row[:2] != (0, "en"))]), wanted
    )
    assert "instead of" in check.difference({**told, 0: [("en", 4), ("ja", 2), ("de", 2)]}, wanted)
    assert "windows [0] instead of [0, 30000]" in check.difference({0: told[0]}, wanted)
    assert "2 instead of 3" in check.difference({**told, 0: told[0][:2]}, wanted)


def outcome(name: str = ELASTIC, discarded: tuple[int, ...] = (3, 4)) -> Outcome:
    """Ten seconds, a file of 100 lines each; two seconds' files a batch, and one instance more from the fourth second on."""
    offered = [Offered(1000.0 + at, at * 1000, "" if at in discarded else f"f{at}") for at in range(10)]
    batches = [Batch(at, 1002.0 + 2 * at, 1003.5 + 2 * at, 200, 1 if at < 1 else 2) for at in range(5)]
    taken = {f"f{at}": at // 2 for at in range(10)}
    return Outcome(name, 100, 4, 100.0, {"before": 80.0, "after": 90.0}, 1000.0, 1010.0, offered, batches, taken)


def test_a_run_second_by_second() -> None:
    made = outcome()
    seen = series(made, step_s=2.0)
    assert seen.offered.tolist() == [100.0] * 5
    assert seen.discarded.tolist() == [0.0, 50.0, 50.0, 0.0, 0.0]
    assert seen.consumed.tolist() == pytest.approx([0, 100, 100, 100, 100])
    assert np.isnan(seen.instances[0])
    assert seen.instances[1:].tolist() == [1, 2, 2, 2]
    assert made.consumed() == 800, "the last of its batches ended later"
    assert made.consumed(0.85) == pytest.approx(200 * 1.0 / 1.5), "a part of a batch"
    assert (made.discarded(), made.discarded(0.75), made.grown_s(), made.waiting_s) == (200, 0, 4.0, 1.0)
    came, took = made.latencies()
    assert (came[0], took[0], len(took)) == (0.0, 3.5, 8)


def test_what_is_asked_of_the_elastic_lane(tmp_path: Path) -> None:
    good, bad = outcome(), outcome(discarded=(3, 8))
    one = outcome(ONE, discarded=(2, 3, 8, 9))
    assert all(figure.holds for figure in summary([one, good]).figures)
    assert [figure.holds for figure in summary([one, bad]).figures] == [True, False, True]
    one.capacity["after"] = 120.0
    assert not summary([one, good]).figures[0].holds, "once its code is warm, one instance could take it all"
    assert set(summary([one, good]).baselines) == {ONE}
    assert table([one, good]).row_count > 8
    one.rankings = {0: [("en", 3)], 30_000: [("en", 9), ("de", 5), ("ja", 5)]}
    assert most_visited(one, k=2) == "top 2 of the window from 30 s on: en 9, de 5"
    one.wrong = "something"
    assert not summary([one, good]).equal
    assert "discarded" in draw(tmp_path / "plots" / "top-k.svg", [one, good]).read_text()


@pytest.mark.parametrize(
    ("name", "value"), [("window", 7), ("over", 0.9), ("instances", 1), ("buffer", 16), ("policy", "none"), ("baselines", "flink")]
)
def test_options_that_would_not_do_are_refused(name: str, value: str | float) -> None:
    check_options(DEFAULTS)
    with pytest.raises(HeadraceError, match=f"--{name}"):
        check_options({**DEFAULTS, name: value})


def test_a_block_does_not_come_again_while_it_waits(tmp_path: Path) -> None:
    made = order({**DEFAULTS, "lines": 10, "buffer": 12, "batch": 4}, tmp_path)
    assert len(made.blocks) > made.buffer_files + made.batch_files
    with pytest.raises(HeadraceError, match="--languages"):
        order({**DEFAULTS, "languages": 1000}, tmp_path / "other")
