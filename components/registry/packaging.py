"""An encoder as a folder that MLflow serves: weights, the few files of ours that read them, signature, example, requirements."""

import shutil
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from mlflow import pyfunc
from mlflow.models import Model, ModelSignature
from mlflow.types import ParamSchema, ParamSpec, Schema, TensorSpec

from components.mim.weights import read_about
from components.registry.served import DEFAULTS

SERVED = "components.registry.served"
CODE = (
    "components/__init__.py",
    "components/features.py",
    "components/images/__init__.py",
    "components/images/transforms.py",
    "components/mim",
    "components/registry/__init__.py",
    "components/registry/served.py",
)
"""`SERVED` and what it imports of ours."""
NEEDS = ("mlflow", "torch", "torchvision", "timm", "safetensors", "numpy", "pillow")


def readers(tree: Path) -> Path:
    """Whose code shall read the weights that a run made: that of the run's own commit in `tree`, or where it has none, this project's."""
    return tree if all((tree / name).exists() for name in CODE) else Path(__file__).parents[2]


def log(client: Any, name: str, encoder: Path, code: Path, source_run: str, tags: Mapping[str, str]) -> Any:
    """MLflow's logged model `name` of the run with id `source_run`, made by `save`; one that could not be completed is marked FAILED."""
    model = client.create_logged_model(client.get_run(source_run).info.experiment_id, name, source_run, dict(tags))
    try:
        with tempfile.TemporaryDirectory() as temporary:
            there = {"artifact_path": model.artifact_location, "model_uuid": model.model_id}
            described = Model(**there, model_id=model.model_id, run_id=source_run)
            save(Path(temporary) / name, encoder, code, tags, described)
            client.log_model_artifacts(model.model_id, str(Path(temporary) / name))
    except BaseException:
        client.finalize_logged_model(model.model_id, "FAILED")
        raise
    return client.finalize_logged_model(model.model_id, "READY")


def save(folder: Path, encoder: Path, code: Path, tags: Mapping[str, str], model: Any = None) -> None:
    """Writes MLflow's model of the weights in `encoder` to the new `folder`, with the code in the checkout `code`.

    `mlflow.pyfunc.load_model(folder)` needs nothing but what `requirements.txt` there lists, in the versions of this process.
    `tags` become the model's metadata; `model` is MLflow's record of it where it has one already.
    """
    config = read_about(encoder)[0]
    side = int(config["image_size"])
    with tempfile.TemporaryDirectory() as temporary:
        for name in CODE:
            _copy(code / name, Path(temporary) / name)
        pyfunc.save_model(
            path=str(folder),
            mlflow_model=model,
            loader_module=SERVED,
            data_path=str(encoder),
            code_paths=[str(Path(temporary) / "components")],
            model_config={"device": "cpu"},
            signature=_signature(int(config["width"])),
            input_example=np.random.default_rng(0).integers(0, 256, (1, side, side, 3), np.uint8),
            pip_requirements=[f"{name}=={version(name).partition('+')[0]}" for name in NEEDS],
            metadata=dict(tags),
        )


def _signature(width: int) -> Any:
    images = TensorSpec(np.dtype(np.uint8), (-1, -1, -1, 3))
    embeddings = TensorSpec(np.dtype(np.float32), (-1, width))
    kinds = {int: "long", str: "string"}
    params = [ParamSpec(name, kinds[type(value)], value) for name, value in DEFAULTS.items()]
    return ModelSignature(Schema([images]), Schema([embeddings]), ParamSchema(params))


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
