"""What heads learn from: kept features, of which each epoch takes a view, and random crops through one frozen forward."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from components.images import decoding
from components.images.store import Store
from components.images.transforms import crop_draws, normalise, random_crop
from components.mim.encoder import Encoder, EncoderConfig
from components.mim.initialise import initialise
from components.probe import heads as heads_module
from components.probe.dataset import Part, Subject
from components.probe.extraction import encode
from components.probe.grid import plan
from components.probe.heads import Task, fit
from components.probe.sources import Augmented, Cached, Crop

from .arrays import CPU, features, heads

TASK = Task("toy", ["a", "b", "c", "d"], 3)
CROP = Crop(16, 0.2, 1.0, flip=True)
GRID = heads(batch_size=16, learning_rates=[0.5], weight_decays=[0.01])


def encoder() -> Encoder:
    made = Encoder(EncoderConfig(image_size=16, patch_size=4, width=24, layers=3, heads=2))
    initialise(made, 0, "fan_in", "encoder.")
    return made.eval().requires_grad_(False)


def augmented(folder: Path, frozen: Encoder, rows: range = range(3, 43), at_once: int = 7) -> Augmented:
    part = Part(Store(folder, "train"), np.array(rows))
    return Augmented(Subject("pretrained", frozen, Path("e"), "m-pretrained"), part, part.labels(), CROP, 5, 2, at_once)


def test_heads_on_crops_equal_a_plain_loop_of_torch(toy_images: Path) -> None:
    """One head by torch's layers, over the crops that the keys name, one image after the other."""
    frozen = encoder()
    before = {name: value.clone() for name, value in frozen.state_dict().items()}
    trained = fit(GRID, TASK, augmented(toy_images, frozen), 5, CPU)
    store, labels = Store(toy_images, "train"), Store(toy_images, "train").column("label")
    linear = torch.nn.Linear(48, 4)
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(48), linear)
    groups = [
        {"params": model[0].parameters(), "weight_decay": 0.0},
        {"params": linear.parameters(), "weight_decay": 0.01},
    ]
    optimiser = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    for step in plan(GRID, 40, 3, 5):
        rows = step.rows.numpy() + 3
        draws = crop_draws(5, step.epoch, rows)
        crops = [
            random_crop(decoding.pixels(store, int(row)), draws[i], **CROP._asdict()) for i, row in enumerate(rows)
        ]
        with torch.no_grad():
            x = torch.cat([tokens.mean(1) for tokens in frozen.layer_tokens(normalise(np.stack(crops)), 2)], dim=1)
        for group in optimiser.param_groups:
            group["lr"] = 0.5 * 16 / 256 * step.factor
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), torch.from_numpy(labels[rows]).long()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    index = [i for i, head in enumerate(trained.heads) if head.features == "last4" and head.batch_norm]
    assert len(index) == 1
    group = next(group for group in trained.groups if group.features == "last4" and group.batch_norm)
    torch.testing.assert_close(group.weight[0], linear.weight.data, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(group.mean, model[0].running_mean, rtol=1e-4, atol=1e-5)
    after = frozen.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not frozen.training


def test_the_trunk_is_the_same_bit_for_bit_after_probing(toy_images: Path) -> None:
    frozen = encoder()
    pixels = torch.randint(0, 256, (4, 16, 16, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    before = encode(frozen, pixels, 3)
    fit(GRID, TASK, augmented(toy_images, frozen), 5, CPU)
    assert torch.equal(before, encode(frozen, pixels, 3))


def test_an_interrupted_training_goes_on_to_the_same_heads(
    toy_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(heads_module, "SECONDS_BETWEEN_SAVES", 0.0)
    whole = fit(GRID, TASK, augmented(toy_images, encoder()), 5, CPU, tmp_path / "whole")

    class Dies(Augmented):
        def features(self, steps: Iterator[object]) -> Iterator[object]:  # type: ignore[override]
            for i, batch in enumerate(super().features(steps)):  # type: ignore[arg-type]
                if i == 7:  # 3 updates an epoch: in the third
                    raise KeyboardInterrupt
                yield batch

    part = Part(Store(toy_images, "train"), np.arange(3, 43))
    dying = Dies(Subject("pretrained", encoder(), Path("e"), "m-pretrained"), part, part.labels(), CROP, 5, 2, 7)
    with pytest.raises(KeyboardInterrupt):
        fit(GRID, TASK, dying, 5, CPU, tmp_path / "cut")
    capsys.readouterr()
    resumed = fit(GRID, TASK, augmented(toy_images, encoder()), 5, CPU, tmp_path / "cut")
    assert "toy: goes on after 2 of 3 epochs, from heads-" in capsys.readouterr().out
    for one, other in zip(whole.groups, resumed.groups, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.state(), other.state(), strict=True))
    done = fit(GRID, TASK, augmented(toy_images, encoder()), 5, CPU, tmp_path / "cut")
    assert "goes on after 3 of 3" in capsys.readouterr().out
    assert torch.equal(done.groups[0].weight, whole.groups[0].weight)
    fit(GRID, TASK, augmented(toy_images, encoder(), range(2, 42)), 5, CPU, tmp_path / "cut")  # other images
    assert "goes on" not in capsys.readouterr().out


def test_an_image_that_gives_no_numbers_is_named(toy_images: Path) -> None:
    frozen = encoder()
    frozen.norm.bias.data[3] = np.inf
    with pytest.raises(
        ValueError, match=r"encoder 'e' \(pretrained\) gives features that are not finite .*'train/\d/0"
    ):
        fit(GRID, TASK, augmented(toy_images, frozen), 5, CPU)


def test_each_epoch_takes_one_of_the_views_at_random() -> None:
    """Every row once an epoch, each view half of the time, and the same ones again for the same seed."""
    rows, n = np.array([2, 3, 5, 7, 11, 13, 17, 19]), 20
    views = [features({"last": np.arange(n, dtype=np.float32)[:, None] + 100 * view}) for view in range(2)]
    source = Cached(views, rows, np.zeros(8, int), 1, CPU)
    seen = np.zeros((2, n))
    steps = list(plan(heads(batch_size=16), 8, 400, 0))
    for step, batch in zip(steps, source.features(iter(steps)), strict=True):
        view, row = np.divmod(batch["last"][:, 0].numpy().astype(int), 100)
        np.testing.assert_array_equal(row, rows[step.rows.numpy()])
        seen[view, row] += 1
    assert set(np.flatnonzero(seen.sum(0))) == set(rows)
    assert (seen.sum(0)[rows] == 400).all()
    assert np.abs(seen[0, rows] - 200).max() < 4 * 10  # four standard deviations


def test_a_changed_image_is_another_source(toy_images: Path, tmp_path: Path) -> None:
    shutil.copytree(toy_images, tmp_path / "toy")
    text = (tmp_path / "toy/card.json").read_text()
    (tmp_path / "toy/card.json").write_text(text.replace('"content": "', '"content": "0'))
    assert augmented(tmp_path / "toy", encoder()).mark != augmented(toy_images, encoder()).mark
