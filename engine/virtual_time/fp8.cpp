#include "engine/virtual_time/fp8.h"

#include <algorithm>
#include <array>

namespace loom::virtual_time {
namespace {

constexpr std::array<Fp8Recipe, 3> kRecipes{{
    {.name = "tensorwise", .input = 5, .weight = 5, .gradient = 5, .weight_again = 5, .input_again = 5},
    {.name = "rowwise", .input = 5, .weight = 5, .gradient = 5, .weight_again = 5, .input_again = 5},
    {.name = "delayed", .input = 4, .weight = 4, .gradient = 4},
}};

constexpr std::int64_t kAligned = 16;

// The sizes of y = x W, x of m tokens and k inputs, from those of one of its three products.
struct LinearSizes {
  double tokens;
  double inputs;
  double outputs;
};

LinearSizes sizes_of(std::string_view kernel, const device::Cost& cost) {
  const auto m = static_cast<double>(cost.m), n = static_cast<double>(cost.n), k = static_cast<double>(cost.k);
  if (kernel == "linear_dx") return {m, n, k};
  if (kernel == "linear_dw") return {k, n, m};
  return {m, k, n};
}

}  // namespace

std::span<const Fp8Recipe> fp8_recipes() { return kRecipes; }

const Fp8Recipe* find_fp8_recipe(std::string_view name) {
  const auto found = std::ranges::find(kRecipes, name, &Fp8Recipe::name);
  return found == kRecipes.end() ? nullptr : &*found;
}

bool Fp8Products::multiplies(std::string_view kernel, const device::Cost& cost) const {
  if (kernel != "linear" && kernel != "linear_dx" && kernel != "linear_dw") return false;
  if (cost.dtype != DType::kBF16 && cost.dtype != DType::kF16) return false;
  if (cost.m % kAligned != 0 || cost.n % kAligned != 0 || cost.k % kAligned != 0) return false;
  return !wide.contains(static_cast<std::int64_t>(sizes_of(kernel, cost).outputs));
}

double Fp8Products::cast_bytes(std::string_view kernel, const device::Cost& cost) const {
  const auto [tokens, inputs, outputs] = sizes_of(kernel, cost);
  const auto found = casts.find({static_cast<std::int64_t>(outputs), static_cast<std::int64_t>(inputs)});
  const CastShares shares = found == casts.end() ? CastShares{} : found->second;
  const double weight = gathers ? 0 : inputs * outputs;
  if (kernel == "linear_dx") {
    return recipe.gradient * shares.gradient * tokens * outputs + recipe.weight_again * weight;
  }
  if (kernel == "linear_dw") return recipe.input_again * shares.input * tokens * inputs;
  return recipe.input * shares.input * tokens * inputs + recipe.weight * weight;
}

}  // namespace loom::virtual_time
