#include "models/decoder/expert_weights.h"

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

}  // namespace loom::models
