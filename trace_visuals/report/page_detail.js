// Requests finer detail than the page holds from the server of `iotwin view`. A report has no server and requests nothing.

const DETAIL_DELAY_MS = 60;

class Detail {
  constructor(timeline, traces) {
    this.timeline = timeline;
    this.traces = traces;
    this.asked = 0;
    timeline.listeners.push(() => this.consider());
  }

  // Requests detail when the view has come to rest, if its pixels are finer than the bins at hand.
  consider() {
    clearTimeout(this.timer);
    const { from, to } = this.timeline.view, pixel = (to - from) / this.timeline.plot;
    const base = this.traces[0].lanes[0].levels[0].width, { detail } = this.traces[0];
    const known = detail && this.traces.every((trace) => this.covers(trace)) && detail.from <= from && detail.to >= to && (detail.calls || detail.lanes[0].levels[0].width <= pixel);
    if (base > pixel && !known) this.timer = setTimeout(() => this.ask(from, to), DETAIL_DELAY_MS);
  }

  // Whether the detail of a trace covers what its rows show, which changes when traces are aligned.
  covers(trace) {
    const view = this.timeline.viewOf(trace);
    return trace.detail && trace.detail.from <= view.from && trace.detail.to >= view.to;
  }

  // The request covers a margin on either side, so that small moves need no further request.
  async ask(from, to) {
    const number = this.asked += 1, margin = (to - from) / 2;
    const ranges = this.traces.map((trace) => this.timeline.viewOf(trace)).map((view) => ({ from: view.from - margin, to: view.to + margin }));
    try {
      const found = await Promise.all(ranges.map((range, place) => this.fetch(place, range)));
      if (number !== this.asked) return;
      this.traces.forEach((trace, place) => { trace.detail = { ...ranges[place], ...found[place] }; });
      document.body.dataset.detail = String(number);
      this.timeline.draw();
    } catch (error) {
      document.getElementById("detail-note").textContent = `No finer detail: the server of iotwin view does not answer (${error.message}).`;
    }
  }

  async fetch(place, range) {
    const answer = await fetch(`detail?trace=${place}&from=${range.from}&to=${range.to}`);
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const raw = await answer.json(), lanes = await loadLanes(raw.lanes);
    return { lanes, calls: raw.calls ? await loadCalls(raw.calls, lanes) : null };
  }
}
