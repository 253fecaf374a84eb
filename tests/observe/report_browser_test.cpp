// Promise: the report of a run and of a plan is drawn by a browser without a word on its console, and every figure it
//          shows is that of metrics.jsonl or of `shardloom plan --json`.
// World:   the built program on a model of 12176 parameters; headless Chromium, no network; a script at the end of the
//          page reads what stands there.
#include <unistd.h>

#include <cmath>
#include <gmock/gmock.h>
#include <map>
#include <set>

#include "engine/observe/report_page.h"
#include "tests/support/program.h"

namespace loom::test {
namespace {

using nlohmann::ordered_json;
using Pointer = ordered_json::json_pointer;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

// What stands on the page, as JSON without markup. Groups are chosen and the pointer is led over the lanes as a user
// would.
constexpr std::string_view kProbe = R"JS(<pre id="probe"></pre><script>
addEventListener("load", () => setTimeout(() => {
  const seen = {title: document.title, images: document.images.length, figures: [], headings: [], notes: [], charts: {}};
  for (const node of document.querySelectorAll("[data-key]")) seen.figures.push([node.dataset.key, node.title, node.textContent]);
  for (const node of document.querySelectorAll("h2")) seen.headings.push(node.textContent);
  for (const node of document.querySelectorAll("p.note")) seen.notes.push(node.textContent);
  for (const canvas of document.querySelectorAll("canvas")) {
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const chart = Chart.getChart(canvas);
    seen.charts[canvas.id] = {inked: pixels.filter((value, i) => i % 4 === 3 && value > 0).length,
      series: Object.fromEntries((chart ? chart.data.datasets : []).map(set => [set.label, set.data.map(({x, y}) => [x, y])]))};
  }
  const command = document.getElementById("command");
  seen.command = command && command.textContent;
  const canvas = document.getElementById("timeline");
  if (canvas) {
    const group = document.getElementById("group"), tips = new Set();
    const range = () => [Number(canvas.dataset.fromNs), Number(canvas.dataset.toNs)];
    seen.whole = range();
    seen.zooms = {};
    for (const option of [...group.options].slice(1)) {
      group.value = option.value;
      group.dispatchEvent(new Event("change"));
      seen.zooms[option.textContent] = range();
      const box = canvas.getBoundingClientRect();
      for (let y = 30; y < box.height; y += 17) {
        for (let x = 112; x < box.width; x += 5) {
          canvas.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + x, clientY: box.top + y}));
          const tip = document.getElementById("tip");
          if (!tip.hidden) tips.add(tip.textContent);
        }
      }
    }
    seen.tips = [...tips];
    document.getElementById("whole").click();
    seen.again = range();
    const box = canvas.getBoundingClientRect();
    const wheel = ctrlKey => canvas.dispatchEvent(new WheelEvent("wheel",
      {clientX: box.left + 400, clientY: box.top + 40, deltaY: -400, cancelable: true, ctrlKey}));
    seen.scrolled = wheel(false);
    seen.afterScroll = range();
    wheel(true);
    seen.wheel = range();
    const memory = Chart.getChart("memory");
    const look = () => [memory.options.scales.x.min, memory.options.scales.x.max];
    if (memory) {
      seen.memoryWheel = look();
      seen.aligned = [memory.chartArea.left, memory.chartArea.right, canvas.clientWidth, memory.width];
    }
    const key = name => { canvas.dispatchEvent(new KeyboardEvent("keydown", {key: name, cancelable: true})); return range(); };
    seen.keys = {in: key("+"), right: key("ArrowRight"), left: key("ArrowLeft"), out: key("-"), home: key("Home")};
    seen.read = [];
    for (let i = 0; i < 3; ++i) { key("n"); seen.read.push(document.getElementById("tip").textContent); }
    key("p");
    seen.readBack = document.getElementById("tip").textContent;
    seen.reached = canvas.tabIndex;
    key("Home");
    const button = document.querySelector("button.group");
    if (button) { button.click(); seen.chosen = group.options[group.selectedIndex].textContent; seen.chosenRange = range(); }
    if (memory) seen.memoryChosen = look();
    document.getElementById("whole").click();
    seen.legend = document.getElementById("legend").textContent;
    // Words that were drawn into the streams, and the colour of what stands for exposed communication.
    const words = [], context = canvas.getContext("2d"), fillText = context.fillText.bind(context);
    context.fillText = (text, x, y) => { words.push(text); fillText(text, x, y); };
    dispatchEvent(new Event("resize"));
    seen.words = words.splice(0);
    for (let i = 0; i < 12; ++i) key("+");
    for (let i = 0; i < 6; ++i) key("n");
    for (let i = 0; i < 8; ++i) key("+");
    seen.wordsNear = words;
    document.getElementById("whole").click();
  }
  const charts = window.Chart ? Object.values(Chart.instances) : [];
  for (const chart of charts) {
    if (chart.canvas.id === "curve-loss") seen.stepTicks = chart.scales.x.ticks.map(tick => tick.label);
    if (chart.canvas.id !== "memory") continue;
    seen.inks = Object.fromEntries(chart.data.datasets.filter(set => set.ink).map(set => [set.label, set.borderColor]));
    seen.text = getComputedStyle(document.body).color;
    seen.paper = getComputedStyle(document.body).backgroundColor;
  }
  document.documentElement.style.width = "400px";
  document.body.style.boxSizing = "border-box";
  for (const chart of charts) chart.resize();
  dispatchEvent(new Event("resize"));
  seen.wide = [...document.querySelectorAll("body *")].filter(node => {
    for (let up = node.parentElement; up; up = up.parentElement) {
      if (["auto", "scroll", "hidden"].includes(getComputedStyle(up).overflowX)) return false;
    }
    const box = node.getBoundingClientRect();
    return node.id !== "probe" && node.tagName !== "SCRIPT" && box.width > 0 && box.right > 400.5;
  }).map(node => `${node.tagName}#${node.id}.${node.className}`);
  const text = JSON.stringify(seen).replace(/[<>&]/g, c => "\\u00" + c.charCodeAt(0).toString(16));
  document.getElementById("probe").textContent = text;
}, 0));
</script></body>)JS";

