"""Command line options of a job, declared as the fields of the dataclass that holds them."""

from argparse import ArgumentParser
from dataclasses import field, fields
from typing import Any

from iotwin.common.errors import UsageError

_REQUIRED = object()


def option(text: str, default: Any = _REQUIRED, *names: str, least: float | None = None, **settings: Any) -> Any:
    """Return a dataclass field that is an option, with its help `text`, its default (else it is required) and least value.

    `names` are the option's names instead of the field's name. `settings` go to `ArgumentParser.add_argument`.
    """
    return field(metadata={"text": text, "default": default, "names": names, "least": least, "settings": settings})


def add_options(parser: ArgumentParser, config: type) -> None:
    """Add to `parser` those fields of the dataclass `config` that are options.

    A field of type bool becomes a switch without a value, unless the field's default is a text.
    """
    for each in fields(config):
        if not each.metadata:
            continue
        text, default = each.metadata["text"], each.metadata["default"]
        settings: dict[str, Any] = {"dest": each.name, "help": text}
        if each.type is bool and not isinstance(default, str):
            settings["action"] = "store_true"
        elif default is _REQUIRED:
            settings |= {"type": each.type, "required": True}
        elif default is None:
            settings["type"] = each.type
        else:
            settings |= {"type": each.type, "default": default, "help": f"{text} (default %(default)s)"}
        names = each.metadata["names"] or [_name(each.name)]
        parser.add_argument(*names, **settings | each.metadata["settings"])


def check_least(config: Any) -> None:
    """Raise UsageError for the first option of `config` that is NaN or below its least value."""
    for each in fields(config):
        least, value = each.metadata.get("least"), getattr(config, each.name)
        if least is not None and not value >= least:  # also refuses nan
            raise UsageError(f"{_name(each.name)} {value} must be at least {least}")


def _name(field_name: str) -> str:
    return f"--{field_name.replace('_', '-')}"
