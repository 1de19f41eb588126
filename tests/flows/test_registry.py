"""A registered encoder gives the project's own features in a process and a folder that know nothing of the project."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import mlflow
import numpy as np
import pytest
import torch
from mlflow import MlflowClient

from components.images.transforms import normalise, square
from components.mim import weights
from components.mim.encoder import Encoder, EncoderConfig, VisionEncoder
from components.mim.initialise import initialise
from components.mim.timm_encoder import timm_config, untrained
from components.probe.extraction import columns, encode
from components.registry.packaging import save
from components.registry.versions import Registry

ABROAD = """
import sys, numpy as np, mlflow
model = mlflow.pyfunc.load_model(sys.argv[1])
images = np.load("images.npz")
for name in images:
    np.save(name, model.predict(images[name], params={"resize": "direct"} if name == "squeezed" else None))
    assert model.predict(images[name][:0]).shape == (0, 24)
assert "components.stage" not in sys.modules and "pyarrow.dataset" not in sys.modules
print(sys.modules["components.features"].__file__)
"""


def encoder(path: Path, seed: int = 3, **about: Any) -> VisionEncoder:
    config = EncoderConfig(image_size=32, patch_size=8, width=24, layers=2, heads=3, class_token=True)
    made = Encoder(config).eval()
    initialise(made, seed, "fan_in")
    weights.save(path, made, {"fingerprint": "f00d", "seed": seed} | about)
    return made


def features(made: VisionEncoder, images: np.ndarray, resize: Any = "short_side_center_crop") -> np.ndarray:
    """The way the probes have them."""
    view = square(32, resize, 32)
    pixels = torch.from_numpy(np.stack([view(torch.from_numpy(image).permute(2, 0, 1)) for image in images]))
    return encode(made, pixels, 4)[:, columns(made, 4)["last"]].numpy()


def pictures(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, shape, np.uint8)


@pytest.fixture
def uri(tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with one run, in a folder of its own."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home = tmp_path / "home"
    home.mkdir()
    (home / "mlflow.db").write_bytes(database.read_bytes())
    return f"sqlite:///{home / 'mlflow.db'}"


@pytest.fixture
def source(uri: str, tmp_path: Path) -> str:
    client = MlflowClient(uri)
    number = client.create_experiment("stop", f"file://{tmp_path / 'home' / 'mlartifacts'}")
    run = client.create_run(number).info.run_id
    client.set_terminated(run)
    return str(run)


def served(folder: Path, repository: Path, uri: str, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the champion makes of the images in a process and an empty folder that know nothing of the project."""
    folder.mkdir()
    np.savez(folder / "images.npz", **given)
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"} | {"MLFLOW_TRACKING_URI": uri}
    code = f"import sys; sys.path = [p for p in sys.path if p != {str(repository)!r}]\n" + ABROAD
    command = [sys.executable, "-P", "-c", code, "models:/encoder@champion"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).is_relative_to(repository), "the model's own code was used"
    return {name: np.load(folder / f"{name}.npy") for name in given}


def test_a_fresh_process_elsewhere_has_the_projects_own_features(
    tmp_path: Path, repository: Path, uri: str, source: str
) -> None:
    made = encoder(tmp_path / "encoder.safetensors")
    registry = Registry(uri)
    before = MlflowClient(uri).get_run(source)
    version = registry.register(tmp_path / "encoder.safetensors", repository, source, {"run": "a", "metric.x/y": "1.5"})
    assert (version.number, version.run, version.metrics) == ("1", "a", {"x/y": 1.5}) and registry.champion() is None
    registry.crown(version, "promoted")
    assert registry.champion() == version

    given = {"same": pictures(70, 32, 32, 3), "wide": pictures(2, 40, 57, 3), "squeezed": pictures(2, 40, 57, 3)}
    for name, embeddings in served(tmp_path / "elsewhere", repository, uri, given).items():
        own = features(made, given[name], "direct" if name == "squeezed" else "short_side_center_crop")
        assert embeddings.dtype == np.float32 and embeddings.shape == (len(given[name]), 24)
        np.testing.assert_allclose(embeddings, own, atol=1e-6, rtol=0)
    after = MlflowClient(uri).get_run(source)
    assert (after.info.status, after.info.end_time) == (before.info.status, before.info.end_time)


@pytest.mark.faults
def test_the_same_through_a_server_that_alone_reaches_the_files(
    tmp_path: Path, repository: Path, uri: str, until: Callable[..., None]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--backend-store-uri", uri]
    command = [sys.executable, "-m", "mlflow", "server", *options, "--artifacts-destination", str(tmp_path / "files")]
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return bool(httpx.get(f"{address}/health", timeout=5).is_success)
        except httpx.TransportError:
            return False

    log = (tmp_path / "server.log").open("w")
    with subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True) as server:
        try:
            until(answers)
            client = MlflowClient(address)
            run = client.create_run(client.create_experiment("stop")).info.run_id
            made = encoder(tmp_path / "encoder.safetensors")
            registry = Registry(address)
            registry.crown(
                registry.register(tmp_path / "encoder.safetensors", repository, run, {"run": "a"}), "promoted"
            )
            given = {"same": pictures(2, 32, 32, 3)}
            embeddings = served(tmp_path / "elsewhere", repository, address, given)["same"]
        finally:
            os.killpg(server.pid, signal.SIGTERM)
    np.testing.assert_allclose(embeddings, features(made, given["same"]), atol=1e-6, rtol=0)
    assert list((tmp_path / "files").rglob("encoder.safetensors"))


