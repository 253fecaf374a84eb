// Refusals: what is wrong with a command line, gathered so that one run names all of it. Private to engine/cli.
//
// Parsed     the first lines: unknown flags, flags that are not taken, values that are not allowed.
// Follow-on  a check that comes later and names a flag of the first lines is left out: it may be wrong only because of
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

  // Whether the parse found nothing.
  bool parsed_well() const { return parsed_ == 0; }
  // ConfigError with all lines; nothing where there is none.
  void raise() const;

 private:
  std::vector<std::string> lines_;
  std::size_t parsed_ = 0;
};

}  // namespace loom::cli
