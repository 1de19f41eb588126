"""A toy pipeline: this project's stage words and params, stages that are shell scripts of a moment, a real DVC repository."""

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

# Before prefect is imported by a test module: a person's own Prefect folder stays out of it.
os.environ["PREFECT_HOME"] = tempfile.mkdtemp(prefix="prefect-home-")
atexit.register(shutil.rmtree, os.environ["PREFECT_HOME"], ignore_errors=True)

from dvc.repo import Repo  # noqa: E402

from components.stage import canonical_yaml, read_yaml  # noqa: E402

PROJECT = Path(__file__).parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

DVC_YAML = """\
vars: [params/prepare.yaml]
stages:
  report:
    cmd: sh scripts/report.sh
    deps: [scripts/report.sh, metrics/davis.json, metrics/clevr.json]
    outs: [report.md]
    meta: {timeout_s: 60}
  prepare:
    foreach: ${datasets}
    do:
      cmd: sh scripts/prepare.sh ${key}
      deps: [scripts/prepare.sh, data/raw/toys]
      params: [{params/prepare.yaml: ["datasets.${key}"]}]
      outs: ["data/prepared/${key}"]
  davis:
    cmd: sh scripts/davis.sh
    deps: [scripts/davis.sh, data/prepared/shapes_video]
    params: [{params/davis.yaml: null}]
    outs: [metrics/davis.json]
  clevr:
    cmd: sh scripts/clevr.sh
    deps: [scripts/clevr.sh, data/prepared/shapes]
    params: [{params/clevr.yaml: null}]
    outs: [metrics/clevr.json]
"""
SCRIPTS = {
    "prepare": 'mkdir -p data/prepared/$1 && echo "$1" > data/prepared/$1/card.json',
    "davis": "mkdir -p metrics; echo davis at work; echo '{\"jf_mean\": 50.0}' > metrics/davis.json",
    "clevr": "mkdir -p metrics; echo '{\"count_top1\": 25.0}' > metrics/clevr.json",
    "report": "echo '# The report' > report.md",
}


SMALL: dict[str, dict[str, Any]] = {
    "pretrain": {
        "encoder": {"image_size": 32, "patch_size": 8, "width": 24, "layers": 2, "heads": 2},
        "predictor": {"width": 16, "layers": 1, "heads": 2},
        "masks": {"min_context": 2},
        "optimisation": {"epochs": 1, "warmup_epochs": 0.5, "global_batch_size": 16},
        "scale": {"cpus_per_worker": 1},
        "log_every": 1,
    },
    "linear_probe": {"tasks": {"digits": {"epochs": 2, "heads": {"learning_rates": [0.1]}}}},
    "finetune": {
        "finetunings": {
            "digits": {"train_limit": 0, "optimisation": {"epochs": 1, "warmup_epochs": 0.5, "batch_size": 4}}
        }
    },
    "clevr": {"height": 32, "width": 48, "count_epochs": 2, "distance_epochs": 2, "heads": {"learning_rates": [0.1]}},
    "davis": {"short_side": 32},
    "analysis": {"images": 4, "shown_images": 2, "draws": 2},
}


class Toy:
    """The toy's folder, and how a test changes and asks it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def script(self, word: str, text: str) -> None:
        """What stage `word` does from now on."""
        (self.root / "scripts" / f"{word}.sh").write_text(text + "\n")

    def dvc(self, *arguments: str, run: str = "") -> subprocess.CompletedProcess[str]:
        """DVC in the checkout, or in the tree of a run."""
        folder = self.tree(run) if run else self.root
        return subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=folder, capture_output=True, text=True)

    def tree(self, run: str) -> Path:
        """Where the run of that name works."""
        return self.root / "workspaces" / run / "tree"

    def locked(self, run: str = "") -> set[str]:
        """The stages that the dvc.lock of a run's tree records; without a run, the checkout's."""
        lock = (self.tree(run) if run else self.root) / "dvc.lock"
        return set(read_yaml(lock)["stages"]) if lock.exists() else set()


def _toy(root: Path) -> Toy:
    for folder in ("scripts", "params", "metrics", "data/raw/toys"):
        (root / folder).mkdir(parents=True)
    (root / "data/raw/toys/one").write_text("1\n")
    (root / "dvc.yaml").write_text(DVC_YAML)
    (root / ".gitignore").write_text(
        "/logs/\n/work/\n/workspaces/\n/.prefect/\n/data/\n/metrics/*.json\n/report.md\n/mlflow.db*\n/mlartifacts/\n"
    )
    toy = Toy(root)
    for word, text in SCRIPTS.items():
        toy.script(word, text)
        params = read_yaml(PROJECT / "params" / f"{word}.yaml")
        if word == "prepare":
            params["datasets"] = {name: params["datasets"][name] for name in ("shapes", "shapes_video")}
        (root / "params" / f"{word}.yaml").write_text(canonical_yaml(params))
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    Repo.init(str(root)).close()
    git = ["git", "-C", str(root), "-c", "user.name=toy", "-c", "user.email=toy@localhost"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "toy"], check=True)
    return toy


@pytest.fixture(scope="session", autouse=True)
def _terminal() -> Iterator[None]:
    """SIGINT as at a terminal: a shell that starts the tests in the background (`.ci/run &`) has it ignored, here and in all children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def tracked(toy: Toy, database: Path) -> Toy:
    """The toy with an MLflow database that has seen no run."""
    shutil.copy(database, toy.root / "mlflow.db")
    return toy


