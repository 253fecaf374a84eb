// The modules of a model that patterns select. Private to sharding.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/nn/module.h"
#include "sharding/config/module_pattern.h"
#include "sharding/fsdp/model_tree.h"

namespace loom::sharding {

using WrittenAs = std::map<std::string, std::string>;  // by real path; paths written as real ones have no entry

// " (written 'text_decoder.layers.0')", or nothing if the real path was written.
std::string alias_note(const std::string& path, const WrittenAs& written_as);

// The path of the module that holds it; "" for the root's children.
std::string parent_of(const std::string& path);
// Whether `path` is below the module at `above`.
bool is_below(const std::string& path, const std::string& above);

// The paths in the order of the patterns, each module once. ConfigError for a module without a forward. Warnings and
// names by alias are appended. Modules of other stages of a pipeline (nn::Absent) are left out.
std::vector<std::string> modules_in_order(nn::Module& model, std::span<const ModulePattern> patterns,
                                          const ModelTree& tree, std::vector<std::string>& warnings,
                                          WrittenAs& written_as);
// The same in pre-order of registration.
std::vector<std::string> listed_modules(nn::Module& model, std::span<const ModulePattern> patterns,
                                        const ModelTree& tree, std::vector<std::string>& warnings,
                                        WrittenAs& written_as);

}  // namespace loom::sharding
