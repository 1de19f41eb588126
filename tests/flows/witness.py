"""Runs a command where the only way out of this machine counts what takes it; `test_offline.py` starts it as

    unshare --net --pid --fork --mount --mount-proc … python witness.py REPORT LIMIT_S COMMAND…

The command's loopback is a real one; everything else, from Python or native code, over IPv4 or IPv6, leaves through the
interface `out` and into nothing. REPORT gets {status, packets: how many left, traces: where they went, running: what did
not end within LIMIT_S}.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path
from types import FrameType

# The kernel itself sends nothing through `out`: no ARP, no IPv6 address of its own and so no discovery or group reports.
NETWORK = """\
link set lo up
link add out type veth peer name far
link set out arp off
link set far arp off
"""
SILENT_IPV6 = """\
link set out addrgenmode none
link set far addrgenmode none
"""
IPV4 = """\
link set out up
link set far up
addr add 192.0.2.2/32 dev out
route add default dev out
"""
IPV6 = """\
addr add 2001:db8::2/128 dev lo
route add ::/0 dev out
"""
# Services outside that would look a name up for a process in here; their sockets are files, which no network keeps apart.
RESOLVERS = ("/run/systemd/resolve", "/run/nscd", "/var/run/nscd")
EVERY_PROTOCOL = 3
NAMES = 53  # the port where names are looked up
SHOWN = 12


def main(report: Path, limit_s: int, command: list[str]) -> int:
    """0 when the command was run, whatever it did."""
    ipv6 = Path("/proc/net/if_inet6").exists()
    _ip(NETWORK + SILENT_IPV6 + IPV4 + IPV6 if ipv6 else NETWORK + IPV4)
    # Both keep what arrives until it is read; nothing needs to be awake meanwhile.
    leaving = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)
    leaving.bind(("out", EVERY_PROTOCOL))
    asking = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
    asking.bind(("", NAMES))
    for folder in filter(os.path.isdir, RESOLVERS):
        subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)

    status, running = run_all(command, limit_s)
    lookups = [f"lookup of {asked_name(query)} at this machine" for query in _received(asking)]
    packets = int(Path("/proc/net/dev").read_text().split("out:")[1].split()[9]) + len(lookups)
    traces = [destination(packet) for packet in _received(leaving)] + lookups
    shown = list(dict.fromkeys(traces))[:SHOWN]
    report.write_text(json.dumps({"status": status, "packets": packets, "traces": shown, "running": running}))
    return 0


def run_all(command: list[str], limit_s: int) -> tuple[int | None, list[str]]:
    """The command's exit status once all that it left behind has ended, too: DVC's analytics are sent by a daemon.

    Being process 1 of its namespace, this one inherits every orphan. What runs longer than `limit_s` is named; it is
    killed with the namespace.
    """
    status, child = None, subprocess.Popen(command)
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(limit_s)
    try:
        while True:
            pid, ended = os.wait()
            status = os.waitstatus_to_exitcode(ended) if pid == child.pid else status
    except ChildProcessError:
        signal.alarm(0)
        return status, []
    except TimeoutError:
        others = [path for path in Path("/proc").glob("[0-9]*/cmdline") if path.parent.name != "1"]
        return status, [path.read_bytes().replace(b"\0", b" ").decode(errors="replace") for path in others]


def destination(packet: bytes) -> str:
    """Where an IP packet wanted to go, and which name it asks for."""
    if packet[0] >> 4 == 6:
        protocol, address, content = packet[6], packet[24:40], packet[40:]
    else:
        protocol, address, content = packet[9], packet[16:20], packet[4 * (packet[0] & 15) :]
    kind = {socket.IPPROTO_TCP: "TCP", socket.IPPROTO_UDP: "UDP"}.get(protocol, f"protocol {protocol}")
    port = int.from_bytes(content[2:4], "big")
    name = f", lookup of {asked_name(content[8:])}" if (kind, port) == ("UDP", NAMES) else ""
    return f"{kind} to {ip_address(address)} port {port}{name}"


def asked_name(query: bytes) -> str:
    """The name in a DNS query: labels with their lengths before them, after a header of 12 bytes."""
    labels, at = [], 12
    while at < len(query) and query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode(errors="replace"))
        at += 1 + query[at]
    return ".".join(labels)


def _received(from_socket: socket.socket) -> list[bytes]:
    from_socket.setblocking(False)
    packets = []
    try:
        while True:
            packets.append(from_socket.recv(65535))
    except BlockingIOError:
        return packets


def _too_long(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError


def _ip(commands: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input=commands, text=True, check=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
