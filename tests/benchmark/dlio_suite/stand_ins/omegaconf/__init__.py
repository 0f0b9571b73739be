"""OmegaConf's conversions of a composed config."""

import json

import yaml
from hydra import sections


class OmegaConf:
    @staticmethod
    def to_container(config, resolve=False):
        copied = sections(json.loads(json.dumps(config)))
        copied.overrides = config.overrides
        return copied

    @staticmethod
    def to_yaml(config):
        return yaml.safe_dump(json.loads(json.dumps(config)))

    @staticmethod
    def save(config, file):
        file.write(OmegaConf.to_yaml(config))
