"""timm's augmentations with keyed draws: the same image comes out in any order, any process, and global state stays."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.auto_augment import rand_augment_transform
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch.nn import functional

from components.finetune.augment import Augment, Mix, seeded
from components.finetune.examples import Batches
from components.images.decoding import of_picture
from components.images.store import Store
from components.images.transforms import crop_draws, random_crop
from components.mim import keys
from components.probe.dataset import Part

from .toys import params

STRONG = "rand-m9-mstd0.5-inc1"


def photograph(seed: int = 0) -> torch.Tensor:
    noise = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return of_picture(Image.fromarray(noise).resize((64, 48), Image.Resampling.BICUBIC))


def test_an_image_does_not_depend_on_what_was_augmented_before() -> None:
    augment = Augment(params(rand_augment=STRONG, flip=True).finetunings["toy"].augmentation, 32, seed=3)
    images = [photograph(row) for row in range(12)]
    forwards = [augment(image, 1, row) for row, image in enumerate(images)]
    random.seed(5), np.random.seed(5)
    backwards = [augment(images[row], 1, row) for row in reversed(range(12))][::-1]
    np.testing.assert_array_equal(forwards, backwards)
    assert any((a != b).any() for a, b in zip(forwards, [augment(x, 2, r) for r, x in enumerate(images)], strict=True))


def test_it_is_timm_s_randaugment_on_our_crop() -> None:
    values = params(rand_augment=STRONG, flip=True).finetunings["toy"].augmentation
    about = {"translate_const": 14, "img_mean": (124, 116, 104), "interpolation": Image.Resampling.BICUBIC}
    witness, differ = rand_augment_transform(STRONG, about), 0
    for row in range(20):
        draws = crop_draws(3, 0, np.array([row]))[0]
        crop = random_crop(photograph(row), draws, size=32, scale_min=0.5, scale_max=1.0, flip=True)
        with seeded(keys.key(3, "rand_augment", 0, row)):
            expected = np.asarray(witness(Image.fromarray(np.ascontiguousarray(crop))))
        found = Augment(values, 32, seed=3)(photograph(row), 0, row)
        np.testing.assert_array_equal(found, expected)
        differ += bool((found != crop).any())
    assert differ > 10


def test_global_generators_go_on_as_if_nothing_had_been_drawn() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    augment = Augment(params(rand_augment=STRONG).finetunings["toy"].augmentation, 32, seed=3)
    augment(photograph(), 0, 0)
    mix = Mix(params(random_erasing=1.0, mixup=0.8, cutmix=1.0).finetunings["toy"].augmentation, 0.1, 4, 0)
    mix(torch.zeros(4, 3, 16, 16), torch.arange(4), 0)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


def test_worker_processes_give_the_same_batches(toy_images: Path) -> None:
    store = Store(toy_images, "train")
    part = Part(store, np.arange(len(store)))
    given = []
    for workers in (0, 2):
        chosen = params(rand_augment=STRONG, workers=workers, batch_size=16)
        given.append(list(Batches(chosen, chosen.finetunings["toy"], part).epochs(0, 2)))
    assert len(given[0]) == len(given[1]) == 6
    for (pixels, labels), (other_pixels, other_labels) in zip(*given, strict=True):
        assert torch.equal(pixels, other_pixels) and torch.equal(labels, other_labels)


def test_each_epoch_takes_each_image_once_in_another_order(toy_images: Path) -> None:
    store = Store(toy_images, "train")
    chosen = params(batch_size=8)
    batches = Batches(chosen, chosen.finetunings["toy"], Part(store, np.arange(3, 45)))
    assert batches.per_epoch == 5
    orders = [[row for batch in batches.places(epoch) for _, row in batch] for epoch in range(2)]
    for order in orders:
        assert len(set(order)) == 40 and set(order) <= set(range(3, 45))
    assert orders[0] != orders[1] and batches.places(0) == batches.places(0)


def test_smoothed_labels_give_timm_s_losses() -> None:
    logits, labels = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 0, 1])
    plain = Mix(params().finetunings["toy"].augmentation, 0.1, 4, 0)
    images, targets = plain(torch.ones(6, 3, 16, 16), labels, 0)
    assert torch.equal(images, torch.ones(6, 3, 16, 16))
    loss = functional.cross_entropy(logits, targets)
    torch.testing.assert_close(loss, LabelSmoothingCrossEntropy(0.1)(logits, labels))
    torch.testing.assert_close(loss, SoftTargetCrossEntropy()(logits, targets))


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)])
def test_images_and_labels_are_blended_in_one_proportion(mixup: float, cutmix: float) -> None:
    """Image b shows the value b everywhere, so a blended image's mean says how much there is of each of its two."""
    mix = Mix(params(mixup=mixup, cutmix=cutmix).finetunings["toy"].augmentation, 0.0, 4, 9)
    whole, kinds = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 3, 16, 16), set()
    for step in range(12):
        images, targets = mix(whole.clone(), torch.arange(4), step)
        torch.testing.assert_close(targets.sum(dim=1), torch.ones(4))
        torch.testing.assert_close(images.mean(dim=(1, 2, 3)), targets @ torch.arange(4.0), rtol=1e-5, atol=1e-5)
        kinds.add(bool((images == images.round()).all()))  # pasted, not blended
        again = mix(whole.clone(), torch.arange(4), step)
        assert torch.equal(images, again[0]) and torch.equal(targets, again[1])
    assert kinds == ({True, False} if mixup and cutmix else {bool(cutmix)})


def test_random_erasing_takes_its_share() -> None:
    mix = Mix(params(random_erasing=0.25).finetunings["toy"].augmentation, 0.0, 4, 0)
    images, targets = mix(torch.zeros(400, 3, 16, 16), torch.zeros(400, dtype=torch.int64), 0)
    erased = (images != 0).any(dim=1).flatten(1).float().mean(dim=1)
    hit = erased > 0
    assert hit.float().mean().item() == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 400) ** 0.5)
    assert erased[hit].min() > 0.01 and erased[hit].max() < 0.4
    assert torch.equal(targets, functional.one_hot(torch.zeros(400, dtype=torch.int64), 4).float())
