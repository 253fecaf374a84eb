// --- Numbers and words as people read them. Every figure on the page goes through show(); its exact value is the element's
// title, its place in the JSON is data-key (a JSON pointer).

const BINARY = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
const TIME_NS = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]];
const FLOPS = [[1e18, "EFLOP"], [1e15, "PFLOP"], [1e12, "TFLOP"], [1e9, "GFLOP"], [1e6, "MFLOP"], [1e3, "kFLOP"], [1, "FLOP"]];
const SHARES = new Set(["mfu", "hfu", "fragmentation", "share", "longer"]);

// Four significant digits, no exponent; whole numbers of the smallest unit stay whole.
function digits(x) {
  if (Number.isInteger(x) && Math.abs(x) < 1e15) return String(x);
  const above = x === 0 ? 0 : Math.floor(Math.log10(Math.abs(x)));
  return x.toFixed(Math.min(12, Math.max(0, 3 - above)));
}

function scaled(value, units) {
  const [size, name] = units.find(([size]) => Math.abs(value) >= size) || units[units.length - 1];
  return digits(value / size) + " " + name;
}

function plain(value) {
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e15)) return value.toExponential(3);
  return digits(value).replace(/\B(?=(\d{3})+(\.|$))/g, (_, __, ___, at, text) => text.slice(0, at).includes(".") ? "" : ",");
}

// `key` ends in the unit, as everywhere in the JSON.
function format(key, value) {
  if (value === null || value === undefined) return "not a number";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (key.endsWith("_bytes") || key === "bytes") return scaled(value, BINARY);
  if (key.endsWith("_ns")) return scaled(value, TIME_NS);
  if (key.endsWith("flops")) return scaled(value, FLOPS);
  if (SHARES.has(key)) return digits(100 * value) + " %";
  return plain(value);
}

function percent(part, whole) { return whole > 0 ? (100 * part / whole).toFixed(1) + " %" : ""; }

function words(key) { return key.replace(/_(bytes|ns)$/, "").replaceAll("_", " "); }

// --- Elements. Text only ever becomes text.

function element(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function at(data, pointer) {
  return pointer.split("/").slice(1).reduce((node, key) => node == null ? undefined : node[key], data);
}

// The value at `pointer` (the parts of a key hold no '/' here), as an element of this name.
function show(name, data, pointer) {
  const value = at(data, pointer);
  const key = pointer.slice(pointer.lastIndexOf("/") + 1);
  const text = typeof value === "string";
  const node = element(name, {"data-key": pointer, title: String(value)}, format(key, value));
  if (text && name === "td") node.className = "text";
  return node;
}

function section(title, ...children) {
  return element("section", {}, element("h2", {}, title), ...children);
}

function note(text, cut) { return element("p", {class: cut ? "note cut" : "note"}, text); }

function table(head, rows) {
  const cells = (name, row) => row.map(cell => cell instanceof Node ? cell : element(name, {}, cell));
  return element("div", {class: "overflow", tabindex: "0"}, element("table", {},
    element("thead", {}, element("tr", {}, ...cells("th", head))),
    element("tbody", {}, ...rows.map(([first, ...rest]) =>
      element("tr", {}, ...cells("th", [first]), ...cells("td", rest))))));
}

// What is not as it should be: in the colour of errors.
const BAD = {"/memory/fits": value => value === false, "/memory/cache_flushes": value => value > 0};

function tile(data, pointer, label) {
  const bad = BAD[pointer] && BAD[pointer](at(data, pointer));
  return element("div", {class: bad ? "tile bad" : "tile"}, show("b", data, pointer), element("span", {}, label));
}

function tiles(data, entries) {
  return element("div", {class: "tiles"}, ...entries.filter(([pointer]) => at(data, pointer) !== undefined)
    .map(([pointer, label]) => tile(data, pointer, label)));
}
