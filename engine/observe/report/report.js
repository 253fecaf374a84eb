// --- The page: sections in order, then what is drawn into them.

const data = JSON.parse(document.getElementById("data").textContent);

const sections = [headSection, outOfMemory, tableSection("What would help", "remedies", REMEDIES), warningsList,
  bestMeshes, tableSection("Sweep", "sweep", SWEEP), tableSection("Left out of the sweep", "pruned", PRUNED), curvesSection, memoryTable, breakdownTable,
  tableSection("Communication of a step", "communication", COMMUNICATION),
  tableSection("Bytes over each axis of ranks", "volume", VOLUME), groupsTable, memorySection, timelineSection, throughputTable,
  configurationText];
document.getElementById("sections").append(...sections.map(make => make(data)).filter(part => part !== null));

takeTheme();
if (data.steps) drawCurves(data);
if (data.memory_over_step) drawMemory(data);
if (data.timeline) {
  const streams = new TimelineView(data.timeline);
  followTheme(() => streams.draw());
} else {
  followTheme(() => {});
}
