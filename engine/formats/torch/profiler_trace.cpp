#include "engine/formats/torch/profiler_trace.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/gzip.h"

namespace loom::io {
namespace {

constexpr std::size_t kMostText = std::size_t{4} << 30;
constexpr std::string_view kBackwardNode = "autograd::engine::evaluate_function";

// One event, as far as it is read.
struct RawEvent {
  std::string phase;
  std::string category;
  std::string name;
  std::optional<double> start;
  double duration = 0;
  std::optional<std::int64_t> correlation;
  std::int64_t device = 0;
  std::int64_t stream = 0;
};

class TraceBuilder {
 public:
  void add(RawEvent& event) {
    if (event.phase != "X" || !event.start) return;
    const double start = *event.start, end = start + event.duration;
    if (event.category == "kernel" || event.category == "gpu_memcpy" || event.category == "gpu_memset") {
      correlations_.push_back(event.correlation.value_or(-1));
      trace_.work.push_back({.name = std::move(event.name),
                             .is_copy = event.category != "kernel",
                             .device = event.device,
                             .stream = event.stream,
                             .start = start,
                             .end = end});
    } else if (event.category == "user_annotation") {
      trace_.annotations.push_back({std::move(event.name), start, end});
    } else if (event.category == "cpu_op") {
      if (event.name.starts_with(kBackwardNode)) trace_.backward_nodes.push_back(start);
    } else if (event.correlation) {  // cuda_runtime, cuda_driver
      launches_.emplace(*event.correlation, start);
    }
  }

  ProfilerTrace finish() {
    for (std::size_t i = 0; i < trace_.work.size(); ++i) {
      const auto launch = launches_.find(correlations_[i]);
      if (launch != launches_.end()) trace_.work[i].launched = launch->second;
    }
    std::ranges::stable_sort(trace_.work, {}, &TraceWork::start);
    std::ranges::stable_sort(trace_.annotations, {}, &TraceAnnotation::start);
    std::ranges::sort(trace_.backward_nodes);
    return std::move(trace_);
  }

 private:
  ProfilerTrace trace_;
  std::vector<std::int64_t> correlations_;  // of `work`
  std::unordered_map<std::int64_t, double> launches_;
};

// Values by the path of their keys: {"traceEvents": [{key: value, "args": {key: value}}]}.
class TraceReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return number(static_cast<double>(value), value); }
  bool number_unsigned(number_unsigned_t value) override {
    return number(static_cast<double>(value), static_cast<std::int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override {
    constexpr double kMost = 9e18;
    return number(value, std::abs(value) < kMost ? static_cast<std::int64_t>(value) : -1);
  }
  bool string(string_t& value) override {
    if (depth_ != kEvent || !in_events_) return true;
    if (key_ == "ph") event_.phase = std::move(value);
    if (key_ == "cat") event_.category = std::move(value);
    if (key_ == "name") event_.name = std::move(value);
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool key(string_t& value) override {
    if (depth_ == kRoot) in_events_ = value == "traceEvents";
    if (depth_ == kEvent) in_args_ = value == "args";
    key_ = std::move(value);
    return true;
  }
  bool start_object(std::size_t) override {
    if (++depth_ == kEvent && in_events_) event_ = {};
    return depth_ <= kMostLevels;
  }
  bool end_object() override {
    if (depth_-- == kEvent && in_events_) builder_.add(event_);
    return true;
  }
  bool start_array(std::size_t) override {
    has_events_ = has_events_ || (depth_ == kRoot && in_events_);
    return ++depth_ <= kMostLevels;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    error_at_ = position;
    return false;
  }

  std::size_t error_at() const { return error_at_; }
  bool has_events() const { return has_events_; }
  ProfilerTrace finish() { return builder_.finish(); }

 private:
  static constexpr int kRoot = 1, kEvent = 3, kArgs = 4, kMostLevels = 64;

  bool number(double value, std::int64_t whole) {
    if (!in_events_) return true;
    if (depth_ == kEvent && key_ == "ts") event_.start = value;
    if (depth_ == kEvent && key_ == "dur") event_.duration = std::max(0.0, value);
    if (depth_ != kArgs || !in_args_) return true;
    if (key_ == "correlation") event_.correlation = whole;
    if (key_ == "device") event_.device = whole;
    if (key_ == "stream") event_.stream = whole;
    return true;
  }

  TraceBuilder builder_;
  RawEvent event_;
  std::string key_;
  int depth_ = 0;
  bool in_events_ = false;
  bool in_args_ = false;
  bool has_events_ = false;
  std::size_t error_at_ = 0;
};

}  // namespace

ProfilerTrace read_profiler_trace(const std::filesystem::path& path) {
  const std::string text = text_of_file(path, kMostText);
  const std::string file = escaped(path.string());
  TraceReader reader;
  if (!nlohmann::json::sax_parse(text, &reader, nlohmann::json::input_format_t::json, /*strict=*/true)) {
    config_error("{}: not valid JSON at byte {}; write the trace again with torch.profiler's export_chrome_trace", file,
                 reader.error_at());
  }
  if (!reader.has_events()) {
    config_error("{}: is no trace: it has no list traceEvents; write one with torch.profiler's export_chrome_trace",
                 file);
  }
  ProfilerTrace trace = reader.finish();
  if (trace.work.empty()) {
    config_error(
        "{}: has no kernel of a device among its events; profile with activities=[ProfilerActivity.CPU, "
        "ProfilerActivity.CUDA]",
        file);
  }
  return trace;
}

}  // namespace loom::io
