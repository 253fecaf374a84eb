#include "models/lora/lora_targets.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <set>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/regex/regex.h"
#include "models/lora/lora_linear.h"

namespace loom::models {
namespace {

using Paths = std::vector<std::string>;

constexpr std::string_view kAllLinear = "all-linear";
constexpr std::string_view kStar = "{*}";

std::string last_part(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return std::string(dot == std::string_view::npos ? path : path.substr(dot + 1));
}

bool is_or_ends_with(std::string_view path, std::string_view entry) {
  if (path == entry) return true;
  return path.size() > entry.size() && path.ends_with(entry) && path[path.size() - entry.size() - 1] == '.';
}

bool is_below(std::string_view path, std::string_view above) {
  return path == above || (path.starts_with(above) && path[above.size()] == '.');
}

// Whether `entry` is `path`, each {*} of it standing for any characters.
bool is_starred(std::string_view path, std::string_view entry) {
  std::size_t star = entry.find(kStar);
  if (!path.starts_with(entry.substr(0, star))) return false;
  path.remove_prefix(star);
  for (entry.remove_prefix(star + kStar.size()); (star = entry.find(kStar)) != std::string_view::npos;
       entry.remove_prefix(star + kStar.size())) {
    const std::string_view part = entry.substr(0, star);
    const std::size_t at = path.find(part);
    if (at == std::string_view::npos) return false;
    path.remove_prefix(at + part.size());
  }
  return path.ends_with(entry);
}

// Megatron's names, and the families' names in Hugging Face: the first list whose names the model has is used.
struct MegatronName {
  std::string_view name;
  std::array<std::array<std::string_view, 3>, 2> others;
};
constexpr MegatronName kMegatronNames[] = {
    {"linear_qkv", {{{"q_proj", "k_proj", "v_proj"}, {"c_attn"}}}},
    {"linear_proj", {{{"o_proj"}, {"attn.c_proj"}}}},
    {"linear_fc1", {{{"gate_proj", "up_proj"}, {"c_fc"}}}},
    {"linear_fc2", {{{"down_proj"}, {"mlp.c_proj"}}}},
};

class Targets {
 public:
  Targets(const nn::Module& model, const Paths& saved, LoraOptions& options, Paths& notes)
      : options_(options), notes_(notes) {
    for (const auto& [path, module] : model.named_modules()) {
      const bool left_out = path.empty() || std::ranges::any_of(saved, [&, path = path](const std::string& above) {
                              return is_below(path, above);
                            });
      if (!left_out) modules_.emplace_back(path, module);
    }
  }

  Paths paths() {
    read_megatron_names();
    std::set<std::string> found;
    if (options_.target_regex) {
      add_matches(*options_.target_regex, found);
    } else {
      for (const std::string& entry : Paths(options_.target_modules)) add_entry(entry, found);
    }
    if (found.empty()) refuse_none();
    Paths in_order;
    for (const auto& [path, module] : modules_) {
      if (found.contains(path) && is_of_layers(path)) in_order.push_back(path);
    }
    if (in_order.empty()) {
      config_error("{}: layers_to_transform [{}] leaves none of the {} modules that target_modules mean",
                   options_.where, fmt::join(options_.layers_to_transform, ", "), found.size());
    }
    return in_order;
  }

 private:
  bool has(std::string_view entry) const {
    return std::ranges::any_of(modules_, [&](const auto& known) { return is_or_ends_with(known.first, entry); });
  }

  void read_megatron_names() {
    Paths names;
    for (const std::string& entry : options_.target_modules) {
      const auto known = std::ranges::find(kMegatronNames, entry, &MegatronName::name);
      if (known == std::end(kMegatronNames) || has(entry)) {
        names.push_back(entry);
        continue;
      }
      const auto& others = has(known->others[0][0]) ? known->others[0] : known->others[1];
      Paths meant;
      for (const std::string_view other : others) {
        if (!other.empty()) meant.emplace_back(other);
      }
      notes_.push_back(fmt::format("{} of --lora-target-modules means {} here", entry, fmt::join(meant, ", ")));
      names.insert(names.end(), meant.begin(), meant.end());
    }
    options_.target_modules = std::move(names);
  }

  void add_entry(const std::string& entry, std::set<std::string>& found) {
    if (entry == kAllLinear) return add_all_linear(found);
    if (entry.find(kStar) != std::string::npos) return add_starred(entry, found);
    bool any = false;
    for (const auto& [path, module] : modules_) {
      if (!is_or_ends_with(path, entry)) continue;
      any = true;
      check_linear(entry, path, *module);
      found.insert(path);
    }
    if (!any && !options_.load) refuse_entry(entry);
  }

