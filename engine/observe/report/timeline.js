// --- The streams of a step: a lane a stream, a box an entry. Wheel zooms, dragging moves, a group or a phase is zoomed to by
// name. Chart.js has no such chart.

const LANE = 34, TOP = 22, LEFT = 112;

function timelineSection(data) {
  const timeline = data.timeline;
  if (!timeline) return null;
  const cut = timeline.entries_shown < timeline.entries_of_step;
  const drawnTo = cut ? Math.max(...timeline.entries.start_ns) : timeline.end_ns;
  const options = (names, all) => [element("option", {value: ""}, all), ...names.map((name, i) => element("option", {value: i}, name))];
  const label = (text, id, names, all) => element("label", {}, text + " ", element("select", {id}, ...options(names, all)));
  return section("Streams",
    note("Wheel: zoom. Drag: move. A kernel's group is the one the compute stream waited for last; the optimizer's have none."),
    ...(cut ? [note(`The first ${plain(timeline.entries_shown)} of ${plain(timeline.entries_of_step)} entries are shown, in the ` +
      `order the host issued them: about the first ${format("_ns", drawnTo)} of ${format("_ns", timeline.end_ns)}.`, true)] : []),
    element("div", {class: "controls"}, label("Phase", "phase", timeline.phases.map(({phase}, i) => `${i + 1}: ${phase}`), "whole step"),
      label("Group", "group", timeline.groups, "all groups"), element("button", {id: "whole"}, "Whole step")),
    element("div", {id: "lanes"}, element("canvas", {id: "timeline", role: "img", "aria-label": "stream timeline"}),
      element("div", {id: "tip", hidden: ""})));
}

class TimelineView {
  constructor(timeline) {
    this.timeline = timeline;
    this.entries = timeline.entries;
    this.canvas = document.getElementById("timeline");
    this.tip = document.getElementById("tip");
    this.phase = document.getElementById("phase");
    this.group = document.getElementById("group");
    const used = new Set(this.entries.stream);
    this.lanes = timeline.streams.map((_, i) => i).filter(i => used.has(i));
    // Of each lane: its entries by start, so that those in sight and the one under the pointer are found quickly.
    this.byLane = this.lanes.map(lane => [...this.entries.stream.keys()].filter(i => this.entries.stream[i] === lane)
      .sort((a, b) => this.entries.start_ns[a] - this.entries.start_ns[b]));
    this.listen();
    this.look(0, timeline.end_ns);
  }

  listen() {
    this.phase.addEventListener("change", () => this.zoomToChoice());
    this.group.addEventListener("change", () => this.zoomToChoice());
    document.getElementById("whole").addEventListener("click", () => {
      this.phase.value = this.group.value = "";
      this.zoomToChoice();
    });
    this.canvas.addEventListener("wheel", event => {
      event.preventDefault();
      const at = this.timeAt(event.offsetX), factor = Math.exp(event.deltaY * 0.002);
      this.look(at - (at - this.from) * factor, at + (this.to - at) * factor);
    }, {passive: false});
    this.canvas.addEventListener("pointerdown", event => {
      this.canvas.setPointerCapture(event.pointerId);
      this.grabbed = event.offsetX;
    });
    this.canvas.addEventListener("pointerup", () => { this.grabbed = undefined; });
    this.canvas.addEventListener("pointermove", event => this.onMove(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    addEventListener("resize", () => this.draw());
  }

  onMove(event) {
    if (this.grabbed !== undefined) {
      const moved = this.timeAt(this.grabbed) - this.timeAt(event.offsetX);
      this.grabbed = event.offsetX;
      const span = this.to - this.from;
      const from = Math.min(Math.max(0, this.from + moved), this.timeline.end_ns - span);
      this.look(from, from + span);
    }
    this.showTip(event.offsetX, event.offsetY);
  }

  // The chosen phase, or the whole step; of the chosen group, all its entries in it with some room around.
  zoomToChoice() {
    const {phases, end_ns} = this.timeline, {start_ns, duration_ns, group} = this.entries;
    const chosen = this.phase.value === "" ? -1 : Number(this.phase.value);
    let from = chosen < 0 ? 0 : phases[chosen].start_ns;
    let to = chosen < 0 || chosen + 1 >= phases.length ? end_ns : phases[chosen + 1].start_ns;
    if (this.group.value !== "") {
      const wanted = Number(this.group.value);
      let first = Infinity, last = -Infinity;
      for (let i = 0; i < group.length; ++i) {
        if (group[i] !== wanted || start_ns[i] >= to || start_ns[i] + duration_ns[i] < from) continue;
        first = Math.min(first, start_ns[i]);
        last = Math.max(last, start_ns[i] + duration_ns[i]);
      }
      if (last >= first) {
        const room = Math.max(1, (last - first) * 0.05);
        [from, to] = [first - room, last + room];
      }
    }
    this.look(from, to);
  }

  look(from, to) {
    this.from = Math.max(0, from);
    this.to = Math.min(this.timeline.end_ns, Math.max(to, this.from + 10));
    this.draw();
  }

  width() { return this.canvas.clientWidth - LEFT; }
  timeAt(x) { return this.from + (x - LEFT) / this.width() * (this.to - this.from); }
  pixelOf(time) { return LEFT + (time - this.from) / (this.to - this.from) * this.width(); }

  draw() {
    const height = TOP + LANE * this.lanes.length + 4, scale = devicePixelRatio || 1;
    this.canvas.style.height = height + "px";
    this.canvas.width = this.canvas.clientWidth * scale;
    this.canvas.height = height * scale;
    this.canvas.dataset.fromNs = this.from;
    this.canvas.dataset.toNs = this.to;
    const ctx = this.ctx = this.canvas.getContext("2d");
    ctx.scale(scale, scale);
    ctx.font = "12px system-ui, sans-serif";
    this.text = getComputedStyle(document.body).color;
    this.drawTicks(height);
    this.lanes.forEach((_, row) => this.drawLane(row));
  }

  drawTicks(height) {
    const ctx = this.ctx;
    const rough = (this.to - this.from) / 8, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough);
    ctx.strokeStyle = "#8884";
    ctx.fillStyle = this.text;
    for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) {
      const x = this.pixelOf(t);
      ctx.fillText(format("_ns", Math.round(t)), x + 3, 12);
      ctx.fillRect(x, 4, 1, 10);
    }
    ctx.setLineDash([3, 3]);
    for (const {start_ns} of this.timeline.phases) {
      if (start_ns < this.from || start_ns > this.to) continue;
      ctx.beginPath();
      ctx.moveTo(this.pixelOf(start_ns), TOP);
      ctx.lineTo(this.pixelOf(start_ns), height);
      ctx.stroke();
    }
    ctx.setLineDash([]);
  }

