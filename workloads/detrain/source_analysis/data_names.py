"""Guesses from names in a script: data sets, loaders, calls that fetch a batch, indices, lists of parameters."""

import ast
import re

_WORD_END = r"(?:[^a-z]|$)"
_WORD_BEGIN = r"(?:^|[^a-z])"
_GETS = re.compile(
    rf"{_WORD_BEGIN}(?:next|get|fetch|load|read|sample|draw|pull|pop|popleft|slide|batch|batches|minibatch|data|dequeue|recv|receive"
    rf"|gather|make|generate|produce|examples?|input|inputs|rollout|collect|step|reset){_WORD_END}|batch|__getitem__"
)
_NO_DATA = re.compile(
    rf"{_WORD_BEGIN}(?:loss|lr|logits?|grads?|gradients?|params?|parameters?|state|states|dict|model|device|weights?|time|rank|size|len"
    rf"|schedule|norm|accuracy|metrics?|seed|memory|logger|config|args|world|lambda|mask|prob\w*|learning|optimizer|name){_WORD_END}"
)
_DATA = re.compile(
    r"data|loader|batch|corpus|replay|buffer|queue|reader|sampler|stream|samples|examples|dl(?:[^a-z]|$)|iterator|"
    r"images|tokens|texts|features|shards?|records?|(?:^|[^a-z])it(?:er)?(?:[^a-z]|$)|train_|inputs|env"
)
_LOADER = re.compile(
    r"loader|(?:^|[^a-z])dl(?:[^a-z]|$)|batches|data_?iter|dataset|dataload|(?:^|[^a-z])(?:data|ds|reader|stream|feed)(?:[^a-z]|$)"
)
_CHOICE = re.compile(
    rf"{_WORD_BEGIN}(?:i|j|k|n|b|t|f|idx\w*|ind|inds|index\w*|indices|ids?|number|num|step|key|keys|pos|position|perm|files?|filenames?"
    rf"|fnames?|paths?|shards?|urls?|names?|uri){_WORD_END}"
)
_LOOKUPS = {"index_select", "narrow", "take", "gather", "take_along_axis", "dynamic_slice", "dynamic_slice_in_dim", "iloc"}
_METHODS_OF_VALUES = {
    "item", "numpy", "tolist", "detach", "clone", "cpu", "cuda", "to", "float", "long", "int", "half", "mean", "sum", "exp",
    "log", "pow", "sqrt", "abs", "clamp", "view", "reshape", "squeeze", "unsqueeze", "size", "dim", "numel", "argmax", "max",
    "min", "softmax", "sigmoid", "relu", "tanh", "norm", "format", "join", "strip", "copy", "keys", "values", "items", "lower",
    "flatten", "permute", "transpose", "contiguous", "expand", "repeat", "backward", "append", "extend", "insert", "clear",
}  # fmt: skip
_PARAMETERS = re.compile(
    r"param|optim|(?:^|[^a-z])opts?(?:[^a-z]|$)|(?:^|[._])(?:models|nets|networks|modules|layers|children|schedulers|discriminators"
    r"|critics|grads|gradients|variables|trainable_variables|trainable_weights|callbacks|hooks|metrics|meters)\b"
)
_LOSSES = re.compile(r"(?:^|[._])loss(?:es)?\b")


def gets_data(name: str) -> bool:
    """Return whether a function's name suggests that it returns a batch or sample."""
    lowered = name.lower()
    return bool(_GETS.search(lowered)) and not _NO_DATA.search(lowered)


def names_data(text: str) -> bool:
    """Return whether an expression's text suggests data, such as a data set or a loader."""
    return bool(_DATA.search(text.lower()))


def names_loader(text: str) -> bool:
    """Return whether an expression's text suggests something that yields batches."""
    return bool(_LOADER.search(text.lower()))


def chooses_data(name: str) -> bool:
    """Return whether a variable's name suggests an index or the name of a file."""
    return bool(_CHOICE.search(name.lower()))


def looks_up_by_index(name: str) -> bool:
    """Return whether a function selects items of its first argument or owner by an index."""
    return name in _LOOKUPS


def is_method_of_values(name: str) -> bool:
    """Return whether a method belongs to tensors, arrays, strings or containers, so that it only returns data that they have."""
    return name in _METHODS_OF_VALUES


def is_parameter_list(expression: ast.expr) -> bool:
    """Return whether an expression's text suggests parameters, models or optimizers."""
    return bool(_PARAMETERS.search(ast.unparse(expression).lower()))


def is_list_of_losses(expression: ast.expr) -> bool:
    """Return whether an expression's text suggests losses."""
    return bool(_LOSSES.search(ast.unparse(expression).lower()))
