"""Published files, built with their own key names, against timm's and transformers' models with the same weights."""

import argparse
import copy
import hashlib
import os
import re
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from components.mim import conversion, normalisation, weights
from components.mim.checkpoints import Imported, check_architecture, read_encoder
from components.mim.encoder import Encoder, EncoderConfig
from components.mim.fitting import patches_of_table
from components.mim.initialise import initialise
from components.mim.predictor import Predictor, PredictorConfig
from components.mim.timm_encoder import TimmEncoder, timm_config, untrained

from . import published_files as published
from .published_files import HEADS, IMAGE, LAYERS, PATCH, SIDE, WIDTH, State

TINY = {"img_size": IMAGE, "patch_size": PATCH, "embed_dim": WIDTH, "depth": LAYERS, "num_heads": HEADS}
IMAGES = torch.randn(2, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(1))


def write(path: Path, content: object, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def read(path: Path, part: Any = "target_encoder", model: str = "", **sizes: int) -> Imported:
    wanted = {"image_size": IMAGE, "patch_size": PATCH, "heads": HEADS} | sizes
    return read_encoder(path, part, **wanted, model=model)


def seen(images: Tensor, mean: Any, std: Any) -> Tensor:
    """Images normalised with ImageNet's mean and deviation, as another normalisation has them."""
    pixels = images * torch.tensor(IMAGENET_DEFAULT_STD).view(3, 1, 1) + torch.tensor(IMAGENET_DEFAULT_MEAN).view(
        3, 1, 1
    )
    return (pixels - torch.as_tensor(mean).view(-1, 1, 1)) / torch.as_tensor(std).view(-1, 1, 1)


@torch.no_grad()
def is_vit(imported: Imported, state: State, images: Tensor = IMAGES) -> None:
    """The encoder's output is that of timm's Vision Transformer with the file's weights."""
    prefix = "cls_token" in state
    witness = timm.create_model(
        "vit_base_patch16_224", num_classes=0, class_token=prefix, global_pool="token" if prefix else "", **TINY
    )
    witness.load_state_dict(state, strict=True)
    expected = witness.eval().forward_features(images)
    torch.testing.assert_close(imported.encoder.tokens(images), expected, atol=1e-5, rtol=0)
    assert not imported.encoder.training and all(weight.requires_grad for weight in imported.encoder.parameters())


@pytest.mark.parametrize("part", ["target_encoder", "encoder"])
def test_ijepa_and_stop(tmp_path: Path, part: str) -> None:
    sides = {"target_encoder": published.vit(1, False), "encoder": published.vit(2, False)}
    path = write(tmp_path / "jepa.pth.tar", published.ijepa(sides["target_encoder"], sides["encoder"]))
    imported = read(path, part)
    is_vit(imported, sides[part])
    assert imported.encoder.config == EncoderConfig(
        image_size=IMAGE, patch_size=PATCH, width=WIDTH, layers=LAYERS, heads=HEADS, class_token=False, positions="sincos"
    )  # fmt: skip
    report = imported.report
    assert (report.layout, report.part, report.licence) == ("ijepa", part, "CC-BY-NC-4.0")
    assert report.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert sorted(report.matched) == sorted(sides[part]) and report.unmatched == []
    other = "encoder.*" if part == "target_encoder" else "target_encoder.*"
    assert report.ignored == [*([other] if part == "target_encoder" else []), "predictor.*", *([] if part == "target_encoder" else [other]),
                              "opt.*", "scaler", "epoch", "loss", "batch_size", "world_size", "lr"]  # fmt: skip
    assert report.tags() == {
        "init.layout": "ijepa", "init.part": part, "init.licence": "CC-BY-NC-4.0", "init.sha256": report.sha256,
        "init.matched": "29", "init.unmatched": "0", "init.ignored": "9",
    }  # fmt: skip
    assert report.lines()[0] == f"read as ijepa, its part {part}"
    assert report.lines()[1].startswith("29 tensors matched, 0 unmatched, 9 left aside: ")


def test_ijepa_is_what_transformers_makes_of_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    state = published.vit(1, False)
    config = transformers.IJepaConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=4 * WIDTH,
        image_size=IMAGE, patch_size=PATCH, layer_norm_eps=1e-6,
    )  # fmt: skip
    theirs = {
        "embeddings.position_embeddings": state["pos_embed"],
        "embeddings.patch_embeddings.projection.weight": state["patch_embed.proj.weight"],
        "embeddings.patch_embeddings.projection.bias": state["patch_embed.proj.bias"],
        "layernorm.weight": state["norm.weight"],
        "layernorm.bias": state["norm.bias"],
    }
    names = {
        "norm1": "layernorm_before", "attn.proj": "attention.o_proj", "norm2": "layernorm_after", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"
    }  # fmt: skip
    for layer in range(LAYERS):
        for kind in ("weight", "bias"):
            for ours, its in names.items():
                theirs[f"layers.{layer}.{its}.{kind}"] = state[f"blocks.{layer}.{ours}.{kind}"]
            parts = state[f"blocks.{layer}.attn.qkv.{kind}"].chunk(3)
            for part, tensor in zip("qkv", parts, strict=True):
                theirs[f"layers.{layer}.attention.{part}_proj.{kind}"] = tensor
    model = transformers.IJepaModel(config).eval()
    model.load_state_dict(theirs, strict=True)
    encoder = read(write(tmp_path / "jepa.pth.tar", published.ijepa(state, state))).encoder
    with torch.no_grad():
        torch.testing.assert_close(encoder(IMAGES), model(IMAGES).last_hidden_state, atol=1e-5, rtol=0)


