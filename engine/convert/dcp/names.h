// Names of tensors in a conversion: those that fused weights have, and the message about those that do not fit.
// Private to engine/convert.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/convert/convert.h"

namespace loom::checkpoint {

// The fused weights of a conversion, as a person named them.
class FusedNames {
 public:
  explicit FusedNames(const std::vector<std::string>& names);

  // Whether the parts of `name` have one of the names in a row; notes which.
  bool has(std::string_view name);
  // ConfigError for a name that has() never met, with the nearest of `tensors`.
  void refuse_unmet(const std::string& where, const std::vector<std::string>& tensors) const;

 private:
  std::map<std::string, bool, std::less<>> met_;
};

// A tensor that should be there, under the names it has on both sides.
struct MissingName {
  std::string hf_name;
  std::string dcp_name;
};

struct NameMismatch {
  std::vector<MissingName> missing;
  std::vector<std::string> unexpected;  // names in the checkpoint
};

// ConfigError that lists both kinds of names, with the nearest one there is for each that is missing, unless there are
// none. `there`: the names below "model." of the checkpoint; `wanted_by` says where the names come from.
void refuse_mismatch(const NameMismatch& mismatch, const std::vector<std::string>& there, const std::string& checkpoint,
                     const std::string& wanted_by);

}  // namespace loom::checkpoint
