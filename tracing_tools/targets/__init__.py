"""What is traced: a command, processes that run, a cgroup, a container, the whole machine."""
