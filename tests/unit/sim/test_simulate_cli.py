from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli import app, run
from headrace.sim import scenarios
from tests.unit.control.engine import Engine

QUICK = ["simulate", "seep-fig13", "--set", "runs=1", "--set", "intervals_s=1/10", "--set", "tick_s=0.5", "--seed", "7"]


def test_scenarios_are_listed_with_what_they_claim(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["simulate"]) == 0
    shown = capsys.readouterr().out
    for name in scenarios.all_scenarios():
        assert name in shown


def test_a_run_prints_seed_options_claims_and_checkers_and_writes_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "plot.svg"
    assert run(app, [*QUICK, "--plot", str(page)]) == 0
    shown = capsys.readouterr().out
    for part in ("SEEP Fig. 13", "seed 7", "runs=1", "paper", "seen", "checkers: no row lost", "times as fast"):
        assert part in shown
    assert "<svg" in page.read_text(encoding="utf-8")
    assert run(app, [*QUICK, "--plot", str(picture)]) == 0
    assert picture.read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["simulate", "nothing"], "wanted one of"),
        (["simulate", "--set", "runs=1"], "a scenario's name first"),
        (["simulate", "seep-fig13", "--set", "runs"], "wanted KEY=VALUE; found 'runs'"),
        (["simulate", "seep-fig13", "--set", "walks=1"], "found 'walks'"),
        (["simulate", "seep-fig13", "--set", "runs=many"], "wanted a value of type int; found 'many'"),
        (["simulate", "seep-fig13", "--set", "intervals_s=1/x"], "numbers separated by /; found '1/x'"),
        (["simulate", "seep-fig13", "--set", "tick_s=-1"], "tick_s"),
        (["simulate", "seep-fig13", "--set", "runs=0"], "runs"),
        (["simulate", "replay"], "a recorded progress"),
        (["simulate", "replay", "nowhere.jsonl"], "a query's checkpoint, or a file of its progress"),
        (["simulate", "replay", __file__], "the progress of a Headrace query"),
        (["simulate", "seep-fig13", __file__], "for replay only"),
        (["simulate", "seep-fig13", "--plot", "plot.png"], "ends in .html or .svg"),
        (["simulate", "seep-fig13", "--plot", "nowhere/plot.svg"], "a folder that is there"),
    ],
)
def test_mistakes_get_a_message_and_no_traceback(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, args) == 2
    shown = capsys.readouterr().err
    assert said in shown.replace("\n", " ")
    assert "Traceback" not in shown


def test_a_recorded_query_is_replayed_through_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(lambda at: 50_000 * (2.5 if 40 < at < 100 else 0.2))
    while engine.now_s < 160.0:
        engine.batch()
    trace, page = tmp_path / "progress.jsonl", tmp_path / "page.html"
    trace.write_text("\n".join(engine.lines), encoding="utf-8")
    assert run(app, ["simulate", "replay", str(trace), "--set", "policy=elastic-manager", "--set", "max=8", "--plot", str(page)]) == 0
    shown = capsys.readouterr().out
    for part in ("scale out", "scale in", "performed", "batches of"):
        assert part in shown
    assert page.read_text(encoding="utf-8").count("<svg") == 2
    assert run(app, ["simulate", "replay", str(trace), "--set", "maximum=8"]) == 2
    assert "a setting of hr.Elastic" in capsys.readouterr().err
    assert run(app, ["simulate", "replay", str(trace), "--set", "max=many"]) == 2
    assert "a value of type int; found 'many'" in capsys.readouterr().err


def test_every_scenario_says_its_figure_and_claim_in_one_line() -> None:
    for scenario in scenarios.all_scenarios().values():
        assert scenario.figure
        assert "\n" not in scenario.claim
        assert len(scenario.claim) < 130
