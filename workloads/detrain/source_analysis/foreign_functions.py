"""Functions of installed packages that return their argument unchanged, or the items of their argument."""

import ast

# Calls that return their argument, such as a function, model or loader.
TRANSPARENT = {
    "tf.function", "tensorflow.function", "torch.compile", "torch.jit.script", "jax.jit", "jax.pmap", "functools.wraps()",
    "functools.lru_cache", "functools.cache", "copy.deepcopy", "copy.copy", "torch.no_grad()", "torch.enable_grad()",
    "typing.cast",
}  # fmt: skip
# By function that yields the items of an argument: the argument's position; None if it yields tuples with an item of each one.
_ITERATED: dict[str, int | None] = {
    "builtins.iter": 0, "builtins.list": 0, "builtins.tuple": 0, "builtins.sorted": 0, "builtins.reversed": 0, "builtins.set": 0,
    "builtins.zip": None, "builtins.map": 1, "builtins.filter": 1, "itertools.islice": 0, "itertools.cycle": 0,
    "itertools.chain": 0, "itertools.chain.from_iterable": 0, "itertools.zip_longest": None, "itertools.takewhile": 1,
    "itertools.dropwhile": 1, "itertools.tee": 0, "itertools.repeat": 0, "rich.progress.track": 0, "more_itertools.take": 1,
}  # fmt: skip
_PROGRESS_BARS = {"tqdm", "track", "progressbar", "ProgressBar", "alive_it", "Progbar"}
ENUMERATE = "builtins.enumerate"


def iterated(path: str, call: ast.Call, item: tuple[int, ...]) -> tuple[ast.expr, tuple[int, ...]] | None:
    """Return the argument whose items a call yields, and the path within an item of that argument.

    `path`: name of the called function; `item`: path within each item that the call yields, such as (1, 0). Returns None if
    the argument is unknown, or if `item` is the counter of `enumerate`.
    """
    last = path.rpartition(".")[2]
    which: int | None = 0
    if path == ENUMERATE:
        if item[:1] == (0,):
            return None
        item = item[1:]
    elif path in _ITERATED:
        which = _ITERATED[path]
        if which is None and item:
            which, item = item[0], item[1:]
    elif last not in _PROGRESS_BARS and ("tqdm" not in path.partition(".")[0] or last == "trange"):
        return None
    return (call.args[which], item) if which is not None and which < len(call.args) else None
