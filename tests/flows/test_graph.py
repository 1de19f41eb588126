"""What dvc.yaml states is what the flow sees: order, members, hints, sources."""

from pathlib import Path

import pytest

from flows import graph


def test_order_upstreams_and_hints(toy) -> None:
    nodes = {node.name: node for node in graph.read(toy.root)}
    # `report` stands first in the file and still comes last; the others keep the file's order.
    assert list(nodes) == ["prepare@shapes", "prepare@shapes_video", "davis", "clevr", "report"]
    assert nodes["report"].upstreams == ("davis", "clevr")
    assert nodes["davis"].upstreams == ("prepare@shapes_video",)
    assert (nodes["report"].timeout_s, nodes["report"].retries, nodes["davis"].timeout_s) == (60, 0, 0)
    assert nodes["prepare@shapes"].word == "prepare"
    assert nodes["prepare@shapes"].outs == (toy.root / "data/prepared/shapes",)
    assert nodes["prepare@shapes"].sources == (toy.root / "scripts/prepare.sh", toy.root / "data/raw/toys")
    assert graph.words(toy.root) == ["report", "prepare", "davis", "clevr"]


def test_it_is_the_graph_dvc_draws(toy) -> None:
    edges = {(up, node.name) for node in graph.read(toy.root) for up in node.upstreams}
    drawn = [
        line.replace('"', "").split(" -> ") for line in toy.dvc("dag", "--dot").stdout.splitlines() if "->" in line
    ]
    assert edges == {(up.strip(), down.strip(" ;")) for up, down in drawn}


def test_targets_bring_their_upstreams(toy) -> None:
    assert [node.name for node in graph.read(toy.root, ["clevr"])] == ["prepare@shapes", "clevr"]
    assert [node.name for node in graph.read(toy.root, ["prepare"])] == ["prepare@shapes", "prepare@shapes_video"]
    assert [node.name for node in graph.read(toy.root, ["prepare@shapes"])] == ["prepare@shapes"]


def test_an_unknown_target_lists_the_legal_ones(toy) -> None:
    with pytest.raises(ValueError, match="'linearprobe'.*: prepare, prepare@shapes, .*, report$"):
        graph.read(toy.root, ["davis", "linearprobe"])


@pytest.mark.parametrize("hint", ["{retry: 1}", "{retries: often}", "{timeout_s: -1}", "{gpu: many}"])
def test_a_bad_hint_names_the_stage_and_the_rule(toy, hint: str) -> None:
    text = (toy.root / "dvc.yaml").read_text()
    (toy.root / "dvc.yaml").write_text(text.replace("{timeout_s: 60}", hint))
    with pytest.raises(ValueError, match=r"'report'.*`retries`, `timeout_s`"):
        graph.read(toy.root)


def test_a_dvc_yaml_that_dvc_refuses(toy, tmp_path: Path) -> None:
    text = (toy.root / "dvc.yaml").read_text()
    (toy.root / "dvc.yaml").write_text(text.replace("[report.md]", "[metrics/davis.json]"))
    with pytest.raises(ValueError, match="metrics/davis.json"):
        graph.read(toy.root)
    with pytest.raises(ValueError, match="DVC repository"):
        graph.read(tmp_path)


def test_a_source_inside_a_folder_that_dvc_tracks_is_one(toy) -> None:
    toy.dvc("add", "data/raw/toys")
    (node, *_) = graph.read(toy.root, ["prepare@shapes"])
    assert node.sources[-1] == toy.root / "data/raw/toys"
    assert node.upstreams == ()
