#!/usr/bin/env python3
"""`stop-health CHECK …`: what compose asks of a running container. Exit status 0, or 1 with one line for `docker inspect`.

A CHECK is an address that must answer 200, `raylet` (a Ray node runs here) or `deployments` (Prefect's server knows that they
are being served). Nothing but the standard library: it starts every few seconds.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

TIMEOUT_S = 5


def main(checks: list[str]) -> int:
    """The exit status for all `checks`."""
    if not checks:
        print("error: no check given; it must be an address, raylet or deployments", file=sys.stderr)
        return 2
    for check in checks:
        fault = {"raylet": raylet, "deployments": deployments}.get(check, lambda check=check: answers(check))()
        if fault:
            print(f"unhealthy: {fault}", file=sys.stderr)
            return 1
    return 0


def answers(address: str) -> str:
    """'' when a GET is answered with 200, else what is wrong."""
    return fetch(urllib.request.Request(address))[1]


def raylet() -> str:
    """'' when a Ray node runs in this container, which has processes of its own, else what is wrong."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = status.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # it has just ended
            continue
        if lines[0].split()[-1] == "raylet" and not any(line.startswith("State:\tZ") for line in lines):
            return ""
    return "no raylet runs here; has this node lost its head?"


def deployments() -> str:
    """'' when a deployment is READY: the server takes that back a minute after its runner has last asked for work."""
    address = f"{os.environ['PREFECT_API_URL']}/deployments/filter"
    body, fault = fetch(urllib.request.Request(address, b"{}", {"content-type": "application/json"}))
    if fault:
        return fault
    return "" if any(one["status"] == "READY" for one in json.loads(body)) else f"no deployment of {address} is READY"


def fetch(request: urllib.request.Request) -> tuple[bytes, str]:
    """The answer's body and ''; or nothing and what is wrong."""
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.read(), "" if answer.status == 200 else f"{request.full_url} answers {answer.status}"
    except (OSError, urllib.error.URLError) as error:
        return b"", f"{request.full_url}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
