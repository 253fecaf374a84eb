// FP8 in a plan: linear layers multiply in 8 bits. It is priced, not computed: tensors and memory stay as they are.
//
//   products  as in 16 bits, but fp8_flops_per_s * fp8_efficiency takes the place of peak * efficiency
//   casts     bytes that an element of an operand moves through memory, beside the product that needs it:
//
//             recipe      x, W in y = x W   dy, W in dx   x in dW
//             tensorwise  5, 5              5, 5          5        maximum (reads 2), cast (reads 2, writes 1)
//             rowwise     5, 5              5, 5          5        the same, by rows
//             delayed     4, 4              4, 0          0        cast (reads 2, writes 1), transposed copy (1)
//
//             Layers that read the same tensor share its casts (one graph of torch.compile, or one fused layer).
//   gathers   with gathered weights W is cast before its gather, as a shard (not counted): W costs nothing in the
//             table, and its gather moves half the bytes. Tensorwise, ranks that share matrices under sequence
//             parallelism cast their part of x and of dy before they gather it: 1/t of the casts, and half the bytes.
//
// Layers    all linear ones but the output layer (torchtitan's filter_fqns), and only where m, n and k divide by 16.
// Source    torchao's Float8Linear; Transformer Engine's DelayedScaling.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/device/cost.h"

namespace loom::virtual_time {

struct Fp8Recipe {
  std::string_view name;
  // Bytes an element.
  double input = 0;
  double weight = 0;
  double gradient = 0;
  double weight_again = 0;
  double input_again = 0;
};

std::span<const Fp8Recipe> fp8_recipes();
// Null for an unknown name.
const Fp8Recipe* find_fp8_recipe(std::string_view name);

// Of the elements of a layer's operands, as many as are cast for it: the mean of all layers of its size.
struct CastShares {
  double input = 1;
  double gradient = 1;
};

struct Fp8Products {
  Fp8Recipe recipe;
  bool gathers = false;  // weights are gathered in FP8
  // Outputs of layers that stay in 16 bits: those of the output layer, on all ranks and on one.
  std::set<std::int64_t> wide = {};
  std::map<std::pair<std::int64_t, std::int64_t>, CastShares> casts = {};  // by outputs and inputs; 1 for others
  // Bytes that a gather moves, by its subject in the recording, against those in 16 bits.
  std::map<std::string, double, std::less<>> gathered = {};

  bool multiplies(std::string_view kernel, const device::Cost& cost) const;
  // Of the casts beside a product.
  double cast_bytes(std::string_view kernel, const device::Cost& cost) const;
};

}  // namespace loom::virtual_time
