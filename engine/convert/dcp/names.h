// Names of tensors in a conversion: names of fused weights, and the message about names that do not match.
// Private to engine/convert.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/convert/convert.h"

namespace loom::checkpoint {

// The fused weights of a conversion, as the user named them.
class FusedNames {
 public:
  explicit FusedNames(const std::vector<std::string>& names);

  // Whether consecutive parts of `name` equal one of the names; records which.
  bool has(std::string_view name);
  // ConfigError for a name that has() never matched, with the nearest of `tensors`.
  void refuse_unmet(const std::string& where, const std::vector<std::string>& tensors) const;

 private:
  std::map<std::string, bool, std::less<>> met_;
};

// A missing tensor, under its names on both sides.
struct MissingName {
  std::string hf_name;
  std::string dcp_name;
};

struct NameMismatch {
  std::vector<MissingName> missing;
  std::vector<std::string> unexpected;  // names in the checkpoint
};

// ConfigError that lists both kinds of names, with the nearest existing name for each missing one; no error if both
// are empty. `there`: the names below "model." of the checkpoint; `wanted_by`: the origin of the names.
void refuse_mismatch(const NameMismatch& mismatch, const std::vector<std::string>& there, const std::string& checkpoint,
                     const std::string& wanted_by);

}  // namespace loom::checkpoint
