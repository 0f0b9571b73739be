"""Answers do not depend on the memory limit, which sets the number of events that are read at a time."""

from iotwin.trace_store import fold, reader, writer
from iotwin.trace_store.figures.statistics import BY, document, statistics
from iotwin.trace_store.figures.summary import summarise
from iotwin.trace_store.hosts import set_tables
from iotwin.trace_store.hosts.make_set import make_set
from iotwin.trace_store.parallel_fold import in_this_process
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.report.analysis import Detail, analyse
from iotwin.trace_visuals.report.report_page import report_document
from iotwin.tracesim import order
from iotwin.tracesim.similarity import compare
from tests.synthetic import Job, write_job


def test_little_memory_gives_the_same_answers(tmp_path, monkeypatch):
    """Of a set of hosts in several stretches, with so many files that several share an entry of a table of fixed size."""
    for module, name, value in ((writer, "_ROWS_PER_GROUP", 50), (set_tables, "_PART_ROWS", 200), (set_tables, "_LEAST_BATCH", 1),
                                (fold, "_LEAST_EVENTS", 300), (fold, "_FEW_ROWS", 1), (order, "_SLOT_BITS", 3)):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    hosts = [write_job(tmp_path / f"{seed}.trace", Job(seed=seed, files=24, loaders=3, epochs=2)) for seed in range(3)]
    make_set(tmp_path / "set", hosts)
    trace, other = Trace(tmp_path / "set"), Trace(hosts[0])
    assert len(fold.stretches(trace.part_rows)) > 2
    found = []
    for rows in (1 << 17, 40):
        monkeypatch.setattr(reader, "rows_of_batch", lambda rows=rows: rows)
        analyses = analyse([trace, other], ["a", "b"], [0, 0], Detail(512, 10**6), in_this_process, lambda amount: None)
        found.append([
            compare(trace, other, each=in_this_process).to_document(), report_document(analyses, "s"), summarise(trace),
            *(document(statistics([trace], ["a"], by)) for by in BY),
        ])  # fmt: skip
    assert found[0] == found[1]
