"""Which of a published file's tensors are the wanted encoder, told by the names in it.

| layout   | outer names                         | inner names                                | target_encoder / encoder        |
|----------|-------------------------------------|--------------------------------------------|---------------------------------|
| ijepa    | target_encoder, encoder, opt …      | module.*                                   | target_encoder / encoder        |
| dino     | teacher, student, args …            | module.backbone.*, head.*                  | teacher / student               |
| ibot     | teacher, student …; or state_dict   | backbone.*, masked_embed                   | teacher / student               |
| mocov3   | state_dict                          | module.{momentum,base}_encoder.*           | momentum_ / base_encoder        |
| vit      | any or none: I-JEPA's, DINO's, DeiT | cls_token or not, head.*                   | the only one                    |
| mae      | model; or none                      | cls_token, decoder_*, mask_token           | the only one                    |
| beit     | model, module; or none              | attn.q_bias, *position_bias_table, lm_head | the only one                    |
| data2vec | as beit                             | lm_head predicts features, not tokens      | the only one                    |

StoP's files have I-JEPA's names, so they cannot be told apart. All but BEiT and data2vec hold plain Vision Transformers.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from torch import Tensor

from components.mim.checkpoint_file import CheckpointFile
from components.mim.fitting import is_closed_form
from components.mim.normalisation import INCEPTION

Part = Literal["target_encoder", "encoder"]

LICENCES: Final = {
    "ijepa": "CC-BY-NC-4.0",
    "mae": "CC-BY-NC-4.0",
    "mocov3": "CC-BY-NC-4.0",
    "dino": "Apache-2.0",
    "ibot": "Apache-2.0",
    "beit": "MIT",
    "data2vec": "CC-BY-NC-4.0",  # as its README says of the project; only its code from BEiT is MIT
    "beit or data2vec": "unknown",  # without lm_head, as after fine-tuning
    "vit": "unknown",
}
"""Of the weights that the authors of each method published."""
NORMALISED: Final = {"beit": INCEPTION, "beit or data2vec": INCEPTION}
"""What their images are normalised with; all others have ImageNet's mean and deviation."""
BEIT_LIKE: Final = ("beit", "data2vec", "beit or data2vec")
"""Layouts with relative position biases; the others are plain Vision Transformers."""
_ASIDE: Final = {  # beginnings of names that a layout knows as no part of its encoder; anything else must fit
    "ijepa": (),
    "mae": ("decoder_", "mask_token", "head."),
    "mocov3": ("head.",),
    "dino": (),
    "ibot": ("masked_embed",),
    "vit": ("head.",),
    "beit": ("lm_head.", "mask_token", "head.", "rel_pos_bias.relative_position_index"),
}


class Weights(NamedTuple):
    """An encoder's tensors by their bare names, and the names that were left aside."""

    layout: str
    part: str
    """target_encoder, encoder, or `only` where the file has just one."""
    tensors: dict[str, Tensor]
    ignored: list[str]


def find(file: CheckpointFile, part: Part) -> Weights:
    """The encoder's weights under a published layout. Raises ValueError where the file has no such part."""
    found = section(file, part)
    layout = found.layout or _plain_layout(found.tensors, file)
    kept = {name: tensor for name, tensor in found.tensors.items() if not _aside(layout, name, found.tensors)}
    return Weights(layout, found.part, kept, [name for name in found.tensors if name not in kept] + found.ignored)


