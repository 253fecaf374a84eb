// --- Sections of tables and words. Each takes the whole data and gives an element, or null where it has nothing to show.

// "LlamaForCausalLM (llama3_8b.yaml, fsdp2.yaml) on 64 x h200 - Shardloom 1.2.3 plan, 2026-01-31".
function titleOf(data, run) {
  const name = path => path.slice(path.lastIndexOf("/") + 1);
  const files = (data.configuration ? data.configuration.files : []).filter(({name}) => name !== "--device" && name !== "--report-device");
  const {version, date} = data.written || {};
  const parts = [data.model || "Sweep", files.length ? `(${files.map(({path}) => name(path)).join(", ")})` : "",
    data.device ? `on ${plain(data.world_size)} x ${data.device}` : "", "- Shardloom", version, run ? "run" : "plan"];
  return parts.filter(part => part).join(" ") + (date ? `, ${date}` : "");
}

// The answer of --fit seq-length.
function longestTiles(longest) {
  if (!longest) return [];
  const tiles = [["/longest_sequence/seq_length", "the longest sequence"], ["/longest_sequence/step", "in steps of"]];
  if (longest.next === null) return tiles;
  return [...tiles, ["/longest_sequence/next", "does not go"], ["/longest_sequence/why", "because"], ["/longest_sequence/refused", "memory is not the limit"]];
}

function headSection(data) {
  const run = data.report === "run";
  document.title = titleOf(data, run);
  document.getElementById("title").textContent = document.title;
  document.getElementById("subtitle").textContent = data.mode || "";
  const last = run && data.steps.length ? `/steps/${data.steps.length - 1}` : "";
  return section(run ? "Run" : "Plan", tiles(data, [
    ...(run ? [] : [["/memory/fits", "fits"]]),
    ["/parameters", "parameters"], ["/trained_parameters", "of them trained"], ["/device", run ? "device profile of virtual time" : "device profile"],
    ["/world_size", run ? "ranks" : "devices"],
    ["/micro_batch_size", "micro-batch, sequences"], ["/micro_batches", "micro-batches a step"], ["/seq_length", "tokens a sequence"],
    ...longestTiles(data.longest_sequence),
    ...(run ? [] : [["/time/step_ns", "step"], ["/throughput/tokens_per_s", "tokens/s"], ["/throughput/mfu", "MFU"],
      ["/memory/peak_reserved_bytes", "peak reserved"]]),
    ...(last ? [[last + "/step", "last step"], [last + "/loss", "its loss"], [last + "/grad_norm", "its gradient norm"],
      [last + "/lr", "its learning rate"], [last + "/tokens_per_second", "its tokens/s"], [last + "/held_out_loss", "held-out loss"]] : [])]));
}

// The assumed options of PyTorch's allocator, and the peak of segments with expandable ones the other way, if it fits.
function allocatorTiles(allocator) {
  if (!allocator) return [];
  const tiles = [["/memory/allocator/expandable_segments", "expandable segments"], ["/memory/allocator/from", "which is"]];
  if (allocator.other_peak_reserved_bytes !== null) tiles.push(["/memory/allocator/other_peak_reserved_bytes", "peak reserved the other way"]);
  return tiles;
}

// What the device holds outside the allocator.
function outsideParts(data) {
  const outside = data.memory.outside;
  if (!outside) return [];
  const names = [["bytes", "all of it"], ["context_bytes", "context"], ["library", "communication library"],
    ["buffer_bytes", "a buffer of a communicator"], ["tool", "tool that shows the device's memory"]];
  const parts = [note("Memory of the device outside the allocator. The tool shows it and the reserved memory together. The workspace of matrix " +
    "products is inside the allocator."),
    tiles(data, [...names.filter(([key]) => outside[key] !== "").map(([key, label]) => ["/memory/outside/" + key, label]),
      ["/memory/shown_bytes", "shown at the end"], ["/memory/workspace_bytes", "workspace of matrix products"]])];
  if (outside.communicators.length) parts.push(rowsTable(data, "/memory/outside/communicators", COMMUNICATORS));
  return parts;
}

