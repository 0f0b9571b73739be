// The zoomable timeline: one canvas, rows for every trace on one time axis.

let LEFT = 148, RIGHT = 132;
const AXIS = 26, NARROW = 640;
const HEIGHTS = { head: 30, phases: 20, graph: 42, rate: 46, lane: 22 }, GAP = 4;
const MOST_STEP_MARKS = 400, PIXELS_A_SAMPLE = 3;

const PHASE_FONT = "11.5px system-ui, sans-serif";

// The name of a phase in full and in short, which is empty for a phase without a number.
function phaseWords(name, epoch) {
  const number = epoch === null ? "" : String(epoch);
  return [number ? `${name} ${number}` : name, { evaluation: "eval", checkpoint: "ckpt" }[name] || number];
}

// Sets the margins of all pictures on the time axis. On a phone, names are short and amounts are left out.
function setMargins(width) { [LEFT, RIGHT] = width < NARROW ? [92, 8] : [148, 132]; }

function phaseFits(g, text, wide) { return g.measureText(text).width + 6 < wide; }

class Timeline {
  constructor(page, traces) {
    this.page = page;
    this.traces = traces;
    this.canvas = document.getElementById("timeline-canvas");
    this.box = document.getElementById("canvas-box");
    this.tooltip = document.getElementById("tooltip");
    this.sections = new Set(["storage", "host", "block", "device", "part", "wait"]);
    this.shifts = new Map(); // seconds by which a trace's rows are ahead of the time axis, so that phases are aligned
    this.keep = null; // by trace, for each file whether its calls are shown; null shows all
    const from = Math.min(...traces.map((trace) => trace.span_s[0])), to = Math.max(...traces.map((trace) => trace.span_s[1]));
    const margin = Math.max((to - from) * 0.004, 1e-9);
    this.whole = { from: from - margin, to: to + margin };
    this.view = { ...this.whole };
    this.listeners = [];
    this.listen();
    this.layout();
  }

  // Computes the rows from top to bottom, with their positions.
  layout() {
    this.rows = [];
    let top = 4;
    const add = (kind, trace, extra) => {
      this.rows.push({ kind, trace, top, height: HEIGHTS[kind], ...extra });
      top += HEIGHTS[kind] + GAP;
    };
    for (const trace of this.traces) {
      add("head", trace, {});
      add("phases", trace, {});
      for (const graph of trace.graphs) add("graph", trace, { graph });
      const shown = trace.lanes.filter((lane) => this.sections.has(lane.section));
      const before = shown.filter((lane) => lane.section === "storage");
      for (const lane of before) add("lane", trace, { lane });
      add("rate", trace, { lanes: before.filter((lane) => lane.group === "read" || lane.group === "write") });
      for (const lane of shown.filter((other) => other.section !== "storage")) add("lane", trace, { lane });
      top += 8;
    }
    this.height = top + AXIS;
    this.canvas.style.height = this.height + "px";
    this.draw();
  }

  // Shows from..to (seconds). `shifts` aligns traces; without it, the present alignment remains.
  setView(from, to, shifts = this.shifts) {
    this.shifts = shifts;
    const least = 1e-6, whole = this.whole.to - this.whole.from;
    const span = Math.min(Math.max(to - from, least), whole);
    from = Math.min(Math.max(from, this.whole.from), this.whole.to - span);
    this.view = { from, to: from + span };
    this.draw();
    for (const listener of this.listeners) listener();
  }

