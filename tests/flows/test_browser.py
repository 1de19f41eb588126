"""A person's way through the real pages, in headless Chromium: a value changed in Prefect's form comes out in DVC and MLflow.

`make screenshots` runs the same with the demo's values and keeps the pictures in docs/images.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from components.stage import STAGES, canonical_yaml, read_yaml

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine"),
]

PROJECT = Path(__file__).parents[2]
PICTURES = os.environ.get("STOP_SCREENSHOTS", "")
RUN_S = 500  # a run, with the demo's values on a busy machine
HELP = "Standard deviation of the noise n on the positions of masked tokens."


@pytest.fixture
def up(checkout: Path) -> Iterator[tuple[Path, str, str]]:
    """A checkout whose services run; its folder and the addresses of Prefect and MLflow."""
    if PICTURES:
        for word in STAGES:
            shutil.copy(PROJECT / "params" / f"{word}.yaml", checkout / "params")
    demo = canonical_yaml({word: read_yaml(checkout / f"params/{word}.yaml") for word in STAGES})
    (checkout / "params/presets/demo.yaml").write_text("# Small embedded data, a tiny encoder.\n" + demo)
    ports = {}
    for name in ("PREFECT_PORT", "MLFLOW_PORT"):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports[name] = str(probe.getsockname()[1])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")} | ports
    services = [sys.executable, "-m", "flows.services"]
    try:
        subprocess.run([*services, "up", "--root", str(checkout)], env=environment, check=True)
        yield checkout, f"http://127.0.0.1:{ports['PREFECT_PORT']}", f"http://127.0.0.1:{ports['MLFLOW_PORT']}"
    finally:
        subprocess.run([*services, "down", "--root", str(checkout)], env=environment, check=True)


def picture(page: Any, name: str) -> None:
    if PICTURES:
        page.wait_for_timeout(2500)  # a chart draws itself over some frames
        for panel in page.get_by_role("button", name="Close").all():  # MLflow's assistant covers a quarter of the page
            panel.click()
        page.screenshot(path=Path(PICTURES) / f"{name}.png")


def ask(prefect: str, path: str) -> Any:
    with urllib.request.urlopen(f"{prefect}/api/{path}") as answer:
        return json.load(answer)


def post(prefect: str, path: str, question: dict[str, Any]) -> Any:
    body, kind = json.dumps(question).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{prefect}/api/{path}", body, kind)) as answer:
        return json.load(answer)


def entry(page: Any, label: str) -> tuple[Any, Any]:
    """The head of a field of the form, with its help text, and the field."""
    head = page.locator(".p-label__header", has=page.get_by_text(label, exact=True))
    return head, head.locator("xpath=following-sibling::*//input")


def submit(page: Any, prefect: str, name: str, noise_std: str) -> str:
    """Deployments → demo → Run → Custom run, the value changed, Submit; the flow run's id once it has ended."""
    page.goto(prefect)
    page.get_by_text("Deployments", exact=True).first.click()
    page.get_by_role("link", name="demo", exact=True).click()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("Custom run").click()
    head, field = entry(page, "noise_std")
    head.get_by_text(HELP).wait_for()
    assert field.input_value() == "0.25"
    entry(page, "Run Name")[1].fill(name)  # once the form has drawn itself: it fills in a name of its own first
    field.fill(noise_std)
    field.evaluate("field => field.scrollIntoView({block: 'center'})")
    picture(page, "prefect-form")
    page.get_by_role("button", name="Submit").click()
    page.get_by_text(f"{name} scheduled to start").first.wait_for()
    (run,) = [run["id"] for run in post(prefect, "flow_runs/filter", {}) if run["name"] == name]
    deadline = time.monotonic() + RUN_S
    while ask(prefect, f"flow_runs/{run}")["state_type"] not in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
        assert time.monotonic() < deadline, ask(prefect, f"flow_runs/{run}")["state_name"]
        time.sleep(0.5)
    page.goto(f"{prefect}/runs/flow-run/{run}")
    return run


