// Refusals: the errors of a command line, collected so that one run reports all of them. Private to engine/cli.
//
// Parsed     the first lines: unknown flags, unsupported flags, invalid values.
// Follow-on  a later check that names a flag of the first lines is left out: its error may only follow from
//            them ("no model is given" beside a misspelt --model-config).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/error.h"

namespace loom::cli {

class Refusals {
 public:
  Refusals() = default;
  explicit Refusals(std::vector<std::string> parsed) : lines_(std::move(parsed)), parsed_(lines_.size()) {}

  void add(std::string line);
  // Adds the ConfigError of a check.
  template <class Check>
  void of(const Check& check) {
    try {
      check();
    } catch (const ConfigError& error) {
      add(error.what());
    }
  }

  // Whether the parse found no errors.
  bool parsed_well() const { return parsed_ == 0; }
  // ConfigError with all lines; nothing if there are none.
  void raise() const;

 private:
  std::vector<std::string> lines_;
  std::size_t parsed_ = 0;
};

}  // namespace loom::cli