CLASS = published.vit(3, True)
LEARNED = published.vit(4, True, learned=True)
OTHER = published.vit(5, True, learned=True)
FILES: dict[str, tuple[Any, str, State, tuple[str, str, str]]] = {
    "mae encoder": ({"model": CLASS}, "target_encoder", CLASS, ("mae", "only", "CC-BY-NC-4.0")),
    "mae full": ({"model": CLASS | published.mae_decoder(), "epoch": 1, "optimizer": {}}, "target_encoder", CLASS,
                 ("mae", "only", "CC-BY-NC-4.0")),
    "mae flat encoder": (CLASS, "target_encoder", CLASS, ("mae", "only", "CC-BY-NC-4.0")),
    "mae flat": (CLASS | published.mae_decoder(), "target_encoder", CLASS, ("mae", "only", "CC-BY-NC-4.0")),
    "dino teacher": (published.dino(LEARNED, OTHER), "target_encoder", LEARNED, ("dino", "target_encoder", "Apache-2.0")),
    "dino student": (published.dino(LEARNED, OTHER), "encoder", OTHER, ("dino", "encoder", "Apache-2.0")),
    "dino backbone, or anyone's": (LEARNED, "target_encoder", LEARNED, ("vit", "only", "unknown")),
    "supervised": (LEARNED | {"head.weight": torch.ones(10, WIDTH), "head.bias": torch.ones(10)}, "target_encoder", LEARNED,
                   ("vit", "only", "unknown")),
    "ibot state_dict": ({"state_dict": LEARNED | {"masked_embed": torch.ones(1, WIDTH)}}, "target_encoder", LEARNED,
                        ("ibot", "only", "Apache-2.0")),
    "ibot student": (published.dino(LEARNED, OTHER | {"masked_embed": torch.ones(1, WIDTH)}), "encoder", OTHER,
                     ("ibot", "encoder", "Apache-2.0")),
    "mocov3 momentum": (published.mocov3(LEARNED, OTHER), "target_encoder", LEARNED,
                        ("mocov3", "target_encoder", "CC-BY-NC-4.0")),
    "mocov3 base": (published.mocov3(None, OTHER), "encoder", OTHER, ("mocov3", "encoder", "CC-BY-NC-4.0")),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("zipped", [True, False])
def test_plain_vision_transformers(tmp_path: Path, name: str, zipped: bool) -> None:
    content, part, state, told = FILES[name]
    imported = read(write(tmp_path / "file.pth", content, _use_new_zipfile_serialization=zipped), part)
    is_vit(imported, state)
    report = imported.report
    assert (report.layout, report.part, report.licence) == told
    assert sorted(report.matched) == sorted(state)
    assert imported.encoder.config.positions == ("sincos" if state is CLASS else "learned")
    if report.part == "only":
        assert report.lines()[0] == f"read as {report.layout}, its only encoder"


def test_half_precision_becomes_single(tmp_path: Path) -> None:
    state = {name: tensor.half() for name, tensor in LEARNED.items()}
    imported = read(write(tmp_path / "file.pth", state))
    is_vit(imported, {name: tensor.float() for name, tensor in state.items()})
    assert {weight.dtype for weight in imported.encoder.parameters()} == {torch.float32}


def test_safetensors_of_a_backbone(tmp_path: Path) -> None:
    save_file(LEARNED, tmp_path / "backbone.safetensors")
    is_vit(read(tmp_path / "backbone.safetensors"), LEARNED)


def test_the_encoder_outlives_the_mapped_file(tmp_path: Path) -> None:
    path = write(tmp_path / "file.pth", LEARNED)
    imported = read(path)
    with path.open("r+b") as file:
        file.truncate(0)
    is_vit(imported, LEARNED)


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


@pytest.mark.parametrize("kind", ["plain", "timm"])
@torch.no_grad()
def test_files_of_this_project(tmp_path: Path, kind: str) -> None:
    encoder: Any
    if kind == "timm":
        encoder = untrained(timm_config("beit_base_patch16_224", TINY), 3).eval()
    else:
        encoder = Encoder(
            EncoderConfig(
                image_size=IMAGE, patch_size=PATCH, width=WIDTH, layers=LAYERS, heads=HEADS, class_token=True, positions="learned"
            )
        ).eval()  # fmt: skip
        initialise(encoder, 3, "fan_in")
    weights.save(tmp_path / "encoder.safetensors", encoder, {"seed": 3, "licence": "CC-BY-NC-4.0"})
    imported = read(tmp_path / "encoder.safetensors", image_size=99, heads=7)
    torch.testing.assert_close(imported.encoder.tokens(IMAGES), encoder.tokens(IMAGES), atol=0, rtol=0)
    assert imported.encoder.config == encoder.config and all(w.requires_grad for w in imported.encoder.parameters())
    assert (imported.report.layout, imported.report.part, imported.report.licence) == (
        "this project's",
        "only",
        "CC-BY-NC-4.0",
    )
    weights.save(tmp_path / "free.safetensors", encoder, {})
    assert read(tmp_path / "free.safetensors").report.licence == "none needed"


def test_other_files_of_this_project_are_refused(tmp_path: Path) -> None:
    predictor = Predictor(
        PredictorConfig(
            encoder_width=24, output_width=24, width=16, layers=1, heads=2, mask_token=True, bias_on_noise=False
        )
    )
    weights.save(tmp_path / "predictor.safetensors", predictor, {})
    with pytest.raises(ValueError, match="holds a predictor; an encoder is needed here"):
        read(tmp_path / "predictor.safetensors")
    for metadata in ("{}", "no json", '{"config": {"width": 24}, "about": {}}', '{"config": 3, "about": 4}'):
        for key in ("model", "export"):
            save_file(LEARNED, tmp_path / "broken.safetensors", metadata={key: metadata})
            with pytest.raises(ValueError, match="describes itself as an encoder of this project, but"):
                read(tmp_path / "broken.safetensors")


def test_mae_vit_b_has_the_published_150_tensors() -> None:
    """`mae_pretrain_vit_base.pth` against our encoder of that size, both without memory."""
    theirs = published.shapes(width=768, layers=12, patch=16, side=14, class_token=True)
    with torch.device("meta"):
        ours = Encoder(
            EncoderConfig(image_size=224, patch_size=16, width=768, layers=12, heads=12, class_token=True)
        ).state_dict()
    found = {{"class_token": "cls_token"}.get(name, name): tuple(tensor.shape) for name, tensor in ours.items()}
    assert len(theirs) == 150 and theirs["pos_embed"] == (1, 197, 768)
    assert found == {name: shape for name, shape in theirs.items() if name != "pos_embed"}
    assert sum(np.prod(shape) for shape in theirs.values()) == 85_798_656


# What is refused


def without(state: State, *names: str) -> State:
    return {name: tensor for name, tensor in state.items() if name not in names}


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (CLASS | {"blocks.0.ls1.gamma": torch.ones(WIDTH)}, {},
         "does not fit: 1 of its tensors are wrong. blocks.0.ls1.gamma is left over.*set pretrain.init.source to timm"),
        (without(CLASS, "norm.bias", "blocks.1.mlp.fc1.weight"), {},
         "2 of its tensors are wrong. blocks.1.mlp.fc1.weight is missing; norm.bias is missing"),
        (CLASS | {"blocks.0.mlp.fc1.weight": torch.ones(88, WIDTH)}, {}, r"blocks.0.mlp.fc1.weight is \[88, 24\], not \[96, 24\]"),
        (CLASS | {f"junk.{n}": torch.ones(1) for n in range(20)}, {}, "20 of its tensors are wrong.*; and 12 more"),
        (CLASS | {"norm.bias": torch.ones(WIDTH, dtype=torch.int8)}, {}, "norm.bias holds torch.int8 .* not plain floats"),
        (CLASS | {"norm.bias": torch.full((WIDTH,), torch.nan)}, {}, "has NaN or infinity in norm.bias; take a checkpoint from before"),
        (CLASS | {"pos_embed": torch.zeros(1, 13, WIDTH)}, {}, "positions for 12 patches, which are no square"),
        (CLASS | {"pos_embed": torch.zeros(16, WIDTH)}, {}, "positions for 0 patches"),
        (CLASS | {"patch_embed.proj.weight": torch.ones(WIDTH, 192)}, {}, r"projects patches by a tensor \[24, 192\]"),
        (CLASS, {"image_size": 64}, r"was trained at image_size 32 \(4×4 patches of 8 pixels\), you asked for 64; "
         "set pretrain.encoder.image_size to 32. Every image size can be evaluated"),
        (CLASS, {"patch_size": 16}, "has patches of 8×8 pixels, you asked for 16; set pretrain.encoder.patch_size to 8"),
        (CLASS, {"heads": 5}, "has width 24, which 5 heads cannot share evenly; set pretrain.encoder.heads"),
        (CLASS, {"part": "encoder"}, "holds a single encoder, .*; set pretrain.init.part to target_encoder"),
        (published.mocov3(None, OTHER), {}, "holds no 'momentum_encoder', .* set pretrain.init.part to encoder to take its 'base_encoder'"),
        ({"encoder": CLASS, "epoch": 3}, {}, "holds no 'target_encoder', which is the target_encoder in files of this layout "
         r"\(ijepa\); it holds encoder, epoch: set pretrain.init.part to encoder"),
        ({"teacher": CLASS}, {"part": "encoder"}, "holds no 'student', which is the encoder in files of this layout"),
        (published.beit(True), {"heads": 4}, "has 3 heads, you asked for 4; set pretrain.encoder.heads to 3"),
        (published.beit(True), {"image_size": 64}, "was trained at image_size 32"),
        (published.beit(False) | {"blocks.0.attn.relative_position_bias_table": torch.ones(51, HEADS)}, {}, "0 patches, which are no"),
        ({"conv1.weight": torch.ones(3, 3), "fc.weight": torch.ones(2)}, {},
         "no file of a Vision Transformer that is known here: it lacks patch_embed.proj.weight, pos_embed and holds conv1.weight"),
        ({"model": {}}, {}, "it lacks patch_embed.proj.weight"),
        ({}, {}, "it lacks patch_embed.proj.weight"),
        ([1, 2], {}, "holds a list, not weights by name; save a state dict"),
        (torch.ones(3), {}, "holds a Tensor, not weights by name"),
        ({3: torch.ones(3)}, {}, "holds a dict, not weights by name"),
        (published.ijepa(CLASS, CLASS), {"model": "vit_tiny_patch16_224"}, "has patches of 8×8 pixels, you asked for 16"),
        (CLASS, {"model": "swin_tiny_patch4_window7_224"}, "class SwinTransformer"),
        (CLASS, {"model": "no_such_model"}, "no entry point of timm"),
        ({"visual.class_embedding": torch.ones(3)}, {"model": "test_vit", "image_size": 160}, "does not fit|can read into"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(tmp_path: Path, content: Any, arguments: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "file.pth", content)
    with pytest.raises(ValueError, match=message) as refusal:
        read(path, **arguments)
    assert str(path) in str(refusal.value) or "model" in arguments


def test_tensors_larger_than_their_file_are_refused(tmp_path: Path) -> None:
    huge = {
        name: torch.zeros(1).expand(shape) for name, shape in published.shapes(12_000, 3, PATCH, SIDE, True).items()
    }
    with pytest.raises(ValueError, match="its tensors claim .* damaged or made to fill memory"):
        read(write(tmp_path / "huge.pth", huge))


def truncated(path: Path) -> Path:
    write(path, CLASS)
    path.write_bytes(path.read_bytes()[:-2000])
    return path


def scripted(path: Path) -> Path:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    return path


def bytes_of(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "none.pth", "is missing; an encoder's file of weights is needed"),
        (lambda folder: folder, "is a folder; an encoder's file"),
        (lambda folder: bytes_of(folder / "a.pth", b""), r"is empty \(0 bytes\); fetch it again"),
        (lambda folder: truncated(folder / "a.pth"), "no file of plain tensors that torch can read .* truncated, damaged"),
        (lambda folder: bytes_of(folder / "a.pth", b"<html>404 not found</html>"), "no file of plain tensors"),
        (lambda folder: bytes_of(folder / "a.pth", bytes(range(256)) * 9), "no file of plain tensors"),
        (lambda folder: bytes_of(folder / "a.pth", b"PK\x03\x04"), "no file of plain tensors"),
        (lambda folder: scripted(folder / "a.pt"), "a TorchScript archive"),
        (lambda folder: bytes_of(folder / "a.safetensors", b"no tensors"), "not a readable safetensors file .*; fetch it again"),
        (lambda folder: bytes_of(folder / "a.safetensors", b"\xff" * 64), "not a readable safetensors file"),
    ],
)  # fmt: skip
def test_unreadable_files_are_refused(tmp_path: Path, make: Any, message: str) -> None:
    path = make(tmp_path)
    with pytest.raises(ValueError, match=message) as refusal:
        read(path)
    assert str(path) in str(refusal.value)


