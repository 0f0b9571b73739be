"""docs/performance.md is what its generator writes, and each of its records can be measured again."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from tests.conftest import ROOT
from tests.perf import page, records
from tests.perf.claims import SECTIONS
from tests.perf.figures import Figure
from tests.perf.subjects import SUBJECTS

CLAIMS = [claim for section in SECTIONS for claim in section.claims]


def test_the_page_is_the_generators_output():
    """Marks of outdated figures may differ: they follow the newest commit."""
    written = page.PAGE.read_text(encoding="utf-8")
    assert written.replace(page.OUTDATED, "") == page.page().replace(page.OUTDATED, ""), "run: python -m tests.perf page"


def test_the_page_has_at_most_two_screens():
    assert len(page.PAGE.read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.subject}: {claim.what}")
def test_every_claim_has_a_figure(claim):
    assert page.records_of(claim)


def test_every_record_names_an_existing_command_and_existing_folders():
    stored = {path.stem for path in records.RECORDS.glob("*.json")}
    assert stored <= SUBJECTS.keys()
    for record in (record for subject in stored for record in records.read_records(subject)):
        called = re.match(r"python -m tests\.perf(?: |\.perf_)(\w+)", record.command)
        assert called and called[1] in SUBJECTS
        assert all((ROOT / folder).is_dir() for folder in record.covers), record.figure


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_subject_has_a_module_and_existing_folders(subject):
    assert (ROOT / "tests" / "perf" / f"perf_{subject}.py").is_file()
    assert all((ROOT / folder).is_dir() for folder in SUBJECTS[subject])


def _git(directory, *words):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    return subprocess.run(["git", *identity, *words], cwd=directory, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(not shutil.which("git"), reason="git is missing")
def test_a_record_is_outdated_once_its_code_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setattr(records, "RECORDS", tmp_path)
    _git(tmp_path, "init", "-q")
    for folder in ("datagen", "tracesim"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").touch()
    _git(tmp_path, "add", "datagen", "tracesim")
    _git(tmp_path, "commit", "-qm", "first")
    assert records.record_figures("datagen", [Figure("a", 1, 2), Figure("b", 3, 2)]) == 1
    measured = records.read_records("datagen")[0]
    assert (measured.commit, measured.command) == (
        _git(tmp_path, "rev-parse", "--short=12", "HEAD"),
        "python -m tests.perf datagen",
    )
    (tmp_path / "tracesim" / "a.py").write_text("changed")
    _git(tmp_path, "commit", "-qam", "elsewhere")
    assert not measured.is_outdated()
    assert replace(measured, commit=None).is_outdated(), "without a commit, changes of the same day count"
    (tmp_path / "datagen" / "a.py").write_text("changed")
    assert records._clean_commit() is None
    _git(tmp_path, "commit", "-qam", "there")
    assert measured.is_outdated()
    records.record_figures("datagen", [Figure("b", 4)])
    assert [(record.figure, record.value) for record in records.read_records("datagen")] == [("a", 1.0), ("b", 4.0)]
