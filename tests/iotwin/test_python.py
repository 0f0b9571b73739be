"""The package as scripts and notebooks use it: the same rows as the files, the same answers as the commands, escaped names."""

import dataclasses
import json
import sys
from html.parser import HTMLParser

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import iotwin
from iotwin.common.errors import UsageError
from iotwin.common.html_card import html_card
from tests.benchmark.loader_job import LoaderJob
from tests.conftest import run_iotwin
from tests.synthetic import Job, write_job
from tests.trace_visuals.hostile import write_hostile

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e&\"'"


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("python")
    return [write_job(folder / f"{name}.trace", Job(seed=seed, pipes=True)) for seed, name in enumerate(("a", "b", "c"))]


@pytest.fixture(scope="module")
def trace(paths):
    return iotwin.open(paths[0])


def stored(trace: iotwin.Trace, name: str) -> list[dict]:
    return pq.read_table(trace.path / f"{name}.parquet", partitioning=None).to_pylist()


@pytest.mark.parametrize("name", ["events", "files", "processes", "phases"])
def test_a_table_has_the_rows_of_its_file(trace, name):
    table, expected = getattr(trace, name)(), stored(trace, name)
    assert len(table) == table.num_rows == len(expected) > 0
    assert table.arrow.to_pylist() == pa.table(table).to_pylist() == expected
    assert [row for batch in table.batches() for row in batch.to_pylist()] == expected
    assert list(table.to_pandas().columns) == table.schema.names == list(expected[0])
    column = table.schema.names[0]
    assert table.to_pandas()[column].tolist() == table[column].to_pylist() == [row[column] for row in expected]
    assert not hasattr(table, "no_such_attribute")


def test_a_table_is_read_when_it_is_used_and_not_when_it_is_probed(trace):
    table = trace.events()
    assert not hasattr(table, "_repr_markdown_") and repr(table) and table._repr_html_() and "arrow" not in vars(table)
    assert table.num_rows == trace.manifest.events and "arrow" in vars(table)


def test_polars_gets_the_same_rows(trace):
    pytest.importorskip("polars", reason="polars is not installed")
    assert trace.events().to_polars().to_dicts() == stored(trace, "events")


