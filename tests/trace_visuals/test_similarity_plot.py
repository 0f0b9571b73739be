"""The matrix of many traces against many."""

import re

from iotwin.trace_visuals.similarity_plot import plot_matrix


def test_the_matrix_names_every_trace_whole_and_grows_with_the_names(tmp_path):
    long = f"{'a_job_with_a_name_that_tells_it_all_' * 3}.trace"
    sizes = {}
    for name in ("short", long):
        plot_matrix([[1.0, 0.5], [0.25, None]], [name, "b\n"], [name, "d"], tmp_path / "matrix.svg")
        drawn = (tmp_path / "matrix.svg").read_text()
        assert drawn.count(f">{name}<") == 2 and ">b?<" in drawn
        sizes[name] = [float(points) for points in re.findall(r'(?:width|height)="([0-9.]+)pt"', drawn)]
    # Rows are named level, columns at half a right angle; a letter is 3 points wide and more.
    assert sizes[long][0] - sizes["short"][0] > 300 and sizes[long][1] - sizes["short"][1] > 150
