// The modules whose forward is running on this rank, for messages and for checks of a model's forward.
//
// Threads  the rank's host thread.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "engine/nn/module.h"

namespace loom::nn {

// The innermost module whose call is running, as "'layers.0' (MyBlock)": its path from the outermost one. None outside
// of every call, and without a current rank.
std::optional<std::string> running_module();

// Where the running calls are, as users read it: "Decoder > model.layers.0 (DecoderLayer) > model.layers.0.mlp
// (SwiGlu)", outermost first; "" outside of every call. Module paths are looked up once: the tree does not change while
// this lives.
class CallSites {
 public:
  std::string running();

 private:
  const std::string& name_of(Module& root, const Module& module);

  std::unordered_map<const Module*, std::string> names_;
};

// For the time of one call.
class RunningCall {
 public:
  explicit RunningCall(Module& module);
  ~RunningCall();
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;

 private:
  std::vector<Module*>* const stack_;  // null without a rank
};

// Before a module's own forward. Throws ConfigError, naming module and parameter, when one of its parameters has no
// values.
void check_callable(Module& module);

// Before a module registers a parameter. Throws ConfigError, naming the module whose forward is running, when one is:
// modules are made in constructors.
void check_registration(std::string_view parameter);

}  // namespace loom::nn
