// Access patterns: bytes by time and address, drawn over the timeline's time axis.

const HEAT_HEIGHT = 220;

class HeatMap {
  constructor(timeline, trace, heat, title) {
    this.trace = trace;
    this.heat = heat;
    this.timeline = timeline;
    this.canvas = element("canvas", { role: "img", "aria-label": `${title}: bytes by time and address` });
    this.tip = element("p", { class: "note" });
    const box = element("div", { class: "heat" }, this.canvas);
    this.top = heat.cells.reduce((most, cell) => Math.max(most, cell), 0);
    this.place = element("div", {}, element("h3", {}, title, pictureButton(this.canvas, title)), box, this.tip);
    this.legend = `${formatCount(heat.file_count)} files, ${formatSize(heat.rows * heat.row_bytes)}; darker: more bytes, up to ` +
      `${formatSize(this.top)} in a cell of ${formatDuration(heat.width_s * 1e9)} by ${formatSize(heat.row_bytes)} (logarithmic)`;
    this.tip.textContent = this.legend;
    this.canvas.addEventListener("pointermove", (event) => this.describe(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.textContent = this.legend; });
    timeline.listeners.push(() => this.invalidate());
    for (const event of ["resize", "theme"]) window.addEventListener(event, () => this.invalidate());
    // A map that is out of sight is not drawn, so that zooming the timeline remains fast.
    new IntersectionObserver((entries) => {
      this.visible = entries[entries.length - 1].isIntersecting;
      if (this.visible) this.invalidate();
    }).observe(box);
  }

  invalidate() {
    if (this.pending || !this.visible) return;
    this.pending = requestAnimationFrame(() => { this.pending = 0; this.draw(); });
  }

  // Draws the visible part of the map, one pixel for each cell in height. If several cells share a pixel, the fullest is drawn.
  render(from, to, wide) {
    const { columns, rows, cells, origin_s: origin, width_s: width } = this.heat, pixel = (to - from) / wide;
    const image = element("canvas", { width: wide, height: rows }), fullest = new Float64Array(wide * rows);
    const end = Math.min(columns, Math.ceil((to - origin) / width));
    for (let column = Math.max(0, Math.floor((from - origin) / width)); column < end; column += 1) {
      const left = (origin + column * width - from) / pixel, first = Math.max(0, Math.floor(left));
      const last = Math.min(wide, Math.max(Math.ceil(left + width / pixel), first + 1));
      for (let row = 0; row < rows; row += 1) {
        const value = cells[column * rows + row], base = (rows - 1 - row) * wide;
        if (value) for (let x = first; x < last; x += 1) if (fullest[base + x] < value) fullest[base + x] = value;
      }
    }
    this.paint(image.getContext("2d"), fullest, wide, rows);
    return image;
  }

  paint(g, fullest, wide, rows) {
    const pixels = g.createImageData(wide, rows), scale = Math.log1p(this.top), { data } = pixels;
    for (let at = 0; at < fullest.length; at += 1) {
      if (!fullest[at]) continue;
      // From a light to a dark blue of one hue: readable in grey and for any colour vision.
      const depth = 0.25 + 0.75 * Math.log1p(fullest[at]) / scale, to = at * 4;
      data[to] = 198 * (1 - depth);
      data[to + 1] = 219 - 170 * depth;
      data[to + 2] = 239 - 130 * depth;
      data[to + 3] = 255;
    }
    g.putImageData(pixels, 0, 0);
  }

  draw() {
    const ratio = window.devicePixelRatio || 1, width = this.canvas.parentElement.clientWidth, { heat } = this;
    const { from, to } = this.timeline.viewOf(this.trace);
    setMargins(width);
    this.canvas.style.height = HEAT_HEIGHT + "px";
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(HEAT_HEIGHT * ratio);
    const g = this.canvas.getContext("2d"), plot = Math.max(50, width - LEFT - RIGHT);
    g.scale(ratio, ratio);
    g.imageSmoothingEnabled = false;
    g.drawImage(this.render(from, to, Math.round(plot)), LEFT, 0, plot, HEAT_HEIGHT);
    g.strokeStyle = THEME.axis;
    g.strokeRect(LEFT + 0.5, 0.5, plot - 1, HEAT_HEIGHT - 1);
    g.font = "12px system-ui, sans-serif";
    g.fillStyle = THEME.soft;
    g.textAlign = "right";
    g.textBaseline = "top";
    g.fillText(formatSize(heat.rows * heat.row_bytes), LEFT - 8, 2);
    g.fillText("address", LEFT - 8, HEAT_HEIGHT / 2 - 6);
    g.textBaseline = "bottom";
    g.fillText("0", LEFT - 8, HEAT_HEIGHT - 2);
  }

  describe(event) {
    const { heat, timeline } = this, plot = Math.max(50, this.canvas.clientWidth - LEFT - RIGHT), { from, to } = timeline.viewOf(this.trace);
    const moment = from + (event.offsetX - LEFT) / plot * (to - from), column = Math.floor((moment - heat.origin_s) / heat.width_s);
    const row = Math.floor((1 - event.offsetY / HEAT_HEIGHT) * heat.rows);
    if (event.offsetX < LEFT || event.offsetX > LEFT + plot || column < 0 || column >= heat.columns || row < 0 || row >= heat.rows) {
      this.tip.textContent = this.legend;
      return;
    }
    const address = row * heat.row_bytes, file = firstAbove(heat.bases, address) - 1;
    const name = heat.bases.length ? `, ${heat.files[file] || `file ${file}`} and on` : "";
    const bytes = formatSize(heat.cells[column * heat.rows + row]);
    this.tip.textContent = `${formatMoment(moment, to - from)}, address ${formatSize(address)}${name}: ${bytes}`;
  }
}
