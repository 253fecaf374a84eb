// Rows of flags that set no value here: users bring them in launch scripts of Megatron, torchrun and msrun. They are
// taken where nothing depends on them, and refused with what to write where something would.
//
// Source    MindSpeed-MM, patchs/validate_args_patch.py, for those that do not go with FSDP2; the flags of its launch
//           scripts.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/job/key.h"

namespace loom::job {

inline constexpr std::string_view kAnyValue = "*";

// --- rows

// Taken in silence.
constexpr Key taken(std::string_view flag, Kind kind) {
  return {.flags = flag, .kind = kind, .outcome = Outcome::kSilent, .accepted = kAnyValue};
}
// Taken, and named in one line.
constexpr Key without_effect(std::string_view flag, Kind kind) {
  return {.flags = flag, .kind = kind, .outcome = Outcome::kNamed, .accepted = kAnyValue};
}
// Taken in silence with these values ("1|0"); another one is refused.
constexpr Key only(std::string_view flag, std::string_view accepted, std::string_view advice) {
  return {.flags = flag, .kind = Kind::kText, .outcome = Outcome::kSilent, .accepted = accepted, .advice = advice};
}
// Always refused.
constexpr Key refused(std::string_view flag, Kind kind, std::string_view advice) {
  return {.flags = flag, .kind = kind, .outcome = Outcome::kSilent, .advice = advice};
}

// --- what a command line gave of them

// Whether the value, empty for a toggle, changes nothing here.
bool accepts(const Key& key, std::string_view value);
// What to write in its place: "--nnodes is 2; ranks on several machines are ...".
std::string refusal(const Key& key, const std::string& value);
// "--num-workers 4".
std::string as_written(const Key& key, const std::string& value);

// The value of a foreign flag that was written; empty for a toggle.
std::optional<std::string> foreign_value(const WrittenFlags& written, std::string_view flag);
// What to say of those that are refused, in the table's order.
std::vector<std::string> refused_foreign(const WrittenFlags& written);
// Fills in `without_effect` from `foreign`.
void settle_foreign(WrittenFlags& written);

}  // namespace loom::job
