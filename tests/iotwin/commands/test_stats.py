"""``iotwin stats`` and ``info``: what a person, a spreadsheet and a script get; names from a trace as text."""

import csv
import io
import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iotwin.loops.emulation_summary import print_what_if_latex
from iotwin.loops.statistics_table import storage_first
from iotwin.trace_store.figures.table_rows import TableRows
from iotwin.trace_store.reader import Trace
from tests.processes import call, one_line
from tests.synthetic import Job, write_job
from tests.trace_visuals.hostile import MARK, NAMES, write_hostile


def test_a_table_csv_and_json_of_the_same_numbers(trace, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    document = json.loads(call("stats", trace, "--by", "file", "--json").stdout)
    read = list(csv.DictReader(io.StringIO(call("stats", trace, "--by", "file", "--csv").stdout)))
    assert [row["path"] for row in read] == [row["path"] for row in document["rows"]]
    assert sum(int(row["calls"]) for row in read) == Trace(trace).manifest.events
    shown = call("stats", trace, "--by", "file").stdout
    assert all(heading in shown for heading in ("path", "kind", "% time", "median", "99 %", "longest"))
    assert document["rows"][0]["path"] in shown


def test_a_table_for_latex_has_the_rows_of_the_csv(trace):
    lines = call("stats", trace, "--latex").stdout.splitlines()
    rows = list(csv.reader(io.StringIO(call("stats", trace, "--csv").stdout)))
    assert lines[0].startswith("% iotwin") and lines[1].startswith(r"\begin{tabular}{l")
    assert len([line for line in lines if line.endswith(r"\\")]) == len(rows)
    assert [line.split(" & ")[0] for line in lines if " & " in line] == [row[0].replace("_", r"\_") for row in rows]
    assert "exclude each other" in one_line(call("stats", trace, "--latex", "--json"))
    assert "not allowed with" in call("stats", trace, "--latex", "--csv").stderr


def test_scores_and_what_if_rows_for_latex(trace, capsys):
    lines = call("compare", trace, trace, "--latex").stdout.splitlines()
    assert r"volume & 1 & 0." in "\n".join(lines) and lines[-3].startswith("overall & 1 & -- & --")
    rows = [{"value": None, "speed_up": 1.0, "low": None}, {"value": "2", "speed_up": 1.98765, "low": None}]
    print_what_if_latex({"what_if": "reader.read_threads", "runs": rows})
    shown = capsys.readouterr().out
    assert r"reader.read\_threads & speed\_up \\" in shown and r"2 & 1.988 \\" in shown and r"as it is & 1 \\" in shown
    assert "--what-if" in one_line(call("emulate", "workload=default", "--latex"))


def test_answers_in_sql(trace):
    document = json.loads(call("stats", trace, "--sql", "select count(*) as n from files", "--json").stdout)
    assert (document["columns"], document["rows"]) == (["n"], [[len(Trace(trace).files())]])
    assert call("stats", trace, "--sql", "select 1 as one, 'a,b' as two", "--csv").stdout == 'one,two\n1,"a,b"\n'
    places = json.loads(
        call("stats", trace, "--sql", "select offset_bytes // 4096 from events where op = 'read'", "--json").stdout
    )
    assert places["rows"]
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


def _row(path, kind, calls):
    sums = {"calls": calls, "errors": 0, "read_bytes": 10 * calls, "written_bytes": 0, "total_ns": calls, "time_share": 0.1}
    return {"path": path, "kind": kind, **sums, "p50_ns": 1.0, "p90_ns": 2.0, "p99_ns": 3.0, "max_ns": calls}


def test_storage_comes_first_and_libraries_are_one_line():
    rows = [_row("a.so", "library", 9), _row("x.ckpt", "checkpoint", 5), _row("b.so", "library", 4), _row("d.npy", "dataset", 3)]
    shown = storage_first(TableRows(pd.DataFrame(rows)))
    assert [row["kind"] for row in shown] == ["dataset", "checkpoint", "library"]
    assert shown[2]["path"].startswith("(2 files") and shown[2]["p50_ns"] is None
    assert (shown[2]["calls"], shown[2]["read_bytes"], shown[2]["max_ns"]) == (13, 130, 9)


def test_of_many_files_of_a_kind_the_busiest_are_shown_and_the_others_are_one_line():
    rows = [_row(f"{i}.npy", "dataset", 100 - i) for i in range(50)] + [_row(f"{i}.pt", "checkpoint", 1) for i in range(7)]
    shown = storage_first(TableRows(pd.DataFrame([*rows, _row("a.log", "log", 1), _row("a pipe", "pipe", 8)])))
    assert [row["path"] for row in shown[:6]] == [f"{i}.npy" for i in range(6)]
    assert shown[6]["path"] == "(44 more files; --kind dataset)" and shown[6]["calls"] == sum(100 - i for i in range(6, 50))
    assert [row["path"] for row in shown[7:]] == [*(f"{i}.pt" for i in range(7)), "a.log", "a pipe"]


def test_files_of_one_kind_alone(trace):
    only = json.loads(call("stats", trace, "--by", "file", "--kind", "dataset", "--json").stdout)["rows"]
    assert only and {row["kind"] for row in only} == {"dataset"}
    wrong = call("stats", trace, "--by", "file", "--kind", "datset")
    assert wrong.returncode == 2 and "did you mean 'dataset'" in one_line(wrong)
    assert call("stats", trace, "--kind", "dataset").returncode == 2


@pytest.mark.parametrize("notes", [0, 3, 9])
def test_info_fits_a_screen_whatever_there_is_to_note(tmp_path, monkeypatch, notes):
    monkeypatch.setenv("COLUMNS", "120")
    path = write_job(tmp_path / "job.trace", Job(loaders=4, evaluation_files=4))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["notes"] = [f"something worth {number} words" for number in range(notes)]
    (path / "manifest.json").write_text(json.dumps(manifest))
    shown = call("info", path).stdout.splitlines()
    assert 20 < len(shown) <= 40
    assert sum(line.startswith("note: ") for line in shown) == min(notes, 3)
    assert ("6 more notes: iotwin info --json" in shown) is (notes == 9)


def test_calls_that_name_no_file_say_so(tmp_path):
    path = write_job(tmp_path / "job.trace")
    events = path / "events.parquet" / "part-00000.parquet"
    table = pq.read_table(events)
    ids = [None] * 3 + table["file_id"].to_pylist()[3:]
    pq.write_table(table.set_column(table.column_names.index("file_id"), "file_id", pa.array(ids, pa.int32())), events)
    assert "(calls that name no file)" in call("stats", path, "--by", "file").stdout
