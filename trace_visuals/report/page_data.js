// The page's data: packed arrays unpacked, bins stacked into coarser and coarser levels, calls indexed by lane.

const ARRAYS = { uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, int32: Int32Array, float64: Float64Array };

async function unpack(packed) {
  const text = atob(packed.data), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return { scale: packed.scale, values: new ARRAYS[packed.type](await new Response(stream).arrayBuffer()) };
}

async function unpackScaled(packed) {
  const { scale, values } = await unpack(packed);
  return scale === 1 ? values : Float64Array.from(values, (value) => value * scale);
}

async function unpackRising(packed) {
  const { scale, values } = await unpack(packed);
  const rising = new Float64Array(values.length);
  for (let i = 0, at = 0; i < values.length; i += 1) { at += values[i]; rising[i] = at * scale; }
  return rising;
}

// Levels of one lane. Level 0 holds the bins as packed; each further level joins two neighbouring bins.
function buildLevels(calls, busy, inFlight, bytes, width) {
  const levels = [{ calls, busy, inFlight, bytes, width }];
  while (levels[levels.length - 1].calls.length > 256) {
    const finer = levels[levels.length - 1], count = Math.ceil(finer.calls.length / 2);
    const join = (values, factor) => {
      const joined = new Float64Array(count);
      for (let i = 0; i < values.length; i += 1) joined[i >> 1] += values[i] * factor;
      return joined;
    };
    levels.push({ calls: join(finer.calls, 1), busy: join(finer.busy, 0.5), inFlight: join(finer.inFlight, 0.5),
      bytes: join(finer.bytes, 1), width: finer.width * 2 });
  }
  return levels;
}

async function loadLanes(packed) {
  const names = ["calls", "busy", "in_flight", "size_bytes"];
  const [calls, busy, inFlight, bytes] = await Promise.all(names.map((name) => unpackScaled(packed[name])));
  return packed.names.map((name, place) => {
    const part = (values) => values.subarray(place * packed.count, (place + 1) * packed.count);
    return { ...name, origin: packed.origin_s, calls: null,
      levels: buildLevels(part(calls), part(busy), part(inFlight), part(bytes), packed.width_s) };
  });
}

// Every call, in seconds. Each lane gets the indices of its calls and, for each call, the latest end up to it.
async function loadCalls(packed, lanes) {
  const names = ["duration", "lane", "op", "pid", "file", "offset", "result"];
  const [duration, lane, op, pid, file, offset, result] = await Promise.all(names.map((name) => unpackScaled(packed[name])));
  const start = (await unpackRising(packed.start)).map((ns) => packed.origin_s + ns / 1e9);
  const calls = { start, duration, op, pid, file, offset, result, ops: packed.ops, pids: packed.pids, files: packed.files };
  const counts = new Uint32Array(lanes.length);
  for (const place of lane) counts[place] += 1;
  const indices = Array.from(counts, (count) => new Uint32Array(count));
  counts.fill(0);
  for (let i = 0; i < lane.length; i += 1) indices[lane[i]][counts[lane[i]]++] = i;
  lanes.forEach((target, place) => {
    if (["process", "host", "block", "device", "part"].includes(target.section)) return;
    let reach = -Infinity;
    const reaches = Float64Array.from(indices[place], (i) => (reach = Math.max(reach, start[i] + duration[i] / 1e9)));
    target.calls = { indices: indices[place], reaches };
  });
  return calls;
}

async function loadGraph(packed) {
  const curves = await Promise.all(Object.entries(packed.curves).map(async ([name, curve]) => [name, await unpackScaled(curve)]));
  return { ...packed, time: await unpackScaled(packed.time_s), curves: Object.fromEntries(curves) };
}

async function loadTrace(raw) {
  const lanes = await loadLanes(raw.lanes);
  const calls = raw.calls ? await loadCalls(raw.calls, lanes) : null;
  const graphs = await Promise.all(raw.samples.map(loadGraph));
  const heats = await Promise.all([raw.reads_heat, raw.writes_heat].map(
    async (heat) => heat && { ...heat, cells: await unpackScaled(heat.cells) }));
  return { ...raw, lanes, calls, graphs, readsHeat: heats[0], writesHeat: heats[1] };
}

// Index of the first value above `limit` in a rising array.
function firstAbove(rising, limit) {
  let low = 0, high = rising.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rising[middle] > limit) high = middle; else low = middle + 1;
  }
  return low;
}

// What a lane does in `count` equal pixels of from..to: calls, busy share, mean calls in flight, bytes.
function pixelsFromBins(lane, from, to, count) {
  const pixel = (to - from) / count, out = emptyPixels(count);
  const fit = lane.levels.findIndex((level) => level.width * 2 > pixel);
  const level = lane.levels[fit < 0 ? lane.levels.length - 1 : fit];
  const first = Math.max(0, Math.floor((from - lane.origin) / level.width));
  const last = Math.min(level.calls.length, Math.ceil((to - lane.origin) / level.width));
  for (let bin = first; bin < last; bin += 1) {
    if (!level.calls[bin] && !level.inFlight[bin]) continue;
    const begin = (lane.origin + bin * level.width - from) / pixel, wide = level.width / pixel;
    const end = Math.min(begin + wide, count);
    for (let x = Math.max(0, Math.floor(begin)); x < end; x += 1) {
      const share = Math.min(begin + wide, x + 1) - Math.max(begin, x);
      out.calls[x] += level.calls[bin] * share / wide;
      out.bytes[x] += level.bytes[bin] * share / wide;
      out.busy[x] += level.busy[bin] * share;
      out.inFlight[x] += level.inFlight[bin] * share;
    }
  }
  return out;
}

// What a lane does in `count` equal pixels, from its calls, so exact at any zoom. `keep`: files that count (null: all).
function pixelsFromCalls(lane, calls, from, to, count, keep) {
  const pixel = (to - from) / count, out = emptyPixels(count), { indices, reaches } = lane.calls;
  let covered = from;
  for (let place = firstAbove(reaches, from); place < indices.length; place += 1) {
    const i = indices[place], start = calls.start[i];
    if (start >= to) break;
    if (keep && !(calls.file[i] >= 0 && keep[calls.file[i]])) continue;
    const seconds = calls.duration[i] / 1e9, end = start + seconds;
    if (end < from) continue;
    if (start >= from) out.calls[Math.min(count - 1, Math.floor((start - from) / pixel))] += 1;
    const bytes = (lane.group === "read" || lane.group === "write") ? Math.max(0, calls.result[i]) : 0;
    if (!seconds && bytes) out.bytes[Math.min(count - 1, Math.floor((start - from) / pixel))] += bytes;
    const fresh = Math.max(start, covered);
    covered = Math.max(covered, end);
    for (let x = Math.max(0, Math.floor((start - from) / pixel)); x < count && from + x * pixel < end; x += 1) {
      const left = from + x * pixel, right = left + pixel;
      const overlap = Math.max(0, Math.min(end, right) - Math.max(start, left)) / pixel;
      out.inFlight[x] += overlap;
      out.bytes[x] += seconds ? bytes * overlap * pixel / seconds : 0;
      out.busy[x] += Math.max(0, Math.min(end, right) - Math.max(fresh, left)) / pixel;
    }
  }
  return out;
}

function emptyPixels(count) {
  return { calls: new Float64Array(count), busy: new Float64Array(count), inFlight: new Float64Array(count), bytes: new Float64Array(count) };
}
