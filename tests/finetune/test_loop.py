"""The training loop beside a plain one, in pieces, stopped and continued."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from timm.loss import LabelSmoothingCrossEntropy
from torch import nn

from components.finetune.classifier import Classifier, load, save, set_drop_path
from components.finetune.examples import Batches
from components.finetune.loop import Row, Trainer
from components.finetune.resume import Best, Checkpoints
from components.images.store import Store
from components.mim.timm_encoder import timm_config, untrained
from components.probe.dataset import Part

from .toys import classifier, encoder, params

CPU = torch.device("cpu")


@pytest.fixture
def part(toy_images: Path) -> Part:
    store = Store(toy_images, "train")
    return Part(store, np.arange(len(store)))


def trainer(part: Part, model: Classifier | None = None, **changes: Any) -> Trainer:
    chosen = params(**changes)
    member = chosen.finetunings["toy"]
    return Trainer("toy", chosen, member, model or classifier(), Batches(chosen, member, part), CPU)


@pytest.fixture
def in_double() -> Iterator[None]:
    """New tensors in float64, `normalise`'s among them: AdamW makes a step of the rounding of a zero gradient."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.usefixtures("in_double")
def test_three_steps_equal_a_plain_loop(part: Part) -> None:
    """A group for each parameter, with rates written out; ImageNet's statistics and timm's loss. Ours takes logits as float32."""
    model = classifier().double()
    twin, ours = copy.deepcopy(model), trainer(part, model, epochs=2, warmup_epochs=0.0, lr=0.01, final_lr=0.0)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    powers = {
        name: 2 - int(name.split(".")[2]) if "blocks" in name else 0 if "norm" in name or "head" in name else 3
        for name, _ in twin.named_parameters()
    }
    decays = {name: 0.05 if parameter.ndim > 1 else 0.0 for name, parameter in twin.named_parameters()}
    adamw = torch.optim.AdamW(
        [{"params": [p], "name": name, "weight_decay": decays[name]} for name, p in twin.named_parameters()]
    )
    given = list(ours.batches.epochs(0, 1))[:3]
    assert ours.batches.per_epoch == 6
    for step, (pixels, labels) in enumerate(given, 1):
        rate = 0.01 * 0.5 * (1 + np.cos(np.pi * step / 12))
        for group in adamw.param_groups:
            group["lr"] = rate * 0.75 ** powers[group["name"]]
        images = ((pixels.double() / 255 - mean) / std).permute(0, 3, 1, 2)
        tokens = twin.encoder(images)
        loss = LabelSmoothingCrossEntropy(0.1)(twin.head(tokens.mean(dim=1)), labels)
        adamw.zero_grad()
        loss.backward()
        adamw.step()
        assert ours.update(pixels, labels) == pytest.approx(loss.item(), rel=1e-6), step
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.usefixtures("in_double")
def test_micro_batches_learn_what_whole_ones_learn(part: Part) -> None:
    models = []
    for micro in (0, 2):
        models.append(classifier().double())
        one = trainer(part, models[-1], micro_batch_size=micro, epochs=2, mixup=0.8, random_erasing=0.25)
        for pixels, labels in list(one.batches.epochs(0, 1))[:3]:
            one.update(pixels, labels)
    for a, b in zip(models[0].state_dict().values(), models[1].state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_separable_images_are_learned_and_the_trunk_changes(part: Part) -> None:
    model = classifier()
    before = weights(model)
    one = trainer(part, model, epochs=12, lr=0.01, layer_decay=1.0, crop_scale_min=0.9)
    rows: list[Row] = []
    one.train(rows.append)
    assert [row["epoch"] for row in rows] == list(range(1, 13)) and rows[-1]["train_loss"] < rows[0]["train_loss"] / 1.2
    assert all(not torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_no_drop_path_turns_off_what_an_imported_encoder_brings() -> None:
    brought = untrained(timm_config("vit_tiny_patch16_224", TINY | {"drop_path_rate": 0.2}), 0).train()
    images = torch.randn(8, 3, 16, 16)
    assert not torch.equal(brought(images), brought(images))
    set_drop_path(brought, 0.0)
    assert torch.equal(brought(images), brought(images))


def test_drop_path_reaches_every_layer_and_is_keyed(part: Part) -> None:
    for made in (encoder(), untrained(timm_config("beit_base_patch16_224", TINY), 0).requires_grad_(True)):
        set_drop_path(made, 0.4)
        blocks: Any = made.model.blocks if hasattr(made, "model") else made.blocks
        found = [(block.drop_path1.drop_prob, block.drop_path2.drop_prob) for block in blocks]
        assert np.allclose(found, [(0.0, 0.0), (0.4, 0.4)])
        model = classifier(made)
        (pixels, labels), *_ = trainer(part).batches.epochs(0, 1)
        losses = []
        for seed in (0, 0, 1):
            torch.manual_seed(len(losses))
            losses.append(trainer(part, copy.deepcopy(model), seed=seed).update(pixels, labels))
        assert losses[0] == losses[1] != losses[2]
        images = torch.randn(2, 3, 16, 16)
        assert torch.equal(model.eval()(images), model(images))  # none of it when scoring


TINY = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 2}


def test_stopped_after_any_epoch_it_ends_with_the_same_bits(part: Part, tmp_path: Path) -> None:
    how = {"mixup": 0.8, "cutmix": 1.0, "random_erasing": 0.3, "rand_augment": "rand-m5-inc1", "epochs": 3}

    def start() -> Trainer:
        made = encoder()
        set_drop_path(made, 0.3)
        return trainer(part, classifier(made), **how)

    whole = start()
    whole.train(lambda row: None)
    for stop in (1, 2):
        folder = Checkpoints(tmp_path / str(stop))

        def save_and_stop(row: Row, cut: Any = None, folder: Checkpoints = folder, stop: int = stop) -> None:
            folder.save(cut.state(), Best(1, 50.0), cut.model.state_dict())
            if cut.epoch == stop:
                raise KeyboardInterrupt

        cut = start()
        with pytest.raises(KeyboardInterrupt):
            cut.train(lambda row: save_and_stop(row, cut))  # noqa: B023 - called at once
        torch.manual_seed(99)
        again = start()
        found = folder.load()
        assert found is not None and found[1] == Best(1, 50.0)
        again.restore(found[0])
        assert again.epoch == stop
        again.train(lambda row: None)
        assert same(again.model, whole.model) and again.history == whole.history


def test_the_best_weights_are_kept_and_older_ones_go(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load() is None
    for epoch, best in enumerate((Best(1, 10.0), Best(2, 30.0), Best(2, 30.0)), 1):
        checkpoints.save({"history": [{}] * epoch}, best, {"weight": torch.tensor(float(epoch))})
    assert checkpoints.best(Best(2, 30.0))["weight"] == 2.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-00002.pt", "checkpoint.pt"]


@pytest.mark.parametrize("broken", ["loss", "logits"])
def test_no_number_stops_it_with_the_step_the_rate_and_the_last_loss(part: Part, broken: str) -> None:
    one = trainer(part)
    (pixels, labels), (pixels2, labels2), *_ = one.batches.epochs(0, 1)
    loss = one.update(pixels, labels)
    with torch.no_grad():
        one.model.head.bias[0] = torch.nan
    tail = rf"learning rate 0.00\d+; the last finite loss was {loss:.4f} at step 1. Lower optimisation.lr"
    message = "loss is nan at step 2, " if broken == "loss" else "logits are not finite after epoch 0, "
    with pytest.raises(ValueError, match="toy: " + message + tail):
        one.update(pixels2, labels2) if broken == "loss" else one.predict([pixels])  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", ["encoder", "new"])
def test_a_saved_classifier_comes_back_as_it_was(tmp_path: Path, norm: str) -> None:
    for made in (encoder(), untrained(timm_config("beit_base_patch16_224", TINY), 0)):
        model = classifier(made, norm=norm).eval()
        save(tmp_path / "model.safetensors", model, {"epoch": 3})
        again, about = load(tmp_path / "model.safetensors")
        images = torch.randn(2, 3, 16, 16)
        assert about == {"epoch": 3} and torch.equal(again(images), model(images))