struct Seen {
  ordered_json page;                 // the data the page carries
  ordered_json probe;                // what the script read
  std::vector<std::string> console;  // lines
};

std::vector<std::string> console_lines(const std::string& log) {
  std::vector<std::string> lines;
  std::istringstream text(log);
  for (std::string line; std::getline(text, line);) {
    if (line.find("CONSOLE") != std::string::npos) lines.push_back(line);
  }
  return lines;
}

std::string between(const std::string& text, const std::string& before, const std::string& after) {
  const std::size_t begin = text.find(before);
  if (begin == std::string::npos) return "";
  const std::size_t end = text.find(after, begin);
  return text.substr(begin + before.size(), end - begin - before.size());
}

enum class Scheme { kDark, kLight };  // as Chromium numbers them

// The page `name` of the folder, opened.
Seen open(const ProgramFolder& folder, const std::string& name, Scheme scheme = Scheme::kLight) {
  std::string page = folder.read(name);
  Seen seen;
  seen.page = ordered_json::parse(between(page, R"(<script type="application/json" id="data">)", "</script>"));
  page.replace(page.rfind("</body>"), std::string_view("</body>").size(), kProbe);
  folder.write("probed.html", page);
  Words browser{SHARDLOOM_BROWSER,
                "--headless=new",
                "--disable-gpu",
                "--window-size=1280,2000",
                "--blink-settings=preferredColorScheme=" + std::to_string(static_cast<int>(scheme)),
                "--user-data-dir=" + folder.path("browser").string(),
                "--virtual-time-budget=10000",
                "--enable-logging=stderr",
                "--dump-dom"};
  if (geteuid() == 0) browser.push_back("--no-sandbox");
  browser.push_back("file://" + folder.path("probed.html").string());
  const Outcome outcome = folder.run_command(browser);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  seen.console = console_lines(outcome.err);
  const std::string probe = between(outcome.out, R"(<pre id="probe">)", "</pre>");
  EXPECT_THAT(probe, Not(IsEmpty())) << outcome.err;
  if (!probe.empty()) seen.probe = ordered_json::parse(probe);
  return seen;
}

// "1.234 GiB" is 1.234 * 2^30, read as a person does: right up to half of the last digit.
::testing::AssertionResult shows(const std::string& text, double value) {
  static const std::map<std::string, double> kUnits{{"", 1},
                                                    {"B", 1},
                                                    {"KiB", 1024.},
                                                    {"MiB", std::pow(2, 20)},
                                                    {"GiB", std::pow(2, 30)},
                                                    {"TiB", std::pow(2, 40)},
                                                    {"ns", 1},
                                                    {"us", 1e3},
                                                    {"ms", 1e6},
                                                    {"s", 1e9},
                                                    {"%", 0.01},
                                                    {"FLOP", 1},
                                                    {"kFLOP", 1e3},
                                                    {"MFLOP", 1e6},
                                                    {"GFLOP", 1e9},
                                                    {"TFLOP", 1e12},
                                                    {"PFLOP", 1e15},
                                                    {"EFLOP", 1e18}};
  const std::size_t space = text.find(' ');
  std::string digits = text.substr(0, space);
  std::erase(digits, ',');
  const auto unit = kUnits.find(space == std::string::npos ? "" : text.substr(space + 1));
  if (unit == kUnits.end()) return ::testing::AssertionFailure() << "'" << text << "' has an unknown unit";
  const std::size_t e = std::min(digits.find('e'), digits.size());
  const std::size_t point = std::min(digits.find('.'), e);
  const std::size_t decimals = point == e ? 0 : e - point - 1;
  const double power = e == digits.size() ? 1 : std::pow(10, std::stod(digits.substr(e + 1)));
  const double half = 0.5 * std::pow(10, -static_cast<double>(decimals)) * power;
  const double difference = std::abs(std::stod(digits) * unit->second - value);
  if (difference <= half * unit->second * (1 + 1e-6) + std::abs(value) * 1e-12) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << text << "' is not " << value;
}

