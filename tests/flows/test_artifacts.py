"""Progress on a run's page is what the stage printed, not oftener than every ten seconds, and right at the end."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from components.cluster import connection
from flows import artifacts


def shown(key: str) -> list[Any]:
    with get_client(sync_client=True) as client:
        return client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))


def test_progress_is_renewed_in_place_every_ten_seconds_and_at_the_end(
    prefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(artifacts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    seen: list[tuple[float, str]] = []

    @flow(name="progress")
    def run() -> None:
        progress = artifacts.Progress("colour@wheel")
        progress.line("loading 3/4 of nothing")  # no line of progress: it does not say what is left
        assert not shown("progress-colour-wheel")
        for seconds, line in [
            (0, "step 1/200, epoch 0.1, loss 0.5, 90 images/s, 1 min 3 s left"),
            (9.9, "step 50/200, epoch 0.3, loss 0.4, 90 images/s, 50 s left"),
            (10.1, "step 60/200, epoch 0.4, loss 0.4, 90 images/s, 45 s left"),
            (12, "step 199/200, epoch 1.0, loss 0.3, 90 images/s, 1 s left"),
            (13, "step 200/200, epoch 1.0, loss 0.3, 90 images/s, 0 s left"),
        ]:
            now[0] = 1000 + seconds
            progress.line(line)
            (artifact,) = shown("progress-colour-wheel")
            seen.append((artifact.data, artifact.description))
        progress.end()

    run()
    assert [share for share, _ in seen] == [0.5, 0.5, 30, 30, 30]
    assert seen[2][1].startswith("step 60/200, epoch 0.4, loss 0.4, 90 images/s")
    (last,) = shown("progress-colour-wheel")
    assert (last.data, last.description) == (100, "step 200/200, epoch 1.0, loss 0.3, 90 images/s, 0 s left")


def test_the_dashboard_of_a_ray_cluster_is_linked(prefect) -> None:
    @flow(name="linked")
    def run() -> None:
        artifacts.dashboard("pretrain", "Ray's dashboard: none")
        assert not shown("ray-pretrain")
        artifacts.dashboard("pretrain", f"{connection.DASHBOARD}http://10.0.0.1:8265")

    run()
    (link,) = shown("ray-pretrain")
    assert (link.type, link.data) == ("markdown", "[Ray's dashboard of pretrain](http://10.0.0.1:8265)")


def test_a_server_that_is_away_costs_a_warning(
    prefect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = [True]
    create = artifacts.create_progress_artifact

    def unreachable(*arguments: Any, **options: Any) -> Any:
        if away[0]:
            httpx.get("http://127.0.0.1:9/")  # a real refusal, of the kind that Prefect's client passes on
        return create(*arguments, **options)

    monkeypatch.setattr(artifacts, "create_progress_artifact", unreachable)
    monkeypatch.setattr(artifacts, "create_markdown_artifact", unreachable)

    @flow(name="away")
    def run() -> None:
        progress = artifacts.Progress("away")  # a key that no other test leaves on the server
        progress.line("away: 1/2 frames, 1 frames/s, 1 s left")
        artifacts.publish("the-run", "# The report", [], [])
        away[0] = False
        progress.line("away: 2/2 frames, 1 frames/s, 0 s left")
        progress.end()

    run()
    assert "did not take the progress of away: ConnectError" in caplog.text
    assert "did not take the report of the-run: ConnectError" in caplog.text
    assert shown("progress-away")[-1].data == 100