def test_without_polars_one_line_names_the_extra(trace, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(iotwin.IotwinError, match=r"polars, which is not installed; try: pip install 'iotwin\[polars\]'$"):
        trace.files().to_polars()


def test_without_duckdb_one_line_names_the_extra(trace, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(iotwin.IotwinError, match=r"duckdb, which is not installed; try: pip install 'iotwin\[sql\]'$"):
        trace.sql("select 1")


def test_columns_and_where_select_as_a_loop_does(trace):
    found = trace.events(["file_id", "result"], (pc.field("op") == "read") & (pc.field("result") > 100)).arrow.to_pylist()
    expected = [row for row in stored(trace, "events") if row["op"] == "read" and row["result"] > 100]
    assert found == [{"file_id": row["file_id"], "result": row["result"]} for row in expected] and found


def test_what_was_not_asked_for_is_not_read(tmp_path):
    """Bytes of another column, and of a group of rows that cannot satisfy `where`, may be damaged."""
    path = write_job(tmp_path / "t", Job(seed=3))
    (part,) = (path / "events.parquet").iterdir()
    events = pq.read_table(part, partitioning=None)
    half = events.num_rows // 2
    pq.write_table(events, part, row_group_size=half + 1, write_page_checksum=True)
    footer = pq.read_metadata(part)
    content = bytearray(part.read_bytes())
    spoiled = {("offset", 0), *((name, 1) for name in events.column_names)}
    for group in range(2):
        for column in (footer.row_group(group).column(index) for index in range(footer.num_columns)):
            if (column.path_in_schema, group) in spoiled:
                end = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size
                content[end - 1] ^= 255
    part.write_bytes(content)
    trace = iotwin.open(path)
    first_half = pc.field("start_ns") <= events["start_ns"][half].as_py()
    assert trace.events(["start_ns", "op"], first_half).arrow.num_rows == half + 1
    for damaged in (trace.events(["offset"], first_half), trace.events(["start_ns", "op"])):
        with pytest.raises(iotwin.IotwinError, match="damaged"):
            damaged.to_pandas()


@pytest.mark.parametrize(
    ("columns", "where", "message"),
    [
        (["opp"], None, "no column 'opp' .did you mean 'op'"),
        (None, "op = 'read'", "where must be an expression of pyarrow"),
        (None, pc.field("nix") == 1, "where: No match for .*nix.*columns: start_ns"),
        (None, pc.field("pid"), "where: .*bool"),
    ],
)
def test_a_wrong_request_is_no_damage(trace, columns, where, message):
    with pytest.raises(UsageError, match=message):
        trace.events(columns, where)


def test_answers_are_those_of_the_commands(paths, tmp_path):
    a, b, c = paths
    query = "select op, count(*) as calls, sum(result) as result from events group by op order by op"

    def answer(*arguments):
        return json.loads(run_iotwin(*arguments, "--json").stdout)

    rows = answer("stats", a, "--sql", query)
    assert iotwin.open(a).sql(query).arrow.to_pylist() == [dict(zip(rows["columns"], row, strict=True)) for row in rows["rows"]]
    compared = iotwin.compare(a, iotwin.open(b), [c])
    assert json.loads(json.dumps(compared.to_document())) == answer("compare", a, b, "--repeats", c)
    assert compared.path_a == str(a) and compared.noise_floor is not None
    fitted = iotwin.fit(a)
    (tmp_path / "python").mkdir()
    fitted.write(tmp_path / "python" / "twin.yaml")
    document = answer("fit", a, "-o", tmp_path / "twin.yaml")
    assert document == {"twin": str(tmp_path / "twin.yaml"), **json.loads(json.dumps(fitted.to_document()))}
    assert (tmp_path / "twin.yaml").read_text() == (tmp_path / "python" / "twin.yaml").read_text()


def test_advice_is_that_of_the_command(tmp_path):
    path = LoaderJob(files=96, epochs=2, loaders=1, compute_ms=1).trace(tmp_path / "t").path
    found = iotwin.advise(path, tested=False)
    assert found.findings
    assert json.loads(json.dumps(found.to_document())) == json.loads(run_iotwin("advise", path, "--untested", "--json").stdout)
    assert found.findings[0].kind in repr(found) and found.findings[0].kind in found._repr_html_()


def test_a_twin_that_somebody_edited_is_not_replaced(paths, tmp_path):
    twin = iotwin.fit(paths[0])
    twin.write(tmp_path / "twin.yaml")
    (tmp_path / "twin.yaml").write_text("mine: true\n")
    with pytest.raises(UsageError, match="was edited"):
        twin.write(tmp_path / "twin.yaml")
    twin.write(tmp_path / "twin.yaml", force=True)
    assert "mine" not in (tmp_path / "twin.yaml").read_text()


class Tags(HTMLParser):
    """The tags and attributes of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[tuple[str, bool]] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add((tag, bool(attrs)))

    def handle_data(self, data):
        self.text += data


def test_hostile_names_are_text(tmp_path):
    path = write_hostile(tmp_path / "<img src=x onerror=alert(1)>\x1b.trace")
    trace = iotwin.open(path)
    pages = [html_card(HOSTILE, [HOSTILE], [HOSTILE], [(HOSTILE, None, 1234, 0.5)])]
    pages += [shown._repr_html_() for shown in (trace, trace.files(), iotwin.compare(trace, trace), iotwin.fit(trace))]
    pages += [iotwin.advise(trace, tested=False)._repr_html_()]
    for page in pages:
        found = Tags(page)
        plain = {"div", "strong", "table", "thead", "tbody", "tr", "th", "td"}
        assert found.tags <= {(tag, False) for tag in plain} and "\x1b" not in page and "\u202e" not in page
    assert "<script>alert(1)</script>?[2J?&\"'" in Tags(pages[0]).text and "1,234" in pages[0] and "0.500" in pages[0]
    differing = dataclasses.replace(iotwin.compare(trace, trace), verdict=HOSTILE)
    assert "[2J" in repr(differing) and "\x1b" not in repr(differing) and "\u202e" not in repr(differing)
    assert "onerror" in Tags(pages[1]).text and "onerror" in Tags(pages[3]).text
    for shown in (trace, iotwin.compare(trace, trace), iotwin.advise(trace, tested=False)):
        assert "\x1b" not in repr(shown) and "onerror" in repr(shown)


def test_objects_are_shown_in_a_line(trace, paths):
    assert repr(trace).startswith(f"Trace({str(trace.path)!r}: {trace.manifest.events:,} events in ")
    assert repr(trace).endswith("none lost, complete, by synthetic)")
    assert repr(trace.events(["pid", "tid"])) == "Table(pid: int32, tid: int32)"
    assert "overall 1.000; " in repr(iotwin.compare(trace, trace)) and repr(iotwin.fit(trace)).startswith("Twin(edits: ")
    assert f"<td>{sum(1 for row in stored(trace, 'events') if row['op'] == 'read')}</td>" in trace._repr_html_()
    shown = trace.files()._repr_html_()
    assert "first 10 rows" in shown and shown.count("<tr>") == 11 and "first" not in trace.phases()._repr_html_()


def test_public_names_are_the_types_of_the_answers(trace):
    assert isinstance(trace, iotwin.Trace) and isinstance(trace.files(), iotwin.Table)
    assert isinstance(iotwin.fit(trace), iotwin.Twin) and isinstance(iotwin.compare(trace, trace), iotwin.Comparison)
    assert isinstance(iotwin.advise(trace, tested=False), iotwin.Advice)
    assert all(hasattr(iotwin, name) for name in iotwin.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nix'"):
        _ = iotwin.nix
