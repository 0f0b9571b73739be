"""The manifest for Kubernetes, without a cluster: its command line, its privileges, and that these suffice."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from iotwin.main import build_parser, load_commands
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.targets.cgroup_mounts import cgroup2_mount
from tests.conftest import PATIENCE_S, ROOT
from tests.tracing_tools.recorder.test_capture import on_path

MANIFEST = ROOT / "deploy" / "kubernetes" / "daemonset.yaml"
# Opens a file, tells so, and reads it once somebody has answered.
POD = "import os, sys; file = os.open(sys.argv[1], os.O_RDONLY); print(flush=True); input(); os.pread(file, 10, 3); input()"


def pod() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    assert (document["apiVersion"], document["kind"]) == ("apps/v1", "DaemonSet")
    template = document["spec"]["template"]
    assert document["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    return dict(template["spec"])


def container() -> dict[str, Any]:
    (only,) = pod()["containers"]
    return dict(only)


def test_the_command_line_is_one_of_iotwin():
    words = [*container()["command"], *container()["args"]]
    assert words[:2] == ["iotwin", "trace"]
    known = {each["name"] for each in container()["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(words))) == known
    args, unknown = build_parser(load_commands("trace"))[0].parse_known_args(words[1:])
    assert not unknown and args.cgroup == "/kubepods.slice" and args.words == []
    assert str(args.output) == "/traces/$(NODE_NAME).trace"


def test_what_is_mounted_is_named_and_the_nodes_control_groups_are_read_only():
    mounts = {each["name"]: each for each in container()["volumeMounts"]}
    volumes = {each["name"]: each for each in pod()["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert mounts["cgroup"]["readOnly"] and mounts["cgroup"]["mountPath"] == volumes["cgroup"]["hostPath"]["path"]
    writable = {name for name, each in mounts.items() if not each.get("readOnly") and "hostPath" in volumes[name]}
    assert writable == {"traces"}


def capabilities() -> list[str]:
    context = container()["securityContext"]
    assert context["capabilities"]["drop"] == ["ALL"] and context["readOnlyRootFilesystem"]
    assert not context["privileged"] and not context["allowPrivilegeEscalation"]
    return list(context["capabilities"]["add"])


def test_the_privileges_are_those_that_the_page_on_security_names():
    section = (ROOT / "docs" / "security.md").read_text().partition("## In Kubernetes\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == capabilities()
    spec = pod()
    assert spec["hostPID"] and not spec["automountServiceAccountToken"]
    assert not {"hostNetwork", "hostIPC", "serviceAccountName"} & spec.keys()


@pytest.mark.root
def test_the_capabilities_of_the_manifest_suffice(tmp_path: Path):
    """A tracer in a cgroup namespace of its own, as in a pod, follows a process of another user that runs already."""
    if missing := [name for name in ("setpriv", "unshare") if shutil.which(name) is None]:
        pytest.skip(f"there is no {missing[0]} here")
    mount = cgroup2_mount()
    assert mount is not None
    pods, own = mount / f"iotwintest-{os.getpid()}.slice", mount / f"iotwintest-{os.getpid()}.self"
    target = Path("/etc/hostname")
    enter = ["sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"']
    user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    kept = ",".join(f"+{name.lower()}" for name in capabilities())
    limited = ["unshare", "--cgroup", "setpriv", "--inh-caps=-all", f"--bounding-set=-all,{kept}"]
    trace = ["-m", "iotwin", "trace", "-o", tmp_path / "node.trace", "--cgroup", pods, "--backend", "libbpf", "--quiet"]
    (pods / "pod").mkdir(parents=True)
    own.mkdir()
    try:
        python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable
        job = subprocess.Popen(
            [*enter, pods / "pod", *user, python, "-S", "-c", POD, target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert job.stdin is not None and job.stdout is not None and job.stdout.readline()
        tracer = subprocess.Popen(
            [*enter, own, *limited, sys.executable, *trace], env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE
        )
        from tests.processes import wait_for

        names = tmp_path / "node.trace" / "raw" / "names.bin"
        wait_for(lambda: tracer.poll() is not None or (names.exists() and names.stat().st_size), "the recording")
        assert tracer.poll() is None, tracer.stderr and tracer.stderr.read()
        events = names.with_name("events.bin")
        job.stdin.write("\n")
        job.stdin.flush()
        wait_for(lambda: tracer.poll() is not None or events.stat().st_size, "the read")
        tracer.terminate()
        assert tracer.wait(PATIENCE_S) == 0
        job.communicate("\n")
    finally:
        for path in (pods / "pod", pods, own):
            path.rmdir()
    found = Trace(tmp_path / "node.trace")
    assert found.manifest.lost_events == 0
    assert "pread64" in on_path(found, str(target))["op"].tolist()
