"""Check what all eBPF backends require: the machine, the kernel and the caller's privileges."""

import os
from pathlib import Path

_BTF = Path("/sys/kernel/btf/vmlinux")
_LOCKDOWN = Path("/sys/kernel/security/lockdown")
_STATUS = Path("/proc/self/status")
_CAP_SYS_ADMIN, _CAP_PERFMON, _CAP_BPF = 21, 38, 39  # include/uapi/linux/capability.h


def ebpf_unavailable_reason() -> str | None:
    """Return why no eBPF program can be loaded on this machine, None if it should work."""
    if os.uname().machine != "x86_64":
        return f"the probes read x86-64 registers; this machine is {os.uname().machine}"
    if os.geteuid() != 0:
        return "loading eBPF needs root; run under sudo"
    if not _may_load():
        return "loading eBPF needs the capabilities CAP_BPF and CAP_PERFMON, which this root lacks; run it privileged"
    if _is_locked_down():
        return "the kernel is locked down (confidentiality), so that eBPF may not read its memory; boot with lockdown=integrity"
    if not _BTF.exists():
        return f"the kernel has no BTF ({_BTF}); it was built without CONFIG_DEBUG_INFO_BTF"
    return None


def _may_load() -> bool:
    fields = dict(line.partition(":")[::2] for line in _STATUS.read_text().splitlines())
    has = [int(fields["CapEff"], 16) >> number & 1 for number in (_CAP_SYS_ADMIN, _CAP_PERFMON, _CAP_BPF)]
    return bool(has[0] or (has[1] and has[2]))


def _is_locked_down() -> bool:
    try:
        return "[confidentiality]" in _LOCKDOWN.read_text()
    except OSError:
        return False  # unknown without securityfs. If the kernel is locked down, loading a program will fail
