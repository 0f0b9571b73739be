// Puts the page together from its data.

async function main() {
  const raw = JSON.parse(document.getElementById("data").textContent);
  const traces = await Promise.all(raw.traces.map(loadTrace));
  const page = { colours: raw.colours, traces };
  document.querySelector("main").hidden = false;
  document.getElementById("subtitle").textContent = `${traces.map((trace) => trace.label).join(", ")} · time in ${raw.axis}`;
  addAnswers(page);
  addVerdicts(raw.comparisons);
  addOverview(page);
  addFindings(page);
  const timeline = new Timeline(page, traces);
  addPhaseLegend(page);
  addZoomButtons(timeline, traces);
  if (raw.served) new Detail(timeline, traces);
  wireToggles(timeline, traces, raw.served);
  addHeatMaps(page, timeline);
  addHistograms(document.getElementById("charts"), page);
  addBursts(page);
  addTables(traces, timeline);
  addBlock(page);
  addComparisons(page, raw.comparisons);
  addResponse(raw.response);
  document.getElementById("loading").remove();
  addContents();
  document.body.dataset.ready = "yes";
}

function heading(traces, trace) { return traces.length > 1 ? [element("h3", {}, trace.label)] : []; }

function addFindings(page) {
  const place = document.getElementById("findings");
  for (const trace of page.traces) {
    const list = element("dl");
    for (const finding of trace.findings) list.append(element("dt", {}, finding.topic), element("dd", {}, finding.text));
    place.append(element("div", { class: "summary" }, ...heading(page.traces, trace), list));
  }
}

function addPhaseLegend(page) {
  const used = new Set(page.traces.flatMap((trace) => trace.phases.map((phase) => phase[0])));
  const shown = Object.entries(page.colours.phases).filter(([name]) => used.has(name));
  document.getElementById("phase-legend").append(legend(shown.map(([name, colour]) => [colour, name])));
}

// Adds buttons that show the whole run, or the first phase of each kind. All traces' first phases then begin at one x.
function addZoomButtons(timeline, traces) {
  const place = document.getElementById("zoom-buttons");
  const add = (text, from, to, shifts) => {
    const button = element("button", {}, text);
    button.addEventListener("click", () => timeline.setView(from, to, shifts));
    place.append(button);
  };
  add("everything", timeline.whole.from, timeline.whole.to, new Map());
  for (const [name, text] of [["init", "init"], ["epoch", "first epoch"], ["block", "first block"], ["evaluation", "first evaluation"],
    ["checkpoint", "first checkpoint"]]) {
    const firsts = traces.map((trace) => trace.phases.find((candidate) => candidate[0] === name));
    if (!firsts[0]) continue;
    const begin = firsts[0][3], longest = Math.max(...firsts.map((phase) => (phase ? phase[4] - phase[3] : 0)));
    const shifts = new Map(traces.map((trace, at) => [trace, firsts[at] ? firsts[at][3] - begin : 0]));
    add(text, begin - longest * 0.03, begin + longest * 1.03, shifts);
  }
  place.append(pictureButton(timeline.canvas, "timeline"));
}

function wireToggles(timeline, traces, served) {
  for (const section of ["processes", "other"]) {
    const box = document.getElementById(`show-${section}`), name = section === "processes" ? "process" : section;
    box.addEventListener("change", () => {
      if (box.checked) timeline.sections.add(name); else timeline.sections.delete(name);
      timeline.layout();
    });
  }
  const note = document.getElementById("detail-note"), filter = document.getElementById("timeline-filter");
  const complete = traces.every((trace) => trace.calls), finest = Math.max(...traces.map((trace) => trace.lanes[0].levels[0].width));
  const left = (what) => Math.max(...traces.map((trace) => trace[`${what}_left_out`]));
  note.textContent = complete ? "Every call is on this page: zoom in to see each one."
    : `The page holds bins of ${formatDuration(finest * 1e9)}, not every call: finer than that, bars show a bin's mean.`;
  if (served) note.textContent = "Finer detail comes from the server as you zoom in, down to single calls.";
  for (const what of ["processes", "hosts"]) if (left(what)) note.textContent += ` Only the busiest ${what} have a row; not shown: ${left(what)}.`;
  if (!complete) {
    filter.disabled = true;
    filter.title = "This trace has too many calls for the page to hold each one, so the page cannot filter them by file.";
  }
  filter.addEventListener("input", () => { timeline.filterFiles(filter.value); });
}

function addHeatMaps(page, timeline) {
  const maps = [];
  for (const trace of page.traces) {
    const who = page.traces.length > 1 ? `${trace.label}: ` : "";
    if (trace.readsHeat) maps.push(new HeatMap(timeline, trace, trace.readsHeat, `${who}reads of the data set`));
    if (trace.writesHeat) maps.push(new HeatMap(timeline, trace, trace.writesHeat, `${who}writes of checkpoints`));
  }
  document.getElementById("heat").hidden = !maps.length;
  document.getElementById("heatmaps").append(...maps.map((map) => map.place));
}