// Every figure stands at its key of `json`; its title is the exact value, its text that value as people read it.
void expect_figures_of(const ordered_json& json, const ordered_json& figures) {
  for (const auto& figure : figures) {
    const std::string key = figure.at(0), title = figure.at(1), text = figure.at(2);
    ASSERT_TRUE(json.contains(Pointer(key))) << key;
    const ordered_json& value = json.at(Pointer(key));
    if (value.is_number()) {
      EXPECT_EQ(ordered_json::parse(title).get<double>(), value.get<double>()) << key;
      EXPECT_TRUE(shows(text, value.get<double>())) << key;
    } else if (value.is_boolean()) {
      EXPECT_EQ(text, value.get<bool>() ? "yes" : "no") << key;
    } else {
      EXPECT_EQ(text, value.get<std::string>()) << key;
    }
  }
}

std::set<std::string> keys_of(const ordered_json& figures) {
  std::set<std::string> keys;
  for (const auto& figure : figures) keys.insert(figure.at(0).get<std::string>());
  return keys;
}

// Pointers of all numbers and truth values.
std::set<std::string> number_keys(const ordered_json& json) {
  std::set<std::string> keys;
  const ordered_json flat = json.flatten();
  for (const auto& [key, value] : flat.items()) {
    if (value.is_number() || value.is_boolean()) keys.insert(key);
  }
  return keys;
}

ordered_json without(ordered_json json, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) json.erase(key);
  return json;
}

ordered_json xy(const ordered_json& x, const ordered_json& y) {
  ordered_json points = ordered_json::array();
  for (std::size_t i = 0; i < x.size(); ++i) points.push_back({x.at(i), y.at(i)});
  return points;
}

void expect_all_drawn(const ordered_json& charts, const std::vector<std::string>& names) {
  std::vector<std::string> drawn;
  for (const auto& [name, chart] : charts.items()) {
    drawn.push_back(name);
    EXPECT_GT(chart.at("inked"), 1000) << name;
  }
  EXPECT_EQ(drawn, names);
}

// Each tip the pointer met is an entry of the timeline: name, group, bytes, start, duration.
void expect_tips_of(const ordered_json& timeline, const ordered_json& tips) {
  const ordered_json& entries = timeline.at("entries");
  const auto is_entry = [&](std::size_t i, const std::vector<std::string>& lines) {
    const auto text = [&](std::size_t line) { return lines[line].substr(10); };
    const std::int64_t group = entries.at("group").at(i);
    return timeline.at("names").at(entries.at("name").at(i).get<std::size_t>()) == lines[0] &&
           text(1) ==
               (group < 0 ? "-" : timeline.at("groups").at(static_cast<std::size_t>(group)).get<std::string>()) &&
           shows(text(2), entries.at("bytes").at(i)) && shows(text(3), entries.at("start_ns").at(i)) &&
           shows(text(4), entries.at("duration_ns").at(i));
  };
  const auto is_gap = [&](const std::vector<std::string>& lines) {
    const ordered_json& gaps = timeline.at("exposed");
    for (std::size_t i = 0; i < gaps.at("start_ns").size() && lines.size() == 4; ++i) {
      if (gaps.at("group").at(i) == lines[1].substr(10) && shows(lines[2].substr(10), gaps.at("start_ns").at(i)) &&
          shows(lines[3].substr(10), gaps.at("duration_ns").at(i))) {
        return true;
      }
    }
    return false;
  };
  EXPECT_GT(tips.size(), 20u);
  for (const std::string tip : tips) {
    std::vector<std::string> lines;
    std::istringstream text(tip);
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    if (lines[0] == "exposed communication") {
      EXPECT_TRUE(is_gap(lines)) << tip;
      continue;
    }
    ASSERT_EQ(lines.size(), 5u) << tip;
    bool found = false;
    for (std::size_t i = 0; i < entries.at("start_ns").size() && !found; ++i) found = is_entry(i, lines);
    EXPECT_TRUE(found) << tip;
  }
}

