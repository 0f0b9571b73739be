"""Draws a profile: bars of the times and bytes of the layers, in their order, and the distributions of times and bytes."""

from pathlib import Path

from iotwin.common.files import check_output, open_whole
from iotwin.workloads.pipedream.plan.layer_graph import LayerGraph

_MS, _MB = "ms", "MB"


def draw_layers(graph: LayerGraph, output: Path) -> None:
    """Draw the layers of a profile as SVG. The same graph always yields the same file."""
    check_output(output)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    layers = [node for node in graph.nodes if not node.is_input]
    quantities = (
        ("forward and backward", _MS, [node.forward_ms + node.backward_ms for node in layers]),
        ("outputs", _MB, [node.activation_bytes / 1e6 for node in layers]),
        ("parameters", _MB, [node.parameter_bytes / 1e6 for node in layers]),
    )
    with mpl.rc_context({"svg.hashsalt": "iotwin", "svg.fonttype": "none", "font.size": 7, "text.parse_math": False}):
        figure = Figure((7.2, 5.4), layout="constrained")
        axes = figure.subplots(len(quantities), 2, width_ratios=(3, 1))
        for (name, unit, values), (bars, shares) in zip(quantities, axes, strict=True):
            bars.bar(range(1, len(values) + 1), values, width=0.8, color="#56B4E9")
            bars.set_ylabel(f"{name} ({unit})")
            ordered = sorted(values)
            shares.step(ordered, [(index + 1) / len(ordered) for index in range(len(ordered))], where="post", color="#0072B2")
            shares.set_xlabel(unit)
            shares.set_ylim(0, 1.02)
        axes[-1][0].set_xlabel("layer, in the order of execution")
        axes[0][1].set_title("share of layers with at most")
        with open_whole(output) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})
