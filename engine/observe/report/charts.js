// --- Charts, by Chart.js. They take their numbers from the data as they are; only axes and tooltips are formatted.

const COLORS = ["#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#eeca3b", "#9d755d"];

// The colour of a group's boxes, the same in the streams and in the table of groups.
function groupColor(number, share = 1) { return `hsl(${number * 67 % 360} 55% 45% / ${share})`; }

function swatch(color) { return element("span", {class: "swatch", style: `background: ${color}`}); }

// --- Light and dark: text, grid and the lines that have no colour of their own.

const INK = {text: "#333", weak: "#666", exposed: "#d62728"};

function takeTheme() {
  const style = getComputedStyle(document.documentElement);
  INK.text = getComputedStyle(document.body).color;
  INK.weak = style.getPropertyValue("--weak").trim();
  INK.exposed = style.getPropertyValue("--exposed").trim();
  Chart.defaults.color = INK.weak;
  Chart.defaults.borderColor = "#8883";
}

// Draws again when the reader's system changes between light and dark.
function followTheme(draw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    takeTheme();
    for (const chart of Object.values(Chart.instances)) {
      for (const set of chart.data.datasets) if (set.ink) set.borderColor = set.backgroundColor = INK[set.ink];
      for (const scale of Object.values(chart.options.scales)) scale.ticks.color = scale.title.color = INK.weak;
      chart.options.plugins.legend.labels.color = INK.weak;
      chart.update("none");
    }
    draw();
  });
}

