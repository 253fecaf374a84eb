// Loader: loads a checkpoint into a module and an optimizer, whatever mesh it was saved under.
//
// Reading   each rank reads its own boxes, and the bytes that their checksums cover (io/dcp_folder.h).
// Strict    the checkpoint must hold every tensor of the module and every state of the optimizer, with the same whole
//           shape, and no others. One error lists all names that do not match.
// Dtypes    a tensor of another dtype is converted.
// Threads   the rank's host thread. Not collective.
// Errors    ConfigError with the checkpoint's folder and the names; io::FileDamage for a damaged
//           file: then the module may be partly loaded.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/formats/dcp/dcp_folder.h"
#include "engine/nn/optim/optimizer.h"
#include "engine/nn/state_dict.h"

namespace loom::checkpoint {

// The treatment of names that do not match (Megatron's --dist-ckpt-strictness). A missing tensor keeps its value.
enum class Strictness : std::uint8_t {
  kRaiseAll,            // an error
  kAssumeOkUnexpected,  // other names in the checkpoint are ignored
  kLogAll,              // a warning
};

// Paths of parameters and buffers that other ranks load: of other stages of a pipeline. They are not unknown.
using Elsewhere = std::unordered_set<std::string>;

// Loads into the module's own tensors; `key` as in add_module(), or empty if the checkpoint has the module's names.
void load_module(const io::DcpFolder& checkpoint, const nn::StateDict& module, Strictness strictness,
                 const std::string& key = "model", const Elsewhere& elsewhere = {});

// The state of every parameter of the optimizer, without its groups' options: for Optimizer::load_state_dict().
nn::OptimizerState read_optimizer(const io::DcpFolder& checkpoint, const nn::Optimizer& optimizer,
                                  Strictness strictness, const Elsewhere& elsewhere = {});

// Whether an optimizer was saved, even before its first update, when no parameter has state.
bool has_optimizer(const io::DcpFolder& checkpoint);

// None if there is no such value.
std::optional<io::PlainValue> read_value(const io::DcpFolder& checkpoint, std::string_view name);
// All values whose names begin with `prefix`, without it, in the order of the checkpoint.
std::vector<std::pair<std::string, io::PlainValue>> read_values(const io::DcpFolder& checkpoint,
                                                                std::string_view prefix);

// Reads the box of `target`, and converts it.
void read_tensor(const io::DcpFolder& checkpoint, const io::DcpItem& item, const nn::LocalTensor& target);

}  // namespace loom::checkpoint