class Attack:
    """Runs a command in whoever unpickles it."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_does_not_run(tmp_path: Path, zipped: bool) -> None:
    flag = tmp_path / "ran"
    for call, argument in ((os.system, f"touch {flag}"), (eval, f"open({str(flag)!r}, 'w')"), (Path.touch, flag)):
        path = write(
            tmp_path / "evil.pth", CLASS | {"x": Attack(call, argument)}, _use_new_zipfile_serialization=zipped
        )
        with pytest.raises(ValueError, match="holds a Python object beside its tensors, .*was not opened"):
            read(path)
        assert not flag.exists()
    path = write(
        tmp_path / "evil.pth", {"x": Attack(os.system, f"touch {flag}")}, _use_new_zipfile_serialization=zipped
    )
    with pytest.raises(ValueError, match="posix.system, .*probably an attack; do not open it") as refusal:
        read(path)
    assert "weights_only=False" not in str(refusal.value)


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"args": argparse.Namespace(lr=1)}, "argparse.Namespace"),
        ({"loss": np.float64(1)}, "numpy._core.multiarray.scalar"),
    ],
)
def test_a_trusted_file_is_cleaned_by_the_command_in_the_message(
    tmp_path: Path, extra: dict[str, Any], named: str
) -> None:
    folder = tmp_path / 'it\'s "odd"'
    folder.mkdir()
    path = write(folder / "checkpoint.pth", {"model": CLASS, "epoch": 3} | extra)
    with pytest.raises(
        ValueError, match=re.escape(f"{named}, and was not opened: making it may run code. If you trust")
    ) as refusal:
        read(path)
    program, option, code = shlex.split(str(refusal.value).splitlines()[-1])
    assert (program, option) == ("python", "-c")
    exec(code, {})
    is_vit(read(folder / "checkpoint.pth.clean.pth"), CLASS)


def test_a_bare_file_without_class_token_is_nobodys(tmp_path: Path) -> None:
    imported = read(write(tmp_path / "bare.pth", published.vit(1, False)))
    is_vit(imported, published.vit(1, False))
    assert (imported.report.layout, imported.report.licence) == ("vit", "unknown")  # I-JEPA's own files say so


def test_a_pickled_module_is_cleaned_by_the_command_of_its_message(tmp_path: Path) -> None:
    witness = timm.create_model("vit_base_patch16_224", num_classes=0, class_token=True, global_pool="token", **TINY)
    witness.load_state_dict(CLASS)
    path = write(tmp_path / "module.pth", witness)
    with pytest.raises(ValueError, match="was not opened: making it may run code") as refusal:
        read(path)
    exec(shlex.split(str(refusal.value).splitlines()[-1])[2], {})
    is_vit(read(tmp_path / "module.pth.clean.pth"), CLASS)


def test_other_architectures_are_told_field_by_field(tmp_path: Path) -> None:
    found = read(write(tmp_path / "file.pth", CLASS)).encoder.config
    expected = EncoderConfig(
        image_size=IMAGE, patch_size=PATCH, width=WIDTH, layers=LAYERS, heads=HEADS, class_token=True
    )
    check_architecture(found, expected)
    with pytest.raises(ValueError) as refusal:
        check_architecture(found, replace(expected, width=48, layers=4, class_token=False))
    assert str(refusal.value) == (
        "the encoder's file is of another architecture. "
        "width is 24 in the file and 48 in the params: set pretrain.encoder.width to 24; "
        "layers is 2 in the file and 4 in the params: set pretrain.encoder.layers to 2; "
        "class_token is True in the file and False in the params: set pretrain.encoder.class_token to true; or name another file"
    )
    beit = read(write(tmp_path / "beit.pth", published.beit(True))).encoder
    assert isinstance(beit, TimmEncoder)
    with pytest.raises(
        ValueError, match="heads is 3 in the file and 6 in the params: set pretrain.encoder.heads to 3; or"
    ):
        check_architecture(beit.config, replace(expected, heads=6))


def test_the_grid_of_tables_is_exact() -> None:
    assert SIDE == 4  # 7² + 3 rows
    assert [patches_of_table(rows) for rows in (52, 51, 732, 4, 3, 0)] == [16, 0, 196, 1, 0, 0]
