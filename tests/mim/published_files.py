"""Files as the authors of published methods write them: their key names and shapes, with random numbers and tiny sizes."""

from typing import Any

import torch
from torch import Tensor

from components.mim.positions import sincos

WIDTH, LAYERS, HEADS, PATCH, SIDE = 24, 2, 3, 8, 4
IMAGE = PATCH * SIDE
LAYER = {  # timm's names of a layer in multiples of the width
    "norm1.weight": (1,),
    "norm1.bias": (1,),
    "attn.qkv.weight": (3, 1),
    "attn.qkv.bias": (3,),
    "attn.proj.weight": (1, 1),
    "attn.proj.bias": (1,),
    "norm2.weight": (1,),
    "norm2.bias": (1,),
    "mlp.fc1.weight": (4, 1),
    "mlp.fc1.bias": (4,),
    "mlp.fc2.weight": (1, 4),
    "mlp.fc2.bias": (1,),
}
State = dict[str, Tensor]


def shapes(width: int, layers: int, patch: int, side: int, class_token: bool) -> dict[str, tuple[int, ...]]:
    """A plain Vision Transformer, in the order of MAE's files."""
    found: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, width)} if class_token else {}
    found["pos_embed"] = (1, side * side + int(class_token), width)
    found["patch_embed.proj.weight"] = (width, 3, patch, patch)
    found["patch_embed.proj.bias"] = (width,)
    for layer in range(layers):
        found |= {f"blocks.{layer}.{name}": tuple(width * n for n in times) for name, times in LAYER.items()}
    return found | {"norm.weight": (width,), "norm.bias": (width,)}


def random(shapes: dict[str, tuple[int, ...]], seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def vit(seed: int, class_token: bool, learned: bool = False) -> State:
    """A plain ViT. Its positions are the table of MAE and I-JEPA, zero for the class token, unless learned."""
    state = random(shapes(WIDTH, LAYERS, PATCH, SIDE, class_token), seed)
    if not learned:
        table = sincos(SIDE, SIDE, WIDTH)[None]
        state["pos_embed"] = torch.cat([torch.zeros(1, int(class_token), WIDTH), table], dim=1)
    return state


def prefixed(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


def ijepa(target: State, context: State) -> dict[str, Any]:
    """`jepa-latest.pth.tar`; StoP's have the same names."""
    predictor = random({"module.mask_token": (1, 1, 12), "module.predictor_embed.weight": (12, WIDTH)}, 9)
    return {
        "encoder": prefixed("module.", context),
        "predictor": predictor,
        "target_encoder": prefixed("module.", target),
        "opt": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-3}]},
        "scaler": None,
        "epoch": 300,
        "loss": 0.1,
        "batch_size": 128,
        "world_size": 16,
        "lr": 1e-3,
    }


def mae_decoder() -> State:
    """What MAE's full files hold besides."""
    decoder = {
        "mask_token": (1, 1, 12),
        "decoder_pos_embed": (1, 17, 12),
        "decoder_embed.weight": (12, WIDTH),
        "decoder_embed.bias": (12,),
        "decoder_blocks.0.norm1.weight": (12,),
        "decoder_norm.weight": (12,),
        "decoder_pred.weight": (192, 12),
        "decoder_pred.bias": (192,),
    }
    return random(decoder, 8)


def dino_head() -> State:
    return random(
        {"head.mlp.0.weight": (32, WIDTH), "head.last_layer.weight_g": (64, 1), "head.last_layer.weight_v": (64, 8)}, 7
    )


def dino(teacher: State, student: State) -> dict[str, Any]:
    """A full checkpoint of DINO; the student is wrapped for distribution."""
    return {
        "student": prefixed("module.", prefixed("backbone.", student) | dino_head()),
        "teacher": prefixed("backbone.", teacher) | dino_head(),
        "optimizer": {"state": {}, "param_groups": []},
        "epoch": 100,
        "dino_loss": {"center": torch.zeros(1, 64)},
    }


def mocov3(momentum: State | None, base: State) -> dict[str, Any]:
    """`vit-b-300ep.pth.tar`."""
    projector = random({"head.0.weight": (32, WIDTH), "head.1.running_mean": (32,)}, 6)
    projector["head.1.num_batches_tracked"] = torch.tensor(5)
    state = prefixed("module.base_encoder.", base | projector)
    if momentum is not None:
        state |= prefixed("module.momentum_encoder.", momentum | projector)
    state |= prefixed("module.predictor.", random({"0.weight": (32, 32)}, 5))
    return {"epoch": 300, "arch": "vit_base", "state_dict": state, "optimizer": {"state": {}, "param_groups": []}}


def beit(shared: bool, predicts: int = 40) -> State:
    """`beit_base_patch16_224_pt22k.pth`; data2vec's predicts WIDTH features. Not shared, as after fine-tuning to pt22k_ft22k."""
    rows, window = (2 * SIDE - 1) ** 2 + 3, SIDE * SIDE + 1
    found: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, WIDTH)}
    if shared:
        found["mask_token"] = (1, 1, WIDTH)
    found |= {"patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH), "patch_embed.proj.bias": (WIDTH,)}
    if shared:
        found["rel_pos_bias.relative_position_bias_table"] = (rows, HEADS)
    for layer in range(LAYERS):
        block = {name: tuple(WIDTH * n for n in times) for name, times in LAYER.items() if name != "attn.qkv.bias"}
        block |= {name: (WIDTH,) for name in ("gamma_1", "gamma_2", "attn.q_bias", "attn.v_bias")}
        if not shared:
            block["attn.relative_position_bias_table"] = (rows, HEADS)
        found |= {f"blocks.{layer}.{name}": shape for name, shape in block.items()}
    norm, head = ("norm", "lm_head") if shared else ("fc_norm", "head")
    found |= {f"{norm}.weight": (WIDTH,), f"{norm}.bias": (WIDTH,)}
    found |= {f"{head}.weight": (predicts, WIDTH), f"{head}.bias": (predicts,)}
    state = random(found, 4)
    index = torch.zeros(window, window, dtype=torch.int64)
    where = ["rel_pos_bias"] if shared else [f"blocks.{layer}.attn" for layer in range(LAYERS)]
    return state | {f"{name}.relative_position_index": index for name in where}
