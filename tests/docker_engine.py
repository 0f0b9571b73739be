"""A Docker Engine for tests: the one that runs, or one of their own under a private directory, and images built from scratch."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from iotwin.tracing_tools.targets.cgroup_mounts import cgroup2_mount
from tests.conftest import PATIENCE_S, ROOT, compile_c

IMAGE = "iotwin-test:latest"


def client() -> Any:
    """Return a client of the engine that DOCKER_HOST names, which waits for its answers longer than any takes."""
    import docker

    return docker.from_env(timeout=PATIENCE_S)


def containers() -> set[str]:
    """Return the names of all containers; an engine removes one made with --rm a moment after `docker run` has ended."""
    return {container.name for container in client().containers.list(all=True, ignore_removed=True)}


@contextmanager
def docker_engine() -> Iterator[str]:
    """Yield the address of a Docker Engine (DOCKER_HOST is set to it meanwhile); skip with the reason where there is none.

    An engine of our own is started only where none answers. It has its own socket, data and containerd, no network but `none` and
    `host`, and is stopped by its process id with all that it mounted.
    """
    docker = pytest.importorskip("docker", reason="the Python package docker is not installed")
    try:
        docker.from_env().ping()
    except docker.errors.DockerException:
        pass
    else:
        yield os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        return
    base = Path(tempfile.mkdtemp(prefix="iotwin-docker-"))
    before = os.environ.get("DOCKER_HOST")
    try:
        with _own_engine(base) as address:
            os.environ["DOCKER_HOST"] = address
            yield address
            _remove_containers(client())
    finally:
        os.environ.pop("DOCKER_HOST", None)
        if before is not None:
            os.environ["DOCKER_HOST"] = before
        _remove(base)


@contextmanager
def _own_engine(base: Path) -> Iterator[str]:
    for program in ("dockerd", "containerd", "setpriv"):
        if shutil.which(program) is None:
            pytest.skip(f"no Docker Engine answers and {program} is not installed")
    if os.geteuid() != 0:
        pytest.skip("no Docker Engine answers and starting one needs root")
    socket, log = base / "docker.sock", base / "log"
    command = [
        # Ended with the tests even when they are killed.
        "setpriv", "--pdeathsig", "TERM",
        "dockerd", "--host", f"unix://{socket}", "--data-root", str(base / "data"), "--exec-root", str(base / "exec"),
        "--pidfile", str(base / "pid"), "--storage-driver", _storage_driver(base), "--bridge=none", "--iptables=false",
        "--ip6tables=false", "--ip-masq=false", "--group=root",
    ]  # fmt: skip
    environment = {key: value for key, value in os.environ.items() if key != "DOCKER_HOST"}
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, env=environment) as engine:
        try:
            _wait_until_ready(engine, f"unix://{socket}", log)
            yield f"unix://{socket}"
        finally:
            engine.terminate()
            try:
                engine.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                engine.kill()


def _wait_until_ready(engine: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    import docker

    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and engine.poll() is None:
        try:
            docker.DockerClient(base_url=address).ping()
            return
        except docker.errors.DockerException:
            time.sleep(0.1)
    lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    pytest.skip(f"dockerd does not start here: {lines[-1]}")


def _storage_driver(base: Path) -> str:
    """overlay2 where an overlay can be mounted in `base`, else vfs, which copies."""
    folders = [base / "probe" / name for name in ("lower", "upper", "work", "merged")]
    for folder in folders:
        folder.mkdir(parents=True)
    options = "lowerdir={},upperdir={},workdir={}".format(*folders[:3])
    mounted = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, folders[3]], check=False, capture_output=True)
    if mounted.returncode == 0:
        subprocess.run(["umount", folders[3]], check=True)
    shutil.rmtree(base / "probe")
    return "overlay2" if mounted.returncode == 0 else "vfs"


def _remove_containers(engine: Any) -> None:
    for container in engine.containers.list(all=True, ignore_removed=True):
        container.remove(force=True)


def _remove(base: Path) -> None:
    """Remove the engine's directory, after unmounting what a killed one may have left mounted in it."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted((mount for mount in mounts if mount.startswith(f"{base}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False)
    shutil.rmtree(base, ignore_errors=True)


def start_when_watched(create: str, before: str = ":", after: str = "docker rm --force $id >/dev/null 2>&1") -> str:
    """Shell commands that make a container by `docker create` with the words `create`, and start it once a tracer has its cgroup.

    The commands `before` run before its start, `after` after its end; both find its id in $id and its cgroup in $cgroup.
    `docker run` would leave it to the machine's load whether the tracer is there before the container's first instruction, and
    `--rm` gives an error instead of the container's status when the engine still writes to the folder that it removes.
    """
    mount = cgroup2_mount()
    return f"""
        id=$(docker create {create})
        cgroup=
        until [ "$cgroup" ]; do
            sleep 0.05
            for made in {mount}/docker/$id {mount}/system.slice/docker-$id.scope; do [ -e $made ] && cgroup=$made; done
        done
        {before}
        docker start --attach $id
        status=$?
        {after}
        exit $status
    """


def build_from_scratch(tag: str, folder: Path) -> None:
    """Build the image `tag` of the files in `folder` and busybox, without any registry; skip where busybox is not static."""
    busybox = shutil.which("busybox")
    # A dynamic program names its loader right after the headers.
    if busybox is None or b"/ld-linux" in Path(busybox).read_bytes()[:4096]:
        pytest.skip("busybox-static is not installed, of which the tests' images are made")
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    shutil.copy(busybox, programs / "busybox")
    listed = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
    for name in {*listed} - {"busybox"}:
        (programs / name).symlink_to("busybox")
    (folder / "tmp").mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY . /\nENV PATH=/bin\n")
    client().images.build(path=str(folder), tag=tag, rm=True)


def build_test_image(folder: Path) -> str:
    """Build the image of busybox, `calls` and `direct` (static, of tests/tracing_tools) and return its name."""
    (folder / "bin").mkdir(parents=True)
    for name in ("calls", "direct"):
        source = ROOT / "tests" / "tracing_tools" / f"{name}.c"
        compile_c(folder / "bin" / name, source, options=["-static", "-pthread"])
    build_from_scratch(IMAGE, folder)
    return IMAGE
