// Custom operators: operators of shared libraries, called by name.
//
//   custom::load_custom_ops("libscaled_gelu.so");
//   const Tensor y = custom::custom_op("scaled_gelu", {x}, {1.7}).front();
//
// Loaded    for a rank (RankContext slot). A job loads the libraries of --custom-op-library for each of its ranks.
// Recorded  as built-in operators are: on the current rank's device, by Device::launch with the cost that the library
//           states, so that a dry run calls no kernel and a plan prices it; with a node on the tape that saves what
//           the operator's backward reads. In logs its kernels are "custom.NAME" and "custom.NAME_grad".
// Gradient  of an output that no loss leads to: zeros.
// Errors    ConfigError: a library that cannot be loaded (library.h), a name without an operator. ModelError: tensors
//           that do not fit the schema, a text of the library's own, and an operator without backward where a gradient
//           is needed; each names the operator and its library.
// Threads   the rank's host thread.
// Source    mindspore.ops.CustomOpBuilder.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "engine/custom_op/library.h"
#include "engine/tensor/tensor.h"

namespace loom {
class RankContext;
}  // namespace loom

namespace loom::custom {

// For the current rank. Loading a library again changes nothing. Throws ConfigError, with nothing loaded.
void load_custom_ops(const std::filesystem::path& path);
// The same for libraries that are open.
void load_custom_ops(RankContext& context, const Libraries& libraries);

// The outputs of an operator that is loaded for the current rank. `attributes`: its numbers, as many as it has.
std::vector<Tensor> custom_op(std::string_view name, const std::vector<Tensor>& inputs,
                              const std::vector<double>& attributes = {});

}  // namespace loom::custom
