"""``iotwin stats`` and ``info``: what a person, a spreadsheet and a script get; names from a trace as text."""

import csv
import io
import json

from tests.iotwin.processes import call, one_line
from tests.trace_visuals.hostile import MARK, NAMES, write_hostile
from tracing_tools.trace.reader import Trace


def test_a_table_csv_and_json_of_the_same_numbers(trace, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    document = json.loads(call("stats", trace, "--by", "file", "--json").stdout)
    read = list(csv.DictReader(io.StringIO(call("stats", trace, "--by", "file", "--csv").stdout)))
    assert [row["path"] for row in read] == [row["path"] for row in document["rows"]]
    assert sum(int(row["calls"]) for row in read) == Trace(trace).manifest.events
    shown = call("stats", trace, "--by", "file").stdout
    assert all(heading in shown for heading in ("path", "kind", "% time", "median", "99 %", "longest"))
    assert document["rows"][0]["path"] in shown


def test_answers_in_sql(trace):
    document = json.loads(call("stats", trace, "--sql", "select count(*) as n from files", "--json").stdout)
    assert (document["columns"], document["rows"]) == (["n"], [[len(Trace(trace).files())]])
    assert call("stats", trace, "--sql", "select 1 as one, 'a,b' as two", "--csv").stdout == 'one,two\n1,"a,b"\n'
    assert "│ a,b" in call("stats", trace, "--sql", "select 'a,b' as two").stdout


def test_requests_that_contradict_themselves_are_refused(trace):
    for arguments in (
        ["--csv", "--json"],
        ["--sql", "select 1", "--by", "file"],
        [trace, "--sql", "select 1"],
        ["--sql", "drop x"],
    ):
        result = call("stats", trace, *arguments)
        assert result.returncode == 2 and one_line(result), arguments


def test_hostile_names_are_shown_as_text(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    path = write_hostile(tmp_path / "[red]x\x1b[2J.trace")
    shown = call("stats", path, "--by", "file").stdout + call("info", path).stdout
    assert MARK in shown and NAMES[3] in shown and "\x1b" not in shown and "[red]x" in shown
