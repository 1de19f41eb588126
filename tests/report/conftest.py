"""What a run leaves for its report, made by hand: metrics, protocols, params and plots of one of each kind of stage."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from components.report.contract import ReportInputs, ReportMetrics, ReportOutputs, ReportParams
from components.report.run import run
from components.stage import canonical_yaml

ENVIRONMENT = {"python": "3.12.1", "torch": "2.9.0", "numpy": "2.1.0"}
DAVIS = {
    "protocol": "0123456789ab",
    "stage": "davis",
    "version": 1,
    "settings": {
        "profile": "paper",
        "short_side": 480,
        "context_frames": 7,
        "radius": 12,
        "top_k": 5,
        "temperature": 0.1,
        "positions": "stretched",
    },
    "data": {
        "name": "davis",
        "kind": "video",
        "format": "davis",
        "content": "c0ffee",
        "classes": 0,
        "splits": {"val": {"rows": 1999, "used": 1999}},
        "sequences": 30,
        "objects": 61,
    },
    "environment": ENVIRONMENT,
}
PROBE = {
    "protocol": "ba9876543210",
    "stage": "linear_probe",
    "version": 1,
    "settings": {
        "profile": "paper",
        "layers": 4,
        "knn_k": 20,
        "train_split": "train",
        "test_split": "test",
        "image_size": 224,
        "resize": "short_side_center_crop",
        "resize_short_side": 256,
        "training": "augmented",
        "crop_scale_min": 0.08,
        "crop_scale_max": 1.0,
        "flip": True,
        "epochs": 28,
        "logistic_lambdas": [],
        "heads": {
            "batch_size": 256,
            "optimiser": "sgd",
            "learning_rates": [0.01],
            "weight_decays": [0.0005],
            "batch_norm": "both",
            "schedule": "step",
            "milestones": [8, 16, 24],
        },
    },
    "data": {
        "name": "objects",
        "kind": "images",
        "format": "image_folder",
        "content": "f00d",
        "classes": 100,
        "splits": {"train": {"rows": 50000, "used": 50000}, "test": {"rows": 10000, "used": 10000}},
    },
    "environment": ENVIRONMENT,
}
METRICS = {
    "pretrain": {"loss_final": 0.25, "A_norm_final": 2.0, "steps": 108.0},
    "davis": {
        "protocol": "0123456789ab",
        "jf_mean": 50.0625,
        "jf_mean_untrained": 40.5,
        "jf_mean_gain": 9.5625,
        "jf_mean_pixels": 30.25,
        "jf_mean_copy": 20.75,
        "j_mean": 49.0,
        "j_mean_untrained": 41.0,
        "j_decay": 8.0,
        "j_decay_untrained": 12.0,
        "objects": 61,
    },
    "clevr": {"count_top1": 20.0, "count_top1_untrained": 25.5, "count_top1_gain": -5.5, "scored": 9},
    "linear_probe/new": {
        "protocol": "ba9876543210",
        "top1": 90.123,
        "top1_untrained": 80.0,
        "top1_gain": 10.123,
        "last_top1": 88.0,
        "best_epoch": 5,
        "best_epoch_untrained": 9,
        "scored": 10000,
    },
    "linear_probe/old": {"top1": 1.25, "top1_untrained": 2.0, "top1_gain": -0.75},
    "analysis": {"pca_explained": 58.6, "pca_explained_untrained": 58.5},
    "prepare/some": {"images": 3},
    "prepare/some_more": {"images": 4},
}
PRETRAIN = {
    "seed": 0,
    "dataset": "some",
    "init": {"source": "scratch", "path": "components/mim/initialise.py"},
    "encoder": {"image_size": 224, "patch_size": 16, "width": 768, "layers": 12, "heads": 12},
    "stop": {"noise_std": 0.25},
    "optimisation": {"epochs": 600},
}
PARAMS = {
    "pretrain": PRETRAIN,
    "davis": {"seed": 0},
    "clevr": {"seed": 0},
    "analysis": {"seed": 0},
    "linear_probe": {"tasks": {"new": {}}},
    "prepare": {"datasets": {"some": {}}},
}
HISTORY = (
    "step,loss,gradient_norm,lr,A_norm,mask_token_norm,b_norm,noise_ratio,effective_rank,feature_std,target_std,images_per_second",
    "1,0.5,1,0.1,7,0.1,0.2,0.3,15,0.2,0.2,300",
    "2,0.4,1,0.1,6,0.1,0.2,0.3,16,0.2,0.2,310",
)
DRAWN = {
    "finetune/few/history": ("epoch,lr,top1_pretrained,top1_untrained", "1,0.1,50,20", "2,0.05,60,25"),
    "pretrain": HISTORY,
    "pretrain_spectrum": ("rank,end,start", "1,2.0,1.0", "2,1.0,0.5"),
    "linear_probe/new/confusion": ("actual,predicted", "a,a", "a,b", "b,b"),
}
TABLES = {
    "linear_probe/new/heads": ("encoder,features,test_top1", "pretrained,last,88.0"),
    "linear_probe/old/heads": ("encoder,features,test_top1", "leftover,last,1.0"),
    "davis": ("encoder,sequence,object,j_mean", "pretrained,judo,1,49.0"),
}


class Left(NamedTuple):
    """The folders, how to change a file in them, and how to make the report of them."""

    root: Path

    def put(self, name: str, value: Any) -> None:
        """A JSON, YAML, CSV or any other text."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = {".json": json.dumps, ".yaml": canonical_yaml, ".csv": "\n".join}
        path.write_text(value if isinstance(value, str) else texts[path.suffix](value), encoding="utf-8")

    def make(self, where: str = "out", decimals: int = 2) -> tuple[ReportOutputs, ReportMetrics]:
        out = self.root / where
        outputs = ReportOutputs(report=out / "r.md", page=out / "r.html", table=out / "r.json", run=out / "run.json")
        folders = {"metrics": "metrics", "values": "params", "protocols": "protocols", "plots": "plots"}
        inputs = ReportInputs(**{name: self.root / folder for name, folder in folders.items()})
        return outputs, run(ReportParams(decimals=decimals, picture_pixels=300), inputs, outputs)


