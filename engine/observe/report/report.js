// --- The page: sections in order, then what is drawn into them.

const data = JSON.parse(document.getElementById("data").textContent);

// What a reader asks first, then the charts, then the tables.
const sections = [headSection, whatIfSection, trainingSection, outOfMemory, tableSection("What would help", "remedies", REMEDIES), warningsList,
  memorySection, timelineSection, paretoSection, curvesSection,
  bestMeshes, tableSection("Sweep", "sweep", SWEEP), tableSection("Left out of the sweep", "pruned", PRUNED), stepsTable, memoryTable, breakdownTable,
  tableSection("Communication of a step", "communication", COMMUNICATION),
  tableSection("Bytes over each axis of ranks", "volume", VOLUME), groupsTable, throughputTable, configurationText];
document.getElementById("sections").append(...sections.map(make => make(data)).filter(part => part !== null));

takeTheme();
if (data.steps) drawCurves(data);
if (data.memory_over_step) drawMemory(data);
if (document.getElementById("pareto")) drawPareto(data);
if (data.timeline) {
  const streams = new TimelineView(data.timeline);
  followTheme(() => streams.draw());
} else {
  followTheme(() => {});
}
