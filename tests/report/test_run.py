"""The report pairs every score with its untrained twin, of the current members only."""

import json
from pathlib import Path

from components.report.contract import ReportInputs, ReportOutputs, ReportParams
from components.report.run import run


def test_report(tmp_path: Path) -> None:
    files = {
        "pretrain": {"loss_final": 0.25, "A_norm": 2.0},
        "davis": {"jf_mean": 50.0, "jf_mean_untrained": 40.0, "jf_mean_gain": 10.0, "objects": 3},
        "clevr": {"count_top1": 20.0, "count_top1_untrained": 25.5, "count_top1_gain": -5.5},
        "linear_probe/new": {"top1": 90.123, "top1_untrained": 80.0, "top1_gain": 10.123, "scored": 9},
        "linear_probe/old": {"top1": 1.0, "top1_untrained": 2.0, "top1_gain": -1.0},
        "prepare/some": {"images": 3},
    }
    for name, values in files.items():
        path = tmp_path / "metrics" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    (tmp_path / "params").mkdir()
    for stage in ("pretrain", "davis", "clevr"):
        (tmp_path / "params" / f"{stage}.yaml").write_text("seed: 0\n")
    (tmp_path / "params/linear_probe.yaml").write_text("tasks:\n  new: {}\n")
    (tmp_path / "params/prepare.yaml").write_text("datasets:\n  some: {}\n")
    outputs = ReportOutputs(report=tmp_path / "report.md", table=tmp_path / "table.json", run=tmp_path / "run.json")
    inputs = ReportInputs(metrics=tmp_path / "metrics", values=tmp_path / "params")
    metrics = run(ReportParams(decimals=1), inputs, outputs)
    assert (metrics.compared, metrics.improved) == (3, 2)
    rows = {row["metric"]: row for row in json.loads(outputs.table.read_text())}
    assert rows.keys() == {"davis/jf_mean", "clevr/count_top1", "linear_probe/new/top1"}
    assert rows["linear_probe/new/top1"]["pretrained"] == 90.123
    text = outputs.report.read_text()
    assert "| clevr/count_top1 | 20.0 | 25.5 | -5.5 |" in text
    assert "| linear_probe/new/top1 | 90.1 | 80.0 | +10.1 |" in text
    assert "| pretrain/A_norm | 2 |" in text and "old" not in text
