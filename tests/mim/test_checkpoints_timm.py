"""BEiT, data2vec and files of timm, against timm's own models with the same weights."""

import copy
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from components.mim import conversion, normalisation
from components.mim.timm_encoder import timm_config, untrained

from . import published_files as published
from .published_files import HEADS, IMAGE, LAYERS, PATCH, WIDTH
from .test_checkpoints import IMAGES, TINY, is_vit, read, seen, write


@pytest.mark.parametrize(
    ("shared", "predicts", "told"),
    [
        (True, 40, ("beit", "only", "MIT")),
        (True, WIDTH, ("data2vec", "only", "CC-BY-NC-4.0")),
        (False, 10, ("beit or data2vec", "only", "unknown")),
    ],
)
@torch.no_grad()
def test_beit_and_data2vec(tmp_path: Path, shared: bool, predicts: int, told: tuple[str, str, str]) -> None:
    state = published.beit(shared, predicts)
    imported = read(write(tmp_path / "beit.pth", {"model": state}))
    witness = timm.create_model(
        "beit_base_patch16_224", num_classes=0, init_values=0.1, use_rel_pos_bias=not shared, use_shared_rel_pos_bias=shared,
        global_pool="token" if shared else "avg", **TINY,
    ).eval()  # fmt: skip
    aside = ("lm_head", "mask_token", "head")
    own = {name: t for name, t in state.items() if not name.startswith(aside) and not name.endswith("position_index")}
    witness.load_state_dict(own, strict=True)
    half = partial(seen, mean=[0.5], std=[0.5]) if told[0] != "data2vec" else (lambda images: images)
    expected = witness.fc_norm(witness.forward_features(half(IMAGES)))
    torch.testing.assert_close(imported.encoder.tokens(IMAGES), expected, atol=1e-5, rtol=0)
    assert (imported.report.layout, imported.report.part, imported.report.licence) == told
    assert sorted(imported.report.matched) == sorted(own)
    assert sorted(imported.report.ignored) == sorted(set(state) - set(own))
    wide = torch.randn(2, 3, IMAGE + PATCH, IMAGE - PATCH)
    witness.set_input_size((IMAGE + PATCH, IMAGE - PATCH))
    expected = witness.fc_norm(witness.forward_features(half(wide)))
    torch.testing.assert_close(imported.encoder.tokens(wide), expected, atol=1e-5, rtol=0)
    config = imported.encoder.config
    assert (config.image_size, config.patch_size, config.width, config.layers, config.heads) == (
        IMAGE,
        PATCH,
        WIDTH,
        LAYERS,
        HEADS,
    )


@pytest.mark.parametrize(
    "name", ["test_vit", "test_vit2", "test_vit3"]
)  # plain; norm after pooling; pooled by attention
@torch.no_grad()
def test_files_of_timm(tmp_path: Path, name: str) -> None:
    witness = timm.create_model(name).eval()
    save_file(witness.state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    imported = read(tmp_path / "model.safetensors", model=name, image_size=160, patch_size=16)
    images = torch.randn(1, 3, 160, 160)
    given = seen(images, witness.pretrained_cfg["mean"], witness.pretrained_cfg["std"])
    torch.testing.assert_close(
        imported.encoder.tokens(images), witness.fc_norm(witness.forward_features(given))
        if name != "test_vit3" else witness.norm(witness.blocks(witness._pos_embed(witness.patch_embed(given)))),
        atol=1e-5, rtol=0,
    )  # fmt: skip
    report = imported.report
    assert (report.layout, report.part, report.licence) == (f"timm {name}", "only", "Apache-2.0")
    assert {"head.weight", "head.bias"} <= set(report.ignored)
    with pytest.raises(
        ValueError, match=r"trained at image_size 160 \(10×10 patches of 16 pixels\), you asked for 224"
    ):
        read(tmp_path / "model.safetensors", model=name, image_size=224)
    with pytest.raises(ValueError, match="does not fit: .*is missing.*Each must fit"):
        read(
            write(tmp_path / "less.pth", {k: v for k, v in witness.state_dict().items() if "blocks.3" not in k}),
            model=name,
            image_size=160,
        )


@torch.no_grad()
def test_clip_without_a_bias_takes_its_normalisation_into_the_positions(tmp_path: Path) -> None:
    name = "vit_base_patch16_clip_224.openai"
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
    encoder = untrained(timm_config(name, small), 0)
    before, images = copy.deepcopy(encoder), torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(0))
    expected = normalisation.of_timm(name)
    assert encoder.model.patch_embed.proj.bias is None and expected.mean[0] == pytest.approx(0.4815, abs=1e-4)
    normalisation.adapt(encoder, expected)
    torch.testing.assert_close(encoder.tokens(images), before.tokens(seen(images, *expected)), atol=2e-5, rtol=0)


@torch.no_grad()
def test_a_beit_file_of_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "timm_config", lambda model, arguments: timm_config(model, arguments | TINY))
    state = published.beit(shared=False)
    path = write(tmp_path / "beit.pth", {"model": state})
    imported, same = read(path, model="beit_base_patch16_224"), read(path)
    torch.testing.assert_close(imported.encoder(IMAGES), same.encoder(IMAGES))
    with pytest.raises(ValueError, match="no weights that timm can read into its Beit .*; set pretrain.init.model"):
        read(write(tmp_path / "shared.pth", published.beit(shared=True)), model="beit_base_patch16_224")


@torch.no_grad()
def test_timm_reads_the_asked_part_of_ijepa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """timm's own filter would take `encoder`. This is the way for ViT-g, whose layers are of another ratio than ours."""
    monkeypatch.setattr(
        conversion, "timm_config", lambda model, arguments: timm_config(model, arguments | TINY | {"mlp_ratio": 4})
    )
    target, context = published.vit(1, False), published.vit(2, False)
    path = write(tmp_path / "jepa.pth.tar", published.ijepa(target, context))
    for part, state in (("target_encoder", target), ("encoder", context)):
        imported = read(path, part, model="vit_giant_patch16_gap_224")
        is_vit(imported, state)
        assert (imported.report.part, imported.report.licence) == (part, "CC-BY-NC-4.0")
