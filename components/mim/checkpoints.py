"""Reads published encoders: I-JEPA, StoP, MAE, DINO, iBOT, MoCo v3, BEiT, data2vec, timm's, and this project's own."""

import json
from pathlib import Path
from typing import NamedTuple

from components.mim import conversion, layouts
from components.mim.checkpoint_file import CheckpointFile, open_checkpoint
from components.mim.encoder import EncoderConfig, VisionEncoder
from components.mim.fitting import Wanted
from components.mim.layouts import Part, Weights
from components.mim.normalisation import IMAGENET, adapt, of_timm
from components.mim.timm_encoder import TimmConfig, licence

EXPORT = "export"
"""Metadata of the safetensors that `export` writes under published names: JSON of `config` and `about`."""


class Report(NamedTuple):
    """What became of a file: names of its tensors, whose weights they are, and which file it was."""

    layout: str
    part: str
    """target_encoder, encoder, or `only` where the file has just one."""
    licence: str
    """SPDX identifier, `unknown` or `none needed`."""
    sha256: str
    matched: list[str]
    unmatched: list[str]
    """Always empty, since a file that doesn't fit is refused."""
    ignored: list[str]

    def lines(self) -> list[str]:
        """For people."""
        part = "its only encoder" if self.part == "only" else f"its part {self.part}"
        aside = f": {', '.join(self.ignored[:6])}{', …' if len(self.ignored) > 6 else ''}" if self.ignored else ""
        return [
            f"read as {self.layout}, {part}",
            f"{len(self.matched)} tensors matched, {len(self.unmatched)} unmatched, {len(self.ignored)} left aside{aside}",
            f"licence of such weights: {self.licence}",
            f"sha256 {self.sha256}",
        ]

    def tags(self) -> dict[str, str]:
        """For tracking."""
        counts = {"matched": self.matched, "unmatched": self.unmatched, "ignored": self.ignored}
        texts = {"layout": self.layout, "part": self.part, "licence": self.licence, "sha256": self.sha256}
        return {
            f"init.{name}": text for name, text in (texts | {name: str(len(c)) for name, c in counts.items()}).items()
        }


class Imported(NamedTuple):
    """An encoder, whose weights can be trained, and where they are from."""

    encoder: VisionEncoder
    report: Report


def read_encoder(path: Path, part: Part, image_size: int, patch_size: int, heads: int, model: str = "") -> Imported:
    """The encoder in a published file, or in one for timm's `model`; trained at `image_size` pixels per side.

    `part` chooses where a file holds two; the only one of a file counts as target_encoder. Files of this project know their own
    sizes. Whatever normalisation of images it was trained with, it now expects ImageNet's. Raises ValueError for a file that is
    unreadable, unsafe, unknown, or does not fit in each of its tensors.
    """
    file = open_checkpoint(path)
    if model:
        weights = layouts.section(file, part)
        converted = conversion.of_timm(file, weights, image_size, model)
        known = weights.layout in layouts.LICENCES  # by its outer names, as I-JEPA's ViT-g
        adapt(converted.encoder, IMAGENET if known else of_timm(model))
        terms = layouts.LICENCES[weights.layout] if known else licence(model)
        return _imported(file, converted, f"timm {model}", weights.part, terms)
    if "model" in file.metadata or EXPORT in file.metadata:
        layouts.check_only(file, part)
        return _ours(file)
    weights = layouts.find(file, part)
    convert = conversion.beit_like if weights.layout in layouts.BEIT_LIKE else conversion.plain
    converted = convert(file, weights, Wanted(image_size, patch_size, heads))
    adapt(converted.encoder, layouts.NORMALISED.get(weights.layout, IMAGENET))
    return _imported(file, converted, weights.layout, weights.part, layouts.LICENCES[weights.layout])


def check_architecture(found: EncoderConfig | TimmConfig, expected: EncoderConfig) -> None:
    """Raises ValueError with every field in which an encoder's file differs from what the params expect."""
    names = ["image_size", "patch_size", "width", "layers", "heads"]
    if isinstance(found, EncoderConfig):  # timm's have tokens and positions of their own
        names += ["class_token", "positions"]
    wrong = [
        f"{name} is {getattr(found, name)} in the file and {getattr(expected, name)} in the params: "
        f"set pretrain.encoder.{name} to {str(getattr(found, name)).lower()}"
        for name in names
        if getattr(found, name) != getattr(expected, name)
    ]
    if wrong:
        raise ValueError(f"the encoder's file is of another architecture. {'; '.join(wrong)}; or name another file")


def _ours(file: CheckpointFile) -> Imported:
    """From a file of this project, under its own names or the published ones."""
    from components.mim import weights as own  # it needs the import of timm encoders, as this does

    try:
        if EXPORT in file.metadata:
            model = json.loads(file.metadata[EXPORT])
            config, about = EncoderConfig(**model["config"]), dict(model["about"])
            tensors = Weights("ours", "only", dict(file.tree), [])
            sizes = Wanted(config.image_size, config.patch_size, config.heads)
            converted, layout = conversion.plain(file, tensors, sizes), "this project's, published names"
        else:
            about, encoder = dict(own.read_about(file.path)[1]), own.load_encoder(file.path).requires_grad_(True)
            converted, layout = conversion.Converted(encoder, list(file.tree), []), "this project's"
    except (KeyError, RuntimeError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{str(file.path)!r} describes itself as an encoder of this project, but its tensors or metadata are not "
            f"({type(error).__name__}: {error}); make it again with `dvc repro pretrain`"
        ) from error
    return _imported(file, converted, layout, "only", str(about.get("licence", "none needed")))


def _imported(file: CheckpointFile, converted: conversion.Converted, layout: str, part: str, terms: str) -> Imported:
    report = Report(layout, part, terms, file.sha256(), converted.matched, [], converted.ignored)
    return Imported(converted.encoder.eval(), report)