@pytest.fixture(scope="session")
def make_toy() -> Callable[[Path], Toy]:
    """Makes a toy in a new folder."""
    return _toy


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """A fresh toy for each test; nothing of it has run."""
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "toy")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "toy@localhost")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return _toy(tmp_path / "toy")


@pytest.fixture(scope="session")
def prefect() -> Iterator[str]:
    """The address of one temporary Prefect server for all tests."""
    from prefect.settings import PREFECT_API_URL
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield str(PREFECT_API_URL.value())


@pytest.fixture
def until(request: pytest.FixtureRequest) -> Callable[[Callable[[], object]], None]:
    """Waits for a condition, at most four minutes; when it does not come, the logs of the toy are shown."""
    toy: Toy | None = request.getfixturevalue("toy") if "toy" in request.fixturenames else None

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 240
        while not condition():
            if time.monotonic() > deadline:
                for log in sorted(toy.root.glob("logs/**/*.log")) if toy else []:
                    print(
                        f"--- {log.relative_to(toy.root)}",
                        *log.read_text(errors="replace").splitlines()[-40:],
                        sep="\n",
                    )
                raise AssertionError("it did not happen in time")
            time.sleep(0.02)

    return wait


@pytest.fixture
def alive() -> Callable[[list[int]], list[int]]:
    """Those of some PIDs that still run."""

    def running(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return lambda pids: [pid for pid in pids if running(pid)]


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    return below | {key: merge(below[key], value) if isinstance(value, dict) else value for key, value in above.items()}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git checkout of the project's code and graph with small values."""
    root = tmp_path / "checkout"
    root.mkdir()
    for name in ("dvc.yaml", ".gitignore", ".dvcignore"):
        shutil.copy(PROJECT / name, root)
    shutil.copytree(PROJECT / "components", root / "components", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(PROJECT / "params", root / "params")
    (root / ".dvc").mkdir()
    for name in ("config", ".gitignore"):
        shutil.copy(PROJECT / ".dvc" / name, root / ".dvc")
    for word, values in SMALL.items():
        path = root / "params" / f"{word}.yaml"
        path.write_text(canonical_yaml(merge(read_yaml(path), values)))
    datasets = read_yaml(root / "params/prepare.yaml")
    datasets["datasets"]["shapes"]["scenes"] = 128
    datasets["datasets"]["shapes_video"]["clips"] = 1
    datasets["datasets"]["digits"]["subset"]["per_class"] = 8
    (root / "params/prepare.yaml").write_text(canonical_yaml(datasets))
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "toy")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "toy@localhost")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "start"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    return root


@pytest.fixture
def page() -> Iterator[Any]:
    """A page whose requests to anywhere but this machine are refused, and fail the test."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    left: list[str] = []

    def route(request: Any) -> None:
        local = re.match(r"(https?://127\.0\.0\.1[:/]|data:|blob:)", request.request.url)
        if local:
            request.continue_()
        else:
            left.append(request.request.url)
            request.abort()

    found = [path for name in BROWSERS if (path := shutil.which(name))]
    if not found:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found[0], args=QUIET)
        page = browser.new_page(viewport={"width": 1360, "height": 900}, device_scale_factor=1)
        page.set_default_timeout(60_000)
        page.route("**/*", route)
        yield page
        browser.close()
    assert not left, f"the pages asked for {left}"
