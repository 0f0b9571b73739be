"""Recognises the calls that update weights, compute gradients, or leave the training to a framework."""

import ast
import re
from enum import Enum

from iotwin.workloads.detrain.source_analysis.inference import Inference
from iotwin.workloads.detrain.source_analysis.local_modules import LocalModules, SourceModule
from iotwin.workloads.detrain.source_analysis.values import CallFrame, LocalClass, LocalFunction, LocalInstance, Outside, Value


class SinkKind(Enum):
    """What a call does to the weights."""

    UPDATE = "update"  # changes the weights
    GRADIENT = "gradient"  # computes gradients
    FRAMEWORK = "framework"  # runs a whole training loop of an installed package
    WEAK = "weak"  # computes gradients, perhaps for another purpose


# Methods that update weights or compute gradients, whatever package is used.
ALWAYS = {"step", "backward", "manual_backward", "apply_gradients", "train_on_batch", "gradient", "minimize", "apply_updates"}
_FITS = {"fit", "fit_one_cycle", "fine_tune", "fit_generator"}
_TRAIN = {"train": {"transformers", "trl", "ultralytics", "setfit", "sentence_transformers", "mmengine"}, "run": {"ignite"}}
_OF_TENSORFLOW = {"apply"}
_OF_AUTOGRAD = {"grad", "value_and_grad"}
_UPDATES = {"apply_gradients", "train_on_batch", "apply_updates"}
_UPDATES_OF_OPTIMIZERS = {"step", "apply", "minimize"}
_OPTIMIZER = re.compile(
    r"(?:^|[^a-z])(?:[a-z]?opt(?:s|im\w*|[a-z])?|\w*optim\w*|solver|engine|adam\w*|sgd|lbfgs|gradscaler)(?:[^a-z]|$)"
)
_SCALER = re.compile(r"(?:^|[^a-z])(?:grad_?)?scaler(?:[^a-z]|$)")
_NO_OPTIMIZER = re.compile(r"sched|warm_?up|env|prof|timer|bar|log|metric|agent|simul|ema|options|annealer")
_FRAMEWORKS = {
    "lightning", "pytorch_lightning", "transformers", "trl", "keras", "tensorflow", "tf_keras", "fastai", "composer", "ignite",
    "torchtnt", "catalyst", "setfit", "sentence_transformers", "ultralytics", "mmengine", "flaml", "skorch", "paddle", "mxnet",
}  # fmt: skip
_TRAINERS = re.compile(
    r"(?:^|[^a-z])(?:trainer|model|net|network|learn|learner|estimator|gan|vae|autoencoder|classifier)(?:[^a-z]|$)"
)


def sink_names(module: SourceModule, modules: LocalModules) -> set[str]:
    """Return the names of methods of the imported packages whose calls in `module` may be sinks."""
    found = set(ALWAYS)
    packages = modules.packages
    if packages & _FRAMEWORKS:
        found |= _FITS
    found |= {name for name, of in _TRAIN.items() if packages & of}
    if module.packages & {"tensorflow", "keras"}:
        found |= _OF_TENSORFLOW
    if "jax" in module.packages or "autograd" in module.text:
        found |= _OF_AUTOGRAD
    return found


def sink_of(call: ast.Call, frame: CallFrame, inference: Inference) -> SinkKind | None:
    """Return what a call of a method does to weights, None if nothing."""
    if not isinstance(call.func, ast.Attribute):
        return None
    name, owner = call.func.attr, call.func.value
    if name not in sink_names(frame.scope.module, inference.modules):
        return None
    values = inference.values(owner, frame)
    if any(isinstance(each, Outside) and each.path.startswith("torch.autograd") for each in values):
        return {"backward": SinkKind.GRADIENT, "grad": SinkKind.WEAK}.get(name)
    if name in ("backward", "manual_backward"):
        return SinkKind.GRADIENT
    if name in ("gradient", "grad"):
        return _of_tape(name, values, ast.unparse(owner))
    if name in _UPDATES:
        return SinkKind.UPDATE
    if name in _UPDATES_OF_OPTIMIZERS and is_optimizer(owner, values, name):
        return SinkKind.UPDATE
    if name in {*_FITS, *_TRAIN} and _is_trainer(owner, values, name, inference):
        return SinkKind.FRAMEWORK
    return None


def _of_tape(name: str, values: list[Value], owner: str) -> SinkKind | None:
    if name == "gradient" and ("tape" in owner.lower() or any(_path_has(each, "GradientTape") for each in values)):
        return SinkKind.GRADIENT
    return None


def is_optimizer(owner: ast.expr, values: list[Value], method: str) -> bool:
    """Return whether `owner` is an optimizer, gradient scaler or engine, by its possible values, or else by its name."""
    known = [_value_is_optimizer(each) for each in values]
    if True in known:
        return True
    if False in known:
        return False
    text = ast.unparse(owner).lower()
    if _NO_OPTIMIZER.search(re.sub(r"optimizers?|opts?\b", "", text)):
        return False
    return bool(_OPTIMIZER.search(text)) or (method == "step" and bool(_SCALER.search(text)))


def _value_is_optimizer(value: Value) -> bool | None:
    match value:
        case Outside():
            path = value.path
            if "lr_scheduler" in path or "profiler" in path.lower() or "Scheduler" in path:
                return False
            if re.search(
                r"\boptim\b|optimizers?\b|GradScaler|Adam|SGD|LBFGS|deepspeed|gluon\.Trainer|Optimizer|AdamW|Lion\b", path
            ):
                return True
            return False if re.match(r"(?:gym\w*|torch\.nn)\.\w+\(\)$", path) else None
        case LocalInstance():
            name = value.local_class.node.name.lower()
            if name.endswith(("scheduler", "sched")):
                return False
            return True if "opt" in name or "adam" in name or name == "sgd" else None
        case LocalClass() | LocalFunction():
            return False
    return None


def _is_trainer(owner: ast.expr, values: list[Value], method: str, inference: Inference) -> bool:
    """Return whether `owner.method()` runs a training loop of an installed package."""
    text = ast.unparse(owner)
    for value in values:
        match value:
            case LocalInstance():
                if inference.methods(value, method):
                    return False
                return any(_of_framework(base, method) for base in inference.foreign_bases(value.local_class))
            case Outside() if value.path.startswith("builtins."):
                continue
            case Outside():
                return _of_framework(value.path, method)
            case _:
                return False
    if method in ("train", "run"):
        return method == "train" and "trainer" in text.lower()
    return bool(_TRAINERS.search(text.lower())) and _imports_framework(inference)


def _of_framework(path: str, method: str) -> bool:
    package = path.partition(".")[0]
    if package not in _FRAMEWORKS:
        return False
    if method == "train":
        return "Trainer" in path or "YOLO()" in path or (package == "mmengine" and "Runner" in path)
    if method == "run":
        return package == "ignite" and "Engine" in path
    return not re.search(r"Normalization|TextVectorization|StringLookup|Tokenizer|preprocessing|\.adapt", path)


def _imports_framework(inference: Inference) -> bool:
    return bool(inference.modules.packages & _FRAMEWORKS)


def _path_has(value: Value, word: str) -> bool:
    return isinstance(value, Outside) and word in value.path