function addTables(traces, timeline) {
  const show = (trace) => (row) => {
    const start = row[0], seconds = row[1] / 1e9;
    timeline.setView(start - Math.max(seconds, 1e-6), start + 2 * Math.max(seconds, 1e-6), new Map());
    document.getElementById("timeline").scrollIntoView({ behavior: "auto" });
  };
  for (const trace of traces) {
    for (const [name, table, options] of [["operation", trace.operations, {}], ["slowest", trace.slowest, { onRow: show(trace) }],
      ["file", trace.files, {}], ["process", trace.processes, {}], ["checkpoint", trace.checkpoints, {}]]) {
      if (!table.rows.length) continue;
      const place = document.getElementById(`${name}-tables`);
      place.append(...heading(traces, trace));
      addTable(place, table, options);
      if (name === "checkpoint") document.getElementById("checkpoint").hidden = false;
    }
    document.getElementById("facts").append(...heading(traces, trace));
    addTable(document.getElementById("facts"), { columns: ["name", "value"], rows: trace.facts, total: trace.facts.length });
  }
}

function addComparisons(page, comparisons) {
  const place = document.getElementById("comparisons");
  document.getElementById("comparison").hidden = !comparisons.length;
  for (const comparison of comparisons) {
    const overall = comparison.overall === null ? "" : `Similarity ${comparison.overall.toFixed(3)} of 1: `;
    place.append(element("h3", {}, `A: ${comparison.a}, B: ${comparison.b}`), element("p", { class: "verdict" }, overall + comparison.verdict));
    for (const warning of comparison.warnings) place.append(element("p", { class: "loss" }, warning));
    if (comparison.differences.length) place.append(element("ul", {}, ...comparison.differences.map((text) => element("li", {}, text))));
    addTest(place, comparison);
    const scores = { columns: ["name", "score", "weight", "value"], total: comparison.dimensions.length, rows: comparison.dimensions.map((one) =>
      [words(one.name), one.score, one.weight, Object.entries(one.parts).map(([part, score]) => `${words(part)} ${score.toFixed(3)}`).join(", ")]) };
    if (scores.total) addTable(place, scores);
    place.append(element("div", { class: "grid" }, ...comparison.dimensions.map((dimension) => dimensionChart(page, comparison, dimension))));
  }
}

// Adds what the test of a verdict detects: twins with faults, and the smallest difference in each aspect.
function addTest(place, comparison) {
  if (comparison.test.length) place.append(element("ul", {}, ...comparison.test.map((text) => element("li", {}, text))));
  const controls = comparison.controls.map(([name, score, distance, noticed]) => [name, score, distance, noticed === null ? "" : noticed ? "yes" : "no"]);
  if (controls.length) {
    place.append(element("p", {}, "Faults put into A on purpose, made from its own trace; beyond a distance of 1 a twin is called different:"));
    addTable(place, { columns: ["name", "score", "distance", "noticed"], rows: controls, total: controls.length });
  }
  if (!comparison.aspects.length) return;
  place.append(element("p", {}, "By how much B differs from A and its reruns, and the smallest change that the test would have noticed:"));
  addTable(place, { columns: ["name", "difference_share", "noticed_share"], rows: comparison.aspects, total: comparison.aspects.length });
}

// Adds the table of epochs of the job and of its twin under changed storage.
function addResponse(table) {
  if (!table) return;
  document.getElementById("response").hidden = false;
  addTable(document.getElementById("response-table"), table);
}

// Adds block requests, and the bytes moved by calls and by devices, whose difference the page cache served.
function addBlock(page) {
  const place = document.getElementById("block-tables");
  for (const trace of page.traces) {
    if (!trace.block) continue;
    document.getElementById("block").hidden = false;
    const { requests, phases, time_s: time, curves } = trace.block, groups = page.colours.groups;
    const chart = (kind, title) => chartBox(title,
      lineChart([{ x: time, y: curves[`${kind} calls`], colour: groups[kind] }, { x: time, y: curves[`${kind} block`], colour: groups[`block ${kind}`] }],
        { log: false, binary: true, formatX: significant, formatY: formatSize, axis: "seconds" }),
      legend([[groups[kind], `by calls: ${formatSize(curves[`${kind} calls`].at(-1))}`],
        [groups[`block ${kind}`], `by the devices: ${formatSize(curves[`${kind} block`].at(-1))}`]]));
    place.append(...heading(page.traces, trace));
    place.append(element("div", { class: "grid" }, chart("read", "read so far"), chart("write", "written so far")));
    if (phases.total) { place.append(element("h3", {}, "by phase")); addTable(place, phases); }
    place.append(element("h3", {}, "requests"));
    addTable(place, requests);
  }
}

function words(name) { return name.replaceAll("_", " "); }

function dimensionChart(page, comparison, dimension) {
  const colours = page.colours.traces.slice(0, 2), names = [`A: ${comparison.a}`, `B: ${comparison.b}`];
  const share = dimension.unit.startsWith("share"), bytes = dimension.unit.startsWith("bytes");
  const formatY = share ? formatShare : bytes ? formatSize : formatCount;
  const chart = dimension.bars ? barChart(dimension.bars, colours, formatY)
    : lineChart(dimension.curves.map((curve, number) => ({ ...curve, colour: colours[number] })), {
      log: dimension.x_unit.startsWith("bytes"), base: 16, binary: bytes, formatY, axis: dimension.x_unit,
      formatX: dimension.x_unit.startsWith("bytes") ? formatSize : significant });
  const title = `${words(dimension.name)}: ${dimension.score.toFixed(3)}`, unit = element("p", { class: "note" }, dimension.unit);
  return chartBox(title, chart, unit, legend(names.map((name, number) => [colours[number], name])));
}

main().catch((error) => {
  document.getElementById("loading").textContent = `This page cannot be shown: ${error.message}`;
  throw error;
});
