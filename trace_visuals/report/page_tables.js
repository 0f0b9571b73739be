// Tables that can be sorted and filtered; the unit in a column's name selects its format.

const HEADINGS = {
  name: "item", value: "value", difference_share: "differs by", noticed_share: "noticed from", job_ns: "job", twin_ns: "twin", ratio: "twin / job",
  first_epoch_ratio: "first epoch",
  p50_ns: "median", p90_ns: "p90", p99_ns: "p99", "p99.9_ns": "p99.9", most_ns: "longest", time_ns: "time in calls", size_bytes: "bytes",
  p50_bytes: "median size", extent_bytes: "size", read_bytes: "read", written_bytes: "written", sequential_share: "in order", first_s: "first call",
  last_s: "last call", start_s: "start", exit_s: "exit", storage_ns: "time on storage", wait_ns: "time waiting", storage_calls: "storage calls",
  read_calls_bytes: "read by calls", read_block_bytes: "read from devices", cached_share: "from the cache", write_calls_bytes: "written by calls",
  write_block_bytes: "written to devices", queue_ns: "median in queue",
  sync_ns: "time in syncs", write_ns: "time in writes", duration_ns: "duration", bytes_per_s: "rate", command_line: "command line",
};
const WORDY = new Set(["path", "command_line", "value"]);
const LABELS = new Set(["op", "kind", "role", "comm", "where", "name", "origin", "phase", "noticed", "storage", "of", ...WORDY]);

function formatCell(name, value) {
  if (value === null || value === undefined) return "";
  if (LABELS.has(name)) return String(value);
  if (name === "pid" || name === "exit_status") return String(value);
  if (name === "offset") return value < 0 ? "" : formatSize(value);
  if (["score", "weight", "distance", "ratio", "first_epoch_ratio"].includes(name)) return value.toFixed(3);
  if (name.endsWith("_share")) return formatShare(value);
  if (name.endsWith("_bytes")) return formatSize(value);
  if (name === "bytes_per_s") return formatSize(value) + "/s";
  if (name.endsWith("_ns")) return formatDuration(value);
  if (name.endsWith("_s")) return formatMoment(value, 10);
  return formatCount(value);
}

// Appends a table to the element `place`. With `options.onRow`, each row ends in a button that calls onRow with the row.
function addTable(place, table, options = {}) {
  const state = { column: -1, descending: true, words: "", all: false };
  const body = element("tbody"), heads = table.columns.map((name, at) => headCell(name, () => sortBy(at)));
  const head = element("tr", {}, ...heads, ...(options.onRow ? [element("td")] : []));
  const filter = element("input", { type: "search", placeholder: "filter rows", class: "table-filter", "aria-label": "filter rows" });
  const status = element("span", { class: "table-status" }), more = element("button", {}, "show all");
  filter.addEventListener("input", () => { state.words = filter.value.toLowerCase(); fill(); });
  more.addEventListener("click", () => { state.all = true; fill(); });
  const bar = element("div", { class: "bar table-bar" }, filter, status, more);
  if (table.rows.length > 10) place.append(bar);
  place.append(element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "table" }, element("table", {}, element("thead", {}, head), body)));

  function sortBy(at) {
    state.descending = state.column === at ? !state.descending : true;
    state.column = at;
    heads.forEach((cell, other) => cell.setAttribute("aria-sort", other !== at ? "none" : state.descending ? "descending" : "ascending"));
    fill();
  }

  function fill() {
    let rows = table.rows;
    if (state.words) rows = rows.filter((row) => row.some((value) => value !== null && String(value).toLowerCase().includes(state.words)));
    if (state.column >= 0) rows = [...rows].sort((a, b) => compareCells(a[state.column], b[state.column]) * (state.descending ? -1 : 1));
    const shown = state.all ? rows : rows.slice(0, 25);
    body.replaceChildren(...shown.map((row) => bodyRow(table.columns, row, options.onRow)));
    const kept = table.total > table.rows.length ? ` (the page holds the first ${formatCount(table.rows.length)})` : "";
    status.textContent = `${formatCount(shown.length)} of ${formatCount(state.words ? rows.length : table.total)}${kept}`;
    more.hidden = shown.length === rows.length;
  }
  fill();
}

function headCell(name, onClick) {
  const button = element("button", {}, HEADINGS[name] || name.replaceAll("_", " "));
  button.addEventListener("click", onClick);
  return element("th", { class: WORDY.has(name) ? "words" : LABELS.has(name) ? "label" : "" }, button);
}

function bodyRow(columns, row, onRow) {
  const cells = row.map((value, at) => {
    const name = columns[at];
    return element("td", { class: WORDY.has(name) ? "words" : LABELS.has(name) ? "label" : "" }, formatCell(name, value));
  });
  if (onRow) {
    const button = element("button", {}, "show");
    button.addEventListener("click", () => onRow(row));
    cells.push(element("td", {}, button));
  }
  return element("tr", {}, ...cells);
}

function compareCells(a, b) {
  if (a === null || b === null) return (a === null ? -Infinity : 0) - (b === null ? -Infinity : 0) || 0;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}
