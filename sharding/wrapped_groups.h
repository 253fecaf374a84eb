// The groups that sub_modules_to_wrap defines in a model. Private to sharding.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/module.h"
#include "sharding/config/wrap_entry.h"
#include "sharding/fsdp/model_tree.h"
#include "sharding/parallelize.h"
#include "sharding/policy.h"

namespace loom::sharding {

// The groups that the entries define, in pre-order of the first module of each. The last of the entries without a
// list that select a module applies. ConfigError, naming both places, for a module in two groups. Warnings and names
// by alias are appended.
std::vector<WrappedGroup> groups_of(nn::Module& model, std::span<const WrapEntry> entries, const ModelTree& tree,
                                    std::vector<std::string>& warnings, std::map<std::string, std::string>& written_as);

// The groups, and one more that stays gathered: of the norms and routers below their modules (align_fsdp_param_groups).
// A warning where there are none.
std::vector<WrappedGroup> with_norms_apart(nn::Module& model, std::vector<WrappedGroup> groups,
                                           std::vector<std::string>& warnings);

// The groups with those of expert modules among them, in pre-order of registration; a group of one such module alone
// becomes that of its experts. ConfigError for one in a group of several modules.
std::vector<WrappedGroup> with_experts(nn::Module& model, std::vector<WrappedGroup> groups,
                                       const std::vector<std::string>& expert_paths);

// Gives each group the innermost of `hook_modules` (paths) that holds all of its modules.
void set_hook_modules(std::span<WrappedGroup> groups, std::span<const std::string> hook_modules);

// ConfigError, beginning with `where`, for a parameter that would be in two groups.
void check_ties(nn::Module& model, std::string_view where, std::span<const WrappedGroup> groups);

// Wraps the groups bottom-up, whatever their order: modules below any module of a group come before the group.
void wrap_groups(nn::Module& model, std::span<const WrappedGroup> groups, const FullyShardOptions& options);

}  // namespace loom::sharding