  draw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => { this.pending = 0; this.paint(); });
  }

  paint() {
    const ratio = window.devicePixelRatio || 1, width = this.box.clientWidth;
    this.width = width;
    setMargins(width);
    this.own = this.view;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    const g = this.canvas.getContext("2d");
    g.scale(ratio, ratio);
    g.clearRect(0, 0, width, this.height);
    this.plot = Math.max(50, width - LEFT - RIGHT);
    this.pixelCache = new Map();
    this.peak = this.peakRate();
    this.spelt = this.spellings(g);
    this.paintAxis(g);
    for (const row of this.rows) {
      this.own = this.viewOf(row.trace);
      this["paint_" + row.kind](g, row);
    }
    const span = this.view.to - this.view.from, range = document.getElementById("range");
    range.textContent = `${formatMoment(this.view.from, span)} to ${formatMoment(this.view.to, span)} (${formatDuration(span * 1e9)})`;
    range.dataset.from = this.view.from;
    range.dataset.to = this.view.to;
  }

  // The part of a trace that its rows show: the view, moved by the trace's shift.
  viewOf(trace) {
    const shift = this.shifts.get(trace) || 0;
    return { from: this.view.from + shift, to: this.view.to + shift };
  }

  // The x of a moment in the rows that are being painted.
  x(seconds) { return LEFT + (seconds - this.own.from) / (this.own.to - this.own.from) * this.plot; }

  seconds(x) { return this.view.from + (x - LEFT) / this.plot * (this.view.to - this.view.from); }

  // What the lane does in each pixel: from bins if they are as fine as pixels, else from calls if the page has them.
  pixels(trace, lane) {
    if (!this.pixelCache.has(lane)) {
      const { from, to } = this.viewOf(trace), count = Math.round(this.plot);
      const keep = this.keep && this.keep.get(trace), { shown, calls } = this.finest(trace, lane);
      const coarse = shown.levels[0].width > (to - from) / count;
      const pixels = shown.calls && (coarse || keep)
        ? pixelsFromCalls(shown, calls, from, to, count, keep) : pixelsFromBins(shown, from, to, count);
      this.pixelCache.set(lane, pixels);
    }
    return this.pixelCache.get(lane);
  }

  // The finest known version of the lane: the server's detail if it covers the view, else the page's.
  finest(trace, lane) {
    const { detail } = trace, view = this.viewOf(trace);
    if (!detail || detail.from > view.from || detail.to < view.to) return { shown: lane, calls: trace.calls };
    const fine = detail.lanes[trace.lanes.indexOf(lane)];
    return fine.levels[0].width < lane.levels[0].width ? { shown: fine, calls: detail.calls } : { shown: lane, calls: trace.calls };
  }

  peakRate() {
    const pixel = (this.view.to - this.view.from) / Math.round(this.plot);
    let most = 0;
    for (const row of this.rows) {
      if (row.kind !== "rate") continue;
      for (const lane of row.lanes) for (const bytes of this.pixels(row.trace, lane).bytes) most = Math.max(most, bytes / pixel);
    }
    return most;
  }

  paintAxis(g) {
    const y = this.height - AXIS, span = this.view.to - this.view.from;
    g.font = "12px system-ui, sans-serif";
    g.textAlign = "center";
    g.textBaseline = "top";
    const ticks = roundTicks(this.view.from, this.view.to, this.plot / 110), texts = formatTicks(ticks);
    for (const [place, tick] of ticks.entries()) {
      const x = Math.round(this.x(tick)) + 0.5;
      g.strokeStyle = Math.abs(tick) < span * 1e-9 ? THEME.axis : THEME.faint;
      line(g, x, 0, x, y);
      g.fillStyle = THEME.soft;
      g.fillText(`${texts[place]} s`, x, y + 5);
    }
    g.strokeStyle = THEME.axis;
    line(g, LEFT, y + 0.5, LEFT + this.plot, y + 0.5);
  }

  paint_head(g, row) {
    g.textAlign = "left";
    g.textBaseline = "middle";
    g.fillStyle = THEME.paper;
    g.fillRect(0, row.top, this.width, row.height);
    g.font = "bold 14px system-ui, sans-serif";
    g.fillStyle = THEME.ink;
    g.fillText(row.trace.label, 8, row.top + 16);
    let left = 16 + g.measureText(row.trace.label).width;
    const shift = this.shifts.get(row.trace), moved = shift ? `aligned: its time is the axis's ${shift < 0 ? "-" : "+"} ${formatDuration(Math.abs(shift) * 1e9)}` : "";
    for (const [text, colour, weight] of [[row.trace.loss, THEME.loss, "bold "], [moved, THEME.ink, "bold "], [row.trace.machine, THEME.soft, ""]]) {
      g.font = weight + "12px system-ui, sans-serif";
      g.fillStyle = colour;
      if (text && left < this.width - 60) g.fillText(text, left, row.top + 16, this.width - left - 8);
      left += text ? g.measureText(text).width + 12 : 0;
    }
  }

  nameRow(g, row, name, right) {
    const middle = row.top + row.height / 2;
    g.textBaseline = "middle";
    g.font = "12.5px system-ui, sans-serif";
    g.fillStyle = THEME.ink;
    g.textAlign = "right";
    g.fillText(name, LEFT - 8, middle, LEFT - 14);
    g.font = "11.5px system-ui, sans-serif";
    g.fillStyle = THEME.soft;
    g.textAlign = "left";
    if (RIGHT > 20) right.forEach((text, place) => g.fillText(text, LEFT + this.plot + 7, middle + (place - (right.length - 1) / 2) * 14, RIGHT - 9));
  }

  // Paints a row's background, which is grey before the trace begins and after it ends.
  paintFloor(g, row) {
    const [begin, end] = row.trace.span_s.map((moment) => Math.min(Math.max(this.x(moment), LEFT), LEFT + this.plot));
    g.fillStyle = THEME.floor;
    if (begin > LEFT + 1) g.fillRect(LEFT, row.top, begin - LEFT, row.height);
    if (end < LEFT + this.plot - 1) g.fillRect(end, row.top, LEFT + this.plot - end, row.height);
    g.strokeStyle = THEME.line;
    line(g, LEFT, row.top + row.height + 0.5, LEFT + this.plot, row.top + row.height + 0.5);
  }

  paint_phases(g, row) {
    this.nameRow(g, row, "phases", row.trace.phases_inferred ? ["not logged:", "inferred from reads"] : row.trace.phases.length ? [] : ["none logged"]);
    const inView = row.trace.phases.filter((phase) => phase[4] > this.own.from && phase[3] < this.own.to);
    const steps = inView.filter((phase) => phase[0] === "step");
    g.save();
    g.beginPath();
    g.rect(LEFT, row.top, this.plot, row.height);
    g.clip();
    for (const [name, epoch, , begin, end] of inView) {
      if (name === "step") continue;
      const x = this.x(begin), wide = Math.max(this.x(end) - x, 1);
      g.fillStyle = this.page.colours.phases[name] || "#ddd";
      g.fillRect(x, row.top, Math.max(wide - 0.7, 0.7), row.height);
      this.labelPhase(g, row, name, epoch, Math.max(x, LEFT), Math.min(x + wide, LEFT + this.plot));
    }
    g.strokeStyle = THEME.soft;
    const bottom = row.top + row.height;
    if (steps.length <= MOST_STEP_MARKS) for (const step of steps) line(g, this.x(step[3]), bottom - 5, this.x(step[3]), bottom);
    g.restore();
  }

  labelPhase(g, row, name, epoch, left, right) {
    g.font = PHASE_FONT;
    g.fillStyle = "#1a1a1a";
    g.textAlign = "center";
    g.textBaseline = "middle";
    const text = phaseWords(name, epoch)[this.spelt.get(name)];
    if (text && phaseFits(g, text, right - left)) g.fillText(text, (left + right) / 2, row.top + row.height / 2);
  }

  // For each kind of phase, the form of its name (0: full, 1: short) that fits most of its bars in all traces.
  spellings(g) {
    g.font = PHASE_FONT;
    const bars = new Map();
    for (const trace of this.traces) for (const [name, epoch, , begin, end] of trace.phases) {
      const wide = Math.min(this.x(end), LEFT + this.plot) - Math.max(this.x(begin), LEFT);
      if (wide <= 0 || name === "step") continue;
      if (!bars.has(name)) bars.set(name, []);
      bars.get(name).push([phaseWords(name, epoch), wide]);
    }
    return new Map([...bars].map(([name, own]) => {
      const fitting = (form) => own.filter(([words, wide]) => phaseFits(g, words[form], wide)).length;
      return [name, fitting(0) >= fitting(1) ? 0 : 1];
    }));
  }

  paint_graph(g, row) {
    this.paintFloor(g, row);
    const { graph } = row, colours = { ...this.page.colours.cpu, job: THEME.black, busy: "#0072B2", SM: "#009E73", memory: "#CC79A7", cached: "#0072B2", dirty: "#D55E00",
      base: "#009E73", recomputed: "#E69F00", search: "#CC79A7" };
    const first = Math.max(0, firstAbove(graph.time, this.own.from) - 1);
    const last = Math.min(graph.time.length, firstAbove(graph.time, this.own.to) + 1);
    const y = (share) => row.top + row.height * (1 - Math.min(share, 1));
    // Neighbouring samples are averaged, since a line that rises and falls in each pixel would be one black band.
    const together = Math.max(1, Math.ceil(PIXELS_A_SAMPLE * (last - first) / this.plot));
    const begin = (at) => (at ? graph.time[at - 1] : graph.time[0] - ((graph.time[1] || graph.time[0] + 1) - graph.time[0]));
    const groups = Array.from({ length: Math.ceil((last - first) / together) }, (_, i) => {
      const from = first + i * together, to = Math.min(from + together, last);
      return { from, to, left: this.x(begin(from)), right: this.x(graph.time[to - 1]) };
    });
    const mean = (name, { from, to }) => graph.curves[name].subarray(from, to).reduce((sum, value) => sum + value, 0) / (to - from);
    g.save();
    g.beginPath();
    g.rect(LEFT, row.top, this.plot, row.height);
    g.clip();
    const base = new Float64Array(groups.length);
    for (const name of graph.stacked) {
      g.fillStyle = colours[name];
      groups.forEach((group, i) => {
        const share = mean(name, group);
        g.fillRect(group.left, y(base[i] + share), group.right - group.left + 0.4, y(base[i]) - y(base[i] + share));
        base[i] += share;
      });
    }
    for (const name of graph.lines) {
      g.strokeStyle = colours[name];
      g.beginPath();
      for (const group of groups) { const at = y(mean(name, group)); g.lineTo(group.left, at); g.lineTo(group.right, at); }
      g.stroke();
    }
    this.paintGaps(g, row);
    g.restore();
    const scale = graph.stacked.length && graph.lines.length ? "line: this job" : "0 to 100 %";
    this.nameRow(g, row, graph.title, [graph.stacked.join(", ") || graph.lines.join(", "), scale]);
  }

  // Hatches the times without samples, over the curve.
  paintGaps(g, row) {
    for (const [from, to] of row.graph.gaps) {
      const left = Math.max(this.x(from), LEFT), right = Math.min(this.x(to), LEFT + this.plot), bottom = row.top + row.height;
      if (right <= left) continue;
      g.save();
      g.beginPath();
      g.rect(left, row.top, right - left, row.height);
      g.clip();
      g.fillStyle = THEME.paper;
      g.fillRect(left, row.top, right - left, row.height);
      g.strokeStyle = THEME.line;
      for (let x = left - row.height; x < right; x += 6) line(g, x, bottom, x + row.height, row.top);
      g.font = "11.5px system-ui, sans-serif";
      const words = "no samples", wide = g.measureText(words).width + 10, middle = (left + right) / 2;
      if (wide < right - left) {
        g.fillStyle = THEME.paper;
        g.fillRect(middle - wide / 2, row.top + row.height / 2 - 9, wide, 18);
        g.fillStyle = THEME.soft;
        g.textAlign = "center";
        g.textBaseline = "middle";
        g.fillText(words, middle, row.top + row.height / 2);
      }
      g.restore();
    }
  }

  paint_lane(g, row) {
    this.paintFloor(g, row);
    const { lane } = row, pixels = this.pixels(row.trace, lane);
    const colour = this.page.colours.groups[lane.group] || "#444444";
    let most = 1, calls = 0, bytes = 0;
    for (let x = 0; x < pixels.calls.length; x += 1) { most = Math.max(most, pixels.calls[x]); calls += pixels.calls[x]; bytes += pixels.bytes[x]; }
    g.fillStyle = colour;
    this.paintTint(g, row, pixels, most);
    g.beginPath();
    for (let x = 0; x < pixels.busy.length; x += 1) {
      const high = Math.min(1, pixels.busy[x]) * row.height;
      if (high > 0.25) g.rect(LEFT + x, row.top + row.height - high, 1, high);
    }
    g.fill();
    const amount = `${formatCount(calls)} ${laneUnit(lane)}${Math.round(calls) === 1 ? "" : "s"}`;
    this.nameRow(g, row, lane.title, [bytes >= 1 ? `${amount}, ${formatSize(bytes)}` : amount]);
  }

  // Tints the background of bars by the number of calls. Neighbouring pixels of one shade are one rectangle, which is faster.
  paintTint(g, row, pixels, most) {
    const shades = 24, scale = Math.log1p(most), palest = DARK.matches ? 0.35 : 0.14;
    for (let x = 0, begin = 0, before = 0; x <= pixels.calls.length; x += 1) {
      const some = x < pixels.calls.length && (pixels.calls[x] > 0 || pixels.inFlight[x] > 0);
      const shade = some ? 1 + Math.round(shades * Math.log1p(pixels.calls[x]) / scale) : 0;
      if (shade === before) continue;
      if (before) {
        g.globalAlpha = palest + 0.3 * (before - 1) / shades;
        g.fillRect(LEFT + begin, row.top, x - begin, row.height);
      }
      [begin, before] = [x, shade];
    }
    g.globalAlpha = 1;
  }

  paint_rate(g, row) {
    this.paintFloor(g, row);
    const pixel = (this.view.to - this.view.from) / Math.round(this.plot);
    for (const lane of row.lanes) {
      const { bytes } = this.pixels(row.trace, lane);
      g.strokeStyle = this.page.colours.groups[lane.group];
      g.beginPath();
      bytes.forEach((amount, x) => {
        const y = row.top + row.height * (1 - (this.peak ? amount / pixel / this.peak : 0));
        g.lineTo(LEFT + x, y);
        g.lineTo(LEFT + x + 1, y);
      });
      g.stroke();
    }
    this.nameRow(g, row, "bytes per second", [`top: ${formatSize(this.peak)}/s`, `mean of ${formatDuration(pixel * 1e9)}`]);
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const factor = Math.exp(Math.max(-1, Math.min(1, (event.deltaY || event.deltaX) / 300)));
      this.zoomAt(this.seconds(Math.max(event.offsetX, LEFT)), factor);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.startDrag(event));
    canvas.addEventListener("pointermove", (event) => (this.drag ? this.moveDrag(event) : this.showTooltip(event)));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => this.endDrag());
    canvas.addEventListener("pointerleave", () => { this.tooltip.hidden = true; });
    canvas.addEventListener("dblclick", () => this.setView(this.whole.from, this.whole.to, new Map()));
    this.box.addEventListener("keydown", (event) => this.onKey(event));
    for (const event of ["resize", "theme"]) window.addEventListener(event, () => this.setView(this.view.from, this.view.to));
  }

  zoomAt(moment, factor) {
    this.setView(moment - (moment - this.view.from) * factor, moment + (this.view.to - moment) * factor);
  }

  startDrag(event) {
    this.tooltip.hidden = true;
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.classList.add("dragging");
    this.drag = { x: event.offsetX, at: event.offsetX, view: { ...this.view }, select: event.shiftKey };
  }

  moveDrag(event) {
    this.drag.at = event.offsetX;
    if (this.drag.select) {
      this.paint();
      const g = this.canvas.getContext("2d");
      g.fillStyle = "rgba(0, 114, 178, 0.18)";
      g.fillRect(Math.min(this.drag.x, this.drag.at), 0, Math.abs(this.drag.at - this.drag.x), this.height);
    } else {
      const { from, to } = this.drag.view, shift = (this.drag.x - event.offsetX) / this.plot * (to - from);
      this.setView(from + shift, to + shift);
    }
  }

  endDrag() {
    const { drag } = this;
    this.drag = null;
    this.canvas.classList.remove("dragging");
    if (drag && drag.select && Math.abs(drag.at - drag.x) > 3) {
      this.setView(this.seconds(Math.min(drag.x, drag.at)), this.seconds(Math.max(drag.x, drag.at)));
    } else this.draw();
  }

  onKey(event) {
    const { from, to } = this.view, step = (to - from) / 5, middle = (from + to) / 2;
    if (event.key === "ArrowLeft") this.setView(from - step, to - step);
    else if (event.key === "ArrowRight") this.setView(from + step, to + step);
    else if (event.key === "+" || event.key === "=") this.zoomAt(middle, 0.6);
    else if (event.key === "-") this.zoomAt(middle, 1 / 0.6);
    else if (event.key === "Home") this.setView(this.whole.from, this.whole.to, new Map());
    else return;
    event.preventDefault();
  }

  showTooltip(event) {
    const row = this.rows.find((candidate) => event.offsetY >= candidate.top && event.offsetY <= candidate.top + candidate.height);
    const text = row && event.offsetX >= LEFT && event.offsetX < LEFT + this.plot ? this.describe(row, event.offsetX) : "";
    this.tooltip.hidden = !text;
    if (!text) return;
    this.tooltip.textContent = text;
    this.tooltip.style.left = Math.min(event.offsetX + 14, this.width - Math.min(this.tooltip.offsetWidth, 520) - 4) + "px";
    this.tooltip.style.top = event.offsetY + 16 + "px";
  }

  describe(row, x) {
    const moment = this.seconds(x) + (this.shifts.get(row.trace) || 0), span = this.view.to - this.view.from, time = formatMoment(moment, span / 100);
    if (row.kind === "lane") return `${time}, ${row.lane.title}\n${this.describePixel(row, x)}${describePass(row, moment)}${this.describeCall(row, moment, span / this.plot)}`;
    if (row.kind === "phases") {
      const under = row.trace.phases.filter((phase) => phase[3] <= moment && phase[4] >= moment);
      const numbered = (word, number) => (number === null ? "" : `, ${word} ${number}`);
      return [time, ...under.map(([name, epoch, step, begin, end]) =>
        `${name}${numbered("epoch", epoch)}${numbered("step", step)}: ${formatDuration((end - begin) * 1e9)}`)].join("\n");
    }
    if (row.kind === "graph") {
      const at = firstAbove(row.graph.time, moment);
      if (row.graph.gaps.some(([from, to]) => moment > from && moment < to)) return `${time}\nno samples: the sampler stalled or had ended`;
      if (at >= row.graph.time.length) return "";
      return [time, ...Object.entries(row.graph.curves).map(([name, curve]) => `${name} ${formatShare(curve[at])}`)].join("\n");
    }
    return "";
  }

  describePixel(row, x) {
    const pixels = this.pixels(row.trace, row.lane), at = Math.min(pixels.calls.length - 1, Math.floor(x - LEFT));
    if (pixels.calls[at] <= 0 && pixels.inFlight[at] <= 0) return `no ${laneUnit(row.lane)}`;
    const bytes = pixels.bytes[at] >= 1 ? `, ${formatSize(pixels.bytes[at])}` : "";
    const starts = pixels.calls[at] < 0.5 ? `no ${laneUnit(row.lane)} starts` : `about ${formatCount(pixels.calls[at])} ${laneUnit(row.lane)}s start`;
    return `this pixel: ${starts}, busy ${formatShare(pixels.busy[at])}, ${significant(pixels.inFlight[at])} in flight on average${bytes}`;
  }

  // The call nearest to the pointer among those within two pixels.
  describeCall(row, moment, pixel) {
    const { shown, calls } = this.finest(row.trace, row.lane), keep = this.keep && this.keep.get(row.trace);
    if (!calls || !shown.calls) return "";
    const { indices, reaches } = shown.calls;
    let best = -1, least = 2 * pixel;
    for (let place = firstAbove(reaches, moment - 2 * pixel); place < indices.length; place += 1) {
      const i = indices[place], end = calls.start[i] + calls.duration[i] / 1e9;
      if (calls.start[i] > moment + 2 * pixel) break;
      const away = Math.max(calls.start[i] - moment, moment - end, 0);
      if (away < least && !(keep && !(calls.file[i] >= 0 && keep[calls.file[i]]))) { least = away; best = i; }
    }
    if (best < 0) return "";
    const file = calls.file[best] >= 0 ? calls.files[calls.file[best]] : "", offset = calls.offset[best];
    const result = calls.result[best] < 0 ? `failed, errno ${-calls.result[best]}` : `returned ${formatCount(calls.result[best])}`;
    return `\n${calls.ops[calls.op[best]]} ${formatDuration(calls.duration[best])}, ${result}` +
      `${offset >= 0 ? `, at ${formatSize(offset)}` : ""}, pid ${calls.pids[calls.pid[best]]}${file ? `\n${file}` : ""}`;
  }

  // Shows only calls on files whose path contains `words`; empty words show all.
  filterFiles(words) {
    const matches = (path) => path.toLowerCase().includes(words.toLowerCase());
    this.keep = words ? new Map(this.traces.map((trace) => [trace, trace.calls ? trace.calls.files.map(matches) : []])) : null;
    this.draw();
  }
}

// The minibatch and the version of the weights of the pipeline's pass at a moment.
function describePass(row, moment) {
  const pass = (row.trace.passes[row.lane.title] || []).find(([begin, end]) => begin <= moment && moment <= end);
  if (!pass) return "";
  const [begin, end, minibatch, version] = pass;
  return `\nminibatch ${minibatch}${version === null ? "" : `, weight version ${version}`}: ${formatDuration((end - begin) * 1e9)}`;
}

// The unit of what a lane counts.
function laneUnit(lane) { return { block: "request", device: "operation", part: "time" }[lane.section] || "call"; }

function line(g, x0, y0, x1, y1) {
  g.beginPath();
  g.moveTo(x0, y0);
  g.lineTo(x1, y1);
  g.stroke();
}
