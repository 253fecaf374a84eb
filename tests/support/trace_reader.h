// A trace in Chrome's format, read back: what viewers rely on.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace loom::test {

struct TracedSlice {
  std::string name;
  std::string category;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  nlohmann::json args;
};

struct TracedArrow {
  int process = 0;
  std::string from_lane, to_lane;
  std::string from, to;  // slices
};

class TraceReader {
 public:
  explicit TraceReader(const std::string& text) : json(nlohmann::json::parse(text)) {
    for (const auto& event : json.at("traceEvents")) read(event);
    for (auto& [lane, slices] : lanes_) {
      std::ranges::stable_sort(slices, [](const TracedSlice& a, const TracedSlice& b) {
        return std::pair(a.start_ns, -a.end_ns) < std::pair(b.start_ns, -b.end_ns);
      });
    }
    bind_arrows();
  }

  std::vector<TracedSlice> lane(int process, const std::string& name) const {
    for (const auto& [key, lane_name] : lane_names_) {
      if (key.first == process && lane_name == name) return lanes_.at(key);
    }
    return {};
  }
  std::vector<std::string> lane_names(int process) const {
    std::vector<std::string> names;
    for (const auto& [key, name] : lane_names_) {
      if (key.first == process) names.push_back(name);
    }
    return names;
  }
  // All slices of a process outside of the phases' lane.
  std::vector<TracedSlice> slices(int process) const {
    std::vector<TracedSlice> all;
    for (const auto& [key, slices] : lanes_) {
      if (key.first == process && lane_names_.at(key) != "phases") all.insert(all.end(), slices.begin(), slices.end());
    }
    return all;
  }
  std::int64_t peak(int process, const std::string& counter) const {
    const auto& values = counters.at({process, counter});
    return *std::max_element(values.begin(), values.end());
  }

  // Each lane has a name; its slices lie one after another, or inside each other where `nested`.
  void expect_lanes_in_order(bool nested) const {
    for (const auto& [key, slices] : lanes_) {
      ASSERT_TRUE(lane_names_.contains(key)) << "lane " << key.second << " of process " << key.first;
      const bool may_nest = nested || lane_names_.at(key) == "phases";
      std::vector<const TracedSlice*> open;
      for (const TracedSlice& slice : slices) {
        EXPECT_LE(slice.start_ns, slice.end_ns) << slice.name;
        while (!open.empty() && open.back()->end_ns <= slice.start_ns) open.pop_back();
        if (!open.empty()) {
          EXPECT_TRUE(may_nest && slice.end_ns <= open.back()->end_ns)
              << lane_names_.at(key) << ": " << slice.name << " and " << open.back()->name;
        }
        open.push_back(&slice);
      }
    }
  }

  const nlohmann::json json;
  std::map<int, std::string> processes;
  std::map<std::pair<int, std::string>, std::vector<std::int64_t>> counters;  // values in order
  std::vector<TracedArrow> arrows;
  std::vector<std::string> loose_ends;  // of arrows: nothing there, or nothing at the other end, or backwards in time

 private:
  using Key = std::pair<int, int>;  // process, lane
  struct End {
    Key lane{};
    std::int64_t time_ns = 0;
  };

  static std::int64_t ns(const nlohmann::json& microseconds) { return std::llround(microseconds.get<double>() * 1000); }

  void read(const nlohmann::json& event) {
    const std::string kind = event.at("ph");
    const int process = event.at("pid");
    const Key lane{process, event.value("tid", 0)};
    if (kind == "M" && event.at("name") == "process_name") processes[process] = event.at("args").at("name");
    if (kind == "M" && event.at("name") == "thread_name") lane_names_[lane] = event.at("args").at("name");
    if (kind == "X") {
      const std::int64_t start = ns(event.at("ts"));
      lanes_[lane].push_back({event.at("name"), event.at("cat"), start, start + ns(event.at("dur")),
                              event.value("args", nlohmann::json::object())});
    }
    if (kind == "C") counters[{process, event.at("name")}].push_back(event.at("args").at("bytes"));
    if (kind == "s") add_end(begins_, event.at("id"), {lane, ns(event.at("ts"))});
    if (kind == "f") add_end(ends_, event.at("id"), {lane, ns(event.at("ts"))});
  }

  static void add_end(std::map<std::int64_t, End>& ends, std::int64_t id, const End& end) {
    EXPECT_TRUE(ends.try_emplace(id, end).second) << "two ends of arrow " << id;
  }

  // The innermost slice there.
  const TracedSlice* at(const End& end) const {
    const TracedSlice* found = nullptr;
    for (const TracedSlice& slice : lanes_.at(end.lane)) {
      if (slice.start_ns <= end.time_ns && end.time_ns < slice.end_ns) found = &slice;
    }
    return found;
  }

  void bind_arrows() {
    for (const auto& [id, begin] : begins_) {
      const auto end = ends_.find(id);
      const TracedSlice* from = at(begin);
      const TracedSlice* to = end == ends_.end() ? nullptr : at(end->second);
      if (from == nullptr || to == nullptr || end->second.time_ns < begin.time_ns) {
        loose_ends.push_back("arrow " + std::to_string(id));
        continue;
      }
      arrows.push_back(
          {begin.lane.first, lane_names_.at(begin.lane), lane_names_.at(end->second.lane), from->name, to->name});
    }
    if (ends_.size() != begins_.size()) loose_ends.push_back("arrows without begin");
  }

  std::map<Key, std::string> lane_names_;
  std::map<Key, std::vector<TracedSlice>> lanes_;
  std::map<std::int64_t, End> begins_, ends_;
};

}  // namespace loom::test
