"""What a start says of unfinished states beside its own, from what they say of themselves."""

from pathlib import Path
from typing import Any

import pytest

from components import work
from components.pretrain import unfinished
from components.pretrain.adopt import adopt
from components.pretrain.contract import PretrainInputs, PretrainParams

from .test_run import SCRATCH


@pytest.fixture
def begun(tmp_path: Path, tiny: dict[str, Any], toy_images: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Begins work in a folder of that name, with some values changed."""
    monkeypatch.setenv("PIPELINE_TAGS", '{"pipeline.run": "wide-mask"}')

    def begin(name: str, step: int, **known: Any) -> Path:
        values = tiny | {"seed": known.pop("seed", 0)}
        folder = tmp_path / name
        folder.mkdir()
        unfinished.begin(
            folder, PretrainParams(**values), PretrainInputs(dataset=toy_images, quality=toy_images, init=SCRATCH), 60
        )
        unfinished.note(folder, step=step, started=f"2026-01-0{len(list(tmp_path.iterdir()))}", **known)
        return folder

    return begin


def test_it_names_the_newest_first_and_what_differs(begun: Any, tmp_path: Path) -> None:
    begun(
        "old",
        20,
        code={"components.mim.model": "other"},
        inputs=dict.fromkeys(("dataset", "quality", "init"), "other"),
        seed=3,
    )
    begun("newer", 40)
    mine = begun("mine", 0)
    lines = unfinished.announcement(mine)
    assert lines[0] == f"unfinished: {tmp_path}/newer reached step 40 of 60 by run wide-mask, started 2026-01-02"
    assert lines[1] == f"unfinished: {tmp_path}/old reached step 20 of 60 by run wide-mask, started 2026-01-01"
    assert lines[2:6] == [
        "  pretrain.seed: 3 there, 0 here",
        "  input dataset: other content",
        "  input init: other content",
        "  input quality: other content",
    ]
    assert lines[6].startswith("  code: components") and "components.mim.model" in lines[6]
    assert lines[-2] == f"  python -m components.resume {mine} --resume-from {tmp_path}/newer"


def test_what_is_finished_unbegun_taken_over_or_at_work_is_not_told_of(begun: Any) -> None:
    begun("finished", 60, finished=True)
    begun("unbegun", 0)
    begun("taken", 20, continued_as="mine")
    busy = begun("busy", 20)
    mine = begun("mine", 0)
    with work.alone(busy, ""):
        assert unfinished.announcement(mine) == []
        assert work.in_use(busy) and not work.in_use(mine)
    assert unfinished.announcement(mine)[0].startswith(f"unfinished: {busy} ")
    unfinished.note(mine, step=2)
    assert unfinished.announcement(mine) == []  # it has steps of its own and goes on from them


def test_work_that_begins_again_keeps_its_step_and_where_it_came_from(begun: Any, tmp_path: Path) -> None:
    folder = begun("one", 20, resumed_from=[{"fingerprint": "aa", "step": 7, "run": ""}])
    folder.rename(tmp_path / "kept")
    begun("one", 0)
    kept = unfinished.read(tmp_path / "kept")
    assert kept and unfinished.origin(kept) == "aa at step 7" and kept["step"] == 20


def test_bad_input_changes_nothing(begun: Any, tmp_path: Path) -> None:
    mine, other, busy = begun("mine", 0), begun("other", 20), begun("busy", 20)
    for source, message in (
        (tmp_path / "nowhere", "holds no state of pretraining; give a folder work/pretrain/<fingerprint>"),
        (mine, "cannot go on from itself"),
        (other, "has no checkpoint to go on from"),
        (busy, "a process is training in .*busy; stop it first"),
    ):
        with work.alone(busy, ""), pytest.raises(ValueError, match=message):
            adopt(mine, source)
    with pytest.raises(
        ValueError, match="has 20 steps of its own; give --replace to put those of .*busy in their place"
    ):
        adopt(other, busy)
    assert unfinished.read(mine)["resumed_from"] == []  # type: ignore[index]
