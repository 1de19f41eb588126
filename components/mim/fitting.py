"""Whether the tensors of a file fit the encoder that they are for. All messages name the file and the way out."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from components.mim.checkpoint_file import CheckpointFile
from components.mim.positions import sincos

_SHOWN = 8
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_OTHER = (
    "another architecture of Vision Transformer can be read as a model of timm: set pretrain.init.source to timm and "
    "pretrain.init.model to its name there"
)


class Wanted(NamedTuple):
    """What the caller says of the file: pixels per side of an image and of a patch, and heads, which no shape tells."""

    image_size: int
    patch_size: int
    heads: int


def width_and_layers(
    file: CheckpointFile, tensors: Mapping[str, Tensor], wanted: Wanted, needed: Iterable[str]
) -> tuple[int, int]:
    """D and the number of layers. Raises ValueError without the tensors `needed`, for another patch size or odd heads."""
    lacking = [name for name in needed if name not in tensors]
    if lacking:
        raise ValueError(
            f"{str(file.path)!r} is no file of a Vision Transformer that is known here: it lacks {', '.join(lacking)} and holds "
            f"{_some(list(tensors))}; {_OTHER}"
        )
    projection = tensors["patch_embed.proj.weight"]
    check_patch_size(file, projection, wanted.patch_size)
    width = len(projection)
    if width % wanted.heads:
        raise ValueError(
            f"{str(file.path)!r} has width {width}, which {wanted.heads} heads cannot share evenly; "
            "set pretrain.encoder.heads to the number it was trained with"
        )
    return width, len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})


def check_patch_size(file: CheckpointFile, projection: Tensor, patch_size: int) -> None:
    """Raises ValueError unless the projection [D, 3, patch, patch] is for `patch_size`."""
    if projection.ndim != 4:
        raise ValueError(
            f"{str(file.path)!r} projects patches by a tensor {list(projection.shape)}; it must be a convolution "
            f"[width, 3, {patch_size}, {patch_size}]; {_OTHER}"
        )
    sides = tuple(projection.shape[2:])
    if sides != (patch_size, patch_size):
        raise ValueError(
            f"{str(file.path)!r} has patches of {sides[0]}×{sides[1]} pixels, you asked for {patch_size}; "
            f"set pretrain.encoder.patch_size to {sides[0]}"
        )


def grid_side(file: CheckpointFile, patches: int, wanted: Wanted) -> int:
    """Patches per side of a file with positions for so many. Raises ValueError unless the file is for that image size."""
    side = math.isqrt(max(patches, 0))
    if side == 0 or side * side != patches:
        raise ValueError(
            f"{str(file.path)!r} has positions for {patches} patches, which are no square; only encoders that were trained on "
            "square images can be read"
        )
    trained = side * wanted.patch_size
    if trained != wanted.image_size:
        raise ValueError(
            f"{str(file.path)!r} was trained at image_size {trained} ({side}×{side} patches of {wanted.patch_size} pixels), "
            f"you asked for {wanted.image_size}; set pretrain.encoder.image_size to {trained}. Every image size can be evaluated"
        )
    return side


def patches_of_table(rows: int) -> int:
    """The square grid whose table of relative positions has (2·side - 1)² + 3 rows; 0 where none has."""
    span = math.isqrt(max(rows - 3, 0))
    return ((span + 1) // 2) ** 2 if span * span == rows - 3 and span % 2 else 0


def is_closed_form(table_ND: Tensor) -> bool:
    """Whether positions are the 2-D sin-cos table of MAE and I-JEPA for a square grid, to 1e-4."""
    patches, width = table_ND.shape
    side = math.isqrt(patches)
    if width % 4 or side * side != patches:
        return False
    return torch.allclose(table_ND.float(), sincos(side, side, width), rtol=0, atol=1e-4)


def check(file: CheckpointFile, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raises one ValueError for all tensors that are missing, left over, of another shape, or no finite numbers."""
    faults = [f"{name} is missing" for name in expected if name not in found]
    faults += [f"{name} is left over" for name in found if name not in expected]
    for name in found.keys() & expected.keys():
        tensor, shape = found[name], list(expected[name].shape)
        if list(tensor.shape) != shape:
            faults.append(f"{name} is {list(tensor.shape)}, not {shape}")
        elif tensor.dtype not in _FLOATS or tensor.layout is not torch.strided or tensor.is_meta:
            faults.append(f"{name} holds {tensor.dtype} ({tensor.layout} on {tensor.device}), not plain floats")
    if faults:
        raise ValueError(
            f"{str(file.path)!r} does not fit: {len(faults)} of its tensors are wrong. {_some(sorted(faults), '; ')}. "
            f"Each must fit, for a half-read encoder is a wrong one; {_OTHER}"
        )
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in found.values())
    if claimed > file.size:
        raise ValueError(
            f"{str(file.path)!r} has {file.size} bytes, but its tensors claim {claimed}: it is damaged or made to fill memory; "
            "fetch it again"
        )
    broken = [name for name, tensor in found.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise ValueError(
            f"{str(file.path)!r} has NaN or infinity in {_some(broken)}; take a checkpoint from before it diverged"
        )


def _some(names: list[str], separator: str = ", ") -> str:
    more = len(names) - _SHOWN
    return separator.join(names[:_SHOWN]) + (f"{separator}and {more} more" if more > 0 else "")
