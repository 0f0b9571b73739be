"""What DLIO's tests import of DLIO: its configs are the checkout's, the rest is this emulator or holds nothing."""

import os
import sys
from types import ModuleType, SimpleNamespace

__file__ = f"{os.environ['IOTWIN_DLIO_CHECKOUT']}/dlio_benchmark/__init__.py"


def _module(name, **content):
    module = sys.modules[f"{__name__}.{name}"] = ModuleType(f"{__name__}.{name}")
    vars(module).update(content)


class ConfigArguments:
    """The arguments of the newest benchmark, by DLIO's names."""

    newest = None

    @staticmethod
    def reset():
        ConfigArguments.newest = None

    @staticmethod
    def get_instance():
        return ConfigArguments.newest


class DLIOMPI:
    """MPI needs no start here."""

    @staticmethod
    def get_instance():
        return SimpleNamespace(initialize=lambda: None)

    @staticmethod
    def reset():
        pass


for _package in ("checkpointing", "framework", "utils", "common"):
    _module(_package, __path__=[])
_module("utils.config", ConfigArguments=ConfigArguments)
_module("utils.utility", DLIOMPI=DLIOMPI, DFTRACER_ENABLE=True)
_module("common.enumerations", DatasetType=SimpleNamespace(TRAIN="train", VALID="valid"))
for _name in (
    "checkpointing.pytorch_checkpointing.PyTorchCheckpointing",
    "checkpointing.tf_checkpointing.TFCheckpointing",
    "checkpointing.pytorch_obj_store_checkpointing.PyTorchObjStoreCheckpointing",
    "framework.torch_framework.TorchFramework",
    "framework.tf_framework.TFFramework",
):
    _place, _, _class = _name.rpartition(".")
    _module(_place, **{_class: type(_class, (), {})})
