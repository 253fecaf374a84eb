#include "engine/job/effective_config.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/job/key.h"
#include "engine/train/saved_arguments.h"
#include "sharding/config/fsdp2_config.h"
#include "sharding/config/fsdp2_keys.h"

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

// The sharding of another dialect, or of the command line, stands in the text itself, which then names no file of it.
class Sharding {
 public:
  explicit Sharding(const Job& job) : config_(job.parallel.fsdp2_config.get()), job_(job) {}

  // Whether the flag has no line: it names the file, or a key of the sharding has its place.
  bool replaces(const Key& key) const {
    if (config_ == nullptr) return false;
    if (key.name() == "--use-torch-fsdp2" || key.name() == "--fsdp2-config-path") return true;
    return sharding::find_fsdp2_key(train::name_in_files(key.name())) != nullptr && key.get(job_) == key.get(Job{});
  }
  std::string text() const {
    if (config_ == nullptr) return {};
    std::string text = "\n# Sharding\n";
    for (const sharding::Fsdp2Key& key : sharding::fsdp2_keys()) {
      const bool is_default = sharding::same_value(key, *config_, {}) && key.name != "sharding_size";
      if (is_default || is_replaced_by_flag(key.name)) continue;
      text += fmt::format("{}: {}\n", key.name, key.write(*config_));
    }
    return text;
  }

 private:
  bool is_replaced_by_flag(std::string_view name) const {
    return std::ranges::any_of(keys(), [&](const Key& key) {
      return train::name_in_files(key.name()) == name && key.in_train && !replaces(key);
    });
  }

  const sharding::Fsdp2Config* config_;
  const Job& job_;
};

}  // namespace

std::string effective_config(const Job& job) {
  const Sharding sharding(job);
  std::string text, heading;
  for (const Key& key : keys()) {
    if (!key.in_train || is_added(job.written, key.name()) || sharding.replaces(key)) continue;
    if (key.heading != heading) {
      heading = key.heading;
      text += fmt::format("{}# {}\n", text.empty() ? "" : "\n", heading);
    }
    text += fmt::format("{}: {}\n", train::name_in_files(key.name()), std::visit(YamlText{}, key.get(job)));
  }
  text += sharding.text();
  if (job.written.added_flags.empty()) return text;
  text += "\n# Flags of this program\n";
  for (const auto& [flag, value] : job.written.added_flags)
    text += fmt::format("{}: {}\n", train::name_in_files(flag), quoted(value));
  return text;
}

}  // namespace loom::job
