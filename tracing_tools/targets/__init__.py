"""The targets of a trace: a command, running processes, a cgroup, a container, the whole machine."""
