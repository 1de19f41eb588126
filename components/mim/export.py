"""Writes an encoder for other programs: timm, transformers (I-JEPA), or plain safetensors under published names."""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import torch
from safetensors.torch import save_file
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from components.mim import weights
from components.mim.checkpoints import EXPORT
from components.mim.encoder import Encoder, VisionEncoder
from components.mim.published_names import as_timm, in_transformers, of_timm, published, table
from components.mim.timm_encoder import TimmEncoder

About = Mapping[str, Any]
_LOADING: Final = {
    "timm": """import timm
model = timm.create_model("local-dir:" + {out}, pretrained=True).eval()
tokens = model.forward_features(images)[:, model.num_prefix_tokens :]  # [B, N, D]""",
    "transformers": """from transformers import IJepaModel
model = IJepaModel.from_pretrained({out}).eval()
tokens = model(images).last_hidden_state  # [B, N, D]""",
    "safetensors": """from safetensors.torch import load_file
weights = load_file({out})
print(*((name, tuple(tensor.shape)) for name, tensor in weights.items()), sep="\\n")""",
}
"""Three lines of Python that read what was written."""


def to_timm(encoder: VisionEncoder, folder: Path, height: int, width: int, about: About | None = None) -> None:
    """Writes a new folder for `timm.create_model("local-dir:FOLDER", pretrained=True)` on images of that size.

    Its `forward_features` gives our tokens [B, C+N, D], final norm included; called, it gives the mean patch token. Raises
    ValueError if the patch size does not divide the size, or the folder holds something.
    """
    grid = _grid(encoder, height, width)
    if isinstance(encoder, TimmEncoder):
        architecture, arguments, tensors = of_timm(encoder, height, width)
    elif isinstance(encoder, Encoder):
        architecture, arguments, tensors = as_timm(encoder, grid)
    else:
        raise ValueError(f"a {type(encoder).__name__} cannot be written for timm; export an Encoder or a TimmEncoder")
    arguments |= {"img_size": [height, width], "global_pool": "avg"}
    config = {
        "architecture": architecture,
        "num_classes": 0,
        "num_features": encoder.config.width,
        "global_pool": "avg",
        "model_args": arguments,
        "pretrained_cfg": {
            "custom_load": False,
            "input_size": [3, height, width],
            "fixed_input_size": True,
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "mean": IMAGENET_DEFAULT_MEAN,
            "std": IMAGENET_DEFAULT_STD,
            "num_classes": 0,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            "license": (about or {}).get("licence"),
        },
        "about": dict(about or {}),
    }
    _write(folder, config, tensors)


def to_transformers(encoder: VisionEncoder, folder: Path, height: int, width: int, about: About | None = None) -> None:
    """Writes a new folder for `transformers.IJepaModel.from_pretrained(FOLDER)` on images of that size.

    Its `last_hidden_state` is our output [B, N, D]. The keys are those of the published I-JEPA files (encoder.layer.i.attention.
    attention.query …): transformers 4.47, the first with I-JEPA, has them as its own names, and 5.x renames them on loading
    (`conversion_mapping`, entry ViTModel), so that none is missing or left over in either. Raises ValueError for an encoder with
    a class token, which I-JEPA's model lacks, for timm's, or if the patch size does not divide the size.
    """
    if not isinstance(encoder, Encoder) or encoder.config.class_token:
        kind = "has a class token" if isinstance(encoder, Encoder) else f"is a {type(encoder).__name__}"
        raise ValueError(f"the encoder {kind}, which transformers' IJepaModel cannot hold; export it to timm")
    shape, (h, w) = encoder.config, _grid(encoder, height, width)
    config = {
        "architectures": ["IJepaModel"],
        "model_type": "ijepa",
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": 4 * shape.width,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": 1e-6,
        "image_size": [height, width],
        "patch_size": shape.patch_size,
        "num_channels": 3,
        "qkv_bias": True,
        "about": dict(about or {}),
    }
    tensors = {"embeddings.position_embeddings": table(encoder, h, w)}
    for name, tensor in encoder.state_dict().items():
        if name != "positions":
            tensors |= in_transformers(name, tensor)
    _write(folder, config, tensors)


def to_safetensors(encoder: VisionEncoder, path: Path, about: About | None = None) -> None:
    """Writes a new file of tensors under I-JEPA's names, positions as a table for the image size of pretraining.

    `read_encoder` reads it back; metadata `export` is JSON of `config` and `about`. Raises ValueError for timm's encoders.
    """
    if not isinstance(encoder, Encoder):
        raise ValueError(f"a {type(encoder).__name__} has no published names but timm's; export it to timm")
    if path.exists():
        raise ValueError(f"{str(path)!r} exists and is left as it is; name a new file")
    side = encoder.config.image_size // encoder.config.patch_size
    positions = table(encoder, side, side)
    if encoder.prefix:  # the published files have a row for the class token, too
        positions = torch.cat([torch.zeros_like(positions[:, :1]), positions], dim=1)
    metadata = {EXPORT: json.dumps({"config": encoder.config.as_dict(), "about": dict(about or {})}, sort_keys=True)}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(_plain(published(encoder) | {"pos_embed": positions}), partial, metadata=metadata)
    partial.chmod(0o644)
    os.replace(partial, path)


def _grid(encoder: VisionEncoder, height: int, width: int) -> tuple[int, int]:
    if min(height, width) < 1:
        raise ValueError(f"image is {height}×{width} pixels; both sides must be positive")
    return encoder.grid(height, width)


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Both files or neither; metadata says PyTorch, without which transformers refuses a file."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{str(folder)!r} holds something and is left as it is; name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        (partial / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        save_file(_plain(tensors), partial / "model.safetensors", metadata={"format": "pt"})
        # Temporary folders and safetensors' files are for their owner only.
        partial.chmod(0o755)
        (partial / "model.safetensors").chmod(0o644)
        os.replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 with one message for bad input, in which case nothing is written."""
    parser = argparse.ArgumentParser(prog="python -m components.mim.export", description=__doc__)
    parser.add_argument("encoder", type=Path, help="an encoder.safetensors of the pretrain stage")
    parser.add_argument("--to", choices=tuple(_LOADING), required=True, help="who shall read it")
    parser.add_argument("--out", type=Path, required=True, help="new folder, for safetensors a new file")
    parser.add_argument("--height", type=int, help="pixels of the images to come; as in pretraining if not given")
    parser.add_argument("--width", type=int, help="the same for their width")
    options = parser.parse_args(argv)
    try:
        _export(options)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(_LOADING[options.to].format(out=repr(str(options.out))))
    return 0


def _export(options: argparse.Namespace) -> None:
    about = weights.read_about(options.encoder)[1]
    encoder = weights.load_encoder(options.encoder)
    if options.to == "safetensors":
        if options.height or options.width:
            raise ValueError(
                "--height and --width don't go with --to safetensors, whose positions are those of pretraining"
            )
        to_safetensors(encoder, options.out, about)
    else:
        size = encoder.config.image_size
        write = to_timm if options.to == "timm" else to_transformers
        write(encoder, options.out, options.height or size, options.width or size, about)


if __name__ == "__main__":
    sys.exit(main())