function memoryTable(data) {
  if (!data.memory) return data.host_bytes === undefined ? null : section("Memory", tiles(data, [["/host_bytes", "host, peak"]]));
  const phases = data.memory.phases || [];
  const categories = phases.length ? Object.keys(phases[0].by_category_at_peak) : [];
  const row = (phase, i) => [show("th", data, `/memory/phases/${i}/phase`),
    show("td", data, `/memory/phases/${i}/peak_allocated_bytes`),
    ...categories.map(key => show("td", data, `/memory/phases/${i}/by_category_at_peak/${key}`)),
    show("td", data, `/memory/phases/${i}/end_allocated_bytes`),
    ...(phase.host_bytes === undefined ? [] : [show("td", data, `/memory/phases/${i}/host_bytes`)])];
  const parts = [tiles(data, [["/memory/fits", "fits"], ["/memory/peak_allocated_bytes", "peak allocated"], ["/memory/peak_phase", "in"],
    ["/memory/peak_reserved_bytes", "peak reserved"], ["/memory/capacity_bytes", "capacity"],
    ["/memory/cache_flushes", "times the allocator emptied its cache"], ["/memory/reserved_bytes", "reserved at the end"],
    ["/memory/steady_allocated_bytes", "allocated between steps"], ["/memory/host_bytes", "host, peak of a device"],
    ["/memory/host_devices", "devices of a host"], ["/memory/host_capacity_bytes", "its memory, where known"], ["/memory/host_fits", "fits the host"], ...allocatorTiles(data.memory.allocator)]),
    table(["phase", "peak", ...categories.map(words), "end", ...(phases.some(phase => phase.host_bytes !== undefined) ? ["on the host, more"] : [])],
      phases.map(row)), ...outsideParts(data)];
  if (data.memory.flushes && data.memory.flushes.length) {
    parts.push(note("A segment did not fit, so the allocator gave its cached ones back. The device stalls each time, which the step's " +
      "time leaves out.", true), rowsTable(data, "/memory/flushes", FLUSHES));
  }
  if (data.memory.pools && data.memory.pools.length) {
    parts.push(note("The allocator's pools at the end of the step. Fragmentation is the share of the free bytes that one request cannot have."),
      rowsTable(data, "/memory/pools", POOLS));
  }
  if (data.swap && data.swap.length) {
    parts.push(note("Blocks whose activations wait on the host: what leaves in a step, how long compute waits for the copies, and what computing " +
      "the same again would take."), rowsTable(data, "/swap", SWAPS));
  }
  return section("Memory", ...parts);
}

function breakdownTable(data) {
  if (!data.time) return null;
  const time = data.time;
  const share = (key, label) => [label, show("td", data, "/time/" + key), percent(time[key], time.step_ns)];
  const parts = [
    tiles(data, [["/time/step_ns", "step"], ["/time/exposed_communication_ns", "exposed communication"],
      ["/time/device_bound_ns", "if the host cost nothing"], ["/time/host_bound", "the host decides"]]),
    table(["every instant once", "time", "of the step"], [
      share("compute_ns", "compute"), share("exposed_communication_ns", "exposed communication"),
      share("exposed_copy_ns", "exposed copies"), share("idle_ns", "idle"),
      share("communication_ns", "communication in all, hidden or not")])];
  if (time.phases) {
    parts.push(table(["phase", "compute stream", "host"], time.phases.map((phase, i) => [
      show("th", data, `/time/phases/${i}/phase`), show("td", data, `/time/phases/${i}/compute_ns`),
      show("td", data, `/time/phases/${i}/host_ns`)])));
  }
  if (data.recorded_step) {
    parts.unshift(note(`Step ${plain(data.recorded_step)} of rank 0 in the virtual time of the device profile ${data.device}; how fast ` +
      "this machine was, the curves say."));
  }
  return section("Time", ...parts);
}

// The device's scaled figures, and the plan without and with them.
function whatIfSection(data) {
  if (!data.what_if) return null;
  const parts = [rowsTable(data, "/what_if/scaled", [["figure", "what if"], ["factor", "times"], ["about", "which is"]])];
  if (data.what_if.figures.length) {
    parts.push(rowsTable(data, "/what_if/figures", [["part", "part"], ["figure", "figure"], ["unit", "unit"], ["a", "as it is"],
      ["b", "what if"], ["difference", "difference"], ["ratio", "ratio"]]));
  }
  return section("What if", ...parts);
}

