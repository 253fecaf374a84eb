// State dict: what of a module is saved, by path, as this rank holds it.
//
// Entries   every parameter once, under its first path, with the other paths it is tied under; then every persistent
//           buffer (Module::register_buffer), whole. In the order of the tree.
// Values    are the module's own tensors, not copies: a step changes them, and so does writing into them. Where a
//           wrapper moves a shard's bytes (to memory that ranks share) they follow. host_copies() gives values that
//           stay.
// Sharded   a parameter's entry is this rank's box of it. ConfigError while a group is gathered: then the tensors are
//           copies that go away (sharding/full_parameters.h reshards first).
// Threads   the rank's host thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/nn/module.h"

namespace loom::nn {

struct StateEntry {
  enum class Kind : std::uint8_t { kParameter, kBuffer };

  std::string path;
  std::vector<std::string> tied_paths;  // further paths of the same parameter
  LocalTensor local;
  Kind kind = Kind::kParameter;
};

using StateDict = std::vector<StateEntry>;

StateDict state_dict(const Module& module);

// The persistent buffers of the module and of those below it, by path.
std::vector<std::pair<std::string, Tensor>> persistent_buffers(const Module& module);

// Writes every entry into the module's tensors, converted to their dtypes. An entry may hold more than this rank's box
// (the whole parameter, a larger box of another number of ranks); it is found under any path of a tie.
//
// Throws   ConfigError, with nothing written: an entry of `module` is missing or has another whole shape, `state` has
//          one that `module` has not, or does not contain this rank's box; a tensor of `module` has no bytes yet.
void load_state_dict(Module& module, const StateDict& state);

// Copies in ordinary host memory, with the boxes of the originals.
Tensor host_copy(const Tensor& tensor);
StateDict host_copies(const StateDict& state);

}  // namespace loom::nn
