"""Every layer's learning rate as it acts, in our encoder and in timm's, beside a closed form and timm's own groups."""

import math
from typing import Any

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch.nn import functional

from components.finetune import rates
from components.finetune.classifier import Classifier
from components.finetune.examples import Batches
from components.finetune.loop import Trainer
from components.images.store import Store
from components.mim.encoder import EncoderConfig
from components.mim.timm_encoder import TimmEncoder, timm_config, untrained
from components.probe.dataset import Part

from .toys import CONFIG, classifier, encoder, params

TINY = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 2}
TIMM = {
    "vit": ("vit_tiny_patch16_224", TINY),
    "registers and layer scale": ("vit_small_patch14_reg4_dinov2", TINY),
    "norm_pre": ("vit_base_patch32_clip_224", TINY),
    "beit": ("beit_base_patch16_224", TINY),
    "beit, shared biases": (
        "beit_base_patch16_224",
        TINY | {"use_shared_rel_pos_bias": True, "use_rel_pos_bias": False},
    ),
}
OURS = {
    "ours": CONFIG,
    "ours, learned": EncoderConfig(
        image_size=16, patch_size=4, width=24, layers=3, heads=2, class_token=True, positions="learned"
    ),
}


def made(name: str) -> Any:
    if name in OURS:
        return encoder(OURS[name])
    model, arguments = TIMM[name]
    return untrained(timm_config(model, arguments), 0)


def depth(name: str, layers: int) -> int:
    """The layer a parameter belongs to, told from its name by other means than the code under test."""
    words = name.split(".")
    if "blocks" in words:
        return int(words[words.index("blocks") + 1]) + 1
    return layers + 1 if words[0] in ("head", "norm") or words[-2] in ("norm", "fc_norm") else 0


@pytest.mark.parametrize("name", [*OURS, *TIMM])
def test_each_parameter_moves_by_the_rate_of_its_layer(name: str) -> None:
    """AdamW's first step moves a parameter by its learning rate, whatever its gradient: what moved is the effective rate."""
    model = classifier(made(name).requires_grad_(True)).double()
    with torch.no_grad():  # positions and tokens that start at 0 or gates near it would hide gradients
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    adamw = rates.optimizer(model, weight_decay=0.0, layer_decay=0.6)
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    rates.set_rate(adamw, 0.01)
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    functional.cross_entropy(model(images), torch.arange(8) % 4).backward()
    adamw.step()
    layers = model.encoder.config.layers
    for key, parameter in model.named_parameters():
        moved = (parameter.detach() - before[key]).abs().max().item()
        assert moved == pytest.approx(0.01 * 0.6 ** (layers + 1 - depth(key, layers)), rel=1e-3), key


@pytest.mark.parametrize("name", [*OURS, *TIMM])
def test_groups_equal_those_of_timm(name: str) -> None:
    model = classifier(made(name).requires_grad_(True))
    config = model.encoder.config
    if isinstance(model.encoder, TimmEncoder):
        twin = timm.create_model(config.model, num_classes=4, global_pool="token", **config.arguments)
    else:
        size = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": config.layers, "num_heads": 2}
        without = {} if config.class_token else {"class_token": False, "global_pool": "avg", "fc_norm": False}
        twin = timm.create_model("vit_tiny_patch16_224", num_classes=4, **size, **without)
    ours = {"cls_token": "class_token", "pos_embed": "positions"}
    names = {id(parameter): key for key, parameter in twin.named_parameters()}
    expected = {}
    for group in param_groups_layer_decay(twin, 0.05, twin.no_weight_decay(), layer_decay=0.75):
        for parameter in group["params"]:
            key = names[id(parameter)]
            prefix = "" if key.startswith("head") else "encoder."
            inner = (
                f"model.{key}"
                if isinstance(model.encoder, TimmEncoder) and prefix
                else ours.get(key, key)
                if prefix
                else key
            )
            expected[prefix + inner] = (group["lr_scale"], group["weight_decay"])
    adamw = rates.optimizer(model, 0.05, 0.75)
    keys = {id(parameter): key for key, parameter in model.named_parameters()}
    found = {
        keys[id(p)]: (group[rates.SCALE], group["weight_decay"])
        for group in adamw.param_groups
        for p in group["params"]
    }
    if name == "ours":  # sin-cos positions are no parameter here
        assert expected.pop("encoder.positions") == (0.75**3, 0.0)
    for key in expected:  # the one difference: timm counts the final norm to the last block, MAE to the head
        if key.removeprefix("encoder.").removeprefix("model.") in ("norm.weight", "norm.bias"):
            assert expected[key] == (0.75, 0.0)
            expected[key] = (1.0, 0.0)
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key] == pytest.approx(values), key


def test_rates_keep_their_ratio_through_warm_up_and_cosine(toy_images: Any) -> None:
    chosen = params(epochs=5, warmup_epochs=2.0, lr=0.01, final_lr=0.001, layer_decay=0.5)
    member = chosen.finetunings["toy"]
    store = Store(toy_images, "train")
    batches = Batches(chosen, member, Part(store, torch.arange(16).numpy()))
    trainer = Trainer("toy", chosen, member, classifier(), batches, torch.device("cpu"))
    seen: list[list[float]] = []
    trainer.adamw.register_step_pre_hook(lambda adamw, *_: seen.append([group["lr"] for group in adamw.param_groups]))
    trainer.train(lambda row: None)
    assert len(seen) == 10
    scales = sorted(0.5**power for power in (0, 0, 1, 1, 2, 2, 3, 3))
    for step, rates_now in enumerate(seen, 1):
        cosine = 0.001 + 0.009 * 0.5 * (1 + math.cos(math.pi * (step - 4) / 6))
        head = 0.01 * step / 4 if step < 4 else cosine
        assert sorted(rates_now) == pytest.approx([head * scale for scale in scales])


def test_a_replaced_norm_is_no_part_of_it() -> None:
    model = classifier(norm="new")
    idle = set(dict(model.named_parameters())) - set(model.trainable())
    assert idle == {"encoder.norm.weight", "encoder.norm.bias"}
    assert sum(len(group["params"]) for group in rates.optimizer(model, 0.1, 0.5).param_groups) == len(
        model.trainable()
    )
    model(torch.zeros(2, 3, 16, 16)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.trainable().values())
    assert model.encoder.norm.weight.grad is None


def test_an_unknown_parameter_is_told() -> None:
    model = classifier()
    model.encoder.surprise = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match="'surprise' belongs to no layer that layer_decay knows"):
        rates.optimizer(model, 0.1, 0.5)


def test_no_class_token_to_read_is_told() -> None:
    with pytest.raises(ValueError, match=r"pooling is 'class_token', but the encoder has none \(0 prefix tokens\)"):
        classifier(pooling="class_token")
    model = Classifier(encoder(OURS["ours, learned"]), "class_token", "encoder", 4)
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model(images), model.head(model.encoder.tokens(images)[:, 0]))