@pytest.fixture
def left(tmp_path: Path) -> Left:
    made = Left(tmp_path)
    for name, metrics in METRICS.items():
        made.put(f"metrics/{name}.json", metrics)
    for name, record in {"davis": DAVIS, "linear_probe/new": PROBE, "linear_probe/old": PROBE}.items():
        made.put(f"protocols/{name}.json", record)
    for word, values in PARAMS.items():
        made.put(f"params/{word}.yaml", values)
    for name, lines in TABLES.items():
        made.put(f"plots/{name}.csv", lines)
    for name in ("davis", "pretrain_masks", "prepare/some", "prepare/some_more"):
        path = tmp_path / f"plots/{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.linear_gradient("L").resize((640, 320)).save(path)
    return made


@pytest.fixture
def drawn(left: Left) -> Left:
    """With a finetuning and tables that become figures, which take a second each."""
    left.put("metrics/finetune/few.json", {"top1": 60.0, "top1_untrained": 25.0, "top1_gain": 35.0, "best_epoch": 2})
    left.put("params/finetune.yaml", {"finetunings": {"few": {}}})
    for name, lines in DRAWN.items():
        left.put(f"plots/{name}.csv", lines)
    return left


@pytest.fixture
def record() -> Callable[[str], dict[str, Any]]:
    """A fresh copy of the protocol file of an evaluation that followed the paper: `davis`, or `linear_probe` on CIFAR-100."""
    return lambda stage: json.loads(json.dumps({"davis": DAVIS, "linear_probe": PROBE}[stage]))
