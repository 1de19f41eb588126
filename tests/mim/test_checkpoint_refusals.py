"""What is not read: other architectures, damaged files, and files that would run code."""

import argparse
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from components.mim import weights
from components.mim.checkpoints import check_architecture
from components.mim.encoder import EncoderConfig
from components.mim.fitting import patches_of_table
from components.mim.predictor import Predictor, PredictorConfig
from components.mim.timm_encoder import TimmEncoder

from . import published_files as published
from .published_files import HEADS, IMAGE, LAYERS, PATCH, SIDE, WIDTH, State
from .test_checkpoints import CLASS, LEARNED, OTHER, TINY, is_vit, read, write


def without(state: State, *names: str) -> State:
    return {name: tensor for name, tensor in state.items() if name not in names}


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
