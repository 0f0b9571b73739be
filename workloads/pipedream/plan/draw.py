"""Draws a layer graph, with a row for each depth and a colour for each stage."""

from pathlib import Path
from textwrap import shorten

from iotwin.common.errors import UsageError
from iotwin.common.files import check_output, open_whole
from iotwin.workloads.pipedream.plan.layer_graph import LayerGraph

_COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#8C8C8C")
_TYPES = (".svg", ".png")
_TEXTS = 80  # graphs with more layers are drawn without labels


def layout(graph: LayerGraph) -> list[tuple[float, float]]:
    """Return the position (x, depth) of each node. Depth is the edges of the longest path from a source. Rows are centred."""
    depth = [0] * len(graph.nodes)
    for number in graph.topological:
        depth[number] = max((depth[before] + 1 for before in graph.predecessors[number]), default=0)
    rows: dict[int, list[int]] = {}
    for number in graph.topological:
        rows.setdefault(depth[number], []).append(number)
    x = [0.0] * len(graph.nodes)
    for at in sorted(rows):
        # Nodes are sorted by the mean x of their predecessors, so that branches do not cross.
        rows[at].sort(key=lambda number: sum(x[b] for b in graph.predecessors[number]) / (len(graph.predecessors[number]) or 1))
        for column, number in enumerate(rows[at]):
            x[number] = column - (len(rows[at]) - 1) / 2
    return [(x[index], float(depth[index])) for index in range(len(graph.nodes))]


def draw(graph: LayerGraph, output: Path) -> None:
    """Draw the graph as SVG or PNG. The same graph always yields the same file. Raises UsageError for any other suffix."""
    if output.suffix not in _TYPES:
        raise UsageError(f"{output} has no known file type; end its name in .svg or .png")
    check_output(output)
    import matplotlib as mpl
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    at = layout(graph)
    stages = [node.stage or 0 for node in graph.nodes]
    deepest = max(y for _, y in at)
    with mpl.rc_context({"svg.hashsalt": "iotwin", "svg.fonttype": "none", "font.size": 6, "text.parse_math": False}):
        figure = Figure((7.2, min(1.2 + 0.16 * deepest, 60)), layout="constrained")
        axes = figure.subplots()
        axes.add_collection(LineCollection([(at[a], at[b]) for a, b in graph.edges], colors="#BBBBBB", linewidths=0.6))
        for stage in sorted(set(stages)):
            own = [index for index, each in enumerate(stages) if each == stage]
            xs, ys = [at[number][0] for number in own], [at[number][1] for number in own]
            axes.scatter(xs, ys, s=14, color=_COLOURS[stage % len(_COLOURS)], label=f"stage {stage}: {len(own)} layers", zorder=2)
        if len(graph.nodes) <= _TEXTS:
            for (x, y), node in zip(at, graph.nodes, strict=True):
                axes.annotate(
                    f"{node.id} {shorten(node.description, 40, placeholder='…')}",
                    (x, y),
                    xytext=(5, 0),
                    textcoords="offset points",
                    va="center",
                )
        axes.invert_yaxis()
        axes.set_axis_off()
        axes.margins(x=0.35)
        axes.legend(loc="upper right", frameon=False)
        with open_whole(output) as file:
            form = output.suffix.removeprefix(".")
            figure.savefig(file, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
