"""Any encoder and any patch size as a follower; the baselines; what is too large or too small."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from components.davis.contract import DavisParams
from components.davis.following import FOLLOWERS, Follower, followers, stretched
from components.davis.judging import Judge
from components.davis.sequence import Sequence, sequences
from components.davis.view import patches
from components.mim import weights
from components.mim.encoder import Encoder, EncoderConfig
from components.mim.timm_encoder import TimmEncoder, timm_config

MakeDataset = Callable[..., Path]
MakeMask = Callable[[np.ndarray, str], bytes]
PARAMS: dict[str, Any] = {
    "device": "cpu",
    "dataset": "toy",
    "profile": "clean",
    "short_side": 42,
    "positions": "stretched",
    "context_frames": 3,
    "radius": 12,
    "top_k": 5,
    "temperature": 0.1,
}
SIZE = (42, 56)


def clip(frames: int, step: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """A coloured square moves `step` pixels a frame over noise."""
    ground = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    made = []
    for frame in range(frames):
        picture, ids = ground.copy(), np.zeros(SIZE, dtype=np.uint8)
        picture[14:28, step * frame : step * frame + 14] = (250, 10, 10)
        ids[14:28, step * frame : step * frame + 14] = 1
        made.append((picture, ids))
    return made


@pytest.fixture
def make_video(make_dataset: MakeDataset, png: MakeMask) -> Callable[..., Sequence]:
    def make(frames: int, step: int) -> Sequence:
        shown = [(picture, png(ids, "P")) for picture, ids in clip(frames, step)]
        return sequences(make_dataset({"square": shown}))[0]

    return make


def made(path: Path, video: Sequence, **changes: Any) -> dict[str, Follower]:
    return followers(path, DavisParams(**PARAMS | changes), torch.device("cpu"), [video])


def saved(folder: Path, kind: str) -> Path:
    path, about = folder / f"{kind}.safetensors", {"seed": 2, "weight_init": "fan_in"}
    if kind.startswith("timm "):
        side = 28 if "patch14" in kind else 32
        arguments = {"img_size": side, "embed_dim": 24, "depth": 1, "num_heads": 2}
        torch.manual_seed(0)
        weights.save(path, TimmEncoder(timm_config(kind.removeprefix("timm "), arguments)), about)
        return path
    config: dict[str, Any] = {"sincos": {}, "learned": {"positions": "learned"}, "class token": {"class_token": True}}[
        kind
    ]
    encoder = Encoder(EncoderConfig(image_size=28, patch_size=14, width=24, layers=1, heads=2, **config))
    weights.initialise(encoder, 1, "fan_in")
    weights.save(path, encoder, about)
    return path


ENCODERS = ["sincos", "learned", "class token", "timm vit_small_patch14_dinov2", "timm beit_base_patch16_224"]


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("profile", ["paper", "clean"])
def test_any_encoder_at_patch_14_and_16(
    tmp_path: Path, make_video: Callable[..., Sequence], kind: str, profile: str
) -> None:
    """D3: image, labels and prediction share one box of whole patches, also where the patch divides neither side of the video."""
    video = make_video(4, 0)
    path = saved(tmp_path, kind)
    for name, follower in made(path, video, profile=profile, short_side=84).items():
        predicted = list(follower(video))
        assert [mask.shape for mask in predicted] == [SIZE] * 4, name
        assert np.array_equal(predicted[0], clip(1, 0)[0][1])


@pytest.mark.parametrize("kind", ["sincos", "timm vit_small_patch14_dinov2"])
@pytest.mark.parametrize("profile", ["paper", "clean"])
def test_a_still_video_scores_1_with_any_features(
    tmp_path: Path, make_dataset: MakeDataset, png: MakeMask, kind: str, profile: str
) -> None:
    """An object of whole tokens that never moves: each follower gives its mask back to the pixel."""
    ids = np.zeros(SIZE, dtype=np.uint8)
    ids[:, :28] = 1
    (video,) = sequences(make_dataset({"still": [(clip(1, 0)[0][0], png(ids, "P"))] * 12}))
    for name, follower in made(saved(tmp_path, kind), video, top_k=1, profile=profile).items():
        judge = Judge(name, video.name, video.objects)
        for mask in follower(video):
            judge.take(mask, ids)
        (score,) = judge.scores()
        assert (score.j.mean, score.f.mean, score.j.decay) == (1, 1, 0), name


def test_copies_are_the_first_mask(tmp_path: Path, make_video: Callable[..., Sequence]) -> None:
    video = make_video(5, 4)
    each = made(saved(tmp_path, "sincos"), video)
    assert tuple(each) == FOLLOWERS
    assert all(np.array_equal(mask, video.truth(0)) for mask in each["copy"](video))


def test_bare_pixels_know_nothing_of_the_encoder(tmp_path: Path, make_video: Callable[..., Sequence]) -> None:
    """And follow a square whose colour is unlike anything else."""
    video = make_video(4, 14)
    one, other = (made(saved(tmp_path, kind), video)["pixels"] for kind in ("sincos", "learned"))
    for mine, its in zip(one(video), other(video), strict=True):
        assert np.array_equal(mine, its)
    *_, last = one(video)
    assert last[20, 42 + 7] == 1
    assert last[20, 7] == 0


def test_patches_hold_the_pixels_of_their_patch() -> None:
    image = torch.arange(3 * 4 * 6.0).view(1, 3, 4, 6)
    grid = patches(image, 2)
    assert grid.shape == (2, 3, 12)
    for row, column in ((0, 0), (1, 2)):
        own = image[0, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        assert sorted(grid[row, column].tolist()) == sorted(own.flatten().tolist())


def test_d13_stretched_positions_are_the_encoders_own_at_home_and_lie_between_them_elsewhere() -> None:
    """Identity on the own grid; on a 3×5 one bicubic values of torch's, corner pixels aligned by area; others untouched."""
    encoder = Encoder(EncoderConfig(image_size=56, patch_size=14, width=24, layers=1, heads=2))
    weights.initialise(encoder, 1, "fan_in")
    twin = stretched(encoder)
    home, away = torch.randn(1, 3, 56, 56), torch.randn(1, 3, 84, 140)
    with torch.no_grad():
        torch.testing.assert_close(twin(home), encoder(home))
        content = encoder.patch_embed(away)
        table = twin.positions.view(1, 4, 4, 24).permute(0, 3, 1, 2)
        bigger = torch.nn.functional.interpolate(table, (6, 10), mode="bicubic", align_corners=False, antialias=True)
        torch.testing.assert_close(twin.embed(away), content + bigger.flatten(2).transpose(1, 2))
        assert not torch.allclose(twin(away), encoder(away), atol=1e-3)
    assert stretched(twin) is twin


