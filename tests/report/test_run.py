"""The report pairs every score with its baselines and, where it may, with the paper; of the current members only."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from components.report.contract import ReportOutputs

from .conftest import METRICS, Left


def rows(outputs: ReportOutputs) -> dict[str, dict[str, Any]]:
    return {row["metric"]: row for row in json.loads(outputs.table.read_text())}


def test_every_score_with_an_untrained_twin(left: Left) -> None:
    outputs, metrics = left.make()
    found = rows(outputs)
    assert list(found) == [
        "clevr/count_top1",
        "davis/jf_mean",
        "davis/j_mean",
        "davis/j_decay",
        "linear_probe/new/top1",
    ]
    assert (metrics.compared, metrics.improved) == (5, 4)  # all but count: a decay should fall
    for name, row in found.items():
        stage, metric = name.rsplit("/", 1)
        assert row["pretrained"] == METRICS[stage][metric] and row["untrained"] == METRICS[stage][f"{metric}_untrained"]
        assert row["difference"] == pytest.approx(row["pretrained"] - row["untrained"], abs=1e-9)
    assert (found["davis/jf_mean"]["pixels"], found["davis/jf_mean"]["copy"]) == (30.25, 20.75)
    assert found["clevr/count_top1"]["pixels"] is None
    text = " ".join(outputs.report.read_text().split())
    assert "| clevr/count_top1 | 20.00 | 25.50 | -5.50 | – | – |" in text
    assert "| davis/jf_mean | 50.06 | 40.50 | +9.56 | 30.25 | 20.75 |" in text
    assert "| linear_probe/new/top1 | 90.12 | 80.00 | +10.12 | – | – |" in text
    assert "| pretrain/A_norm_final | 2 |" in text and "| davis/jf_mean_gain | 9.5625 |" in text


def test_decimals_are_those_of_the_params(left: Left) -> None:
    outputs, _ = left.make(decimals=0)
    assert "| linear_probe/new/top1 | 90 | 80 | +10 | – | – |" in " ".join(outputs.report.read_text().split())
    assert rows(outputs)["linear_probe/new/top1"]["pretrained"] == 90.123


def test_published_scores_stand_beside_and_name_table_version_and_architecture(left: Left) -> None:
    outputs, metrics = left.make()
    found = rows(outputs)
    assert metrics.published == 3  # J&F, J, and CIFAR-100's top1
    stop = [row for row in found["davis/jf_mean"]["published"] if row["method"] == "StoP"]
    assert [(row["arch"], row["value"]) for row in stop] == [("ViT-B/16", 57.0), ("ViT-L/16", 58.4), ("ViT-H/14", 60.1)]
    assert not found["davis/jf_mean"]["not_comparable"] and not found["clevr/count_top1"]["published"]
    text = " ".join(outputs.report.read_text().split())
    assert "| this run | ViT-B/16 | 600 | | 50.06 | 49.00 |" in text
    assert "| StoP | ViT-B/16 | 600 | table 3, submission | 57.0 (-6.94) | 56.6 (-7.60) |" in text
    assert "| iBOT | ViT-L/16 | – | table 15, ICML v2 | 62.8 (-12.74) | 61.7 (-12.70) |" in text
    assert "| data2vec | ViT-L/16 | – | table 4, submission | 81.6 (+8.52) |" in text
    assert "- clevr: no comparison with the paper: no protocol file." in outputs.report.read_text()
    assert "- analysis" not in outputs.report.read_text()  # it scores nothing


def test_rows_of_the_runs_own_architecture_come_first_and_stand_out(left: Left) -> None:
    large = {"encoder": {"patch_size": 16, "width": 1024, "layers": 24, "heads": 16}, "optimisation": {"epochs": 600}}
    left.put("params/pretrain.yaml", {"dataset": "some", **large})
    outputs, _ = left.make()
    text = outputs.report.read_text().partition("davis: DAVIS 2017 val.")[2].partition("##")[0]
    archs = re.findall(r"\| (ViT-\S+)", text)[:13]
    assert archs == ["ViT-L/16"] * 5 + [arch for arch in archs if arch != "ViT-L/16"]
    assert outputs.page.read_text().count('<tr class="own">') == 5 + 6  # DAVIS; CIFAR-100 has data2vec as well


def test_what_does_not_compare_says_why_and_shows_no_published_number(left: Left, record) -> None:
    cifar = record("linear_probe")
    cifar["data"]["splits"]["train"] = {"rows": 10_000, "used": 10_000}
    cifar["settings"]["profile"] = "clean"
    left.put("protocols/linear_probe/new.json", cifar)
    outputs, metrics = left.make()
    assert metrics.published == 2
    reason = (
        "linear_probe/new: no comparison with the paper: train 10,000, test 10,000; CIFAR-100 has train 50,000, test 10,000; profile "
        "clean (the paper: paper)."
    )
    for path in (outputs.report, outputs.page):
        assert reason in path.read_text() and "81.2" not in path.read_text()


def test_leftovers_of_members_that_params_no_longer_name_are_nowhere(left: Left) -> None:
    outputs, _ = left.make()
    for path in (outputs.report, outputs.page, outputs.table):
        text = path.read_text()
        assert "linear_probe/old" not in text and "leftover" not in text and "some_more" not in text
    assert "prepare/some" in outputs.page.read_text()


def test_small_print_has_hash_settings_data_and_versions(left: Left) -> None:
    outputs, _ = left.make()
    for path in (outputs.report, outputs.page):
        text = re.sub(r"[|\s]+|<.*?>", " ", path.read_text().partition("Protocol of davis")[2])
        text = " ".join(text.split())
        for words in (
            "Protocol 0123456789ab, version 1, profile paper.",
            "content c0ffee",
            "split val 1999 rows, 1999 in use",
        ):
            assert words in text, path
        for words in ("short_side 480", "torch 2.9.0", "python 3.12.1"):
            assert words in text, path


def test_equal_inputs_make_equal_bytes(drawn: Left) -> None:
    one, _ = drawn.make("one")
    other, _ = drawn.make("other")
    for name in ("report", "page", "table"):
        assert getattr(one, name).read_bytes() == getattr(other, name).read_bytes()


def test_an_evaluation_that_measured_no_such_thing_has_no_row(left: Left) -> None:
    metrics = METRICS["linear_probe/new"] | {"logistic_top1": None, "logistic_top1_untrained": None}
    left.put("metrics/linear_probe/new.json", metrics)
    outputs, _ = left.make()
    assert "linear_probe/new/logistic_top1" not in rows(outputs)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics/davis.json", "{", "metrics/davis.json is no JSON: "),
        ("metrics/davis.json", "[1]", "metrics/davis.json holds a list; it must hold a mapping"),
        ("protocols/davis.json", "\x00", "protocols/davis.json is no JSON: "),
        ("plots/linear_probe/new/confusion.csv", "actual,predicted\na\n", "confusion.csv cannot be shown: "),
        ("plots/pretrain.csv", "step,loss\n1,high\n", "plots/pretrain.csv cannot be shown: could not convert string to float: 'high'"),
        ("plots/davis.csv", "", "plots/davis.csv cannot be shown: it is empty"),
        ("plots/davis.png", "no picture", "plots/davis.png cannot be shown: cannot identify image file"),
        ("metrics/prepare/some.json", None, "metrics/prepare/some.json does not exist, but the params name its stage"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named(left: Left, name: str, content: str | None, message: str) -> None:
    if content is None:
        (left.root / name).unlink()
    else:
        left.put(name, content)
    with pytest.raises(ValueError, match=re.escape(message)):
        left.make()
    assert not (left.root / "out/r.html").exists() and not (left.root / "out/r.md").exists()


def test_a_protocol_of_another_run_is_told(left: Left, record) -> None:
    left.put("protocols/davis.json", record("davis") | {"protocol": "ffffffffffff"})
    with pytest.raises(
        ValueError, match="davis.json is of protocol ffffffffffff, .* of 0123456789ab; one of them is left over"
    ):
        left.make()


def test_an_imported_encoder_is_named_by_its_file(left: Left) -> None:
    values = {
        "init": {"source": "file", "path": "data/raw/ijepa.pth"},
        "optimisation": {"epochs": 0},
        "dataset": "some",
    }
    left.put("params/pretrain.yaml", values | {"encoder": {"patch_size": 14, "width": 1280, "layers": 32, "heads": 16}})
    outputs, _ = left.make()
    assert outputs.report.read_text().startswith("# Report: ViT-H/14 on some, from data/raw/ijepa.pth\n")


def test_the_summary_of_a_toy_encoder(left: Left) -> None:
    left.put(
        "params/pretrain.yaml",
        {
            "dataset": "s",
            "encoder": {"patch_size": 8, "width": 96, "layers": 4, "heads": 3},
            "optimisation": {"epochs": 6},
        },
    )
    outputs, _ = left.make()
    assert (
        Path(outputs.report)
        .read_text()
        .startswith("# Report: ViT, 4 layers of width 96, patch 8 on s, noise_std 0, 6 epochs\n")
    )
