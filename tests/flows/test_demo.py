"""The pipeline from a terminal: raw data is linked, what a person reads is readable, the exit status is right."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from components.stage import canonical_yaml, read_yaml
from flows import demo
from flows.preflight import alone

PROJECT = Path(__file__).parents[2]
CIFAR = {"source": "data/raw/cifar10", "format": "image_folder"}
DAVIS = {"source": "data/raw/davis", "format": "davis"}
EMBEDDED = {"source": "components/prepare/embedded/digits.py", "format": "digits"}


def start(toy, prefect: str, *options: str) -> subprocess.Popen[str]:
    """`python -m flows.demo` in a group of its own; with '' for `prefect` it starts the server itself."""
    environment = os.environ | ({"PREFECT_API_URL": prefect} if prefect else {})
    command = [sys.executable, "-m", "flows.demo", "--root", str(toy.root), *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=PROJECT, env=environment, start_new_session=True, **pipes)


def test_links_go_to_the_folder_of_either_name_or_of_the_archive(tmp_path: Path) -> None:
    raw = tmp_path / "given"
    (raw / "DAVIS").mkdir(parents=True)
    (raw / "cifar10").mkdir()
    prepare = {"datasets": {"images": CIFAR, "clips": DAVIS, "digits": EMBEDDED}}
    assert demo.planned_links(tmp_path, prepare, raw) == {
        tmp_path / "data/raw/cifar10": raw / "cifar10",
        tmp_path / "data/raw/davis": raw / "DAVIS",
    }


def test_a_missing_folder_and_a_real_one_in_the_way_are_told(tmp_path: Path) -> None:
    (tmp_path / "data/raw/davis").mkdir(parents=True)
    (tmp_path / "given/DAVIS").mkdir(parents=True)
    with pytest.raises(ValueError) as both:
        demo.planned_links(tmp_path, {"datasets": {"images": CIFAR, "clips": DAVIS}}, tmp_path / "given")
    missing, real = str(both.value).splitlines()
    assert missing.startswith(f"dataset 'images' needs {tmp_path}/given/cifar10 or {tmp_path}/given/images")
    assert "<split>/<class>/*.jpg" in missing
    assert real.startswith("data/raw/davis is a real folder")


def test_a_link_is_replaced_and_told_only_when_it_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = tmp_path / "data/raw/x"
    for folder in ("old", "new", "new"):
        demo.make_link(tmp_path, link, tmp_path / folder)
    assert link.readlink() == tmp_path / "new"
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"data/raw/x links to {tmp_path}/old"
    assert second == f"data/raw/x links to {tmp_path}/new, no longer to {tmp_path}/old"


def test_a_failed_then_a_mended_run_with_a_preset(tracked, prefect: str) -> None:
    (tracked.root / "params/presets").mkdir()
    (tracked.root / "params/presets/wide.yaml").write_text(canonical_yaml({"davis": {"radius": 3}}))
    work = (tracked.root / "scripts/davis.sh").read_text()
    tracked.script("davis", "echo 'error: no luck' >&2; exit 2")
    before = {path: path.read_text() for path in (tracked.root / "params").glob("*.yaml")}
    failed = start(tracked, prefect, "--preset", "wide", "--name", "wide")
    out, err = failed.communicate(timeout=300)
    assert (failed.returncode, err) == (1, "")
    assert read_yaml(tracked.tree("wide") / "params/davis.yaml")["radius"] == 3
    assert {path: path.read_text() for path in before} == before
    assert "## davis failed\n\n```\nerror: no luck\n" in out
    assert "| report               | not run |" in out
    assert not any(noise in out for noise in ("\r", "| INFO", "Traceback", "dvc push"))

    tracked.script("davis", work)
    taken = start(tracked, prefect, "--name", "wide")
    _, err = taken.communicate(timeout=300)
    assert taken.returncode == 2 and err.startswith("error: run name 'wide' is taken by the run of "), err

    mended = start(tracked, prefect, "--preset", "wide", "--in-place")
    out, err = mended.communicate(timeout=300)
    assert (mended.returncode, err) == (0, "")
    assert "params/davis.yaml now holds the values of wide\n" in out
    assert read_yaml(tracked.root / "params/davis.yaml")["radius"] == 3
    assert tracked.dvc("status").stdout.strip() == "Data and pipelines are up to date."
    assert "\n[davis] davis at work\n" in out
    assert "\n# The report\n" in out
    assert "| clevr                | cached | " in out
    assert "\n## Next\n" in out


def test_ctrl_c_ends_stages_and_server_and_says_how_to_go_on(tracked, alive: Callable[[list[int]], list[int]]) -> None:
    tracked.script("prepare", "echo pid $$; sleep 600")
    process = start(tracked, "", "--name", "big")
    assert process.stdout
    stage = int(next(line for line in process.stdout if "] pid " in line).split()[-1])
    tree = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert stage in tree
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to everything in the foreground
    _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (130, "stopped; `make run` with another NAME continues with what is missing\n")
    assert not alive(tree)


def test_bad_input_is_one_message_and_nothing_starts(tracked, prefect: str, tmp_path: Path) -> None:
    process = start(tracked, prefect, "--data", str(tmp_path), "--preset", "vit_b15")
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("error: preset is 'vit_b15'; the presets in params/presets are: none")
    assert not (tracked.root / "logs").exists()


def test_a_server_that_is_not_there_is_told_before_the_run_has_a_name(tracked) -> None:
    process = start(tracked, "http://127.0.0.1:1/api")
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, len(err.splitlines())) == (2, "", 1)
    assert (
        "where no Prefect server answers: [Errno 111] Connection refused; start it, for example with `make up`" in err
    )
    assert not (tracked.root / "workspaces").exists()


def test_a_folder_in_which_a_run_works_is_told(tracked, prefect: str) -> None:
    (tracked.root / "params/presets").mkdir()
    (tracked.root / "params/presets/wide.yaml").write_text(canonical_yaml({"davis": {"radius": 3}}))
    before = {path: path.read_text() for path in (tracked.root / "params").glob("*.yaml")}
    with alone(tracked.root, "the-first"):
        process = start(tracked, prefect, "--preset", "wide", "--in-place")
        out, err = process.communicate(timeout=300)
    assert process.returncode == 2, err
    assert err.startswith(f"error: run the-first (process {os.getpid()}) works in {tracked.root}; ")
    assert not (tracked.root / "logs").exists()
    assert {path: path.read_text() for path in before} == before


def test_data_that_nothing_would_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="every dataset in params/prepare.yaml is embedded"):
        demo.planned_links(tmp_path, {"datasets": {"digits": EMBEDDED}}, tmp_path)


def test_a_preset_without_its_raw_data_changes_nothing(tracked, prefect: str) -> None:
    (tracked.root / "params/presets").mkdir()
    embedded = read_yaml(tracked.root / "params/prepare.yaml")["datasets"]["shapes_video"]
    whole = embedded | CIFAR | {"clips": 0}
    (tracked.root / "params/presets/real.yaml").write_text(
        canonical_yaml({"davis": {"radius": 3}, "prepare": {"datasets": {"images": whole}}})
    )
    before = {path: path.read_text() for path in (tracked.root / "params").glob("*.yaml")}
    process = start(tracked, prefect, "--preset", "real")
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("error: dataset 'images' reads 'data/raw/")
    assert "DATA=FOLDER. Nothing was changed" in err
    assert {path: path.read_text() for path in before} == before
