"""Features are what the encoder says, row by row, and kept ones are never those of something else."""

import fcntl
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from components.images import decoding
from components.images.store import Store
from components.images.transforms import View, normalise
from components.mim.encoder import Encoder, EncoderConfig, VisionEncoder
from components.mim.initialise import initialise
from components.mim.timm_encoder import timm_config, untrained
from components.mim.weights import save
from components.probe import extraction
from components.probe.dataset import Part, Subject, subjects
from components.probe.extraction import Features, columns, encode
from components.probe.kept import home, keeping, key, pooled
from components.probe.params import Encoding

from .arrays import CPU

WIDE = View(16, 24, 0, mirror=False)


def ours(class_token: bool = False, seed: int = 0) -> Encoder:
    config = EncoderConfig(image_size=16, patch_size=4, width=24, layers=3, heads=2, class_token=class_token)
    encoder = Encoder(config)
    initialise(encoder, seed, "fan_in", "encoder.")
    return encoder.eval().requires_grad_(False)


def subject(encoder: VisionEncoder, mark: str = "0123456789abcdef-pretrained") -> Subject:
    return Subject("pretrained", encoder, Path("encoder.safetensors"), mark)


def part(folder: Path, rows: list[int], split: str = "test") -> Part:
    return Part(Store(folder, split), np.array(rows))


def extract(
    one: Subject, images: Part, folder: Path, view: View = WIDE, layers: int = 4, batch_size: int = 2
) -> Features:
    return pooled(one, images, view, layers=layers, encoding=Encoding(batch_size, 1, 1), folder=folder, label="toy")


@pytest.mark.parametrize("class_token", [False, True])
def test_features_follow_the_rows_and_the_layers(toy_images: Path, tmp_path: Path, class_token: bool) -> None:
    encoder, images = ours(class_token), part(toy_images, [5, 2, 9])
    found = extract(subject(encoder), images, tmp_path)
    assert sorted(found.columns) == ["class_token", "last", "last4"][not class_token :]
    pixels = normalise(np.stack([WIDE(decoding.pixels(images.store, row)) for row in (5, 2, 9)]))
    with torch.no_grad():
        outputs, x = [], encoder.embed(pixels)
        for layer in encoder.blocks:
            x = layer(x)
            outputs.append(encoder.norm(x))
    means = [output[:, int(class_token) :].mean(dim=1) for output in outputs]
    np.testing.assert_allclose(found.of("last"), means[-1].numpy(), atol=1e-5)
    np.testing.assert_allclose(found.of("last4"), torch.cat(means, dim=1).numpy(), atol=1e-5)  # three layers are all
    if class_token:
        np.testing.assert_allclose(found.of("class_token"), outputs[-1][:, 0].numpy(), atol=1e-5)


