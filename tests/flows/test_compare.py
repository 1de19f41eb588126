"""Scores of different protocols are never set against each other: not by the command, not in a run's report."""

from pathlib import Path
from typing import Any

import pytest

from components import parent_runs
from components.parent_runs import Row
from flows import compare, summary

OLD = {"linear_probe/digits/top1": 80.0, "davis/jf_mean": 50.0, "pretrain/loss_final": 0.5}
NEW = {"linear_probe/digits/top1": 85.5, "davis/jf_mean": 60.0, "clevr/count_top1": 30.0, "pretrain/loss_final": 0.25}


def row(name: str, metrics: dict[str, float], **protocols: str) -> Row:
    return Row(name, "1", name, metrics, {key.replace("__", "."): value for key, value in protocols.items()})


def cells(table: str, metric: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {metric} ")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_difference_is_shown_where_protocols_agree_and_words_where_they_do_not() -> None:
    runs = [
        row("new", NEW, linear_probe__digits="aa", davis="cc", clevr="dd"),
        row("old", OLD, linear_probe__digits="aa", davis="bb"),
    ]
    table = compare.table(runs)
    assert cells(table, "linear_probe/digits/top1") == ["linear_probe/digits/top1", "85.5", "80", "+5.5"]
    assert cells(table, "davis/jf_mean") == ["davis/jf_mean", "60", "50", "other protocol"]
    assert cells(table, "clevr/count_top1") == ["clevr/count_top1", "30", "–", ""]
    assert cells(table, "pretrain/loss_final") == ["pretrain/loss_final", "0.25", "0.5", "-0.25"]
    (warning,) = compare.warnings(runs)
    assert warning.startswith("davis: other protocol, so that scores do not compare: new has cc, old has bb;")


def test_a_run_from_before_protocols_were_recorded_does_not_compare() -> None:
    runs = [row("new", NEW, linear_probe__digits="aa"), row("old", OLD)]
    assert cells(compare.table(runs), "linear_probe/digits/top1")[-1] == "other protocol"
    (warning,) = compare.warnings(runs)
    assert warning.startswith(
        "linear_probe/digits: other protocol, so that scores do not compare: new has aa, old has none;"
    )


def test_three_runs_have_no_difference_but_a_warning() -> None:
    runs = [row("a", OLD, davis="1"), row("b", OLD, davis="1"), row("c", OLD, davis="2")]
    assert cells(compare.table(runs), "davis/jf_mean") == ["davis/jf_mean", "50", "50", "50", "other protocol"]
    assert cells(compare.table(runs[:2]), "davis/jf_mean") == ["davis/jf_mean", "50", "50", "+0"]
    assert not compare.warnings(runs[:2]) and len(compare.warnings(runs)) == 1


def test_the_report_of_a_run_says_so_below_the_table(tmp_path: Path) -> None:
    runs = [row("new", NEW, davis="cc"), row("old", OLD, davis="bb")]
    page = tmp_path / "report.md"
    page.write_text("# Report: x\n\n## Results\n\ntable\n\n## Small print\n\n### Protocol of davis\n")
    node = type("Node", (), {"word": "report", "name": "report", "outs": (page,)})
    rows = [{"stage": "report", "state": "ran", "seconds": 1.0, "log": "", "message": ""}]
    text = summary.report(tmp_path, [node], rows, runs)  # type: ignore[list-item]
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == [
        "# Report: x",
        "## Results",
        "## Beside the previous run",
        "## Stages",
        "## Small print",
        "### Protocol of davis",
    ]
    assert "davis: other protocol, so that scores do not compare: new has cc, old has bb" in text
    assert "Small print" not in summary.brief(text) and "## Stages" in summary.brief(text)


@pytest.fixture
def recorded(tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An MLflow database with two pipeline runs that differ in the protocol of `davis`."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "mlflow.db").write_bytes(database.read_bytes())
    for folder in ("params", "metrics"):
        (tmp_path / folder).mkdir()
    (tmp_path / "params/davis.yaml").write_text("seed: 0\n")
    for name, mark in (("old", "bb"), ("new", "cc")):
        (tmp_path / "metrics/davis.json").write_text(f'{{"jf_mean": 50.0, "protocol": "{mark}"}}')
        parent = parent_runs.start_pipeline(tmp_path, tmp_path, name, {"trigger": "dvc"})
        parent_runs.finish_pipeline(tmp_path, tmp_path, parent, "FINISHED")
    return tmp_path


def test_the_command_warns_and_fails_if_asked_to(recorded: Path, capsys: Any) -> None:
    for strict, status in (([], 0), (["--strict"], 1)):
        assert compare.main(["new", "old", *strict, "--root", str(recorded)]) == status
        out, err = capsys.readouterr()
        assert "| davis/jf_mean |  50 |  50 | other protocol |" in out
        assert err.startswith("warning: davis: other protocol") and err.count("\n") == 1
    assert compare.main(["new", "new", "--strict", "--root", str(recorded)]) == 0
    assert capsys.readouterr().err == ""
    for runs, message in ((["new"], "error: one run is given"), (["new", "lost"], "error: no pipeline run of sqlite:")):
        assert compare.main([*runs, "--root", str(recorded)]) == 2
        assert capsys.readouterr().err.startswith(message)


def test_a_folder_without_runs_is_told_and_left_as_it_was(tmp_path: Path, capsys: Any) -> None:
    assert compare.main(["new", "old", "--root", str(tmp_path / "lost")]) == 2
    assert capsys.readouterr().err.startswith("error: there is no MLflow database sqlite:///")
    assert not list(tmp_path.iterdir())