// Vertical lines where the phases of a step begin.
const phaseLines = {
  id: "phaseLines",
  afterDatasetsDraw(chart, _, options) {
    const {ctx, chartArea, scales} = chart;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = INK.weak;
    ctx.setLineDash([3, 3]);
    let free = chartArea.left;  // of a name: where the last one ends
    for (const {phase, start_ns} of (options.phases || []).filter(({phase}) => phase !== "end")) {
      const x = scales.x.getPixelForValue(start_ns);
      if (x < chartArea.left - 1 || x > chartArea.right + 1) continue;
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

// Bytes are marked at powers of two, steps at whole numbers.
function axis(key, title, largest) {
  const ticks = {callback: value => format(key, value)};
  if (key === "step") {
    ticks.precision = 0;
    ticks.callback = value => Number.isInteger(value) ? format(key, value) : null;
  }
  if (key === "_bytes") ticks.stepSize = 2 ** Math.ceil(Math.log2(Math.max(largest, 1) / 8));
  return {type: "linear", title: {display: true, text: title}, ticks};
}

const largest = values => values.reduce((a, b) => Math.max(a, b), 0);

function drawChart(id, datasets, x, y, plugins, mode = "index") {
  const canvas = document.getElementById(id);
  canvas.setAttribute("aria-label", y.title.text);
  new Chart(canvas, {
    type: "line",
    data: {datasets},
    plugins: [phaseLines],
    options: {
      animation: false, parsing: false, maintainAspectRatio: false, scales: {x, y},
      interaction: {mode, intersect: false}, ...(x.max === undefined ? {} : {normalized: true}),
      plugins: {
        legend: {display: datasets.length > 1, labels: {boxWidth: 24}},
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

// Of the last step; none without experts.
function expertTokens(data) {
  return (data.steps.length && data.steps[data.steps.length - 1].expert_tokens) || [];
}

function curvesSection(data) {
  if (!data.steps) return null;
  const parts = [element("div", {class: "charts"}, ...curvesOf(data).map(({id}) => chartBox(id))),
    element("h3", {}, "Peak memory of a step, each category's own"), chartBox("curve-memory")];
  if (expertTokens(data).length) {
    parts.push(element("h3", {}, "Tokens of each expert in the last step, over all layers and ranks"), chartBox("curve-experts"));
  }
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
  const tokens = expertTokens(data).map((y, x) => ({x, y}));
  if (tokens.length) drawChart("curve-experts", [line("tokens", tokens, COLORS[0])], {...axis("step", "expert"), key: "step"},
    {...axis("step", "tokens"), key: "step", min: 0});
  const categories = data.steps.length ? Object.keys(data.steps[0].peak_memory_bytes) : [];
  drawChart("curve-memory", categories.map((name, c) => line(words(name),
    data.steps.map(step => ({x: step.step, y: step.peak_memory_bytes[name]})), name === "total" ? INK.weak : COLORS[c])),
    x, {...axis("_bytes", "peak memory", largest(data.steps.map(step => step.peak_memory_bytes.total))), key: "_bytes", min: 0});
}

// Whether the capacity is drawn: far above the memory it would make a flat line of that.
function showsCapacity(data) {
  return data.memory !== undefined && data.memory.capacity_bytes <= 4 * largest(data.memory_over_step.reserved_bytes);
}

function memorySection(data) {
  const memory = data.memory_over_step;
  if (!memory) return null;
  const parts = [note("Accounted when the host asks for it, drawn where the compute stream then was. Areas: categories; lines: " +
    "what PyTorch's caching allocator has allocated and reserved" + (showsCapacity(data) ? ", and the capacity." : data.memory ? `; the capacity, ${format("_bytes", data.memory.capacity_bytes)}, is far above.` : ".")),
    chartBox("memory", true)];
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
  const levels = [{...level("allocated", memory.allocated_bytes, INK.weak, []), ink: "weak"},
    {...level("reserved", memory.reserved_bytes, INK.text, [5, 3]), ink: "text"}];
  if (showsCapacity(data)) levels.push({...level("capacity", memory.time_ns.map(() => data.memory.capacity_bytes), INK.exposed, [8, 4]), ink: "exposed"});
  const end = data.timeline.end_ns;
  // As wide on the left as the names of the streams, and up to the same edge on the right: one time stands in one column.
  const y = {...axis("_bytes", "memory", Math.max(largest(memory.reserved_bytes), showsCapacity(data) ? data.memory.capacity_bytes : 0)),
    key: "_bytes", stacked: true, min: 0, afterFit: scale => { scale.width = LEFT; }};
  const x = {...axis("_ns", "virtual time"), key: "_ns", min: 0, max: end, afterFit: scale => { scale.paddingLeft = scale.paddingRight = 0; }};
  x.ticks.align = "inner";
  drawChart("memory", [...areas, ...levels], x, y, {phaseLines: {phases: data.timeline.phases}});
}

// The memory of the part of the step that the streams show.
function lookAtMemory(from, to) {
  const chart = Chart.getChart("memory");
  if (!chart) return;
  chart.options.scales.x.min = from;
  chart.options.scales.x.max = to;
  chart.update("none");
}

// --- The rows of a sweep: memory against speed.

const rowMemory = row => row.memory && row.memory.peak_reserved_bytes;
const rowSpeed = row => row.throughput && row.throughput.tokens_per_s_per_device;

function paretoSection(data) {
  const rows = (data.sweep || []).filter(row => typeof rowMemory(row) === "number");
  if (!rows.length) return null;
  return section("Memory against speed", note("The configurations that fit. The line joins those that no other beats in both: none is as " +
    "fast with less memory, and none faster with as little. The table of the sweep has them all, by row."), chartBox("pareto", true));
}

function drawPareto(data) {
  const points = rows => rows.map(row => ({x: rowMemory(row), y: rowSpeed(row)}));
  const best = data.sweep.filter(row => row.pareto).sort((a, b) => rowMemory(a) - rowMemory(b));
  const all = {...line("configurations", points(data.sweep), COLORS[0]), showLine: false, pointRadius: 3};
  const front = {...line("not beaten", points(best), COLORS[1]), stepped: true, pointRadius: 5};
  drawChart("pareto", [front, all], {...axis("_bytes", "peak reserved memory", largest(data.sweep.map(rowMemory))), key: "_bytes"},
    {...axis("tokens_per_s_per_device", "tokens/s per device"), key: "tokens_per_s_per_device"}, {}, "nearest");
}
