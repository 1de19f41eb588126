"""Room for workers: in total, and on single nodes."""

import pytest

from components.cluster import Asked, places

ASKED = Asked(2, 1, 0, "scale", "lower scale.workers or scale.cpus_per_worker", "set scale.device to cpu")


@pytest.mark.parametrize(
    ("change", "nodes", "words"),
    [
        ({}, [{"CPU": 2.0}], ""),
        ({}, [{"CPU": 1.0}, {"CPU": 1.0}, {}], ""),
        ({"workers": 8, "gpus": 1}, [{"CPU": 16.0, "GPU": 8.0}], ""),
        ({"workers": 3}, [{"CPU": 1.0}, {"CPU": 1.0}],
         "scale asks for 3 CPUs (3 workers), the Ray cluster has 2; lower scale.workers or scale.cpus_per_worker, or set RAY_ADDRESS"),
        ({"workers": 8, "gpus": 1}, [{"CPU": 16.0, "GPU": 2.0}],
         "scale asks for 8 GPUs (8 workers), the Ray cluster has 2; set scale.device to cpu, or"),
        ({"workers": 1, "cpus": 16}, [{"CPU": 8.0}, {"CPU": 8.0}],
         "1 workers with 16 CPUs each, all of one node; the Ray cluster's nodes have 8 CPUs, 8 CPUs: room for 0"),
        ({"workers": 2, "cpus": 3}, [{"CPU": 4.0}, {"CPU": 2.0}], "room for 1"),
        ({"workers": 2, "gpus": 1}, [{"CPU": 8.0, "GPU": 1.0}, {"CPU": 0.0, "GPU": 1.0}],
         "the Ray cluster's nodes have 1 GPUs and 8 CPUs, 1 GPUs and 0 CPUs: room for 1"),
        ({"workers": 4, "cpus": 0.5}, [{"CPU": 2.0}], ""),
    ],
)  # fmt: skip
def test_what_is_short_is_said(change: dict[str, float], nodes: list[dict[str, float]], words: str) -> None:
    said = places.shortage(ASKED._replace(**change), nodes)
    assert words in said and bool(said) == bool(words)


def test_a_cluster_that_stays_full_ends_the_waiting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(places, "totals", lambda: [{"CPU": 2.0}, {"CPU": 1.0}])
    monkeypatch.setattr(places, "available_resources_per_node", lambda: {"one": {}, "two": {"CPU": 1.0}})
    monkeypatch.setattr(places, "POLL_S", 0.01)
    monkeypatch.setattr(places, "QUIET_S", 0.0)
    told = r"scale asks for 2 CPUs \(2 workers\), the Ray cluster of 2 nodes has 3 CPUs \(1 free\)"
    with pytest.raises(ValueError, match=f"^{told}; waited 0 s for it; lower scale.workers"):
        places.wait_for(ASKED, 0.05)
    assert capsys.readouterr().out.count("waiting, for 0 s more") == 1


def test_a_signal_ends_the_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def free() -> dict[str, dict[str, float]]:
        looked.append(1)
        return {"one": {"CPU": float(len(looked) // 5)}}

    monkeypatch.setattr(places, "totals", lambda: [{"CPU": 2.0}])
    monkeypatch.setattr(places, "available_resources_per_node", free)
    monkeypatch.setattr(places, "POLL_S", 0.01)
    assert not places.wait_for(ASKED, 100, lambda: len(looked) > 2)
    assert places.wait_for(ASKED, 100)
