"""What is exported gives the same tokens in timm and transformers, and reads back as it was."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import safe_open
from torch import Tensor

from components.mim import weights
from components.mim.checkpoints import read_encoder
from components.mim.encoder import Encoder, EncoderConfig
from components.mim.export import main, to_safetensors, to_timm, to_transformers
from components.mim.initialise import initialise
from components.mim.timm_encoder import timm_config, untrained

ABOUT = {"licence": "CC-BY-NC-4.0", "fingerprint": "f00d", "seed": 1}
SIZES = [(32, 32), (48, 24), (24, 56)]
KINDS = [(False, "sincos"), (True, "sincos"), (True, "learned"), (False, "learned")]
kinds = pytest.mark.parametrize(("class_token", "positions"), KINDS)


def made(class_token: bool = False, positions: Any = "sincos") -> Encoder:
    config = EncoderConfig(
        image_size=32, patch_size=8, width=24, layers=2, heads=3, class_token=class_token, positions=positions
    )
    encoder = Encoder(config).eval()
    initialise(encoder, 3, "fan_in")
    return loud(encoder)  # type: ignore[no-any-return]


@torch.no_grad()
def loud(encoder: Any) -> Any:
    """Every weight of another value, so that none can stand in for another."""
    generator = torch.Generator().manual_seed(4)
    for parameter in encoder.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return encoder


def images(height: int, width: int) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(2))


@kinds
@pytest.mark.parametrize(("height", "width"), SIZES)
@torch.no_grad()
def test_timm_gives_the_same_tokens(tmp_path: Path, class_token: bool, positions: str, height: int, width: int) -> None:
    encoder, pixels = made(class_token, positions), images(height, width)
    to_timm(encoder, tmp_path / "model", height, width, ABOUT)
    assert (tmp_path / "model/model.safetensors").stat().st_mode & 0o777 == 0o644
    model = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
    torch.testing.assert_close(model.forward_features(pixels), encoder.tokens(pixels), atol=1e-5, rtol=0)
    torch.testing.assert_close(model(pixels), encoder(pixels).mean(1), atol=1e-5, rtol=0)
    assert model.pretrained_cfg["license"] == "CC-BY-NC-4.0" and model.pretrained_cfg["input_size"] == (
        3,
        height,
        width,
    )
    assert json.loads((tmp_path / "model" / "config.json").read_text())["about"] == ABOUT


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("vit_small_patch14_reg4_dinov2", {}),
        ("vit_base_patch16_224", {"fc_norm": True}),
        ("beit_base_patch16_224", {}),
        ("beitv2_base_patch16_224", {"use_shared_rel_pos_bias": True, "use_abs_pos_emb": True}),
    ],
)
@pytest.mark.parametrize(("height", "width"), SIZES)
@torch.no_grad()
def test_encoders_of_timm_go_back_to_timm(
    tmp_path: Path, name: str, more: dict[str, Any], height: int, width: int
) -> None:
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3} | more
    encoder, pixels = loud(untrained(timm_config(name, arguments), 1).eval()), images(height, width)
    to_timm(encoder, tmp_path / "model", height, width)
    model = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
    torch.testing.assert_close(model.forward_features(pixels), encoder.tokens(pixels), atol=1e-5, rtol=0)
    torch.testing.assert_close(model(pixels), encoder(pixels).mean(1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("positions", ["sincos", "learned"])
@pytest.mark.parametrize(("height", "width"), SIZES)
@torch.no_grad()
def test_transformers_gives_the_same_tokens(tmp_path: Path, positions: str, height: int, width: int) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    encoder, pixels = made(False, positions), images(height, width)
    to_transformers(encoder, tmp_path / "model", height, width, ABOUT)
    model, loading = transformers.IJepaModel.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")), (
        loading
    )
    torch.testing.assert_close(model.eval()(pixels).last_hidden_state, encoder(pixels), atol=1e-5, rtol=0)
    assert model.config.about == ABOUT


def test_transformers_keys_are_those_of_the_published_files(tmp_path: Path) -> None:
    """As in facebook/ijepa_vith14_1k, which transformers 4.47 and later read."""
    to_transformers(made(), tmp_path / "model", 32, 32)
    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as file:
        names, metadata = set(file.keys()), file.metadata()
    layer = [
        "attention.attention.query", "attention.attention.key", "attention.attention.value", "attention.output.dense",
        "intermediate.dense", "output.dense", "layernorm_before", "layernorm_after",
    ]  # fmt: skip
    modules = ["embeddings.patch_embeddings.projection", "layernorm"]
    modules += [f"encoder.layer.{i}.{module}" for i in range(2) for module in layer]
    expected = {f"{module}.{kind}" for module in modules for kind in ("weight", "bias")}
    assert names == expected | {"embeddings.position_embeddings"}
    assert metadata == {"format": "pt"}


@kinds
@torch.no_grad()
def test_safetensors_read_back_as_they_were(tmp_path: Path, class_token: bool, positions: str) -> None:
    encoder = made(class_token, positions)
    to_safetensors(encoder, tmp_path / "new" / "encoder.safetensors", ABOUT)
    imported = read_encoder(tmp_path / "new" / "encoder.safetensors", "target_encoder", 999, 999, 999)
    assert imported.encoder.config == encoder.config
    ours, theirs = encoder.state_dict(), imported.encoder.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert imported.report.licence == "CC-BY-NC-4.0" and imported.report.layout == "this project's, published names"
    with safe_open(tmp_path / "new" / "encoder.safetensors", "pt") as file:
        names, metadata = set(file.keys()), file.metadata()
    assert {"pos_embed", "patch_embed.proj.weight", "blocks.1.attn.qkv.bias", "norm.bias"} <= names
    assert ("cls_token" in names) == class_token
    assert json.loads(metadata["export"]) == {"config": encoder.config.as_dict(), "about": ABOUT}
    witness = timm.create_model(
        "vit_base_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=0,
        class_token=class_token, global_pool="", checkpoint_path=tmp_path / "new" / "encoder.safetensors",
    ).eval()  # fmt: skip
    pixels = images(32, 32)
    torch.testing.assert_close(witness.forward_features(pixels), encoder.tokens(pixels), atol=1e-5, rtol=0)


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    beit = untrained(
        timm_config(
            "beit_base_patch16_224", {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 3}
        ),
        1,
    )
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    cases: list[tuple[Any, str]] = [
        (
            lambda: to_transformers(made(class_token=True), tmp_path / "a", 32, 32),
            "has a class token.*export it to timm",
        ),
        (lambda: to_transformers(beit, tmp_path / "a", 32, 32), "is a TimmEncoder.*export it to timm"),
        (
            lambda: to_safetensors(beit, tmp_path / "a"),
            "a TimmEncoder has no published names but timm's; export it to timm",
        ),
        (
            lambda: to_timm(made(), tmp_path / "a", 30, 32),
            "30×32 pixels; both sides must be multiples of the patch size 8",
        ),
        (lambda: to_timm(made(), tmp_path / "a", 0, 32), "0×32 pixels; both sides must be positive"),
        (lambda: to_timm(made(), tmp_path / "full", 32, 32), "holds something and is left as it is; name a new folder"),
        (
            lambda: to_safetensors(made(), tmp_path / "full" / "notes.txt"),
            "exists and is left as it is; name a new file",
        ),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize("to", ["timm", "transformers", "safetensors"])
@torch.no_grad()
def test_the_printed_lines_load_what_the_command_wrote(
    tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if to == "transformers":
        pytest.importorskip("transformers", reason="transformers is not installed")
    encoder = made()
    weights.save(tmp_path / "encoder.safetensors", encoder, ABOUT)
    out, size = str(tmp_path / "it's"), [] if to == "safetensors" else ["--height", "48"]
    assert main([str(tmp_path / "encoder.safetensors"), "--to", to, "--out", out, *size]) == 0
    lines = capsys.readouterr().out
    pixels = images(48, 32)
    scope: dict[str, Any] = {"images": pixels}
    exec(lines, scope)
    assert len(lines.splitlines()) == 3
    if to == "safetensors":
        assert torch.equal(scope["weights"]["norm.weight"], encoder.norm.weight)
    else:
        torch.testing.assert_close(scope["tokens"], encoder(pixels), atol=1e-5, rtol=0)


def test_bad_input_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights.save(tmp_path / "encoder.safetensors", made(class_token=True), {})
    encoder, out = str(tmp_path / "encoder.safetensors"), str(tmp_path / "out")
    for arguments, message in [
        ([encoder, "--to", "timm", "--out", out, "--height", "33"], "33×32 pixels; both sides must be multiples"),
        ([encoder, "--to", "transformers", "--out", out], "has a class token"),
        ([encoder, "--to", "safetensors", "--out", out, "--width", "64"], "--height and --width don't go with"),
        ([out, "--to", "timm", "--out", out], "is not a readable safetensors file"),
        ([encoder, "--to", "timm", "--out", f"{encoder}/sub"], "Not a directory|File exists"),
    ]:
        assert main(arguments) == 2
        told = capsys.readouterr()
        assert told.out == "" and told.err.startswith("error: ") and told.err.count("\n") == 1
        assert any(part in told.err for part in message.split("|"))
    assert not Path(out).exists()


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "components.mim.export", str(tmp_path / "none"), "--to", "timm", "--out", "x"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and ended.stderr.startswith("error: ") and ended.stdout == ""
