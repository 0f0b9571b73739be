"""Hydra's compose, by this emulator's own composition."""

from contextlib import contextmanager
from pathlib import Path

import yaml

from iotwin.workload_yaml import ConfigFolders, compose_job, job_text

_folders = []


class Section(dict):
    """A section whose keys are attributes too; that of a workload knows the overrides it came from."""

    overrides = ()
    __getattr__ = dict.__getitem__


@contextmanager
def initialize_config_dir(version_base, config_dir):
    _folders.append(config_dir)
    yield
    _folders.pop()


def compose(config_name, overrides):
    job = compose_job(overrides, ConfigFolders(Path(_folders[-1]), None, config_name))
    config = sections(yaml.safe_load(job_text(job)))
    config["workload"].overrides = [*overrides, f"--config-dir={_folders[-1]}"]
    return config


def sections(value):
    return Section({key: sections(item) for key, item in value.items()}) if isinstance(value, dict) else value