  // peft leaves out what get_output_embeddings() gives.
  void add_all_linear(std::set<std::string>& found) const {
    for (const auto& [path, module] : modules_) {
      const std::string name = last_part(path);
      if (name == "lm_head" || name == "output_layer" || name == "score") continue;
      if (LoraLinear::can_adapt(*module)) found.insert(path);
    }
  }

  void add_starred(const std::string& entry, std::set<std::string>& found) {
    std::set<std::string> matched;
    for (const auto& [path, module] : modules_) {
      if (!is_starred(path, entry)) continue;
      check_linear(entry, path, *module);
      matched.insert(path);
    }
    if (matched.empty()) refuse_entry(entry);
    // peft has no such entries: whole paths have the same meaning.
    auto& names = options_.target_modules;
    names.erase(std::ranges::find(names, entry));
    names.insert(names.end(), matched.begin(), matched.end());
    notes_.push_back(fmt::format("{} of the target modules means {} modules", shown_text(entry), matched.size()));
    found.merge(matched);
  }

  void add_matches(const std::string& pattern, std::set<std::string>& found) const {
    const regex::FullMatch regex(pattern, options_.where + ": the regex of the target modules");
    regex::RegexScratch scratch;
    for (const auto& [path, module] : modules_) {
      if (!regex.matches(path, scratch)) continue;
      check_linear(pattern, path, *module);
      found.insert(path);
    }
  }

  void check_linear(const std::string& entry, const std::string& path, const nn::Module& module) const {
    if (LoraLinear::can_adapt(module)) return;
    config_error("{}: the target module {} means '{}', which is a {}; adapters apply to linear modules: {}",
                 options_.where, shown_text(entry), path, module.type_name(), fmt::join(linear_names(), ", "));
  }

  Paths linear_names() const {
    Paths names;
    for (const auto& [path, module] : modules_) {
      const std::string name = last_part(path);
      if (LoraLinear::can_adapt(*module) && std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
    return names;
  }

  [[noreturn]] void refuse_entry(const std::string& entry) const {
    const Paths names = linear_names();
    const auto nearest = nearest_spelling(entry, names);
    config_error("{}: the target module {} matches no module; the model's linear modules are {}{}", options_.where,
                 shown_text(entry), fmt::join(names, ", "), nearest ? fmt::format("; did you mean {}?", *nearest) : "");
  }

  [[noreturn]] void refuse_none() const {
    config_error("{}: the target modules {} match no module; the model's linear modules are {}", options_.where,
                 options_.target_regex ? shown_text(*options_.target_regex)
                                       : fmt::format("{}", fmt::join(options_.target_modules, ", ")),
                 fmt::join(linear_names(), ", "));
  }

  // The last number in the path that follows the name of a list.
  bool is_of_layers(std::string_view path) const {
    if (options_.layers_to_transform.empty()) return true;
    std::int64_t layer = -1;
    while (!path.empty()) {
      const std::size_t dot = path.find('.');
      const std::string_view part = path.substr(0, dot);
      layer = parse_number<std::int64_t>(part).value_or(layer);
      path = dot == std::string_view::npos ? std::string_view{} : path.substr(dot + 1);
    }
    return std::ranges::find(options_.layers_to_transform, layer) != options_.layers_to_transform.end();
  }

  LoraOptions& options_;
  Paths& notes_;
  std::vector<std::pair<std::string, const nn::Module*>> modules_;
};

}  // namespace

std::vector<std::string> lora_modules_to_save(const nn::Module& model, const LoraOptions& options) {
  Paths saved;
  const auto modules = model.named_modules();
  for (const std::string& entry : options.modules_to_save) {
    const std::size_t before = saved.size();
    for (const auto& [path, module] : modules) {
      if (!path.empty() && is_or_ends_with(path, entry)) saved.push_back(path);
    }
    if (saved.size() > before) continue;
    Paths names;
    for (const auto& [path, module] : modules) names.push_back(path);
    const auto nearest = nearest_spelling(entry, names);
    config_error("{}: the module to save {} matches no module{}", options.where, shown_text(entry),
                 nearest ? fmt::format("; did you mean {}?", *nearest) : "");
  }
  return saved;
}

std::vector<std::string> lora_targets(const nn::Module& model, const std::vector<std::string>& saved,
                                      LoraOptions& options, std::vector<std::string>& notes) {
  return Targets(model, saved, options, notes).paths();
}

}  // namespace loom::models
