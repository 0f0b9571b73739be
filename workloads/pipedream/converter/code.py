"""Writes the stages of a model as Python code: a class for each stage, and a package as PipeDream's converter makes it.

The code is run before it is written, and must compute the same output as the model.
"""

import builtins
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import write_whole
from iotwin.workloads.pipedream.converter.stages import SplitModel, StageModule
from iotwin.workloads.pipedream.converter.transfers import Borrower, Lender
from iotwin.workloads.pipedream.converter.weights import full_names

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STAGE = '''\
"""Stage {index} of {name}."""

{imports}


class Stage{index}(torch.nn.Module):
    NAMES = {{  # of weights here: those in the whole model
{names}
    }}

    def __init__(self):
        super().__init__()
{layers}

{forward}
    def load(self, path):
        """Load weights that are saved under the names of the whole model, as in stage{index}.pt."""
        state = torch.load(path, weights_only=True)
        self.load_state_dict({{own: state[name] for own, name in self.NAMES.items()}})
'''
_WHOLE = '''\
"""{name}: all stages, one after another."""

import torch

{imports}


class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
{stages}

    def forward(self, {inputs}):
{calls}
        return {output}
'''
_PACKAGE = '''\
"""The stages of {name}, and the tensors that they read and make."""

{imports}
from .{arch} import {name}


def arch():
    return {arch!r}


def model(criterion):
    return [
{modules}
        (criterion, [{output!r}], ["loss"]),
    ]


def full_model():
    return {name}()
'''


def export_code(whole: nn.Module, split: SplitModel, name: str, arch: str, folder: Path, inputs: Sequence[Tensor]) -> list[str]:
    """Write the code of a model's stages to `folder`, and return the names of the files.

    `name` is the class of the whole model, and `inputs` a minibatch. Raises UsageError if a layer has no code, because it is no
    layer of torch.nn, or if a name is no identifier.
    """
    for option, value in (("-n", name), ("-a", arch)):
        if not _IDENTIFIER.fullmatch(value):
            raise UsageError(f"--export-code: {option} '{value}' is no name that Python allows; use letters, digits and _")
    sources = [_stage_source(index, stage, name, full_names(whole, stage.module)) for index, stage in enumerate(split.stages)]
    _check(split, sources, inputs)
    tensors = _tensor_names(split)
    lists = [([tensors[each] for each in stage.inputs], [tensors[each] for each in stage.outputs]) for stage in split.stages]
    imports = "\n".join(f"from .stage{index} import Stage{index}" for index in range(len(sources)))
    calls = [f"{', '.join(made)} = self.stage{index}({', '.join(read)})" for index, (read, made) in enumerate(lists)]
    output = tensors[split.output]
    files = {f"stage{index}.py": source for index, source in enumerate(sources)}
    files[f"{arch}.py"] = _WHOLE.format(
        name=name, imports=imports, inputs=", ".join(tensors[each] for each in split.inputs), output=output,
        stages=_indented(8, [f"self.stage{index} = Stage{index}()" for index in range(len(sources))]), calls=_indented(8, calls),
    )  # fmt: skip
    modules = [f"(Stage{index}(), {read!r}, {made!r})," for index, (read, made) in enumerate(lists)]
    files["__init__.py"] = _PACKAGE.format(
        name=name, arch=arch, imports=imports, modules=_indented(8, modules), output=output
    )  # fmt: skip
    for file, source in files.items():
        write_whole(folder / file, source.encode())
    return list(files)


def _tensor_names(split: SplitModel) -> dict[str, str]:
    """Return the names of tensors in the code: input0, ... and out0, ..., as PipeDream's converter calls them."""
    made = [each for stage in split.stages for each in stage.outputs]
    names = {each: f"input{index}" for index, each in enumerate(split.inputs)}
    return names | {each: f"out{index}" for index, each in enumerate(made)}


def _indented(spaces: int, lines: Sequence[str]) -> str:
    return "\n".join(" " * spaces + line for line in lines)


def _stage_source(index: int, stage: StageModule, name: str, names: dict[str, str]) -> str:
    module = stage.module
    layers = [f"self.add_module({own!r}, {_layer_code(layer, own)})" for own, layer in module.named_children()]
    shared: dict[nn.Parameter, str] = {}
    for own, parameter in module.named_parameters(remove_duplicate=False):
        first = shared.setdefault(parameter, own)
        if first != own:
            owner, _, attribute = own.rpartition(".")
            first_owner, _, first_attribute = first.rpartition(".")
            layers.append(f"self.get_submodule({owner!r}).{attribute} = self.get_submodule({first_owner!r}).{first_attribute}")
            names = {**names, own: names[first]}
    graph: Any = module.graph
    code = graph.python_code("self")
    used = set(_IDENTIFIER.findall(code.src) + _IDENTIFIER.findall("\n".join(layers)))
    imports = ["import torch"]
    for each, value in {**code.globals, "Borrower": Borrower, "Lender": Lender}.items():
        if each in used and each != "torch" and not hasattr(builtins, each):
            imports.append(_import(each, value))
    forward = re.sub(r"^", "    ", code.src.strip(), flags=re.MULTILINE) + "\n"
    return _STAGE.format(
        index=index, name=name, imports="\n".join(imports),
        names=_indented(8, [f"{own!r}: {full!r}," for own, full in names.items()]), layers=_indented(8, layers), forward=forward
    )  # fmt: skip


def _import(name: str, value: Any) -> str:
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"
    if isinstance(value, float):
        return f"from math import {name}"
    return f"from {value.__module__} import {value.__qualname__} as {name}"


def _layer_code(layer: nn.Module, name: str) -> str:
    """Return an expression that makes a layer with new weights. The code loads the model's weights afterwards."""
    if isinstance(layer, Lender):
        shape = tuple(layer.weight.shape)
        return f"Lender(torch.nn.Parameter(torch.empty({shape!r})))"
    if isinstance(layer, Borrower):
        return f"Borrower({_layer_code(layer.layer, name)}, {layer.names!r})"
    if not type(layer).__module__.startswith("torch.nn.") or any(True for _ in layer.children()):
        raise UsageError(f"--export-code: the layer {name} is a {type(layer).__name__}, no layer of torch.nn; leave it out")
    return f"torch.nn.{layer!r}"


def _check(split: SplitModel, sources: list[str], inputs: Sequence[Tensor]) -> None:
    """Raise IotwinError if the code of a stage does not compute what the stage computes."""
    known = dict(zip(split.inputs, inputs, strict=True))
    for index, (stage, source) in enumerate(zip(split.stages, sources, strict=True)):
        space: dict[str, Any] = {}
        exec(compile(source, f"stage{index}.py", "exec"), space)  # noqa: S102 - made above, from layers of torch.nn
        again = space[f"Stage{index}"]()
        again.load_state_dict(stage.module.state_dict())
        results = []
        for module in (stage.module, again):
            training = module.training
            module.eval()
            with torch.no_grad():
                result = module(*(known[each] for each in stage.inputs))
            module.train(training)
            results.append(result if isinstance(result, tuple) else (result,))
        if not all(torch.equal(before, after) for before, after in zip(*results, strict=True)):
            raise IotwinError(f"--export-code: the code of stage {index} computes another output than the model; leave it out")
        known |= dict(zip(stage.outputs, results[0], strict=True))
