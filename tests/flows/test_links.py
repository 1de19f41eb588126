"""Links lead to MLflow's pages as a browser reads them."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from flows import links


def test_a_comparison_names_its_runs_as_mlflows_page_reads_them() -> None:
    page = links.comparison("http://127.0.0.1:5000", "7", ["a1", "b2"])
    route, _, query = urlsplit(page).fragment.partition("?")
    asked = parse_qs(query)
    assert route == "/compare-runs"
    assert (json.loads(asked["runs"][0]), json.loads(asked["experiments"][0])) == (["a1", "b2"], ["7"])
    assert asked["workflowType"] == ["machine_learning"]


@pytest.mark.parametrize(
    ("tracking", "shown", "address"),
    [
        ("http://mlflow:5000", "http://127.0.0.1:5010/", "http://127.0.0.1:5010"),
        ("http://mlflow:5000", None, "http://mlflow:5000"),
        ("sqlite:////here/mlflow.db", None, ""),
        (None, None, ""),
    ],
)
def test_where_mlflow_is_for_a_browser(
    monkeypatch: pytest.MonkeyPatch, tracking: str | None, shown: str | None, address: str
) -> None:
    for name, value in (("MLFLOW_TRACKING_URI", tracking), ("MLFLOW_UI_URL", shown)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert links.mlflow_ui() == address