function trainingSection(data) {
  if (!data.training) return null;
  const parts = [["/training/tokens", "tokens"], ["/training/steps", "steps"], ["/training/days", "days"],
    ["/training/device_hours", "device hours"]];
  if (data.training.price !== undefined) {
    parts.push(["/training/price_per_device_hour", "price of a device hour"], ["/training/price", "price"]);
  }
  return section("Training", tiles(data, parts));
}

function throughputTable(data) {
  if (!data.throughput) return null;
  return section("Throughput", tiles(data, [["/throughput/tokens", "tokens a step"], ["/throughput/tokens_per_s", "tokens/s"],
    ["/throughput/tokens_per_s_per_device", "tokens/s per device"], ["/throughput/mfu", "MFU"], ["/throughput/hfu", "HFU"],
    ["/throughput/model_flops", "model arithmetic, a device and step"],
    ["/throughput/hardware_flops", "all arithmetic, a device and step"]]));
}

// A table of an array of objects: a row each, a column for each of [path in the object, title] that any of them has.
function rowsTable(data, pointer, columns) {
  const rows = at(data, pointer), has = (i, path) => at(data, `${pointer}/${i}/${path}`) !== undefined;
  const used = columns.filter(([path]) => rows.some((_, i) => has(i, path)));
  const isText = path => rows.some((_, i) => typeof at(data, `${pointer}/${i}/${path}`) === "string");
  const head = used.map(([path, title]) => element("th", isText(path) ? {class: "text"} : {}, title));
  return table(head, rows.map((_, i) => used.map(([path], c) =>
    has(i, path) ? show(c === 0 ? "th" : "td", data, `${pointer}/${i}/${path}`) : "")));
}

function tableSection(title, key, columns) {
  return data => Array.isArray(data[key]) && data[key].length ? section(title, rowsTable(data, "/" + key, columns)) : null;
}

// What the curves draw: each step that is shown, and the tokens of each expert in the last one.
function stepsTable(data) {
  if (!data.steps || !data.steps.length) return null;
  const value = (i, key) => typeof data.steps[i][key] === "number" ? show("td", data, `/steps/${i}/${key}`) : "";
  const columns = [...CURVES, ["held_out_loss", "held-out loss"]].filter(([key]) => data.steps.some(step => typeof step[key] === "number"));
  const reports = [...new Set(data.steps.flatMap(step => Object.keys(step.reports || {})))];
  const memory = Object.keys(data.steps[0].peak_memory_bytes || {});
  const parts = [table(["step", ...columns.map(([, title]) => title), ...reports, ...memory.map(name => "peak " + words(name))],
    data.steps.map((step, i) => [show("th", data, `/steps/${i}/step`), ...columns.map(([key]) => value(i, key)),
      ...reports.map(name => format(name, (step.reports || {})[name])), ...memory.map(name => format("_bytes", step.peak_memory_bytes[name]))]))];
  const tokens = expertTokens(data);
  if (tokens.length) parts.push(table(["expert", "tokens in the last step"], tokens.map((count, expert) => [String(expert), plain(count)])));
  return section("Steps", ...parts);
}

// The groups of the step; a name chooses its group in the streams.
function groupsTable(data) {
  if (!data.groups || !data.groups.length) return null;
  const names = data.timeline ? data.timeline.groups : [];
  const name = (group, i) => {
    const number = names.indexOf(group.group);
    if (number < 0) return show("th", data, `/groups/${i}/group`);
    const choose = element("button", {type: "button", class: "group", "data-group": number}, swatch(groupColor(number)),
      show("span", data, `/groups/${i}/group`));
    return element("th", {}, choose);
  };
  const used = GROUPS.filter(([key]) => data.groups.some(group => group[key] > 0));
  return section("Groups", note("What each group moved and computed in the step. Exposed: compute stood still for its collectives."),
    table(["group", ...used.map(([, title]) => title)], data.groups.map((group, i) =>
      [name(group, i), ...used.map(([key]) => show("td", data, `/groups/${i}/${key}`))])));
}

const GROUPS = [["gathers", "gathers"], ["gathered_bytes", "gathered, whole"], ["gather_ns", "all-gathers"], ["reductions", "reductions"],
  ["reduced_bytes", "reduced, whole"], ["reduce_ns", "reductions, time"], ["exposed_ns", "exposed"], ["compute_ns", "compute"]];
