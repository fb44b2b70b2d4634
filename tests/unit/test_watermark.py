"""The watermark of a run of a query: Spark's rule over several sources, and when a source counts as idle."""

from __future__ import annotations

from headrace.runtime.watermark import Tracker


def test_the_least_of_all_sources_counts_and_never_goes_back() -> None:
    tracker = Tracker("min")
    assert tracker.advance(0, (100, None), 0.0).reached_ms == 0, "a source without data counts as 0"
    assert tracker.advance(0, (50, 30), 1.0).reached_ms == 30
    assert tracker.advance(30, (None, 90), 2.0).reached_ms == 90, "the first one stands at 100 still"
    assert tracker.advance(90, (None, None), 3.0).reached_ms == 90
    assert tracker.advance(500, (110, 120), 4.0).reached_ms == 500


def test_the_greatest_counts_if_the_session_says_so() -> None:
    assert Tracker("max").advance(0, (100, None), 0.0).reached_ms == 100
    assert Tracker("MAX").advance(0, (100, 20), 0.0).reached_ms == 100


def test_a_new_run_forgets_what_single_sources_had_reached() -> None:
    """As Spark does. Sources may come in another order after a restart; then one must not be taken for the other."""
    first = Tracker("min")
    assert first.advance(0, (1_000, 9_000), 0.0).reached_ms == 1_000
    again = Tracker("min")
    assert again.advance(1_000, (9_500, None), 0.0).reached_ms == 1_000
    assert again.advance(1_000, (None, 1_200), 1.0).reached_ms == 1_200


def test_a_source_is_idle_when_others_had_rows_for_long_without_it() -> None:
    tracker = Tracker("min", idle_s=300)
    assert tracker.advance(0, (100, 50), 1000.0).idle == ()
    for moment_s in range(1100, 1400, 20):
        assert tracker.advance(50, (200, None), moment_s).idle == (), "less than 300 seconds"
    moved = tracker.advance(50, (400, None), 1400.0)
    assert moved.idle == (1,)
    assert moved.reached_ms == 400
    back = tracker.advance(400, (500, 60), 1402.0)
    assert back.idle == ()
    assert back.reached_ms == 400


def test_time_without_any_batch_is_no_idle_time() -> None:
    """After a quiet night one source is a moment earlier than the other. No row of the other may be late because of that."""
    tracker = Tracker("min", idle_s=300)
    tracker.advance(0, (100, 100), 0.0)
    morning = tracker.advance(100, (50_000, None), 40_000.0)
    assert morning.idle == ()
    assert morning.reached_ms == 100
    assert tracker.advance(100, (None, 50_010), 40_001.0).reached_ms == 50_000


def test_nor_if_the_last_batch_before_it_had_rows_of_one_source_only() -> None:
    tracker = Tracker("min", idle_s=300)
    tracker.advance(0, (100, 100), 0.0)
    tracker.advance(100, (200, None), 1.0)
    morning = tracker.advance(100, (50_000, None), 40_000.0)
    assert (morning.idle, morning.reached_ms) == ((), 100)
    assert tracker.advance(100, (50_001, 50_010), 40_001.0).reached_ms == 50_001


def test_a_source_is_idle_at_last_also_where_batches_are_rare() -> None:
    tracker = Tracker("min", idle_s=300)
    tracker.advance(0, (100, 100), 0.0)
    hourly = [tracker.advance(100, (200, None), hour * 3600.0).idle for hour in range(1, 13)]
    assert hourly == [()] * 10 + [(1,)] * 2


def test_a_source_is_never_idle_if_all_are_or_if_that_is_switched_off() -> None:
    for tracker in (Tracker("min", idle_s=300), Tracker("min", idle_s=0)):
        tracker.advance(0, (100, 100), 0.0)
        tracker.advance(100, (None, None) if tracker._idle_s else (200, None), 10.0)
        assert tracker.advance(100, (None, None) if tracker._idle_s else (300, None), 9_000.0).idle == ()
