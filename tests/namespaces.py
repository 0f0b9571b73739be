"""Two hosts on this machine: network namespaces, in which tests start programs under host names of their own."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def two_hosts() -> Iterator[tuple[str, str]]:
    """Yield (name, subnet): the namespaces NAME-1 and NAME-2 have the addresses SUBNET.11 and SUBNET.12."""
    if shutil.which("ip") is None or subprocess.run(["ip", "netns"], capture_output=True, check=False).returncode:
        pytest.skip("there is no ip netns here")
    # Another process of the tests may have two hosts at the same time.
    bridge, name, subnet = (
        f"iotwin{os.getpid()}"[:15],
        f"iotwin-{os.getpid()}",
        f"10.{200 + os.getpid() // 256 % 50}.{os.getpid() % 256}",
    )
    words = [f"link add {bridge} type bridge", f"addr add {subnet}.1/24 dev {bridge}", f"link set {bridge} up"]
    for node in (1, 2):
        words += [
            f"netns add {name}-{node}",
            f"link add v{os.getpid()}.{node} type veth peer name eth0 netns {name}-{node}",
            f"link set v{os.getpid()}.{node} master {bridge} up",
            f"-n {name}-{node} addr add {subnet}.1{node}/24 dev eth0",
            f"-n {name}-{node} link set eth0 up",
            f"-n {name}-{node} link set lo up",
        ]
    try:
        for each in words:
            subprocess.run(["ip", *each.split()], check=True)
        yield name, subnet
    finally:
        for each in (f"netns del {name}-1", f"netns del {name}-2", f"link del {bridge}"):
            subprocess.run(["ip", *each.split()], check=False)