// The boxes that N reads are those of the step, in the order of time.
void expect_tips_read(const ordered_json& timeline, const ordered_json& read) {
  std::vector<std::int64_t> starts = timeline.at("entries").at("start_ns");
  std::ranges::sort(starts);
  for (std::size_t i = 0; i < read.size(); ++i) {
    const std::string start = between(read.at(i).get<std::string>() + "\n", "start     ", "\n");
    EXPECT_TRUE(shows(start, static_cast<double>(starts[i]))) << i;
  }
}

// What the streams say in words: phases, groups, colours.
void expect_words_of(const ordered_json& timeline, const ordered_json& probe) {
  EXPECT_THAT(probe.at("words"), IsSupersetOf({"forward", "backward", "optimizer", "compute", "gather"}));
  const ordered_json& groups = timeline.at("groups");
  const auto names_a_group = [&](const ordered_json& word) {
    return std::ranges::any_of(groups, [&](const ordered_json& group) {
      const std::string path = group, text = word;
      return text == path || text.starts_with(path + ": ") || (text.size() > 1 && path.ends_with("." + text));
    });
  };
  EXPECT_TRUE(std::ranges::any_of(probe.at("wordsNear"), names_a_group)) << probe.at("wordsNear");
  EXPECT_THAT(probe.at("legend").get<std::string>(),
              ::testing::AllOf(HasSubstr(groups.at(0).get<std::string>()), HasSubstr("no group"),
                               HasSubstr("exposed: compute stands still for a collective")));
}

// Choosing a group looks at its first to its last entry, and a little around; the button goes back; the wheel zooms in,
// but only with Ctrl. Keys do what the pointer does. The memory looks where the streams look.
void expect_zooms_of(const ordered_json& timeline, const ordered_json& probe) {
  const ordered_json& entries = timeline.at("entries");
  EXPECT_EQ(probe.at("whole"), ordered_json({0, timeline.at("end_ns")}));
  for (std::size_t g = 0; g < timeline.at("groups").size(); ++g) {
    double first = 1e18, last = 0;
    for (std::size_t i = 0; i < entries.at("group").size(); ++i) {
      if (entries.at("group").at(i) != g) continue;
      const double start = entries.at("start_ns").at(i);
      first = std::min(first, start);
      last = std::max(last, start + entries.at("duration_ns").at(i).get<double>());
    }
    const double room = std::max(1.0, (last - first) * 0.05);
    const ordered_json& range = probe.at("zooms").at(timeline.at("groups").at(g).get<std::string>());
    EXPECT_NEAR(range.at(0), std::max(0.0, first - room), 1e-3);
    EXPECT_NEAR(range.at(1), std::min(timeline.at("end_ns").get<double>(), last + room), 1e-3);
  }
  EXPECT_EQ(probe.at("again"), probe.at("whole"));
  EXPECT_EQ(probe.at("scrolled"), true) << "the page may scroll";
  EXPECT_EQ(probe.at("afterScroll"), probe.at("whole"));
  EXPECT_GT(probe.at("wheel").at(0), 0);
  EXPECT_LT(probe.at("wheel").at(1), timeline.at("end_ns"));
  EXPECT_EQ(probe.at("memoryWheel"), probe.at("wheel"));
  EXPECT_NEAR(probe.at("aligned").at(0), 112, 1) << "where the lanes begin";
  EXPECT_NEAR(probe.at("aligned").at(1), probe.at("aligned").at(2), 1) << "where they end";
  EXPECT_EQ(probe.at("reached"), 0);
  const auto span = [&](const char* key) {
    const ordered_json& range = probe.at("keys").at(key);
    return range.at(1).get<double>() - range.at(0).get<double>();
  };
  EXPECT_NEAR(span("right"), span("in"), 1e-3);
  EXPECT_GT(probe.at("keys").at("right").at(0), probe.at("keys").at("in").at(0));
  EXPECT_LT(probe.at("keys").at("left").at(0), probe.at("keys").at("right").at(0));
  EXPECT_GT(span("out"), span("in"));
  EXPECT_EQ(probe.at("keys").at("home"), probe.at("whole"));
  EXPECT_EQ(std::set<std::string>(probe.at("read").begin(), probe.at("read").end()).size(), 3u);
  EXPECT_EQ(probe.at("readBack"), probe.at("read").at(1));
  expect_tips_read(timeline, probe.at("read"));
  EXPECT_EQ(probe.at("chosenRange"), probe.at("zooms").at(probe.at("chosen").get<std::string>()));
  EXPECT_EQ(probe.at("memoryChosen"), probe.at("chosenRange"));
}

