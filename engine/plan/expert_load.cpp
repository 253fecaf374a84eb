#include "engine/plan/expert_load.h"

#include <cmath>
#include <numeric>

#include "engine/config/document.h"
#include "engine/core/error.h"

namespace loom::plan {

std::vector<double> read_expert_load(const std::filesystem::path& file) {
  constexpr std::string_view kAllowed = "numbers of at least 0, one for each expert, as in expert_load: [3, 1, 1, 1]";
  const config::Value document =
      config::parse_yaml(config::read_text(file, "a YAML file with a list of numbers"), file.string());
  const std::vector<config::Value> members = document.items();
  if (members.size() != 1 || members.front().path() != "expert_load" || !members.front().is_list()) {
    config_error("{}: a file of --expert-load has one key; write {}", document.where(), kAllowed);
  }
  std::vector<double> shares;
  for (const config::Value& item : members.front().items()) {
    const auto share = item.is_scalar() ? item.number() : std::nullopt;
    if (!share || !std::isfinite(*share) || *share < 0) {
      config_error("{}: {} is no share of an expert; use {}", item.where(), item.shown(), kAllowed);
    }
    shares.push_back(*share);
  }
  if (std::accumulate(shares.begin(), shares.end(), 0.0) > 0) return shares;
  config_error("{}: no expert gets a token; use {}", document.where(), kAllowed);
}

}  // namespace loom::plan
