// Access patterns: bytes by time and address, drawn over the timeline's time axis.

const HEAT_HEIGHT = 220;

class HeatMap {
  constructor(page, timeline, trace, heat, title) {
    this.heat = heat;
    this.timeline = timeline;
    this.trace = trace;
    this.canvas = element("canvas");
    this.tip = element("p", { class: "note" });
    const box = element("div", { class: "heat" }, this.canvas);
    this.top = heat.cells.reduce((most, cell) => Math.max(most, cell), 0);
    this.place = element("div", {}, element("h3", {}, title), box, this.tip);
    this.legend = `${formatCount(heat.file_count)} files, ${formatSize(heat.rows * heat.row_bytes)}; darker: more bytes, up to ` +
      `${formatSize(this.top)} in a cell of ${formatDuration(heat.width_s * 1e9)} by ${formatSize(heat.row_bytes)} (logarithmic)`;
    this.tip.textContent = this.legend;
    this.image = this.render();
    this.canvas.addEventListener("pointermove", (event) => this.describe(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.textContent = this.legend; });
    timeline.listeners.push(() => this.draw());
    window.addEventListener("resize", () => this.draw());
  }

  // The whole map once, a pixel a cell; addresses grow upwards.
  render() {
    const { columns, rows, cells } = this.heat, image = element("canvas", { width: columns, height: rows });
    const g = image.getContext("2d"), pixels = g.createImageData(columns, rows), scale = Math.log1p(this.top);
    for (let column = 0; column < columns; column += 1) {
      for (let row = 0; row < rows; row += 1) {
        const value = cells[column * rows + row];
        if (!value) continue;
        // From a light to a dark blue of one hue: readable in grey and for any colour vision.
        const depth = 0.25 + 0.75 * Math.log1p(value) / scale, at = ((rows - 1 - row) * columns + column) * 4;
        pixels.data.set([Math.round(198 * (1 - depth)), Math.round(219 - 170 * depth), Math.round(239 - 130 * depth), 255], at);
      }
    }
    g.putImageData(pixels, 0, 0);
    return image;
  }

  draw() {
    const ratio = window.devicePixelRatio || 1, width = this.canvas.parentElement.clientWidth, { heat, timeline } = this;
    this.canvas.style.height = HEAT_HEIGHT + "px";
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(HEAT_HEIGHT * ratio);
    const g = this.canvas.getContext("2d"), plot = Math.max(50, width - LEFT - RIGHT);
    g.scale(ratio, ratio);
    g.imageSmoothingEnabled = false;
    const { from, to } = timeline.view, scale = plot / (to - from);
    g.save();
    g.beginPath();
    g.rect(LEFT, 0, plot, HEAT_HEIGHT);
    g.clip();
    g.drawImage(this.image, LEFT + (heat.origin_s - from) * scale, 0, heat.columns * heat.width_s * scale, HEAT_HEIGHT);
    g.restore();
    g.strokeStyle = "#999";
    g.strokeRect(LEFT + 0.5, 0.5, plot - 1, HEAT_HEIGHT - 1);
    g.font = "12px system-ui, sans-serif";
    g.fillStyle = "#444";
    g.textAlign = "right";
    g.textBaseline = "top";
    g.fillText(formatSize(heat.rows * heat.row_bytes), LEFT - 8, 2);
    g.fillText("address", LEFT - 8, HEAT_HEIGHT / 2 - 6);
    g.textBaseline = "bottom";
    g.fillText("0", LEFT - 8, HEAT_HEIGHT - 2);
  }

  describe(event) {
    const { heat, timeline } = this, plot = Math.max(50, this.canvas.clientWidth - LEFT - RIGHT), { from, to } = timeline.view;
    const moment = from + (event.offsetX - LEFT) / plot * (to - from), column = Math.floor((moment - heat.origin_s) / heat.width_s);
    const row = Math.floor((1 - event.offsetY / HEAT_HEIGHT) * heat.rows);
    if (event.offsetX < LEFT || event.offsetX > LEFT + plot || column < 0 || column >= heat.columns || row < 0 || row >= heat.rows) {
      this.tip.textContent = this.legend;
      return;
    }
    const address = row * heat.row_bytes, file = firstAbove(heat.bases, address) - 1;
    const name = heat.bases.length ? `, ${heat.files[file] || `file ${file}`} and on` : "";
    this.tip.textContent = `${formatMoment(moment, to - from)}, address ${formatSize(address)}${name}: ${formatSize(heat.cells[column * heat.rows + row])}`;
  }
}