// Areas and lines of memory are the arrays; the largest moment is the plan's peak.
void expect_memory_of(const ordered_json& data, const ordered_json& chart) {
  const ordered_json& memory = data.at("memory_over_step");
  const ordered_json& series = chart.at("series");
  for (const auto& [key, values] : memory.at("by_category").items()) {
    std::string name = key.substr(0, key.size() - std::string_view("_bytes").size());
    std::ranges::replace(name, '_', ' ');
    EXPECT_EQ(series.at(name), xy(memory.at("time_ns"), values)) << key;
  }
  EXPECT_EQ(series.at("allocated"), xy(memory.at("time_ns"), memory.at("allocated_bytes")));
  EXPECT_EQ(series.at("reserved"), xy(memory.at("time_ns"), memory.at("reserved_bytes")));
}

const Words kPlanned = Words{"plan", "--model-config", "model.yaml", "--seq-length", "16",  "--micro-batch-size",
                             "2",    "--world-size",   "2",          "--device",     "h200"} +
                       kSharded;

TEST(Plan, IsShownAsItsJsonSays) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kPlanned + Words{"--json", "plan.json", "--report", "plan.html"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const ordered_json plan = ordered_json::parse(folder.read("plan.json"));
  const Seen seen = open(folder, "plan.html");

  EXPECT_THAT(seen.console, IsEmpty());
  EXPECT_EQ(without(seen.page, {"report", "memory_over_step", "timeline", "groups", "configuration", "written"}), plan);
  EXPECT_THAT(seen.probe.at("title").get<std::string>(),
              ::testing::MatchesRegex("Qwen2ForCausalLM .fsdp2.yaml, model.yaml. on 2 x h200 - Shardloom [0-9.]+ plan, "
                                      "20[0-9][0-9]-[01][0-9]-[0-3][0-9]"));
  expect_figures_of(seen.page, seen.probe.at("figures"));
  EXPECT_THAT(keys_of(seen.probe.at("figures")), IsSupersetOf(number_keys(plan)));
  EXPECT_THAT(seen.probe.at("headings"), ElementsAre("Plan", "Warnings", "Memory over the step", "Streams", "Memory",
                                                     "Time", "Communication of a step", "Bytes over each axis of ranks",
                                                     "Groups", "Throughput", "Configuration"));
  EXPECT_EQ(seen.probe.at("figures").at(0).at(0), "/memory/fits") << "the first figure";
  EXPECT_THAT(keys_of(seen.probe.at("figures")), IsSupersetOf(number_keys({{"groups", seen.page.at("groups")}})));
  EXPECT_THAT(seen.probe.at("wide"), IsEmpty()) << "at 400 px";

  expect_all_drawn(seen.probe.at("charts"), {"memory", "timeline"});
  expect_memory_of(seen.page, seen.probe.at("charts").at("memory"));
  const auto allocated =
      seen.page.at("/memory_over_step/allocated_bytes"_json_pointer).get<std::vector<std::int64_t>>();
  EXPECT_EQ(*std::ranges::max_element(allocated), plan.at("/memory/peak_allocated_bytes"_json_pointer));
  EXPECT_THAT(seen.page.at("timeline").at("groups"), IsSupersetOf({"model.layers.0", "model.layers.1", "lm_head"}));
  expect_zooms_of(seen.page.at("timeline"), seen.probe);
  expect_tips_of(seen.page.at("timeline"), seen.probe.at("tips"));
  expect_words_of(seen.page.at("timeline"), seen.probe);
  EXPECT_THAT(seen.probe.at("command").get<std::string>(), HasSubstr("plan --model-config model.yaml --seq-length 16"));
}

TEST(Plan, ShowsItsSweep) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kPlanned + Words{"--sweep", "--json", "plan.json", "--report", "plan.html"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const ordered_json plan = ordered_json::parse(folder.read("plan.json")), sweep = plan.at("sweep");
  const Seen seen = open(folder, "plan.html");
  EXPECT_THAT(seen.console, IsEmpty());
  EXPECT_EQ(seen.page.at("sweep"), sweep);
  const std::vector<std::string> headings = seen.probe.at("headings");
  EXPECT_THAT(std::vector(headings.begin(), headings.begin() + 8),
              ElementsAre("Plan", "Warnings", "Memory over the step", "Streams", "Memory against speed", "Best meshes",
                          "Sweep", "Left out of the sweep"))
      << "charts, then tables";
  expect_all_drawn(seen.probe.at("charts"), {"memory", "timeline", "pareto"});
  const ordered_json& series = seen.probe.at("charts").at("pareto").at("series");
  ordered_json all = ordered_json::array();
  std::vector<std::pair<std::int64_t, double>> not_beaten;
  for (const ordered_json& row : sweep) {
    const std::int64_t bytes = row.at("memory").at("peak_reserved_bytes");
    const double speed = row.at("throughput").at("tokens_per_s_per_device");
    all.push_back({bytes, speed});
    if (row.at("pareto")) not_beaten.emplace_back(bytes, speed);
  }
  std::ranges::sort(not_beaten);
  EXPECT_EQ(series.at("configurations"), all);
  EXPECT_EQ(series.at("not beaten"), ordered_json(not_beaten));
  EXPECT_THAT(keys_of(seen.probe.at("figures")), IsSupersetOf(number_keys(without(plan, {"sweep"}))));
  expect_figures_of(seen.page, seen.probe.at("figures"));
  const std::string last = fmt::format("/sweep/{}/", sweep.size() - 1);
  EXPECT_THAT(keys_of(seen.probe.at("figures")),
              IsSupersetOf({last + "change", last + "time/step_ns", last + "throughput/tokens_per_s_per_device",
                            last + "memory/peak_reserved_bytes", last + "row", last + "pareto",
                            last + "memory/cache_flushes", last + "degrees/tp", last + "degrees/dp_shard"}));
  EXPECT_THAT(seen.probe.at("wide"), IsEmpty()) << "at 400 px";
}