def test_from_the_form_to_the_comparison(up: Any, page: Any) -> None:
    root, prefect, mlflow = up
    submit(page, prefect, "noise-0.25", "0.25")
    run = submit(page, prefect, "noise-0.4", "0.4")
    assert ask(prefect, f"flow_runs/{run}")["state_name"] == "Completed"
    page.get_by_text("Completed").first.wait_for()
    picture(page, "prefect-run")

    # One value, three doors and the file that goes on to the next user.
    tree = root / "workspaces/noise-0.4/tree"
    assert read_yaml(tree / "params/pretrain.yaml")["stop"]["noise_std"] == 0.4
    assert read_yaml(root / "params/pretrain.yaml")["stop"]["noise_std"] == 0.25  # the checkout stays as it is
    locked = read_yaml(tree / "dvc.lock")["stages"]["pretrain"]["params"]["params/pretrain.yaml"]
    assert locked["stop"]["noise_std"] == 0.4
    client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    rows = {row.info.run_name: row for row in client.search_runs(["1"], "tags.trigger = 'prefect'")}
    values = {name: row.data.params["pretrain.stop.noise_std"] for name, row in rows.items()}
    assert values == {"noise-0.25": "0.25", "noise-0.4": "0.4"}
    exported = (tree / "models/encoder.safetensors").read_bytes()
    header = json.loads(exported[8 : 8 + int.from_bytes(exported[:8], "little")])
    assert json.loads(header["__metadata__"]["model"])["about"]["params"]["stop"]["noise_std"] == 0.4

    # Only what the value touches ran again.
    found = post(prefect, "task_runs/filter", {"task_runs": {"flow_run_id": {"any_": [run]}}})
    states = {task["name"]: task["state_name"] for task in found}
    assert {name: state for name, state in states.items() if state == "Cached"}.keys() == {
        "prepare@shapes",
        "prepare@shapes_video",
        "prepare@digits",
    }
    assert states["pretrain"] == states["davis"] == states["report"] == "Ran"

    # What a person saw meanwhile, and the figures that each child has.
    found = post(prefect, "artifacts/latest/filter", {"artifacts": {"key": {"any_": ["progress-pretrain"]}}})
    (line,) = [one["description"] for one in found]
    assert re.fullmatch(r"step (\d+)/\1, epoch [\d.]+, loss [\d.]+, .*\d+ images/s, 0 s left", line), line
    parent = rows["noise-0.4"].info.run_id
    made = {
        run.info.run_name: run.info.run_id
        for run in client.search_runs(["1"], f"tags.`mlflow.parentRunId` = '{parent}'")
    }
    figures = {name: {file.path for file in client.list_artifacts(made[name])} for name in made}
    assert figures["pretrain"] >= {"curves.png", "pretrain_masks.png"}
    assert figures["davis"] >= {"davis.png"} and figures["linear_probe/digits"] >= {"confusion.png"}
    assert figures["clevr"] >= {"count_confusion.png", "distance_confusion.png"}
    sheets = client.search_runs(["1"], "tags.stage = 'prepare/shapes'")
    assert "shapes.png" in {file.path for file in client.list_artifacts(sheets[0].info.run_id)}

    # From the report in Prefect's UI to MLflow's comparison, by its links.
    page.get_by_text("Artifacts", exact=True).first.click()
    picture(page, "prefect-artifacts")
    page.get_by_text("report", exact=True).first.click()
    page.get_by_role("heading", name="Beside the previous run").wait_for()
    picture(page, "prefect-report")
    link = page.get_by_role("link", name="beside noise-0.25").first.get_attribute("href")
    assert link and link.startswith(mlflow)
    page.goto(link)
    page.get_by_text("pretrain.stop.noise_std").first.wait_for()
    row = page.locator("tr", has_text="pretrain.stop.noise_std").first.inner_text().split()
    assert row == ["pretrain.stop.noise_std", "0.25", "0.4"] or row == ["pretrain.stop.noise_std", "0.4", "0.25"]
    picture(page, "mlflow-comparison")
    page.goto(f"{mlflow}/#/experiments/1/runs?workflowType=machine_learning")
    page.get_by_text("noise-0.4").first.wait_for()
    picture(page, "mlflow-runs")
    child = client.search_runs(["1"], "tags.stage = 'pretrain'", order_by=["attributes.start_time DESC"])[0]
    page.goto(f"{mlflow}/#/experiments/1/runs/{child.info.run_id}/model-metrics?workflowType=machine_learning")
    page.get_by_text("A_norm").first.wait_for()
    picture(page, "mlflow-curves")
    page.goto(f"{mlflow}/#/experiments/1/runs/{child.info.run_id}/artifacts?workflowType=machine_learning")
    page.get_by_text("curves.png").first.click()
    page.get_by_text("curves.png").nth(1).wait_for()
    picture(page, "mlflow-figures")
