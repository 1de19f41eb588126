"""Whether a Ray cluster is at RAY_ADDRESS, asked before `ray.init`, which waits two minutes for nobody and 20 s for a wrong token."""

import json
import os
import platform

import grpc
import ray
from ray._common.usage.usage_constants import CLUSTER_METADATA_KEY
from ray._private import services
from ray._private.gcs_utils import create_gcs_channel
from ray._private.utils import check_version_info
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
from ray.exceptions import AuthenticationError

PATIENCE_S = 5.0
"""A head that takes longer to answer counts as away."""
START = "`ray start --address=…`"
TOKEN = (
    "put the token its head was started with into ~/.ray/auth_token, a file named by RAY_AUTH_TOKEN_PATH, or RAY_AUTH_TOKEN "
    "(docs/cluster.md)"
)


def given() -> str:
    """RAY_ADDRESS; '' where Ray is to be started on this machine."""
    address = os.environ.get("RAY_ADDRESS", "")
    return "" if address == "local" else address


def check(address: str) -> None:
    """Returns within seconds when a driver here can join the cluster at `address`; else ValueError with the way out."""
    channel = create_gcs_channel(_host_and_port(address))
    try:
        head = gcs_service_pb2_grpc.InternalKVGcsServiceStub(channel)
        about = gcs_service_pb2.InternalKVGetRequest(key=CLUSTER_METADATA_KEY, namespace=b"cluster")
        metadata = head.InternalKVGet(about, timeout=PATIENCE_S).value
        if not metadata:
            raise ValueError(f"the Ray cluster at RAY_ADDRESS {address} is still starting; try again in a moment")
        _versions(address, json.loads(metadata))
        nodes = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        answer = nodes.GetAllNodeInfo(gcs_service_pb2.GetAllNodeInfoRequest(), timeout=PATIENCE_S)
        alive = {node.node_id.hex() for node in answer.node_info_list if not node.state}
    except AuthenticationError:
        raise ValueError(f"RAY_ADDRESS is {address} and there is no token to show there; {TOKEN}") from None
    except grpc.RpcError as error:
        raise ValueError(_refusal(address, error)) from None
    finally:
        channel.close()
    if not alive & set(services.find_node_ids()):
        raise ValueError(
            f"RAY_ADDRESS is {address}, whose {len(alive)} nodes run on other machines; a driver needs a node beside it: run "
            f"`ray start --address={address}` here (with --num-cpus=0, if nothing is to be trained here), or start this on one of them"
        )


def _host_and_port(address: str) -> str:
    if address.startswith("ray://"):
        raise ValueError(
            f"RAY_ADDRESS is {address}, an address for Ray Client, which cannot carry training; give HOST:PORT of the head (6379 "
            "unless its --port says otherwise) and run this on a node of that cluster"
        )
    try:
        found = services.canonicalize_bootstrap_address(address)
    except ValueError:
        raise ValueError(f"RAY_ADDRESS is {address!r}; give HOST:PORT of the head, auto, or nothing") from None
    except ConnectionError:
        raise ValueError(
            f"RAY_ADDRESS is {address} and no Ray runs on this machine; {START} here, or unset it"
        ) from None
    return str(found)


def _versions(address: str, metadata: dict[str, str]) -> None:
    try:
        check_version_info(metadata, "here")
    except RuntimeError:
        there, here = (
            (metadata["ray_version"], metadata["python_version"]),
            (ray.__version__, platform.python_version()),
        )
        raise ValueError(
            f"the Ray cluster at {address} has Ray {there[0]} and Python {there[1]}, this process Ray {here[0]} and Python {here[1]}; "
            "all nodes need the same of both"
        ) from None


def _refusal(address: str, error: grpc.RpcError) -> str:
    status = error.code()
    if status is grpc.StatusCode.UNAUTHENTICATED:
        mode = os.environ["RAY_AUTH_MODE"]
        way = TOKEN if mode == "token" else f"RAY_AUTH_MODE is {mode}: unset it, and {TOKEN}"
        return f"the Ray cluster at RAY_ADDRESS {address} refuses our token; {way}"
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return (
            f"RAY_ADDRESS is {address} and no Ray cluster answers there ({error.details()}); start one with `ray start --head`, "
            "correct it, or unset it to use this machine alone"
        )
    return (
        f"RAY_ADDRESS is {address} and what answers there is no head of a Ray cluster ({error.details()}); give the HOST:PORT that "
        "`ray start --head` printed, not the dashboard's"
    )
