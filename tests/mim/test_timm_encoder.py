"""Encoders of timm against timm's own forward pass: any grid, any visible patches."""

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from components.mim.timm_encoder import TimmConfig, TimmEncoder, licence, timm_config, untrained

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
SHARED = {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True, "use_abs_pos_emb": True}
MODELS = [
    ("vit_base_patch16_224", {}),
    ("vit_base_patch16_224", {"qk_norm": True, "init_values": 0.1, "fc_norm": True}),
    ("vit_small_patch14_reg4_dinov2", {}),  # registers, positions for patches only, layer scale
    ("vit_base_patch16_clip_224", {}),  # a norm before the layers
    ("vit_base_patch16_siglip_224", {}),  # no class token
    ("beit_base_patch16_224", {}),
    ("beit_base_patch16_224", {"init_values": 0.0, "qkv_bias": False}),
    ("beit_base_patch16_224", SHARED),
    ("beitv2_base_patch16_224", {"use_shared_rel_pos_bias": True}),  # both kinds of bias
]
model = pytest.mark.parametrize(("name", "more"), MODELS, ids=[f"{name}-{len(more)}" for name, more in MODELS])


def made(name: str, more: dict[str, Any]) -> TimmEncoder:
    """A tiny encoder with loud weights, so that every one of them shows."""
    encoder = untrained(timm_config(name, TINY | more), 1).eval()
    generator = torch.Generator().manual_seed(2)
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return encoder


def witness(encoder: TimmEncoder, height: int = 32, width: int = 32) -> Any:
    """timm's model with the same weights, its tables resized by timm."""
    theirs = timm.create_model(encoder.config.model, num_classes=0, global_pool="", **encoder.config.arguments).eval()
    theirs.load_state_dict(encoder.model.state_dict())
    theirs.set_input_size((height, width))
    return theirs


def images(height: int = 32, width: int = 32) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(3))


@model
@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 24), (32, 56)])
@torch.no_grad()
def test_all_patches_give_what_timm_gives(name: str, more: dict[str, Any], height: int, width: int) -> None:
    encoder, pixels = made(name, more), images(height, width)
    theirs = witness(encoder, height, width)
    expected = theirs.fc_norm(theirs.forward_features(pixels))
    torch.testing.assert_close(encoder.tokens(pixels), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder(pixels), expected[:, theirs.num_prefix_tokens :], atol=1e-5, rtol=0)
    states = theirs.forward_intermediates(pixels, 2, norm=True, output_fmt="NLC", intermediates_only=True)
    for ours, state in zip(encoder.layer_tokens(pixels, 2), states, strict=True):
        torch.testing.assert_close(ours, theirs.fc_norm(state), atol=1e-5, rtol=0)


@model
@torch.no_grad()
def test_visible_patches_attend_to_each_other_only(name: str, more: dict[str, Any]) -> None:
    """The witness is timm's model on all patches, whose attention to the hidden ones is cut by a mask."""
    encoder, pixels = made(name, more), images(48, 24)
    indices_BK = torch.tensor([[16, 0, 5, 7], [1, 2, 17, 9]])
    ours = encoder.tokens(pixels, indices_BK)
    theirs, prefix = witness(encoder, 48, 24), encoder.prefix
    for b, visible in enumerate(indices_BK):
        hidden = torch.full((1, 1, 1, prefix + 18), -torch.inf)
        hidden[..., :prefix] = 0
        hidden[..., visible + prefix] = 0
        expected = theirs.fc_norm(_masked(theirs, pixels[b : b + 1], hidden))[0]
        kept = torch.cat([torch.arange(prefix), visible + prefix])
        torch.testing.assert_close(ours[b], expected[kept], atol=1e-5, rtol=0)


def _masked(theirs: Any, pixels: Tensor, mask_11Nn: Tensor) -> Tensor:
    if not hasattr(theirs, "rel_pos_bias"):
        square = mask_11Nn.expand(-1, -1, mask_11Nn.shape[-1], -1)
        return theirs.forward_features(pixels, attn_mask=square)  # type: ignore[no-any-return]
    with pytest.MonkeyPatch.context() as patch:
        if theirs.rel_pos_bias is not None:
            shared = theirs.rel_pos_bias()
            patch.setattr(theirs.rel_pos_bias, "forward", lambda: shared + mask_11Nn)
        else:
            for block in theirs.blocks:
                own = block.attn._get_rel_pos_bias()
                patch.setattr(block.attn, "_get_rel_pos_bias", lambda own=own: own + mask_11Nn)
        return theirs.forward_features(pixels)  # type: ignore[no-any-return]


