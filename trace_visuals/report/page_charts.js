// Line charts as SVG: histograms of sizes and latencies, and the curves behind a comparison.

const CHART = { width: 400, height: 196, left: 50, right: 24, top: 10, bottom: 36 };

// Draws `series`: [{x: [...], y: [...], colour, label}]. With one more x than y, the x values are the edges of steps.
function lineChart(series, options) {
  const svg = svgElement("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img" });
  const xs = series.flatMap((one) => one.x).filter((x) => !options.log || x > 0), ys = series.flatMap((one) => one.y);
  const [low, high] = chartRange(xs, options.log), top = Math.max(...ys, 1e-12);
  const warp = options.log ? (x) => Math.log(Math.max(x, low)) : (x) => x;
  const wide = (warp(high) - warp(low)) || 1;
  const px = (x) => CHART.left + (warp(x) - warp(low)) / wide * (CHART.width - CHART.left - CHART.right);
  const py = (y) => CHART.height - CHART.bottom - y / top * (CHART.height - CHART.top - CHART.bottom);
  for (const tick of options.log ? logTicks(low, high, options.base) : roundTicks(low, high, 5)) {
    svg.append(svgElement("line", { x1: px(tick), x2: px(tick), y1: CHART.top, y2: py(0), class: "grid" }));
    svg.append(svgElement("text", { x: px(tick), y: CHART.height - 21, "text-anchor": "middle" }, options.formatX(tick)));
  }
  const unit = options.binary ? Math.pow(1024, Math.floor(Math.log(top) / Math.log(1024))) : 1;
  for (const tick of roundTicks(0, top / unit, 3).map((part) => part * unit)) {
    svg.append(svgElement("line", { x1: CHART.left, x2: CHART.width - CHART.right, y1: py(tick), y2: py(tick), class: tick ? "grid" : "axis" }));
    svg.append(svgElement("text", { x: CHART.left - 5, y: py(tick) + 4, "text-anchor": "end" }, options.formatY(tick)));
  }
  if (options.axis) svg.append(svgElement("text", { x: (CHART.left + CHART.width) / 2, y: CHART.height - 5, "text-anchor": "middle" }, options.axis));
  series.forEach((one, place) => {
    const path = svgElement("path", { d: pathOf(one, px, py), fill: one.filled ? one.colour : "none", "fill-opacity": 0.14, stroke: one.colour,
      "stroke-width": 1.6, "stroke-dasharray": place % 2 ? "5 2" : "none" });
    svg.append(path);
  });
  return svg;
}

// The least and the greatest x, extended to two decades on a logarithmic axis, so that one narrow bucket looks narrow.
function chartRange(xs, log) {
  const low = Math.min(...xs), high = Math.max(...xs);
  if (!xs.length) return [0, 1];
  if (!log) return [low, high > low ? high : low + 1];
  const short = Math.sqrt(Math.max(1, 100 / (high / low)));
  return [low / short, high * short];
}

function pathOf(one, px, py) {
  if (one.x.length === one.y.length) return "M" + one.x.map((x, i) => `${px(x).toFixed(1)},${py(one.y[i]).toFixed(1)}`).join("L");
  const steps = one.y.map((y, i) => `L${px(one.x[i]).toFixed(1)},${py(y).toFixed(1)}L${px(one.x[i + 1]).toFixed(1)},${py(y).toFixed(1)}`);
  return `M${px(one.x[0]).toFixed(1)},${py(0)}${steps.join("")}L${px(one.x[one.x.length - 1]).toFixed(1)},${py(0)}`;
}

// At most six powers of `base` within low..high.
function logTicks(low, high, base) {
  const ticks = [];
  for (let power = Math.ceil(Math.log(low) / Math.log(base) - 1e-9); Math.pow(base, power) <= high * 1.0001; power += 1) {
    ticks.push(Math.pow(base, power));
  }
  const skip = Math.ceil(ticks.length / 6);
  return ticks.filter((_, place) => place % skip === 0);
}

// A chart below its title, which is also its accessible name, and above `below`.
function chartBox(title, chart, ...below) {
  chart.setAttribute("aria-label", title);
  return element("div", { class: "chart" }, element("h3", {}, title, pictureButton(chart, title)), chart, ...below);
}

