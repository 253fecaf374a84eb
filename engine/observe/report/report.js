// --- The page: sections in order, then what is drawn into them.

const data = JSON.parse(document.getElementById("data").textContent);

Chart.defaults.color = "#777";
Chart.defaults.borderColor = "#8883";

const sections = [headSection, outOfMemory, tableSection("What would help", "remedies", REMEDIES), warningsList,
  tableSection("Sweep", "sweep", SWEEP), curvesSection, memoryTable, memorySection, breakdownTable,
  tableSection("Communication of a step", "communication", COMMUNICATION), timelineSection, throughputTable,
  configurationText];
document.getElementById("sections").append(...sections.map(make => make(data)).filter(part => part !== null));

if (data.steps) drawCurves(data);
if (data.memory_over_step) drawMemory(data);
if (data.timeline) new TimelineView(data.timeline);
