"""Recognises models and losses. Their calls compute from a batch, while calls of a loader fetch one."""

import ast
import re

from iotwin.workloads.detrain.source_analysis.inference import Inference
from iotwin.workloads.detrain.source_analysis.local_modules import SourceModule
from iotwin.workloads.detrain.source_analysis.name_lookup import SELF_RETURNING
from iotwin.workloads.detrain.source_analysis.values import CallFrame, LocalClass, LocalFunction, LocalInstance, Outside, Value

# Methods that scripts call only on models.
_METHODS_OF_MODELS = {
    "parameters", "named_parameters", "state_dict", "load_state_dict", "zero_grad", "trainable_variables", "trainable_weights",
    "modules", "named_modules",
}  # fmt: skip
_MODEL_BASES = re.compile(
    r"^(?:torch\.nn|keras|tensorflow|tf_keras|flax|haiku|equinox|lightning|pytorch_lightning|transformers|timm)\b"
)
_MODEL_PATHS = re.compile(
    r"^torch\.nn\.|torchvision\.models|timm\.create_model|transformers\.\w*Model|keras\.(?:Model|Sequential|models|layers|losses)"
    r"|DistributedDataParallel|DataParallel|hub\.load"
)
# An object as it was made, or as a method such as `to` returned it. The result of calling the object is no model.
_OBJECT = re.compile(rf"^[^()]*\(\)(?:\[\])*(?:\.(?:{'|'.join(SELF_RETURNING)})\(\))*$")
_NAMES = re.compile(
    r"(?:^|[^a-z])(?:model|net|network|encoder|decoder|generator|discriminator|critic|actor|policy|backbone|head|classifier|unet|gan"
    r"|vae|netd|netg)(?:[^a-z]|$)"
)
_LOSSES = re.compile(r"(?:^|[^a-z])(?:criterion|loss|loss_fn|lossfn|mse|bce|cross_entropy|objective|forward)(?:[^a-z]|$)")
_COMPUTING = re.compile(
    r"^torch\.nn\.|^torch\.nn\.functional\.|^tensorflow\.nn\.|^tensorflow\.reduce_|keras\.(?:losses|ops|activations)|^jax\.nn\."
    r"|^optax\.\w*(?:entropy|loss|error)|functional\."
)


class Models:
    """Recognises the models of a script."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._owners: dict[SourceModule, set[str]] = {}

    def is_model(self, expression: ast.expr, frame: CallFrame) -> bool:
        """Return whether an expression is a model. Evidence: its possible values, the methods called on it, or its name."""
        values = self._inference.values(expression, frame)
        known = {self._value_is_model(value) for value in values} - {None}
        if len(known) == 1:  # more: the values contradict one another
            return bool(known.pop())
        text = ast.unparse(expression)
        if text != "self" and text in self._owners_of_methods(frame.scope.module):  # `self` means another object in each class
            return not re.search(r"optim|opt\b|loader|sched|scaler", text.lower())
        return _is_named(expression, _NAMES)

    def _value_is_model(self, value: Value) -> bool | None:
        match value:
            case LocalInstance():
                return True if any(map(_MODEL_BASES.search, self._inference.foreign_bases(value.local_class))) else None
            case Outside() if _MODEL_PATHS.search(value.path):
                return "utils.data" not in value.path and bool(_OBJECT.search(value.path))
            case LocalFunction() | LocalClass():
                return False
        return None

    def computes(self, call: ast.Call, frame: CallFrame, paths: list[str]) -> bool:
        """Return whether a call runs a model or a loss. `paths`: functions of installed packages that it may call."""
        if any(_COMPUTING.search(path) and "utils.data" not in path for path in paths):
            return True
        if isinstance(call.func, ast.Attribute) and self.is_model(call.func.value, frame):
            return not call.func.attr.startswith(("sample_batch", "next_batch", "get_batch", "set_", "named_"))
        if self.is_model(call.func, frame):
            return True
        return _is_named(call.func, _LOSSES) and not self._inference.values(call.func, frame)

    def _owners_of_methods(self, module: SourceModule) -> set[str]:
        """Return the texts of expressions on which the module calls a method that only models have."""
        if module not in self._owners:
            found = set()
            for node in module.nodes:
                if isinstance(node, ast.Attribute) and node.attr in _METHODS_OF_MODELS:
                    found.add(ast.unparse(node.value))
            self._owners[module] = found
        return self._owners[module]


def _is_named(expression: ast.expr, names: re.Pattern[str]) -> bool:
    """Return whether the last name of a dotted name is one of `names`."""
    if not isinstance(expression, ast.Name | ast.Attribute):
        return False
    name = expression.id if isinstance(expression, ast.Name) else expression.attr
    return bool(names.search(name.lower()))