@pytest.mark.parametrize("arguments", [{"reg_tokens": 2}, {"class_token": False, "reg_tokens": 1}])
def test_class_and_register_tokens_of_timm_are_no_patches(arguments: dict[str, object]) -> None:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
    encoder = untrained(timm_config("vit_tiny_patch16_224", {**sizes, **arguments}), 0).eval()
    pixels = torch.randint(0, 256, (2, 32, 32, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    with torch.no_grad():
        tokens = encoder.model.forward_features(normalise(pixels))
    found, sets = encode(encoder, pixels, 1), columns(encoder, 1)
    torch.testing.assert_close(found[:, sets["last"]], tokens[:, encoder.prefix :].mean(dim=1))
    assert ("class_token" in sets) == arguments.get("class_token", True)
    if "class_token" in sets:
        torch.testing.assert_close(found[:, sets["class_token"]], tokens[:, 0])


def test_kept_features_are_those_of_a_fresh_run_and_are_told(
    toy_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, images = subject(ours()), part(toy_images, [1, 4, 7])
    fresh = extract(one, images, tmp_path / "a")
    again = extract(subject(ours(seed=1)), images, tmp_path / "a")  # the mark says which weights these are
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith("toy: 3 kept from before in features/0123456789abcdef/pretrained-test-")
    )
    other = extract(one, images, tmp_path / "b")
    np.testing.assert_array_equal(fresh.matrix, again.matrix)
    np.testing.assert_array_equal(fresh.matrix, other.matrix)


def test_whatever_decides_the_features_makes_others(toy_images: Path, tmp_path: Path) -> None:
    """Encoder, kind, split, rows, their order, view, layers and content: none finds the features of another."""
    changed = tmp_path / "changed"
    shutil.copytree(toy_images, changed)
    card = json.loads((changed / "card.json").read_text())
    (changed / "card.json").write_text(json.dumps(card | {"content": "another"}))
    base, images = subject(ours()), part(toy_images, [1, 4, 7])
    variants = [
        (base, images, WIDE, 4),
        (base._replace(mark="0123456789abcdef-untrained", kind="untrained"), images, WIDE, 4),
        (base._replace(mark="fedcba9876543210-pretrained"), images, WIDE, 4),
        (base, part(toy_images, [1, 4, 7], "train"), WIDE, 4),
        (base, part(toy_images, [1, 4, 8]), WIDE, 4),
        (base, part(toy_images, [4, 1, 7]), WIDE, 4),
        (base, images, WIDE._replace(mirror=True), 4),
        (base, images, WIDE._replace(resize_short_side=16), 4),
        (base, images, View(16, 16, 0, False), 4),
        (base, images, WIDE, 2),
        (base, part(changed, [1, 4, 7]), WIDE, 4),
    ]
    for variant in variants:
        extract(variant[0], variant[1], tmp_path / "kept", *variant[2:])
    assert len(list((tmp_path / "kept").rglob("*.npy"))) == len(variants)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches that were encoded; the one after the eighth is interrupted."""
    calls, check = list[int](), extraction.check_finite

    def counts(features: torch.Tensor, *others: Any) -> None:
        calls.append(len(features))
        if len(calls) == 9:
            raise KeyboardInterrupt
        check(features, *others)

    monkeypatch.setattr(extraction, "check_finite", counts)
    return calls


def test_an_interrupted_extraction_goes_on_where_it_stopped(
    toy_images: Path, tmp_path: Path, counted: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    one, images = subject(ours()), part(toy_images, list(range(15)))
    with pytest.raises(KeyboardInterrupt):
        extract(one, images, tmp_path / "a", batch_size=1)
    assert not list(tmp_path.rglob("*.npy"))
    capsys.readouterr()
    whole = extract(one, images, tmp_path / "a", batch_size=1).matrix
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "toy: 8 of 15 images are there from before an interruption; goes on with the rest"
    assert len(counted) == 9 + 7 and "15/15 images" in told[-1]
    np.testing.assert_array_equal(extract(one, images, tmp_path / "b", batch_size=1).matrix, whole)
    assert not list(tmp_path.rglob("pieces*"))


def test_pieces_of_other_batches_are_not_mixed_in(toy_images: Path, tmp_path: Path, counted: list[int]) -> None:
    one, images = subject(ours()), part(toy_images, list(range(15)))
    with pytest.raises(KeyboardInterrupt):
        extract(one, images, tmp_path, batch_size=1)
    extract(one, images, tmp_path, batch_size=2)
    assert counted[9:] == [2] * 7 + [1]
    assert not list(tmp_path.rglob("pieces*")), "leftovers of the others go, too"


def test_a_damaged_piece_is_made_again_and_told(
    toy_images: Path, tmp_path: Path, counted: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    one, images = subject(ours()), part(toy_images, list(range(15)))
    with pytest.raises(KeyboardInterrupt):
        extract(one, images, tmp_path / "a", batch_size=1)
    victim = sorted(path for path in tmp_path.rglob("pieces*/*"))[3]
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    capsys.readouterr()
    whole = extract(one, images, tmp_path / "a", batch_size=1).matrix
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "toy: images 3 to 4 were damaged on disk and are encoded again" and "7 of 15 images" in told[1]
    assert len(counted) == 9 + 8
    np.testing.assert_array_equal(extract(one, images, tmp_path / "b", batch_size=1).matrix, whole)


def test_threads_are_those_asked_for_and_then_as_before(
    toy_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On matrices as small as these their number decides the last bits."""
    before, seen, check = torch.get_num_threads(), set[int](), extraction.check_finite

    def sees(*arguments: Any) -> None:
        seen.add(torch.get_num_threads())
        check(*arguments)

    monkeypatch.setattr(extraction, "check_finite", sees)
    pooled(
        subject(ours()), part(toy_images, [1, 2]), WIDE,
        layers=4, encoding=Encoding(2, 1, before + 2), folder=tmp_path, label="toy",
    )  # fmt: skip
    assert (seen, torch.get_num_threads()) == ({before + 2}, before)


def test_two_at_a_time_encode_once(toy_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, images = subject(ours()), part(toy_images, list(range(8)))
    found: list[Features] = []
    threads = [threading.Thread(target=lambda: found.append(extract(one, images, tmp_path))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(found[0].matrix, found[1].matrix)
    told = capsys.readouterr().out
    assert ("8/8 images" in told, told.count("kept from before")) == (True, 1)


def test_who_waits_for_another_process_says_so(
    toy_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, images = subject(ours()), part(toy_images, [1, 2])
    path = home(tmp_path, one) / f"pretrained-test-{key(one, images, WIDE, 4)}" / "lock"
    path.parent.mkdir(parents=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Thread(target=lambda: extract(one, images, tmp_path))
        waiting.start()
        while not (told := capsys.readouterr().out):
            waiting.join(0.01)
        assert told == "toy: another process encodes the same images; waiting to use its features\n"
        assert not list(tmp_path.rglob("*.npy"))
    waiting.join()
    assert "2/2 images" in capsys.readouterr().out


def test_features_that_are_no_numbers_name_encoder_and_image(toy_images: Path, tmp_path: Path) -> None:
    encoder = ours()
    encoder.blocks[0].mlp.fc1.bias.data[0] = np.nan
    with pytest.raises(
        ValueError,
        match=r"encoder 'encoder.safetensors' \(pretrained\) gives features that are not finite for 2 of 2 images, 'test/1/005.png'",
    ):
        extract(subject(encoder), part(toy_images, [5, 2, 9]), tmp_path)
    assert not list(tmp_path.rglob("*.npy"))


def test_other_encoders_features_are_removed_unless_they_are_in_use(toy_images: Path, tmp_path: Path) -> None:
    used, old, new = (subject(ours(), letter * 16 + "-pretrained") for letter in "abc")
    with keeping(tmp_path, used):
        kept = extract(used, part(toy_images, [1]), tmp_path)
        extract(old, part(toy_images, [1]), tmp_path)
        with keeping(tmp_path, new):
            assert sorted(path.name for path in (tmp_path / "features").iterdir()) == ["a" * 16, "c" * 16]
        np.testing.assert_array_equal(extract(used, part(toy_images, [1]), tmp_path).matrix, kept.matrix)


def test_the_file_decides_the_mark_and_a_grid_that_does_not_fit_names_it(tmp_path: Path) -> None:
    marks = []
    for seed in (0, 1):
        save(tmp_path / "encoder.safetensors", ours(seed=seed), {"seed": seed, "weight_init": "fan_in"})
        marks += [one.mark for one in subjects(tmp_path / "encoder.safetensors", 16, 24, CPU)]
    assert len(set(marks)) == 4
    assert {mark.partition("-")[2] for mark in marks} == {"pretrained", "untrained"}
    with pytest.raises(ValueError, match=r"encoder '.*encoder.safetensors': image is 16×23 pixels; both sides must be"):
        next(subjects(tmp_path / "encoder.safetensors", 16, 23, CPU))