  color(i) {
    const group = this.entries.group[i];
    const chosen = this.group.value === "" || group === Number(this.group.value);
    return group < 0 ? "#999" : `hsl(${group * 67 % 360} 55% 55% / ${chosen ? 1 : 0.2})`;
  }

  // First entry of a lane, by start, that may reach into `time`: entries of one lane do not overlap.
  firstFrom(order, time) {
    let low = 0, high = order.length;
    while (low < high) {
      const middle = (low + high) >> 1, i = order[middle];
      if (this.entries.start_ns[i] + this.entries.duration_ns[i] < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  drawLane(row) {
    const ctx = this.ctx, {start_ns, duration_ns, name} = this.entries, order = this.byLane[row];
    const top = TOP + row * LANE;
    ctx.fillStyle = this.text;
    ctx.fillText(this.timeline.streams[this.lanes[row]], 0, top + LANE / 2 + 4);
    ctx.save();
    ctx.beginPath();
    ctx.rect(LEFT, top, this.width(), LANE);
    ctx.clip();
    for (let k = this.firstFrom(order, this.from); k < order.length && start_ns[order[k]] <= this.to; ++k) {
      const i = order[k], x = this.pixelOf(start_ns[i]), width = this.pixelOf(start_ns[i] + duration_ns[i]) - x;
      ctx.fillStyle = this.color(i);
      ctx.fillRect(x, top + 3, Math.max(width - 0.5, 0.75), LANE - 6);
      const label = this.timeline.names[name[i]];
      if (width > 8 + label.length * 6.5) {
        ctx.fillStyle = "#fff";
        ctx.fillText(label, Math.max(x, LEFT) + 4, top + LANE / 2 + 4);
      }
    }
    ctx.restore();
  }

  entryAt(x, y) {
    const row = Math.floor((y - TOP) / LANE);
    if (x < LEFT || row < 0 || row >= this.lanes.length) return -1;
    const slack = 2 / this.width() * (this.to - this.from), time = this.timeAt(x);
    const i = this.byLane[row][this.firstFrom(this.byLane[row], time - slack)];
    return i !== undefined && this.entries.start_ns[i] <= time + slack ? i : -1;
  }

  showTip(x, y) {
    const i = this.entryAt(x, y), {name, group, bytes, start_ns, duration_ns} = this.entries;
    this.tip.hidden = i < 0;
    if (i < 0) return;
    this.tip.textContent = [this.timeline.names[name[i]], `group     ${group[i] < 0 ? "-" : this.timeline.groups[group[i]]}`,
      `bytes     ${format("_bytes", bytes[i])}`, `start     ${format("_ns", start_ns[i])}`,
      `duration  ${format("_ns", duration_ns[i])}`].join("\n");
    this.tip.style.left = Math.min(x + 14, this.canvas.clientWidth - this.tip.offsetWidth) + "px";
    this.tip.style.top = y + 14 + "px";
  }
}