def test_d13_the_choice_reaches_the_followers(tmp_path: Path, make_video: Callable[..., Sequence]) -> None:
    video = make_video(3, 4)
    for kind, same in (("sincos", False), ("learned", True)):
        path = saved(tmp_path, kind)
        one, other = (made(path, video, positions=choice)["pretrained"] for choice in ("stretched", "continued"))
        grids = [torch.stack(list(each.features(video))) for each in (one, other)]  # type: ignore[attr-defined]
        assert torch.equal(*grids) == same


@pytest.mark.parametrize("changes", [{"context_frames": 0}, {"context_frames": 4}], ids=str)
def test_memory_does_not_grow_with_the_video(
    tmp_path: Path, make_video: Callable[..., Sequence], changes: dict[str, Any]
) -> None:
    """Bytes of Python, numpy and torch: over 24 frames less than half of what keeping one mask of each would take."""
    video = make_video(60, 0)
    follower = made(saved(tmp_path, "sincos"), video, **changes)["pretrained"](video)
    assert len(list(islice(follower, 12))) == 12
    tracemalloc.start()
    try:
        held_after(
            follower, 12
        )  # what the first ones leave in caches once counts as well, and hangs on what ran before
        counts = [held_after(follower, 12) for _ in range(3)]
    finally:
        tracemalloc.stop()
    assert max(counts) - min(counts) < 24 * video.truth(0).nbytes / 2


def held_after(frames: Iterator[np.ndarray], count: int) -> int:
    assert len(list(islice(frames, count))) == count
    tensors = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]
    return tracemalloc.get_traced_memory()[0] + sum(each.untyped_storage().nbytes() for each in tensors)


def test_what_timm_says_of_a_size_comes_with_file_and_sequence(
    tmp_path: Path, make_video: Callable[..., Sequence], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attention of a fixed number of tokens, as some of timm's have, meets the video's grid before any work is done."""
    video, path = make_video(3, 0), saved(tmp_path, "sincos")

    def fixed(self: Encoder, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1)[:, : 24 * 4].view(1, 5, 24)

    monkeypatch.setattr(Encoder, "forward", fixed)
    with pytest.raises(
        ValueError, match=r"sincos.safetensors' does not fit sequence 'square' of 56×42 pixels, a grid of 4×3 tok"
    ):
        made(path, video)


def test_upright_and_square_videos(tmp_path: Path, make_dataset: MakeDataset, png: MakeMask) -> None:
    """D5: one rule for the size of images, labels and predictions."""
    for size in ((56, 42), (48, 48)):
        ids = np.zeros(size, dtype=np.uint8)
        ids[10:30, 10:30] = 1
        picture = np.array(Image.fromarray(ids * 200).convert("RGB"))
        (video,) = sequences(make_dataset({"square": [(picture, png(ids, "P"))] * 3}, f"of{size[0]}"))
        for follower in made(saved(tmp_path, "sincos"), video).values():
            assert [mask.shape for mask in follower(video)] == [size] * 3
