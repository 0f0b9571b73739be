// The first screen: what limits each job, what to change, what it needs, how alike the traces are, and the bytes they moved.

const OVERVIEW = { left: 92, right: 12, head: 20, phases: 14, graph: 74, gap: 14, axis: 34 };

function addVerdicts(comparisons) {
  const place = document.getElementById("verdicts");
  for (const comparison of comparisons) {
    const score = comparison.overall === null ? "" : `Similarity ${comparison.overall.toFixed(3)}, where 1 is identical. `;
    const text = comparison.headline.charAt(0).toUpperCase() + comparison.headline.slice(1);
    place.append(element("p", { class: "verdict" }, element("strong", {}, `How alike are ${comparison.a} and ${comparison.b}? `), score + text));
  }
}

// Answers each question about each trace. What the job did and where it ran is below, in smaller letters.
function addAnswers(page) {
  const place = document.getElementById("answers");
  for (const trace of page.traces) {
    const loss = trace.loss ? [element("p", { class: "loss" }, trace.loss)] : [], list = element("dl");
    for (const [question, text] of trace.answers) list.append(element("dt", {}, question), element("dd", {}, text));
    place.append(element("div", { class: "summary" }, element("h3", {}, trace.label), ...loss, list,
      element("p", { class: "machine" }, trace.did), element("p", { class: "machine command" }, trace.command),
      element("p", { class: "machine" }, trace.machine)));
  }
}

// Draws the bytes per second that each trace reads and writes, below its phases, on one time axis and one scale.
function addOverview(page) {
  const { left, right, head, phases, graph, gap, axis } = OVERVIEW, place = document.getElementById("overview");
  const width = Math.max(320, place.clientWidth), count = width - left - right;
  const from = Math.min(...page.traces.map((trace) => trace.span_s[0]));
  const to = Math.max(from + 1e-6, ...page.traces.map((trace) => trace.span_s[1]));
  const x = (second) => left + (second - from) / (to - from) * count;
  const curves = page.traces.map((trace) => ["read", "write"].flatMap((group) => {
    const lane = trace.lanes.find((one) => one.section === "storage" && one.group === group);
    return lane ? [[group, pixelsFromBins(lane, from, to, count / 2).bytes.map((bytes) => bytes / ((to - from) / (count / 2)))]] : [];
  }));
  const top = Math.max(...curves.flatMap((own) => own.map(([, rates]) => rates.reduce((most, rate) => Math.max(most, rate), 0))), 1e-9);
  const pitch = head + phases + graph + gap, bottom = page.traces.length * pitch - gap;
  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${bottom + axis}`, role: "img", "aria-label": "bytes read and written per second" });
  page.traces.forEach((trace, at) => {
    const y = at * pitch, floor = y + head + phases + graph;
    svg.append(svgElement("text", { x: left, y: y + 14, class: "name" }, trace.label));
    for (const [name, , , begin, end] of trace.phases) {
      if (name !== "step") svg.append(svgElement("rect", { x: x(begin), y: y + head, height: phases - 3,
        width: Math.max(x(end) - x(begin) - 0.7, 1.5), fill: page.colours.phases[name] || "#ddd" }));
    }
    for (const [group, rates] of curves[at]) {
      const points = [...rates].map((rate, i) => `${(left + 2 * i + 1).toFixed(0)},${(floor - rate / top * graph).toFixed(1)}`);
      svg.append(svgElement("path", { d: `M${left},${floor}L${points.join("L")}L${left + count},${floor}`, fill: page.colours.groups[group],
        "fill-opacity": 0.25, stroke: page.colours.groups[group] }));
    }
    svg.append(svgElement("line", { x1: left, x2: left + count, y1: floor, y2: floor, class: "axis" }));
    svg.append(svgElement("text", { x: left - 6, y: floor, "text-anchor": "end" }, "0"));
    svg.append(svgElement("text", { x: left - 6, y: floor - graph + 10, "text-anchor": "end" }, `${formatSize(top)}/s`));
  });
  const ticks = roundTicks(from, to, Math.min(10, count / 80)), texts = formatTicks(ticks);
  ticks.forEach((tick, i) => svg.append(svgElement("text", { x: x(tick), y: bottom + 14, "text-anchor": "middle" }, `${texts[i]} s`)));
  const used = new Set(page.traces.flatMap((trace) => trace.phases.map((phase) => phase[0])));
  const shown = Object.entries(page.colours.phases).filter(([name]) => used.has(name)).map(([name, colour]) => [colour, name]);
  const groups = page.colours.groups;
  place.append(element("h3", {}, "Bytes per second", pictureButton(svg, "bytes per second")), svg, legend([[groups.read, "read"], [groups.write, "written"], ...shown]));
}
