#include "models/mixin/multimodal_module.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/spelling.h"

namespace loom::models {
namespace {

std::vector<std::string> names_of(const std::vector<Tower>& towers) {
  std::vector<std::string> names;
  for (const Tower& tower : towers) names.push_back(tower.name);
  return names;
}

}  // namespace

const Tower& MultiModalModule::tower(std::string_view name) const {
  for (const Tower& tower : towers_) {
    if (tower.name == name) return tower;
  }
  const std::vector<std::string> names = names_of(towers_);
  const auto near = nearest_spelling(name, names);
  config_error("{} has no tower '{}'; it has {}{}", type_name(), name, fmt::join(names, ", "),
               near ? fmt::format("; did you mean '{}'?", *near) : "");
}

void MultiModalModule::register_tower(Tower tower) {
  const std::vector<std::string> names = names_of(towers_);
  if (std::find(names.begin(), names.end(), tower.name) != names.end()) {
    config_error("{} registers two towers named '{}'; give each a name of its own", type_name(), tower.name);
  }
  for (const std::string& path : tower.paths) {
    if (find(path) != nullptr) continue;
    config_error("{} registers tower '{}' at '{}', where no module is; register the module first", type_name(),
                 tower.name, path);
  }
  towers_.push_back(std::move(tower));
}

void MultiModalModule::freeze_tower(std::string_view name) { freeze_modules(*this, tower(name).paths); }

void MultiModalModule::unfreeze_tower(std::string_view name) {
  for (const std::string& path : tower(name).paths) {
    for (const Tensor& parameter : find(path)->parameters()) parameter.set_requires_grad(true);
  }
}

bool MultiModalModule::is_frozen(std::string_view name) {
  for (const std::string& path : tower(name).paths) {
    for (const Tensor& parameter : find(path)->parameters()) {
      if (parameter.requires_grad()) return false;
    }
  }
  return true;
}

namespace {

// The advice if an argument that a flag gives is missing.
std::string_view flag_of(std::string_view argument) {
  if (argument == "position_ids") return "; remove --reset-position-ids or --neat-pack";
  if (argument == "actual_seq_len") return "; remove --reset-attention-mask or --neat-pack";
  return argument == "targets" ? "; remove --loss-chunk-size" : "";
}

}  // namespace

nn::Value MultiModalModule::forward_cached(const nn::Args&) {
  config_error("{} was called with past_key_values, which it does not take; call it with all tokens", type_name());
}

std::vector<std::string_view> MultiModalModule::input_names() const { return {"pixel_values"}; }

nn::Value MultiModalModule::forward_inputs(const nn::Args& args) {
  const nn::Value& pixels = args.find("pixel_values");
  return forward_multimodal(args.tensor(0), pixels.is_none() ? nullptr : &pixels.tensor());
}

nn::Value MultiModalModule::forward(const nn::Args& args) {
  if (!args.find("past_key_values").is_none()) return forward_cached(args);
  const bool named = !args.find("pixel_values").is_none();
  const std::size_t given = args.positional.size() + (named ? 1 : 0);
  if (args.positional.empty() || given > 2) {
    config_error("{} was called with {} positional arguments{}; give input_ids and, for images, pixel_values",
                 type_name(), args.positional.size(), named ? " and pixel_values" : "");
  }
  const std::vector<std::string_view> names = input_names();
  for (const auto& [name, value] : args.named) {
    if (std::ranges::find(names, name) != names.end()) continue;
    config_error("{} was called with {}, which it does not take; of named arguments it takes {}{}", type_name(), name,
                 names.size() == 1 ? "pixel_values alone" : fmt::to_string(fmt::join(names, ", ")), flag_of(name));
  }
  nn::Args inputs{{args.positional.front()}, args.named};
  if (args.positional.size() == 2) inputs.named.emplace_back("pixel_values", args.positional[1]);
  return forward_inputs(inputs);
}

}  // namespace loom::models