const FLUSHES = [["phase", "phase"], ["group", "computing group"], ["count", "times"]];
const POOLS = [["pool", "pool"], ["reserved_bytes", "reserved"], ["allocated_bytes", "allocated"], ["largest_free_bytes", "largest free"],
  ["fragmentation", "fragmentation"]];
const COMMUNICATORS = [["name", "communicator"], ["ranks", "ranks"], ["bytes", "its memory"]];
const SWAPS = [["block", "block"], ["copies", "tensors out"], ["out_bytes", "bytes out"], ["exposed_ns", "exposed"], ["recompute_ns", "recompute"]];
const COMMUNICATION = [["collective", "collective"], ["ranks", "ranks"], ["link", "farthest link"], ["count", "count"],
  ["received_bytes", "received"], ["time_ns", "alone on the links"]];
const VOLUME = [["axis", "axis"], ["ranks", "ranks"], ["predicted_bytes", "predicted"], ["received_bytes", "recorded"],
  ["exposed_ns", "exposed"]];
const REMEDIES = [["change", "it would fit with"], ["saved_bytes", "saves"], ["step_ns", "step"]];
const SWEEP = [["row", "row"], ["pareto", "not beaten in speed and memory"], ["throughput/tokens_per_s_per_device", "tokens/s per device"], ["time/step_ns", "step"],
  ["time/exposed_communication_ns", "exposed communication"], ["throughput/mfu", "MFU"],
  ["memory/peak_allocated_bytes", "peak allocated"], ["memory/peak_reserved_bytes", "peak reserved"], ["memory/cache_flushes", "flushes"], ["world_size", "devices"], ["micro_batch_size", "micro-batch"], ["degrees/tp", "tp"],
  ["degrees/ulysses", "ulysses"], ["degrees/ring", "ring"], ["degrees/ep", "ep"], ["degrees/dp_shard", "dp_shard"],
  ["degrees/dp_replicate", "dp_replicate"], ["change", "change"]];
const PRUNED = [["reason", "left out"], ["candidates", "candidates"]];

// The three best meshes of a sweep: where they wait, and how they differ.
function bestMeshes(data) {
  if (!data.best || !data.best.length) return null;
  const parts = [tiles(data, [["/meshes/surveyed", "meshes surveyed"], ["/meshes/that_fit", "of them fit"],
    ["/meshes/devices_together", "devices that share tokens or experts, at most"],
    ["/meshes/fitting_in_part", "configurations that were not planned whole"]]),
  rowsTable(data, "/best", [["mesh", "mesh"], ["row", "row of the sweep"], ["against_row", "against row"], ["longer", "a token takes longer by"],
    ["more_bytes", "more memory"]])];
  data.best.forEach((best, i) => {
    parts.push(element("h3", {}, best.mesh));
    if (best.exposed.length) {
      parts.push(rowsTable(data, `/best/${i}/exposed`, [["axis", "exposed over"], ["exposed_ns", "time"], ["share", "of the step"]]));
    }
    if (best.differences) {
      parts.push(rowsTable(data, `/best/${i}/differences`, [["part", "difference in"], ["token_ns", "for a token and device"]]));
    }
  });
  return section("Best meshes", ...parts);
}

function outOfMemory(data) {
  return data.out_of_memory ? section("Does not fit", show("pre", data, "/out_of_memory")) : null;
}

function warningsList(data) {
  if (!data.warnings) return null;
  const list = element("ul", {class: "warnings"}, ...data.warnings.map((_, i) => show("li", data, `/warnings/${i}`)));
  return section("Warnings", data.warnings.length ? list : note("None of the configuration, none of the schedule."));
}

function configurationText(data) {
  const configuration = data.configuration;
  if (!configuration) return null;
  const quoted = word => /^[\w@%+=:,.\/-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
  return section("Configuration", element("h3", {}, "Command line"),
    element("pre", {id: "command"}, configuration.command.map(quoted).join(" ")),
    ...configuration.files.flatMap((file, i) => [
      element("h3", {}, file.name + " ", show("span", data, `/configuration/files/${i}/path`)),
      show("pre", data, `/configuration/files/${i}/text`)]));
}
