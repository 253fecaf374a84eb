// Loader: puts what a checkpoint holds into a module and an optimizer, whatever mesh it was saved under.
//
// Reading   each rank reads the boxes it has, and what their checksums need (io/dcp_folder.h).
// Strict    every tensor of the module and every state of the optimizer has to be there, with the same whole shape,
//           and the checkpoint may hold none beside them. All names that do not fit are in one error.
// Dtypes    a tensor of another dtype is converted.
// Threads   the rank's host thread. Not collective.
// Errors    ConfigError with the checkpoint's folder and the names; io::FileDamage where a file of it is not what it
//           should be: then the module may hold some of it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/formats/dcp/dcp_folder.h"
#include "engine/nn/optim/optimizer.h"
#include "engine/nn/state_dict.h"

namespace loom::checkpoint {

// How names that do not fit are taken (Megatron's --dist-ckpt-strictness). A tensor that is missing keeps its value.
enum class Strictness : std::uint8_t {
  kRaiseAll,            // an error
  kAssumeOkUnexpected,  // what the checkpoint has beside is left alone
  kLogAll,              // a warning
};

// Into the module's own tensors; `key` as in add_module(), or none at all where the checkpoint has the module's names.
void load_module(const io::DcpFolder& checkpoint, const nn::StateDict& module, Strictness strictness,
                 const std::string& key = "model");

// The state of every parameter of the optimizer, with its groups' options left out: for Optimizer::load_state_dict().
nn::OptimizerState read_optimizer(const io::DcpFolder& checkpoint, const nn::Optimizer& optimizer,
                                  Strictness strictness);

// Whether an optimizer was saved, be it before its first update, when no parameter has state.
bool has_optimizer(const io::DcpFolder& checkpoint);

// None where there is no such value.
std::optional<io::PlainValue> read_value(const io::DcpFolder& checkpoint, std::string_view name);
// All values whose names begin with `prefix`, without it, in the order of the checkpoint.
std::vector<std::pair<std::string, io::PlainValue>> read_values(const io::DcpFolder& checkpoint,
                                                                std::string_view prefix);

// Reads the box that `target` is; converts.
void read_tensor(const io::DcpFolder& checkpoint, const io::DcpItem& item, const nn::LocalTensor& target);

}  // namespace loom::checkpoint
