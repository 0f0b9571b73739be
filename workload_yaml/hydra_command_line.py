"""What Hydra does for DLIO's command line: read the primary config, which selects a workload, and write files, for example:

dlio_benchmark workload=unet3d_a100 --config-dir DIR ++workload.reader.batch_size=4 ++hydra.output_subdir=dlio_config
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from iotwin.common.errors import UsageError, nearest
from iotwin.workload_yaml.compose import SHIPPED, ComposedWorkload, finished, named, own_settings, settings_of
from iotwin.workload_yaml.defaults import bases
from iotwin.workload_yaml.overrides import IGNORED, ComposedValues, Override, apply, parse_override
from iotwin.workload_yaml.yaml_file import plain, read

# The content of DLIO's own config.yaml.
_PRIMARY = {
    "defaults": ["_self_", {"workload": "default"}],
    "hydra": {"run": {"dir": "./hydra_log/${model.name}/${now:%Y-%m-%d}-${now:%H-%M-%S}"}},
}
_GROUP = "workload"
_SUBFOLDER = ".hydra"  # Hydra's default of hydra.output_subdir


class ConfigFolders(NamedTuple):
    """The options that select Hydra's primary config: --config-dir, then --config-path, and --config-name without .yaml."""

    folder: Path | None = None
    path: Path | None = None
    name: str | None = None

    @property
    def folders(self) -> list[Path]:
        """Return the folders of --config-dir and --config-path, if given. Raises UsageError if one does not exist."""
        given = [folder for folder in (self.folder, self.path) if folder is not None]
        for folder in given:
            if not folder.is_dir():
                raise UsageError(f"{folder}: no such directory; give the one that has config.yaml or workload/NAME.yaml in it")
        return given


class HydraJob(NamedTuple):
    """The workload that DLIO's command line selected, and how it was selected."""

    workload: ComposedWorkload
    choice: str
    overrides: list[str]
    subfolder: str | None  # folder within the output folder for Hydra's files; None: do not write them


def compose_job(words: Sequence[str], source: ConfigFolders) -> HydraJob:
    """Return the job of the command line's `words`: overrides, and ``workload=NAME`` unless config.yaml selects the workload.

    Unlike `iotwin.workload_yaml.select`, this function accepts unknown keys, as DLIO does, and lists them in `passed_over`.
    Raises UsageError if the workload does not exist, if Hydra would reject an override, or if a value is wrong.
    """
    choices = [word for word in words if word.lstrip("+").startswith(f"{_GROUP}=")]
    overrides = [word for word in words if word not in choices]
    parsed = [parse_override(text) for text in overrides]
    primary, path = _primary(source)
    choice = choices[-1].partition("=")[2] if choices else _choice(primary, path)
    settings = ComposedValues()
    for name, value, origin in _composed(primary, path, choice, source):
        settings.put(name, value, origin)
    for override in parsed:
        apply(settings, override, strict=True)
    return HydraJob(finished(settings, path, overrides, lambda key: True), choice, list(words), _subfolder(primary, parsed))


def _primary(source: ConfigFolders) -> tuple[dict[Any, Any], Path]:
    """Return (content, path) of the primary config: the first file with the name of `source` in the folders of `source`.

    If no folder contains the file and `source` has no name, the primary config is DLIO's config.yaml.
    """
    name = (source.name or "config").removesuffix(".yaml")
    for folder in source.folders:
        if (path := folder / f"{name}.yaml").is_file():
            return read(path)[0], path
    if source.name is not None:
        known = [path.stem for folder in source.folders for path in sorted(folder.glob("*.yaml"))]
        raise UsageError(f"--config-name {source.name}: no such YAML in the folders given{nearest(name, known)}")
    return _PRIMARY, SHIPPED / "config.yaml"


def _choice(primary: dict[Any, Any], path: Path) -> str:
    for entry in primary.get("defaults") or []:
        if isinstance(entry, dict) and isinstance(name := entry.get(_GROUP), str) and name != "???":
            return name
    raise UsageError(f"{path}: names no workload in its defaults; add workload=NAME such as workload=unet3d_a100")


def _composed(primary: dict[Any, Any], path: Path, choice: str, source: ConfigFolders) -> Iterator[tuple[str, Any, str]]:
    """Yield (path of the key, value, origin) for the primary config and the workload. Later values override earlier values.

    The primary config's values come last if its `defaults` end with _self_, else first.
    """
    folders = [*(folder / _GROUP for folder in source.folders), *source.folders, SHIPPED]
    entries = primary.get("defaults") or []
    own = {key: value for key, value in primary.items() if key in (_GROUP, "hydra")}
    others = [entry for entry in entries if not (isinstance(entry, dict) and _GROUP in entry)]
    before, after = bases(others, path)
    is_last = bool(entries) and entries[-1] == "_self_"
    if not is_last:
        yield from own_settings(path.name, own)
    for base in (*before, *after):
        found = next((folder / f"{base.name}.yaml" for folder in base.folders if (folder / f"{base.name}.yaml").is_file()), None)
        if found is None and not base.optional:
            raise UsageError(f"{path}: defaults: {base.name}.yaml: not in {base.folders[-1]}")
        if found is not None:
            yield from settings_of(found, folders, section=base.section)
    yield from settings_of(named(choice, folders), folders)
    if is_last:
        yield from own_settings(path.name, own)


def _subfolder(primary: dict[Any, Any], overrides: Sequence[Override]) -> str | None:
    section = primary.get("hydra")
    subfolder = section.get("output_subdir", _SUBFOLDER) if isinstance(section, dict) else _SUBFOLDER
    for override in overrides:
        if override.path == "hydra.output_subdir":
            subfolder = None if override.kind == "delete" else override.value
    if subfolder is not None and (Path(str(subfolder)).is_absolute() or ".." in Path(str(subfolder)).parts):
        raise UsageError(f"hydra.output_subdir: '{subfolder}' leads out of the output folder")
    return None if subfolder is None else str(subfolder)


def job_text(job: HydraJob) -> str:
    """Return the composed config as YAML, with all keys below ``workload``. ``--cfg job`` prints it; config.yaml contains it."""
    values = plain(msgspec.to_builtins(job.workload.config))
    # DLIO's postprocessor and MLPerf's first checkers read the older spelling of the key.
    values["dataset"]["record_length"] = values["dataset"].get("record_length_bytes", 65536)
    return yaml.safe_dump({_GROUP: values}, sort_keys=False, width=130, allow_unicode=True)


def job_files(job: HydraJob) -> dict[str, str]:
    """Return the texts of the files that Hydra writes for a job, by name within the output folder; {} if it writes none."""
    if job.subfolder is None:
        return {}
    task = [text for text in job.overrides if not parse_override(text).path.startswith(IGNORED)]
    own = [text for text in job.overrides if text not in task]
    hydra = {
        "run": {"dir": job.workload.config.output.folder},
        "mode": "RUN",
        "output_subdir": job.subfolder,
        "overrides": {"hydra": own, "task": task},
        "job": {"name": "dlio_benchmark", "override_dirname": ",".join(task), "config_name": "config"},
        "runtime": {
            "cwd": str(Path.cwd()),
            "output_dir": str(Path(job.workload.config.output.folder).absolute()),
            "choices": {_GROUP: job.choice},
        },
    }
    notes = yaml.safe_dump({"hydra": hydra}, sort_keys=False)
    texts = {"config": job_text(job), "hydra": notes, "overrides": yaml.safe_dump(task, width=100_000)}
    return {f"{job.subfolder}/{name}.yaml": text for name, text in texts.items()}
