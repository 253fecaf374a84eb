#include "engine/observe/metrics_file.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/mapped_file.h"
#include "engine/log/metrics_keys.h"

namespace loom::observe {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostLineBytes = std::size_t{1} << 20;
constexpr std::size_t kMostSteps = 10'000'000;
constexpr int kDeepest = 64;  // levels

class MetricsReader {
 public:
  explicit MetricsReader(const std::filesystem::path& path) : path_(path) {}

  MetricsFile read(std::string_view text) {
    while (!text.empty()) {
      ++number_;
      const std::size_t length = std::min(text.find('\n'), text.size());
      add(text.substr(0, length));
      text.remove_prefix(std::min(length + 1, text.size()));
    }
    MetricsFile file{.lines = {}, .repeated = repeated_};
    for (auto& [step, line] : steps_) file.lines.push_back(std::move(line));
    return file;
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    config_error("{}:{}: {}", path_.string(), number_, fmt::format(text, std::forward<Args>(args)...));
  }

  void add(std::string_view text) {
    ordered_json line = parsed(text);
    const std::int64_t step = step_of(line);
    for (const char* figure : {log::keys::kLoss, log::keys::kGradNorm, log::keys::kHeldOutLoss})
      check_figure(line, figure);
    const auto known = steps_.find(step);
    if (known == steps_.end()) {
      if (steps_.size() == kMostSteps) refuse("more than {} steps; give a shorter file", kMostSteps);
      steps_.emplace(step, std::move(line));
    } else if (line.contains(log::keys::kLoss) || !known->second.contains(log::keys::kLoss)) {
      known->second = std::move(line);
      ++repeated_;
    } else {
      known->second.update(line);
    }
  }

  ordered_json parsed(std::string_view text) const {
    if (text.size() > kMostLineBytes) refuse("the line has {} bytes; at most {} are read", text.size(), kMostLineBytes);
    const auto check_depth = [this](int depth, ordered_json::parse_event_t, const ordered_json&) {
      if (depth > kDeepest) refuse("is nested deeper than {} levels; give the metrics.jsonl of a run", kDeepest);
      return true;
    };
    try {
      ordered_json line = ordered_json::parse(text, check_depth);
      if (!line.is_object()) refuse("is {}, not the JSON object of a step", shown_text(text));
      return line;
    } catch (const nlohmann::json::parse_error& error) {
      refuse("is no JSON from column {} on; remove the line, or give another file", error.byte);
    } catch (const nlohmann::json::out_of_range&) {
      refuse("has a number that is out of range; remove the line, or give another file");
    }
  }

  std::int64_t step_of(const ordered_json& line) const {
    const auto step = line.find(log::keys::kStep);
    if (step == line.end()) refuse("has no step; give the metrics.jsonl of a run");
    if (!step->is_number_unsigned() || step->get<std::uint64_t>() > INT64_MAX) {
      refuse("step is {}; it is a whole number of at least 0", shown_text(step->dump()));
    }
    return step->get<std::int64_t>();
  }

  void check_figure(const ordered_json& line, const char* key) const {
    const auto value = line.find(key);
    if (value == line.end() || value->is_number() || value->is_null()) return;
    refuse("{} is {}; it is a number or null", key, shown_text(value->dump()));
  }

  const std::filesystem::path& path_;
  std::int64_t number_ = 0;  // of the present line
  std::map<std::int64_t, ordered_json> steps_;
  std::int64_t repeated_ = 0;
};

}  // namespace

MetricsFile read_metrics(const std::filesystem::path& path) {
  const io::MappedFile file(path);
  return MetricsReader(path).read({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
}

}  // namespace loom::observe
