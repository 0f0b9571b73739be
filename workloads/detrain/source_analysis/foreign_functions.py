"""Functions of installed packages that return what they are given, or the items of it."""

# Calls that return what they are given: a function, a model, a loader.
TRANSPARENT = {
    "tf.function", "tensorflow.function", "torch.compile", "torch.jit.script", "jax.jit", "jax.pmap", "functools.wraps()",
    "functools.lru_cache", "functools.cache", "copy.deepcopy", "copy.copy", "torch.no_grad()", "torch.enable_grad()",
    "typing.cast",
}  # fmt: skip
# Functions whose items are those of an argument, with its position. None: each item is a tuple with one item of each argument.
ITERATED_ARGUMENT: dict[str, int | None] = {
    "builtins.iter": 0, "builtins.list": 0, "builtins.tuple": 0, "builtins.sorted": 0, "builtins.reversed": 0, "builtins.set": 0,
    "builtins.zip": None, "builtins.map": 1, "builtins.filter": 1, "itertools.islice": 0, "itertools.cycle": 0,
    "itertools.chain": 0, "itertools.chain.from_iterable": 0, "itertools.zip_longest": None, "itertools.takewhile": 1,
    "itertools.dropwhile": 1, "itertools.tee": 0, "itertools.repeat": 0, "rich.progress.track": 0, "more_itertools.take": 1,
}  # fmt: skip
_PROGRESS_BARS = {"tqdm", "trange", "track", "progressbar", "ProgressBar", "alive_it", "Progbar"}


def iterated_argument(path: str) -> int | bool | None:
    """Return which argument of the foreign function `path` its items come from; None: zip; False: unknown."""
    if path in ITERATED_ARGUMENT:
        return ITERATED_ARGUMENT[path]
    last = path.rpartition(".")[2]
    return 0 if last in _PROGRESS_BARS - {"trange"} or ("tqdm" in path.split(".")[0] and last != "trange") else False
