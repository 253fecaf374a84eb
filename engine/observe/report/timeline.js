// --- The streams of a step: a lane a stream, a box an entry. The wheel with Ctrl zooms, dragging and the arrow keys move, a
// group or a phase is zoomed to by name. Chart.js has no such chart. The memory over the step looks at the same time.

const LANE = 34, TOP = 38, LEFT = 112, NO_GROUP = "#888";

function timelineSection(data) {
  const timeline = data.timeline;
  if (!timeline) return null;
  const cut = timeline.entries_shown < timeline.entries_of_step;
  const drawnTo = cut ? Math.max(...timeline.entries.start_ns) : timeline.end_ns;
  const options = (names, all) => [element("option", {value: ""}, all), ...names.map((name, i) => element("option", {value: i}, name))];
  const label = (text, id, names, all) => element("label", {}, text + " ", element("select", {id}, ...options(names, all)));
  return section("Streams",
    note("Ctrl and wheel, + and -: zoom. Drag, left and right: move. N and P: next and previous box of the chosen group. Home: whole " +
      "step. The memory above follows. A kernel's group is the one the compute stream waited for last; the optimizer's have none."),
    ...(cut ? [note(`The first ${plain(timeline.entries_shown)} of ${plain(timeline.entries_of_step)} entries are shown, in the ` +
      `order the host issued them: about the first ${format("_ns", drawnTo)} of ${format("_ns", timeline.end_ns)}.`, true)] : []),
    element("div", {class: "controls"}, label("Phase", "phase", timeline.phases.map(({phase}, i) => `${i + 1}: ${phase}`), "whole step"),
      label("Group", "group", timeline.groups, "all groups"), element("button", {id: "whole", type: "button"}, "Whole step")),
    legendOfStreams(timeline),
    element("div", {id: "lanes"}, element("canvas", {id: "timeline", role: "application", tabindex: "0",
      "aria-label": "streams of the step; N and P read the boxes of the chosen group"}),
      element("div", {id: "tip", role: "status", hidden: ""})));
}