def section(file: CheckpointFile, part: Part) -> Weights:
    """The tensors of one part, prefixes stripped, none left aside; the layout is empty where the outer names don't tell."""
    tree = file.tree
    if _dicts(tree, "target_encoder", "encoder"):
        return _side(file, part, tree, ("target_encoder", "encoder"), "ijepa")
    if sides := _dicts(tree, "teacher", "student"):
        names = [str(name) for side in sides for name in tree[side]]
        layout = "ibot" if any("masked_embed" in name or "last_layer2" in name for name in names) else "dino"
        return _side(file, part, tree, ("teacher", "student"), layout)
    outer = next(iter(_dicts(tree, "model", "module", "state_dict")), None)
    inner = tree[outer] if outer else tree
    beside = [_shown(name, value) for name, value in tree.items() if name != outer] if outer else []
    bare = {str(name).removeprefix("module."): value for name, value in inner.items()}
    moco = ("momentum_encoder", "base_encoder")
    if held := {side: _under(bare, side) for side in moco if _under(bare, side)}:
        found = _side(file, part, held, moco, "mocov3")
        rest = [name for name in bare if not name.startswith(tuple(f"{side}." for side in held))]
        return found._replace(ignored=found.ignored + rest + beside)
    check_only(file, part)
    tensors, ignored = _bare(inner)
    return Weights("", "only", tensors, ignored + beside)


def check_only(file: CheckpointFile, part: Part) -> None:
    """Raises ValueError if the context encoder is asked of a file with a single encoder."""
    if part == "encoder":
        raise ValueError(
            f"{str(file.path)!r} holds a single encoder, so nothing tells a target from a context encoder; "
            "set pretrain.init.part to target_encoder, which takes a file's only one"
        )


def _side(file: CheckpointFile, part: Part, held: Mapping[str, Any], names: tuple[str, str], layout: str) -> Weights:
    """The part's side of a file with two; `names` are those of the target and the context encoder."""
    wanted, other = names if part == "target_encoder" else names[::-1]
    if not _dicts(held, wanted):
        instead = "encoder" if part == "target_encoder" else "target_encoder"
        raise ValueError(
            f"{str(file.path)!r} holds no {wanted!r}, which is the {part} in files of this layout ({layout}); "
            f"it holds {', '.join(held)}: set pretrain.init.part to {instead} to take its {other!r}"
        )
    tensors, ignored = _bare(held[wanted])
    return Weights(
        layout, part, tensors, ignored + [_shown(name, value) for name, value in held.items() if name != wanted]
    )


def _plain_layout(tensors: Mapping[str, Tensor], file: CheckpointFile) -> str:
    if any(name.endswith(("attn.q_bias", "relative_position_bias_table")) for name in tensors):
        predicted = tensors.get("lm_head.weight")
        if predicted is None:
            return "beit or data2vec"
        return "data2vec" if predicted.shape[0] == predicted.shape[-1] else "beit"
    if "masked_embed" in tensors or "state_dict" in file.tree:
        return "ibot"
    if "cls_token" not in tensors:
        return "vit"
    table = tensors.get("pos_embed")
    closed = table is not None and table.ndim == 3 and is_closed_form(table[0, 1:])
    return "mae" if closed or any(name.startswith(("decoder_", "mask_token")) for name in tensors) else "vit"


def _aside(layout: str, name: str, tensors: Mapping[str, Tensor]) -> bool:
    if layout not in BEIT_LIKE:
        return name.startswith(_ASIDE[layout])
    pooled = name.startswith("fc_norm.") and "norm.weight" in tensors
    return pooled or name.endswith("attn.relative_position_index") or name.startswith(_ASIDE["beit"])


def _bare(values: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors without the prefixes of wrappers, and the names of all else, such as a head beside the backbone."""
    names = {str(name).removeprefix("module."): value for name, value in values.items()}
    backbone = _under(names, "backbone")
    ignored = [name for name in names if not name.startswith("backbone.")] if backbone else []
    inner = backbone or names
    tensors = {name: value for name, value in inner.items() if isinstance(value, Tensor) and value.ndim}  # no counters
    return tensors, ignored + [_shown(name, value) for name, value in inner.items() if name not in tensors]


def _under(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(f"{prefix}."): value for name, value in values.items() if name.startswith(f"{prefix}.")}


def _dicts(tree: Mapping[str, Any], *names: str) -> list[str]:
    return [name for name in names if isinstance(tree.get(name), Mapping)]


def _shown(name: str, value: object) -> str:
    return f"{name}.*" if isinstance(value, Mapping) else name
