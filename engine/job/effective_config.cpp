#include "engine/job/effective_config.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/job/key.h"
#include "engine/train/saved_arguments.h"

namespace loom::job {
namespace {

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// With a point: "1e-05" is a text to readers of YAML 1.1.
std::string real_text(double number) {
  std::string text = fmt::to_string(number);
  const std::size_t exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos) text.insert(exponent, ".0");
  return text;
}

struct YamlText {
  std::string operator()(const None&) const { return "null"; }
  std::string operator()(bool on) const { return on ? "true" : "false"; }
  std::string operator()(std::int64_t number) const { return fmt::to_string(number); }
  std::string operator()(double number) const { return real_text(number); }
  std::string operator()(const std::string& text) const { return quoted(text); }
  std::string operator()(const Numbers& numbers) const { return fmt::format("[{}]", fmt::join(numbers, ", ")); }
  std::string operator()(const Texts& texts) const {
    Texts items;
    for (const std::string& text : texts) items.push_back(quoted(text));
    return fmt::format("[{}]", fmt::join(items, ", "));
  }
};

}  // namespace

std::string effective_config(const Job& job) {
  std::string text, heading;
  for (const Key& key : keys()) {
    if (!key.in_train || is_added(job.written, key.name())) continue;
    if (key.heading != heading) {
      heading = key.heading;
      text += fmt::format("{}# {}\n", text.empty() ? "" : "\n", heading);
    }
    text += fmt::format("{}: {}\n", train::name_in_files(key.name()), std::visit(YamlText{}, key.get(job)));
  }
  if (!job.written.shape_flags.empty()) text += "\n# The model\n";
  for (const auto& [flag, value] : job.written.shape_flags) {
    text += fmt::format("{}: {}\n", train::name_in_files(flag), value.empty() ? "true" : quoted(value));
  }
  if (job.written.added_flags.empty()) return text;
  text += "\n# Flags of this program\n";
  for (const auto& [flag, value] : job.written.added_flags)
    text += fmt::format("{}: {}\n", train::name_in_files(flag), quoted(value));
  return text;
}

}  // namespace loom::job