function legendOfStreams(timeline) {
  const item = (color, text) => element("span", {}, swatch(color), text);
  const first = timeline.groups.slice(0, 3).map((name, i) => item(groupColor(i), name));
  return element("div", {class: "legend", id: "legend"}, ...first,
    ...(timeline.groups.length > 3 ? [element("span", {}, `... a colour for each of ${timeline.groups.length} groups`)] : []),
    item(NO_GROUP, "no group"), item("var(--exposed)", "exposed: compute stands still for a collective"));
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
    document.getElementById("whole").addEventListener("click", () => this.showWhole());
    for (const choose of document.querySelectorAll("button.group")) {
      choose.addEventListener("click", () => {
        this.group.value = choose.dataset.group;
        this.zoomToChoice();
        this.canvas.scrollIntoView({block: "nearest"});
      });
    }
    this.canvas.addEventListener("wheel", event => {
      if (!event.ctrlKey) return;  // the page scrolls
      event.preventDefault();
      this.zoom(this.timeAt(event.offsetX), Math.exp(event.deltaY * 0.002));
    }, {passive: false});
    this.canvas.addEventListener("keydown", event => this.onKey(event));
    this.canvas.addEventListener("blur", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("pointerdown", event => {
      this.canvas.setPointerCapture(event.pointerId);
      this.grabbed = event.offsetX;
    });
    this.canvas.addEventListener("pointerup", () => { this.grabbed = undefined; });
    this.canvas.addEventListener("pointermove", event => this.onMove(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    addEventListener("resize", () => {
      this.tip.hidden = true;  // it stood where the box was
      this.draw();
    });
  }

  onMove(event) {
    if (this.grabbed !== undefined) {
      const moved = this.timeAt(this.grabbed) - this.timeAt(event.offsetX);
      this.grabbed = event.offsetX;
      this.move(moved);
    }
    this.showTip(event.offsetX, event.offsetY);
  }

  onKey(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const span = this.to - this.from, middle = (this.from + this.to) / 2;
    const actions = {
      ArrowLeft: () => this.move(-span / 8), ArrowRight: () => this.move(span / 8), Home: () => this.showWhole(),
      "+": () => this.zoom(middle, 0.7), "-": () => this.zoom(middle, 1 / 0.7), n: () => this.step(1), p: () => this.step(-1),
    };
    const action = actions[event.key] || actions[event.key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    action();
  }

  showWhole() {
    this.phase.value = this.group.value = "";
    this.zoomToChoice();
  }

  move(time) {
    const span = this.to - this.from;
    const from = Math.min(Math.max(0, this.from + time), this.timeline.end_ns - span);
    this.look(from, from + span);
  }

  zoom(at, factor) { this.look(at - (at - this.from) * factor, at + (this.to - at) * factor); }

  // The next box in time, or the one before, of the chosen group or of all: in sight, with its words.
  step(by) {
    const {start_ns, duration_ns, group, stream} = this.entries;
    const wanted = this.group.value === "" ? null : Number(this.group.value);
    const boxes = [...start_ns.keys()].filter(i => wanted === null || group[i] === wanted)
      .sort((a, b) => start_ns[a] - start_ns[b] || stream[a] - stream[b]);
    if (!boxes.length) return;
    const now = boxes.indexOf(this.read);
    this.read = boxes[now < 0 ? (by > 0 ? 0 : boxes.length - 1) : Math.min(Math.max(now + by, 0), boxes.length - 1)];
    const from = start_ns[this.read], to = from + duration_ns[this.read];
    if (from < this.from || to > this.to) {
      const room = Math.max(this.to - this.from, (to - from) * 1.2) / 2;
      this.look((from + to) / 2 - room, (from + to) / 2 + room);
    }
    const row = this.lanes.indexOf(stream[this.read]);
    this.say(this.wordsOf(this.read), Math.max(LEFT, this.pixelOf(from)), TOP + (row + 0.5) * LANE);
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
    lookAtMemory(this.from, this.to);
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
    this.drawPhases(height);
  }

  // A line where each begins, and its name over the part of it that is in sight.
  drawPhases(height) {
    const ctx = this.ctx, phases = this.timeline.phases;
    let free = LEFT;  // of a name: where the last one ends
    phases.forEach(({phase, start_ns}, i) => {
      const end = i + 1 < phases.length ? phases[i + 1].start_ns : this.timeline.end_ns;
      if (phase === "end" || end < this.from || start_ns > this.to) return;
      const left = Math.max(this.pixelOf(start_ns), free);
      if (left + ctx.measureText(phase).width + 6 <= this.canvas.clientWidth) {
        ctx.fillText(phase, left + 3, TOP - 10);
        free = left + ctx.measureText(phase).width + 8;
      }
      if (start_ns < this.from) return;
      ctx.setLineDash([3, 3]);
      ctx.beginPath();
      ctx.moveTo(this.pixelOf(start_ns), 18);
      ctx.lineTo(this.pixelOf(start_ns), height);
      ctx.stroke();
      ctx.setLineDash([]);
    });
  }

  color(i) {
    const group = this.entries.group[i];
    const chosen = this.group.value === "" || group === Number(this.group.value);
    return group < 0 ? NO_GROUP : groupColor(group, chosen ? 1 : 0.25);
  }

  // The box's group as far as it has room, then what it is; in short the last two parts of the group's path, or nothing.
  label(i, width) {
    const name = this.timeline.names[this.entries.name[i]], group = this.entries.group[i];
    if (group < 0) return [name].find(text => this.fits(text, width)) || "";
    const path = this.timeline.groups[group], last = path.split(".").slice(-2).join(".");
    return [`${path}: ${name}`, path, last].find(text => this.fits(text, width)) || "";
  }

  fits(text, width) { return width > 8 && this.ctx.measureText(text).width + 8 <= width; }

  // Where compute stands still for a collective: in its lane, framed and tinted.
  drawExposed(row) {
    const ctx = this.ctx, {start_ns, duration_ns} = this.timeline.exposed, top = TOP + row * LANE;
    ctx.fillStyle = ctx.strokeStyle = INK.exposed;
    for (let i = this.firstGapFrom(this.from); i < start_ns.length && start_ns[i] <= this.to; ++i) {
      const x = this.pixelOf(start_ns[i]), width = Math.max(this.pixelOf(start_ns[i] + duration_ns[i]) - x, 0.75);
      ctx.globalAlpha = 0.3;
      ctx.fillRect(x, top + 3, width, LANE - 6);
      ctx.globalAlpha = 1;
      ctx.fillRect(x, top + LANE - 6, width, 3);
    }
  }

  // The first of these intervals, one after another, that ends at `time` or later.
  firstGapFrom(time) {
    const {start_ns, duration_ns} = this.timeline.exposed;
    let low = 0, high = start_ns.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start_ns[middle] + duration_ns[middle] < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // Where compute stands still at `time`; -1: it does not.
  exposedAt(time) {
    if (!this.timeline.exposed) return -1;
    const i = this.firstGapFrom(time), start = this.timeline.exposed.start_ns[i];
    return start !== undefined && start <= time ? i : -1;
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
    const ctx = this.ctx, {start_ns, duration_ns} = this.entries, order = this.byLane[row];
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
      const seen = Math.max(x, LEFT), label = this.label(i, Math.min(x + width, this.canvas.clientWidth) - seen);
      if (!label) continue;
      ctx.fillStyle = "#fff";
      ctx.fillText(label, seen + 4, top + LANE / 2 + 4);
    }
    if (this.timeline.streams[this.lanes[row]] === "compute" && this.timeline.exposed) this.drawExposed(row);
    ctx.restore();
  }

  entryAt(x, y) {
    const row = Math.floor((y - TOP) / LANE);
    if (x < LEFT || row < 0 || row >= this.lanes.length) return -1;
    const slack = 2 / this.width() * (this.to - this.from), time = this.timeAt(x);
    const i = this.byLane[row][this.firstFrom(this.byLane[row], time - slack)];
    return i !== undefined && this.entries.start_ns[i] <= time + slack ? i : -1;
  }

  wordsOf(i) {
    const {name, group, bytes, start_ns, duration_ns} = this.entries;
    return [this.timeline.names[name[i]], `group     ${group[i] < 0 ? "-" : this.timeline.groups[group[i]]}`,
      `bytes     ${format("_bytes", bytes[i])}`, `start     ${format("_ns", start_ns[i])}`,
      `duration  ${format("_ns", duration_ns[i])}`].join("\n");
  }

  wordsOfExposed(i) {
    const {start_ns, duration_ns, group} = this.timeline.exposed;
    return ["exposed communication", `group     ${group[i]}`, `start     ${format("_ns", start_ns[i])}`,
      `duration  ${format("_ns", duration_ns[i])}`].join("\n");
  }

  showTip(x, y) {
    const i = this.entryAt(x, y);
    if (i >= 0) return this.say(this.wordsOf(i), x, y);
    const row = Math.floor((y - TOP) / LANE), compute = this.timeline.streams.indexOf("compute");
    const gap = x >= LEFT && this.lanes[row] === compute ? this.exposedAt(this.timeAt(x)) : -1;
    if (gap >= 0) return this.say(this.wordsOfExposed(gap), x, y);
    this.tip.hidden = true;
  }

  say(text, x, y) {
    this.tip.hidden = false;
    this.tip.textContent = text;
    this.tip.style.left = Math.max(0, Math.min(x + 14, this.canvas.clientWidth - this.tip.offsetWidth)) + "px";
    this.tip.style.top = y + 14 + "px";
  }
}
