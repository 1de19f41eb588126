"""Files that do not belong together are told before anything is computed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from components.analysis.trained import load, read_eigenvalues, read_history
from components.mim.weights import load_predictor

CPU = torch.device("cpu")


def test_what_the_run_recorded_is_what_is_used(make: Callable) -> None:
    made = make(stop={"noise_std": 0.125, "apply_to": "both"}, masks={"target_blocks": 2}, objective={"loss": "l2"})
    run = made.load()
    assert (run.stop.noise_std, run.stop.apply_to, run.masks.target_blocks, run.steps) == (0.125, "both", 2, 20)
    assert (run.objective.name, tuple(run.grid), run.noisy) == ("ijepa", (4, 4), True)
    assert not any(parameter.requires_grad for parameter in (*run.encoder.parameters(), *run.predictor.parameters()))


@pytest.mark.parametrize(("mask_token", "bias_on_noise", "expected"), [(1, 0, -0.5), (0, 1, 0.25), (1, 1, -0.25)])
def test_the_mark_is_what_is_live(make: Callable, mask_token: int, bias_on_noise: int, expected: float) -> None:
    """m̃ of −½ everywhere and b of ¼: a masked token is given the one, the other or their sum beside its position."""

    def set_both(encoder: Any, predictor: Any) -> None:
        torch.nn.init.constant_(predictor.embed.bias, 0.25)
        if mask_token:
            torch.nn.init.constant_(predictor.mask_token, -0.5)

    run = make(set_both, stop={"mask_token": bool(mask_token), "bias_on_noise": bool(bias_on_noise)}).load()
    assert run.mark().tolist() == [expected] * 16


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"encoder": {"width": 48}}, "do not fit: the encoder's tokens are 24 wide, the predictor takes 48"),
        ({"encoder": {"image_size": 64}}, "do not fit: the encoder has 4×4 patches, the predictor was trained on 8×8"),
        (
            {"fingerprint": "two"},
            "is of run one and .* of run two; a prediction means nothing to another run's encoder",
        ),
    ],
)
def test_networks_of_two_runs_are_refused(make: Callable, other: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        load(make().encoder, make(**other).predictor, CPU)
    assert "run-0/encoder.safetensors" in str(error.value) and "run-1/predictor.safetensors" in str(error.value)


def test_files_of_the_wrong_kind_are_refused(make: Callable, tmp_path: Path) -> None:
    made = make()
    with pytest.raises(ValueError, match="holds a predictor; an encoder is needed here"):
        load(made.predictor, made.predictor, CPU)
    with pytest.raises(ValueError, match="holds an encoder; a predictor is needed here"):
        load(made.encoder, made.encoder, CPU)
    (tmp_path / "torn").write_bytes(made.predictor.read_bytes()[:100])
    with pytest.raises(ValueError, match="'.*torn' is not a readable safetensors file"):
        load(made.encoder, tmp_path / "torn", CPU)


def test_curves_that_are_another_runs_or_broken_are_refused(make: Callable, tmp_path: Path) -> None:
    made, path = make(), tmp_path / "history.csv"
    run, text = made.load(), made.history.read_text()
    assert list(read_history(run, made.history)) == [
        "step", "A_norm", "A_norm_l1", "mask_token_norm", "mask_token_norm_l1",
    ]  # fmt: skip
    cases = {
        text.replace("\n20.0,", "\n30.0,"): r"history.csv' ends at step 30, the encoder was trained for 20 steps",
        text.replace(
            "A_norm_l1", "A"
        ): r"history.csv' lacks the columns A_norm_l1; it must be a table of stage pretrain",
        text.partition("\n")[0] + "\n": r"history.csv' has no rows",
        text.replace(
            "\n20.0,", "\ntwenty,"
        ): r"history.csv' holds what is no number \(could not convert string to float: 'twenty'",
    }
    for content, message in cases.items():
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_history(run, path)


def test_eigenvalues_are_read_as_they_stand(make: Callable) -> None:
    made = make()
    found = read_eigenvalues(made.eigenvalues)
    weight = load_predictor(made.predictor).embed.weight
    assert found["end"] == pytest.approx(torch.linalg.eigvalsh(weight @ weight.T).flip(0).tolist(), abs=1e-5)
    with pytest.raises(ValueError, match="lacks the columns end, start"):
        read_eigenvalues(made.history)