@pytest.fixture
def model(tmp_path: Path, repository: Path) -> Any:
    encoder(tmp_path / "encoder.safetensors")
    save(tmp_path / "model", tmp_path / "encoder.safetensors", repository, {"run": "a", "licence": "Apache-2.0"})
    return mlflow.pyfunc.load_model(str(tmp_path / "model"))


def test_the_model_tells_its_signature_example_licence_and_needs(model: Any, tmp_path: Path, repository: Path) -> None:
    signature = model.metadata.signature
    assert signature.inputs.inputs[0].shape == (-1, -1, -1, 3) and signature.outputs.inputs[0].shape == (-1, 24)
    example = model.input_example
    assert example.shape == (1, 32, 32, 3) and example.dtype == np.uint8
    assert model.predict(example).shape == (1, 24)
    assert model.metadata.metadata == {"run": "a", "licence": "Apache-2.0"}
    tested = (repository / "constraints.txt").read_text().splitlines()
    for line in (tmp_path / "model/requirements.txt").read_text().split():
        assert any(entry.partition(" ")[0].lower() == line for entry in tested), line
    assert not [path for path in (tmp_path / "model").rglob("*") if path.suffix in (".pkl", ".pyc")]


@pytest.mark.parametrize(
    ("images", "params", "message"),
    [
        (pictures(2, 32, 32, 4), None, "Shape of input"),
        (np.zeros((2, 32, 32, 3), np.float32), None, "dtype of input float32"),
        (pictures(2, 32, 32, 3), {"image_size": 30}, "multiples of the patch size 8"),
        (pictures(2, 32, 32, 3), {"resize": "crop"}, "resize is 'crop'; it must be direct or short_side_center_crop"),
        (pictures(2, 32, 32, 3), {"resize_short_side": 16}, "image_size is 32, resize_short_side 16;"),
    ],
)  # fmt: skip
def test_bad_images_and_params_are_told(model: Any, images: np.ndarray, params: Any, message: str) -> None:
    with pytest.raises(Exception, match=message):
        model.predict(images, params=params)


def test_timms_encoders_are_served_too(tmp_path: Path, repository: Path) -> None:
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
    made = untrained(timm_config("beit_base_patch16_224", arguments), 1).eval()
    weights.save(tmp_path / "encoder.safetensors", made, {})
    save(tmp_path / "model", tmp_path / "encoder.safetensors", repository, {})
    images = pictures(3, 32, 32, 3)
    served = mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(images, params={"image_size": 64})
    with torch.no_grad():
        own = made(
            normalise(np.stack([square(64, "direct", 0)(torch.from_numpy(image).permute(2, 0, 1)) for image in images]))
        ).mean(1)
    np.testing.assert_allclose(served, own.numpy(), atol=1e-6, rtol=0)


def test_reigns_end_one_by_one_and_what_never_reigned_does_not_count(uri: str) -> None:
    registry, client = Registry(uri), MlflowClient(uri)
    with pytest.raises(ValueError, match="nothing can be rolled back; promote a run first"):
        registry.dethrone()
    client.create_registered_model("encoder")
    for run in "abc":
        client.create_model_version("encoder", f"file:///{run}", tags={"run": run})
    three, two, one = registry.versions()
    with pytest.raises(ValueError, match="nothing can be rolled back"):
        registry.dethrone()
    for version in (one, two, three, two):
        registry.crown(version, "promoted")
    client.set_registered_model_tag(
        "encoder", "champions", "1 2 3 2 1"
    )  # a promotion that ended before the alias moved
    told = []
    for _ in range(3):
        left, now = registry.dethrone()
        told.append(f"{left.number}>{now.number}")
        assert registry.champion() == now
    assert told == ["2>3", "3>2", "2>1"]
    with pytest.raises(ValueError, match="is the first champion of 'encoder', there is none to go back to"):
        registry.dethrone()
    history = {key: text for key, text in client.get_registered_model("encoder").tags.items() if "history" in key}
    assert [text for _, text in sorted(history.items())] == [
        *[f"version {number} (run {run}): promoted" for number, run in ((1, "a"), (2, "b"), (3, "c"), (2, "b"))],
        "version 3 (run c): rolled back from version 2 (run b)",
        "version 2 (run b): rolled back from version 3 (run c)",
        "version 1 (run a): rolled back from version 2 (run b)",
    ]
    client.set_registered_model_alias("encoder", "champion", "3")  # by hand
    client.delete_model_version("encoder", "1")
    with pytest.raises(ValueError, match="none to go back to"):
        registry.dethrone()
