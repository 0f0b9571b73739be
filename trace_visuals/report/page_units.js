// Numbers as people read them, and elements made from text: nothing from a trace ever passes through an HTML parser.

function formatSize(bytes) {
  if (bytes === null || !isFinite(bytes)) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0, value = bytes;
  while (Math.abs(value) >= 1024 && place < units.length - 1) { value /= 1024; place += 1; }
  return (place ? significant(value) : Math.round(value)) + " " + units[place];
}

function formatDuration(ns) {
  if (ns === null || !isFinite(ns)) return "";
  const size = Math.abs(ns);
  if (!size) return "0 s";
  if (size < 1e3) return significant(ns) + " ns";
  if (size < 1e6) return significant(ns / 1e3) + " us";
  if (size < 1e9) return significant(ns / 1e6) + " ms";
  return significant(ns / 1e9) + " s";
}

function significant(value) {
  if (value === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return String(Number(value.toFixed(Math.min(digits, 3))));
}

function formatCount(value) { return value === null ? "" : Math.round(value).toLocaleString("en-US"); }

function formatShare(value) { return value === null || !isFinite(value) ? "" : Number((100 * value).toFixed(value < 0.0995 ? 1 : 0)) + " %"; }

// Formats ticks with the fewest decimals by which neighbouring ticks differ.
function formatTicks(ticks) {
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1, digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return ticks.map((tick) => (Math.abs(tick) < step / 1e6 ? 0 : tick).toFixed(digits));
}

// Formats a time in seconds, with as many decimals as a range of `span` seconds requires.
function formatMoment(seconds, span) {
  const digits = Math.max(0, Math.min(9, 3 - Math.floor(Math.log10(Math.max(span, 1e-9)))));
  return seconds.toFixed(digits) + " s";
}

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function swatch(colour) {
  const made = element("span", { class: "swatch" });
  made.style.background = colour;
  return made;
}

function svgElement(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// About `count` round numbers within low..high, at steps of 1, 2 or 5 times a power of ten.
function roundTicks(low, high, count) {
  const rough = (high - low) / count, power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const ticks = [];
  for (let place = Math.ceil(low / step); place * step <= high; place += 1) ticks.push(place * step);
  return ticks;
}