function legend(entries) {
  return element("ul", { class: "legend" }, ...entries.map(([colour, text]) => element("li", {}, swatch(colour), text)));
}

// Pairs of horizontal bars, one pair per label: `rows` are [label, value of the first, value of the second].
function barChart(rows, colours, format) {
  const pitch = 24, top = Math.max(...rows.flatMap(([, a, b]) => [a, b]), 1e-12), left = 150, wide = CHART.width - left - 70;
  const svg = svgElement("svg", { viewBox: `0 0 ${CHART.width} ${rows.length * pitch + 8}`, role: "img" });
  rows.forEach(([label, ...values], place) => {
    const y = 4 + place * pitch;
    svg.append(svgElement("text", { x: left - 6, y: y + 13, "text-anchor": "end" }, label));
    values.forEach((value, which) => {
      const width = Math.max(value / top * wide, value ? 1 : 0);
      svg.append(svgElement("rect", { x: left, y: y + which * 9, width, height: 8, fill: colours[which] }));
      svg.append(svgElement("text", { x: left + width + 4, y: y + which * 9 + 8, class: "small" }, format(value)));
    });
  });
  return svg;
}

// Adds the times between checkpoints, and the latencies of reads while a checkpoint is written and otherwise.
function addBursts(page) {
  const place = document.getElementById("checkpoint-charts"), groups = page.colours.groups;
  for (const trace of page.traces) {
    const { time_s: time, interval_ns: intervals, reads } = trace.bursts, charts = [];
    if (time.length > 1) {
      const chart = lineChart([{ x: time, y: intervals, colour: groups.write }],
        { log: false, formatX: significant, formatY: formatDuration, axis: "seconds at which a checkpoint begins" });
      charts.push(chartBox("time since the checkpoint before", chart));
    }
    if (reads.length > 1) {
      const colours = [groups.write, groups.read];
      const totals = reads.map((one) => one.counts.reduce((sum, count) => sum + count, 0));
      const series = reads.map((one, place) => ({ x: one.edges, y: one.counts.map((count) => count / totals[place]),
        colour: colours[place], filled: true }));
      const notes = reads.map((one, place) => [colours[place], `${one.group}: ` + Object.entries(one.percentiles).map(
        ([label, value]) => `${label} ${formatDuration(value)}`).join(", ")]);
      const chart = lineChart(series, { log: true, base: 10, formatX: formatDuration, formatY: formatShare, axis: "time in a read" });
      charts.push(chartBox("reads, share of calls", chart, legend(notes)));
    }
    if (charts.length) place.append(...heading(page.traces, trace), element("div", { class: "grid" }, ...charts));
    if (charts.length) document.getElementById("checkpoint").hidden = false;
  }
}

// One chart per operation and measure, with a curve per trace.
function addHistograms(place, page) {
  const kinds = new Map();
  for (const trace of page.traces) for (const histogram of trace.histograms) kinds.set(`${histogram.group} ${histogram.what}`, histogram);
  for (const [name, { group, what }] of kinds) {
    const format = what === "size" ? formatSize : formatDuration, series = [], notes = [];
    page.traces.forEach((trace, number) => {
      const mine = trace.histograms.find((histogram) => `${histogram.group} ${histogram.what}` === name);
      if (!mine) return;
      const total = mine.counts.reduce((sum, count) => sum + count, 0);
      const colour = page.traces.length > 1 ? page.colours.traces[number % page.colours.traces.length] : page.colours.groups[group];
      series.push({ x: mine.edges, y: mine.counts.map((count) => count / total), colour, filled: true });
      const parts = Object.entries(mine.percentiles).map(([label, value]) => `${label} ${format(value)}`);
      const who = page.traces.length > 1 ? `${trace.label}: ` : "";
      notes.push([colour, `${who}${formatCount(total)} call${total === 1 ? "" : "s"}, ${parts.join(", ")}, most ${format(mine.most)}`]);
    });
    const [base, axis, title] = what === "size" ? [16, "bytes moved by a call", "sizes"] : [10, "time in a call", "latencies"];
    const chart = lineChart(series, { log: true, base, formatX: format, formatY: formatShare, axis });
    place.append(chartBox(`${group}: ${title}, share of calls`, chart, legend(notes)));
  }
}
