// --- Charts, by Chart.js. They take their numbers from the data as they are; only axes and tooltips are formatted.

const COLORS = ["#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#eeca3b", "#9d755d"];

// Vertical lines where the phases of a step begin.
const phaseLines = {
  id: "phaseLines",
  afterDatasetsDraw(chart, _, options) {
    const {ctx, chartArea, scales} = chart;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = "#888";
    ctx.setLineDash([3, 3]);
    let free = chartArea.left;  // of a name: where the last one ends
    for (const {phase, start_ns} of (options.phases || []).filter(({phase}) => phase !== "end")) {
      const x = scales.x.getPixelForValue(start_ns);
      ctx.beginPath();
      ctx.moveTo(x, chartArea.top);
      ctx.lineTo(x, chartArea.bottom);
      ctx.stroke();
      const width = ctx.measureText(phase).width + 6, from = Math.min(x, chartArea.right - width);
      if (from < free) continue;
      ctx.fillText(phase, from + 3, chartArea.top + 10);
      free = from + width;
    }
    ctx.restore();
  },
};

function chartBox(id, tall) {
  const canvas = element("canvas", {id, role: "img"});
  return element("div", {class: tall ? "chart tall" : "chart"}, canvas);
}

// Bytes are marked at powers of two.
function axis(key, title, largest) {
  const ticks = {callback: value => format(key, value)};
  if (key === "_bytes") ticks.stepSize = 2 ** Math.ceil(Math.log2(Math.max(largest, 1) / 8));
  return {type: "linear", title: {display: true, text: title}, ticks};
}

const largest = values => values.reduce((a, b) => Math.max(a, b), 0);

function drawChart(id, datasets, x, y, plugins) {
  const canvas = document.getElementById(id);
  canvas.setAttribute("aria-label", y.title.text);
  new Chart(canvas, {
    type: "line",
    data: {datasets},
    plugins: [phaseLines],
    options: {
      animation: false, parsing: false, maintainAspectRatio: false, scales: {x, y},
      interaction: {mode: "index", intersect: false}, ...(x.max === undefined ? {} : {normalized: true}),
      plugins: {
        legend: {display: datasets.length > 1},
        tooltip: {callbacks: {
          title: items => items.length ? format(x.key, items[0].parsed.x) : "",
          label: item => `${item.dataset.label}: ${format(y.key, item.parsed.y)}`,
        }},
        ...plugins,
      },
    },
  });
}

function line(label, points, color) {
  return {label, data: points, borderColor: color, backgroundColor: color, borderWidth: 1.5, pointRadius: points.length > 60 ? 0 : 2};
}

const CURVES = [["loss", "loss"], ["grad_norm", "gradient norm"], ["lr", "learning rate"], ["tokens_per_second", "tokens/s"]];

// The four, and what the loss function reports by itself.
function curvesOf(data) {
  const names = [...new Set(data.steps.flatMap(step => Object.keys(step.reports || {})))];
  return [...CURVES.map(([key, title]) => ({id: "curve-" + key, key, title, of: step => step[key]})),
    ...names.map(name => ({id: "curve-report-" + name, key: "report", title: name, of: step => (step.reports || {})[name]}))];
}

function curvesSection(data) {
  if (!data.steps) return null;
  const parts = [element("div", {class: "charts"}, ...curvesOf(data).map(({id}) => chartBox(id))),
    element("h3", {}, "Peak memory of a step, each category's own"), chartBox("curve-memory")];
  if (data.steps.length < data.steps_of_run) {
    parts.unshift(note(`${plain(data.steps.length)} of ${plain(data.steps_of_run)} steps are shown, evenly spaced, with the ` +
      "last one and those of evaluations; metrics.jsonl has all of them.", true));
  }
  return section("Over the steps", ...parts);
}

function drawCurves(data) {
  const points = of => data.steps.filter(step => typeof of(step) === "number").map(step => ({x: step.step, y: of(step)}));
  const heldOut = points(step => step.held_out_loss);
  const x = {...axis("step", "step"), key: "step"};
  for (const {id, key, title, of} of curvesOf(data)) {
    const datasets = [line(title, points(of), COLORS[0])];
    if (key === "loss" && heldOut.length) datasets.push({...line("held-out loss", heldOut, COLORS[1]), pointRadius: 3});
    drawChart(id, datasets, x, {...axis(key, title), key});
  }
  const categories = data.steps.length ? Object.keys(data.steps[0].peak_memory_bytes) : [];
  drawChart("curve-memory", categories.map((name, c) => line(words(name),
    data.steps.map(step => ({x: step.step, y: step.peak_memory_bytes[name]})), name === "total" ? "#888" : COLORS[c])),
    x, {...axis("_bytes", "peak memory", largest(data.steps.map(step => step.peak_memory_bytes.total))), key: "_bytes", min: 0});
}

function memorySection(data) {
  const memory = data.memory_over_step;
  if (!memory) return null;
  const parts = [note("Accounted when the host asks for it, drawn where the compute stream then was. Areas: categories; lines: " +
    "what PyTorch's caching allocator has allocated and reserved" + (data.memory ? ", and the capacity." : ".")), chartBox("memory", true)];
  if (memory.points_shown < memory.changes_of_step) {
    parts.splice(1, 0, note(`${plain(memory.changes_of_step)} changes are drawn as ${plain(memory.points_shown)} points, each the ` +
      "largest moment of its interval; peaks are exact.", true));
  }
  return section("Memory over the step", ...parts);
}

function drawMemory(data) {
  const memory = data.memory_over_step;
  const series = values => values.map((y, i) => ({x: memory.time_ns[i], y}));
  const areas = Object.entries(memory.by_category).map(([key, values], c) => ({
    ...line(words(key), series(values), COLORS[c]), backgroundColor: COLORS[c] + "99", fill: c ? "-1" : "origin", stack: "categories",
    stepped: true, pointRadius: 0, borderWidth: 0.5}));
  const level = (label, values, color, dash) => ({...line(label, series(values), color), stack: label, borderDash: dash, fill: false,
    stepped: true, pointRadius: 0, borderWidth: 1.5});
  const levels = [level("allocated", memory.allocated_bytes, "#555", []), level("reserved", memory.reserved_bytes, "#000", [5, 3])];
  if (data.memory) levels.push(level("capacity", memory.time_ns.map(() => data.memory.capacity_bytes), "#b91c1c", [8, 4]));
  const end = data.timeline.end_ns;
  drawChart("memory", [...areas, ...levels], {...axis("_ns", "virtual time"), key: "_ns", min: 0, max: end},
    {...axis("_bytes", "memory", Math.max(largest(memory.reserved_bytes), data.memory ? data.memory.capacity_bytes : 0)), key: "_bytes", stacked: true, min: 0}, {phaseLines: {phases: data.timeline.phases}});
}
