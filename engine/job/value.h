// Value: the typed value of a key of the job, whatever its origin (command line, file, checkpoint).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace loom::job {

using Texts = std::vector<std::string>;
using Numbers = std::vector<std::int64_t>;

// None: an optional value that is not set. Choices are texts.
struct None {
  bool operator==(const None&) const = default;
};
using Value = std::variant<None, bool, std::int64_t, double, std::string, Texts, Numbers>;

// The value as text: "none", "true", "0.5", "a b".
std::string text_of(const Value& value);

}  // namespace loom::job
