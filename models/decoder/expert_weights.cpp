#include "models/decoder/expert_weights.h"

#include <array>
#include <fmt/core.h>

namespace loom::models {
namespace {

constexpr std::string_view kGateUp = ".gate_up_proj";
constexpr std::string_view kDown = ".down_proj";

// "model.layers.0.mlp.experts" of its parameter `ending`; empty when `path` is another's.
std::string_view experts_path(std::string_view path, std::string_view ending) {
  if (!path.ends_with(ending)) return {};
  path.remove_suffix(ending.size());
  return path == "experts" || path.ends_with(".experts") ? path : std::string_view();
}

// The names that the two families have for one thing.
struct Spelled {
  std::string_view qwen;
  std::string_view mixtral;
};
constexpr Spelled kBlock{"mlp", "block_sparse_moe"};
constexpr std::array<Spelled, 3> kProjections{{{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}}};

// `name` with its block and projection called as `to` says; itself where it is not of a block of experts.
std::string respelled(std::string_view name, std::string_view Spelled::*from, std::string_view Spelled::*to) {
  const std::string block = fmt::format("{}.", kBlock.*from);
  const std::size_t at = name.find("." + block);
  if (at == std::string_view::npos) return std::string(name);
  const std::string_view before = name.substr(0, at + 1), inside = name.substr(at + 1 + block.size());
  if (inside == "gate.weight") return fmt::format("{}{}.{}", before, kBlock.*to, inside);
  if (!inside.starts_with("experts.")) return std::string(name);
  for (const Spelled& projection : kProjections) {
    const std::string ending = fmt::format(".{}.weight", projection.*from);
    if (!inside.ends_with(ending)) continue;
    return fmt::format("{}{}.{}.{}.weight", before, kBlock.*to, inside.substr(0, inside.size() - ending.size()),
                       projection.*to);
  }
  return std::string(name);
}

}  // namespace

std::vector<ExpertPart> expert_parts(std::string_view path, const Shape& shape) {
  if (shape.ndim() != 3) return {};
  std::vector<ExpertPart> parts;
  const auto add = [&](std::string_view experts, std::int64_t expert, std::string_view projection, std::int64_t row,
                       std::int64_t rows) {
    parts.push_back({fmt::format("{}.{}.{}.weight", experts, expert, projection), expert, row, {rows, shape[2]}});
  };
  const std::string_view gate_up = experts_path(path, kGateUp), down = experts_path(path, kDown);
  for (std::int64_t expert = 0; expert < shape[0]; ++expert) {
    if (!gate_up.empty()) {
      add(gate_up, expert, "gate_proj", 0, shape[1] / 2);
      add(gate_up, expert, "up_proj", shape[1] / 2, shape[1] / 2);
    } else if (!down.empty()) {
      add(down, expert, "down_proj", 0, shape[1]);
    }
  }
  return parts;
}

std::string mixtral_spelling(std::string_view name) { return respelled(name, &Spelled::qwen, &Spelled::mixtral); }
std::string qwen_spelling(std::string_view name) { return respelled(name, &Spelled::mixtral, &Spelled::qwen); }

}  // namespace loom::models