@model
@torch.no_grad()
def test_the_order_of_visible_patches_does_not_matter(name: str, more: dict[str, Any]) -> None:
    encoder, pixels = made(name, more), images()
    order = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(seed)) for seed in (4, 5)])
    whole = encoder(pixels)
    torch.testing.assert_close(
        encoder(pixels, order), torch.stack([whole[b, order[b]] for b in (0, 1)]), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("name", ["vit_base_patch16_224", "beit_base_patch16_224", "beitv2_base_patch16_224"])
def test_gradients_reach_every_weight_and_checkpointing_changes_none(name: str) -> None:
    grads = []
    for checkpointing in (False, True):
        encoder = made(name, {"use_shared_rel_pos_bias": True} if "beitv2" in name else {})
        encoder.checkpointing = checkpointing
        encoder(images(48, 24), torch.tensor([[0, 3, 9], [1, 3, 4]])).square().sum().backward()
        grads.append({key: parameter.grad for key, parameter in encoder.named_parameters()})
    assert all(grad is not None and grad.abs().sum() > 0 for grad in grads[0].values())
    torch.testing.assert_close(grads[1], grads[0])


@torch.no_grad()
def test_biases_follow_the_precision_of_autocast() -> None:
    encoder, pixels = made("beit_base_patch16_224", {}), images()
    exact = encoder(pixels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = encoder(pixels, torch.arange(16).expand(2, -1))
    assert 0 < (rough - exact).abs().max() < 0.1


@pytest.mark.parametrize("name", ["vit_base_patch16_224", "beit_base_patch16_224"])
def test_first_weights_are_those_of_timm_and_come_from_the_seed_alone(name: str) -> None:
    config = timm_config(name, TINY)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first, again, other = (untrained(config, seed).state_dict() for seed in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["model.patch_embed.proj.weight"], other["model.patch_embed.proj.weight"])
    torch.manual_seed(7)
    theirs = timm.create_model(name, num_classes=0, global_pool="", **TINY).state_dict()
    assert all(torch.equal(first[f"model.{key}"], tensor) for key, tensor in theirs.items())


def test_the_config_is_read_off_the_model() -> None:
    config = timm_config("vit_small_patch14_reg4_dinov2", {"img_size": 224})
    assert config.as_dict() == {
        "image_size": 224, "patch_size": 14, "width": 384, "layers": 12, "heads": 6,
        "model": "vit_small_patch14_reg4_dinov2", "arguments": {"img_size": 224},
    }  # fmt: skip
    assert TimmConfig(**config.as_dict()) == config


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "swin_tiny_patch4_window7_224",
            {},
            "'swin_tiny_patch4_window7_224' is of timm's class SwinTransformer .* must be",
        ),
        ("eva02_tiny_patch14_224", {}, "class Eva .* such as vit_base_patch16_224"),
        ("convnext_tiny", {}, "class ConvNeXt "),
        ("vit_small_r26_s32_224", {}, "VisionTransformer on HybridEmbed"),
        ("vit_base_patch16", {}, "no entry point of timm .*; did you mean .*vit_base_patch16_224"),
        ("hf-hub:timm/vit_base_patch16_224", {}, "no entry point of timm"),
        ("vit_base_patch16_224.nope", {}, "Invalid pretrained tag .*; drop what follows the dot"),
        (
            "vit_base_patch16_224",
            {"pretrained": True},
            "hold pretrained: weights come from a file, never from the internet",
        ),
        ("vit_base_patch16_224", {"global_pool": "avg"}, "hold global_pool: .*; leave it out"),
        ("vit_base_patch16_224", {"widht": 3}, "cannot make 'vit_base_patch16_224' with the arguments .*widht"),
        ("vit_base_patch16_224", {"norm_layer": nn.LayerNorm}, "must be plain values"),
        ("vit_base_patch16_224", {"img_size": [32, 64]}, "for 32×64 pixels .* must be square"),
        ("vit_base_patch16_224", {"img_size": 40}, "for 40×40 pixels in patches of 16×16; .* set img_size"),
    ],
)
def test_other_models_and_arguments_are_refused(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        timm_config(name, arguments)


def test_a_config_that_timm_does_not_follow_is_refused() -> None:
    config = timm_config("vit_base_patch16_224", TINY)
    with pytest.raises(ValueError, match="width=24.*but the config is.*width=48.*use timm_config"):
        TimmEncoder(TimmConfig(**(config.as_dict() | {"width": 48})))
    with pytest.raises(ValueError, match="36×32 pixels; both sides must be multiples of the patch size 8"):
        made("beit_base_patch16_224", {})(images(36, 32))


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("vit_base_patch16_224.mae", "CC-BY-NC-4.0"),
        ("vit_base_patch16_224.dino", "Apache-2.0"),
        ("vit_small_patch14_reg4_dinov2", "Apache-2.0"),
        ("vit_base_patch16_224", "unknown"),  # its weights have several
    ],
)
def test_the_licence_is_that_of_the_tag_or_of_all_tags(name: str, known: str) -> None:
    assert licence(name) == known