TEST(Plan, ShowsTheLongestSequence) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(Words{"plan", "--model-config", "model.yaml", "--world-size", "2"} + kSharded +
                                     Words{"--fit", "seq-length", "--json", "plan.json", "--report", "plan.html"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const ordered_json plan = ordered_json::parse(folder.read("plan.json"));
  const Seen seen = open(folder, "plan.html");
  EXPECT_THAT(seen.console, IsEmpty());
  expect_figures_of(seen.page, seen.probe.at("figures"));
  EXPECT_THAT(keys_of(seen.probe.at("figures")), IsSupersetOf(number_keys(plan)));
  EXPECT_THAT(keys_of(seen.probe.at("figures")), Contains("/longest_sequence/why"));
}

// A plan that does not fit is shown with what would help.
TEST(Plan, ShowsWhyItDoesNotFit) {
  const ProgramFolder folder;
  const Outcome outcome =
      folder.run({"plan", "--model-config", LOOM_SOURCE_DIR "/configs/models/llama3_8b.yaml", "--seq-length", "8192",
                  "--micro-batch-size", "8", "--world-size", "8", "--device", "h200", "--use-torch-fsdp2",
                  "--fsdp2-config-path", "fsdp2.yaml", "--json", "plan.json", "--report", "plan.html"});
  ASSERT_EQ(outcome.exit_code, 3) << outcome.err;
  const ordered_json plan = ordered_json::parse(folder.read("plan.json"));
  const Seen seen = open(folder, "plan.html");
  EXPECT_THAT(seen.console, IsEmpty());
  EXPECT_THAT(seen.probe.at("headings"), IsSupersetOf({"Does not fit", "What would help"}));
  expect_figures_of(seen.page, seen.probe.at("figures"));
  EXPECT_THAT(keys_of(seen.probe.at("figures")), IsSupersetOf(number_keys(plan)));
  EXPECT_THAT(keys_of(seen.probe.at("figures")), Contains("/out_of_memory"));
  EXPECT_EQ(seen.probe.at("figures").at(0), ordered_json({"/memory/fits", "false", "no"})) << "what matters is first";
  EXPECT_THAT(seen.probe.at("wide"), IsEmpty()) << "at 400 px";
}

// Lines without a colour of their own have that of the text.
TEST(Plan, IsReadableInTheDark) {
  const ProgramFolder folder;
  ASSERT_EQ(folder.run(kPlanned + Words{"--report", "plan.html"}).exit_code, 0);
  const Seen light = open(folder, "plan.html", Scheme::kLight), dark = open(folder, "plan.html", Scheme::kDark);
  EXPECT_THAT(dark.console, IsEmpty());
  EXPECT_NE(light.probe.at("text"), dark.probe.at("text"));
  EXPECT_NE(light.probe.at("paper"), dark.probe.at("paper"));
  EXPECT_NE(dark.probe.at("text"), dark.probe.at("paper"));
  for (const Seen& seen : {light, dark}) EXPECT_EQ(seen.probe.at("inks").at("reserved"), seen.probe.at("text"));
  EXPECT_NE(light.probe.at("inks").at("allocated"), dark.probe.at("inks").at("allocated"));
}

TEST(Run, IsShownAsItsMetricsSay) {
  const ProgramFolder folder;
  const Outcome outcome =
      folder.run(kFourSteps + Words{"--nproc-per-node", "2", "--report", "out/run.html", "--report-device", "h200"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("report written to out/run.html\n"));
  const auto lines = folder.metrics("metrics.jsonl");
  const Seen seen = open(folder, "out/run.html");

  EXPECT_THAT(seen.console, IsEmpty());
  EXPECT_EQ(seen.page.at("steps"), ordered_json(lines));
  EXPECT_EQ(seen.page.at("recorded_step"), 2);
  expect_figures_of(seen.page, seen.probe.at("figures"));
  EXPECT_THAT(keys_of(seen.probe.at("figures")),
              IsSupersetOf({"/parameters", "/device", "/steps/3/loss", "/steps/3/grad_norm", "/steps/3/lr",
                            "/steps/3/tokens_per_second", "/steps/3/held_out_loss", "/time/step_ns",
                            "/time/exposed_communication_ns", "/host_bytes"}));
  EXPECT_THAT(keys_of(seen.probe.at("figures")),
              IsSupersetOf(
                  number_keys({{"groups", seen.page.at("groups")}, {"communication", seen.page.at("communication")}})));
  EXPECT_THAT(seen.probe.at("headings"),
              IsSupersetOf({"Memory", "Communication of a step", "Groups", "Streams", "Steps"}));
  EXPECT_THAT(keys_of(seen.probe.at("figures")),
              IsSupersetOf({"/steps/0/step", "/steps/0/loss", "/steps/1/grad_norm", "/steps/2/tokens_per_second"}))
      << "the table of the curves";
  EXPECT_THAT(seen.probe.at("stepTicks"), ElementsAre("1", "2", "3", "4")) << "whole steps";
  EXPECT_THAT(seen.probe.at("wide"), IsEmpty()) << "at 400 px";
  const ordered_json& charts = seen.probe.at("charts");
  expect_all_drawn(charts, {"memory", "timeline", "curve-loss", "curve-grad_norm", "curve-lr",
                            "curve-tokens_per_second", "curve-memory"});
  const auto points = [&](auto value) {
    ordered_json all = ordered_json::array();
    for (const ordered_json& line : lines) all.push_back({line.at("step"), value(line)});
    return all;
  };
  const auto of = [](const char* key) { return [key](const ordered_json& line) { return line.at(key); }; };
  EXPECT_EQ(charts.at("curve-loss").at("series").at("loss"), points(of("loss")));
  EXPECT_EQ(charts.at("curve-loss").at("series").at("held-out loss"),
            ordered_json::array({{4, lines.at(3).at("held_out_loss")}}));
  EXPECT_EQ(charts.at("curve-grad_norm").at("series").at("gradient norm"), points(of("grad_norm")));
  EXPECT_EQ(charts.at("curve-lr").at("series").at("learning rate"), points(of("lr")));
  EXPECT_EQ(charts.at("curve-tokens_per_second").at("series").at("tokens/s"), points(of("tokens_per_second")));
  EXPECT_EQ(charts.at("curve-memory").at("series").at("optimizer state"),
            points([](const ordered_json& line) { return line.at("peak_memory_bytes").at("optimizer_state"); }));
  expect_memory_of(seen.page, charts.at("memory"));
  expect_zooms_of(seen.page.at("timeline"), seen.probe);
  expect_tips_of(seen.page.at("timeline"), seen.probe.at("tips"));
}

// The same step planned: what the device does is the same, in the same order.
TEST(Run, RecordsTheStepThatIsPlanned) {
  const ProgramFolder folder;
  const Words both{"--global-batch-size", "4", "--kernel-grain", "pytorch"};
  ASSERT_EQ(folder.run(kPlanned + Words{"--report", "plan.html"} + both).exit_code, 0);
  const Words run = kFourSteps + Words{"--kernel-grain", "pytorch",  "--nproc-per-node", "2",
                                       "--report",       "run.html", "--report-device",  "h200"};
  ASSERT_EQ(folder.run(run).exit_code, 0);
  const auto timeline = [&](const char* name) {
    return ordered_json::parse(between(folder.read(name), R"(<script type="application/json" id="data">)", "</script>"))
        .at("timeline");
  };
  EXPECT_EQ(timeline("run.html"), timeline("plan.html"));
}

TEST(Page, ShowsHostileTextAsText) {
  const ProgramFolder folder;
  const std::string name = "we<img src=x onerror=alert(1)>&'\"$(x).yaml";
  const std::string yaml = folder.read("fsdp2.yaml") +
                           "# </pre></script><script>console.error('in')</script><!-- & \"quotes\" 'x' \xe2\x80\xa8\n"
                           "# <img src=x onerror=console.error('in')> @DATA@ @SCRIPTS@ $& ${name}\n";
  folder.write(name, yaml);
  const Outcome outcome = folder.run({"plan", "--model-config", "model.yaml", "--seq-length", "16", "--world-size", "2",
                                      "--use-torch-fsdp2", "--fsdp2-config-path", name, "--report", "plan.html"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Seen seen = open(folder, "plan.html");
  EXPECT_THAT(seen.console, IsEmpty());
  EXPECT_EQ(seen.probe.at("images"), 0);
  EXPECT_THAT(seen.probe.at("figures"), Contains(ordered_json({"/configuration/files/0/path", name, name})));
  EXPECT_THAT(seen.probe.at("figures"), Contains(ordered_json({"/configuration/files/0/text", yaml, yaml})));
  EXPECT_THAT(seen.probe.at("command").get<std::string>(),
              HasSubstr("--fsdp2-config-path 'we<img src=x onerror=alert(1)>&'\\''\"$(x).yaml'"));
}

TEST(Page, SaysWhatIsLeftOut) {
  const ProgramFolder folder;
  ASSERT_EQ(folder.run(kPlanned + Words{"--report", "plan.html"}).exit_code, 0);
  ordered_json data = ordered_json::parse(
      between(folder.read("plan.html"), R"(<script type="application/json" id="data">)", "</script>"));
  data["timeline"]["entries_of_step"] = 123456;
  data["memory_over_step"]["changes_of_step"] = 98765;
  observe::write_report(folder.path("cut.html"), data);
  const Seen seen = open(folder, "cut.html");
  EXPECT_THAT(seen.console, IsEmpty());
  EXPECT_THAT(seen.probe.at("notes"),
              Contains(HasSubstr(" of 123,456 entries are shown, in the order the host issued them")));
  EXPECT_THAT(seen.probe.at("notes"), Contains(HasSubstr("98,765 changes are drawn as ")));
}

// Steps whose loss is no number leave a gap; figures of the user's loss function have curves of their own.
TEST(Page, DrawsWhatTheLossFunctionReports) {
  const ProgramFolder folder;
  ordered_json steps = ordered_json::array();
  for (int step = 1; step <= 3; ++step) {
    steps.push_back({{"step", step},
                     {"loss", step == 2 ? ordered_json() : ordered_json(1.0 / step)},
                     {"grad_norm", 2.5},
                     {"lr", 1e-7},
                     {"tokens_per_second", 1e6},
                     {"peak_memory_bytes", {{"activation", 1024}, {"total", 2048}}},
                     {"reports", {{"<b>accuracy</b>", 0.25 * step}}}});
  }
  observe::write_report(folder.path("run.html"),
                        {{"report", "run"}, {"model", "M"}, {"steps", steps}, {"steps_of_run", 12345}});
  const Seen seen = open(folder, "run.html");
  EXPECT_THAT(seen.console, IsEmpty());
  expect_figures_of(seen.page, seen.probe.at("figures"));
  const ordered_json& charts = seen.probe.at("charts");
  EXPECT_EQ(charts.at("curve-loss").at("series").at("loss"),
            ordered_json::parse("[[1, 1.0], [3, 0.3333333333333333]]"));
  EXPECT_EQ(charts.at("curve-report-<b>accuracy</b>").at("series").at("<b>accuracy</b>"),
            ordered_json::parse("[[1, 0.25], [2, 0.5], [3, 0.75]]"));
  EXPECT_THAT(seen.probe.at("notes"), Contains(HasSubstr("3 of 12,345 steps are shown, evenly spaced")));
}

TEST(Page, ShowsASweepWithoutAPlanOfItsOwn) {
  const ProgramFolder folder;
  const auto row = [](const char* change, std::int64_t step_ns) {
    return ordered_json{{"world_size", 8},
                        {"time", {{"step_ns", step_ns}, {"phases", ordered_json::array()}}},
                        {"throughput", {{"mfu", 0.4567}, {"tokens_per_s_per_device", 12345.678}}},
                        {"change", change}};
  };
  const ordered_json data{{"report", "plan"},
                          {"sweep", {row("sharding_size: 4", 123456789), row("<b>recompute</b>", 222222222)}},
                          {"configuration", {{"command", {"plan", "--sweep"}}, {"files", ordered_json::array()}}}};
  observe::write_report(folder.path("sweep.html"), data);
  const Seen seen = open(folder, "sweep.html");
  EXPECT_THAT(seen.console, IsEmpty());
  EXPECT_THAT(seen.probe.at("headings"), ElementsAre("Plan", "Sweep", "Configuration"));
  expect_figures_of(data, seen.probe.at("figures"));
  EXPECT_EQ(keys_of(seen.probe.at("figures")).size(), 2u * 5u);
}

TEST(Probe, HearsTheConsole) {
  const ProgramFolder folder;
  folder.write(
      "page.html",
      "<html><body><script type=\"application/json\" id=\"data\">{}</script><script>console.error('heard')</script>"
      "<script>nothing.there()</script></body></html>");
  EXPECT_THAT(open(folder, "page.html").console, ElementsAre(HasSubstr("heard"), HasSubstr("nothing is not defined")));
}

}  // namespace
}  // namespace loom::test
