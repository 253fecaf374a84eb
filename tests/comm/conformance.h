// What every ProcessGroup promises, as cases that any world can run: threads (collectives_test.cpp) and processes
// (process_conformance.cpp), on one host or on several. A case runs on every rank and throws BrokenPromise where a
// result is wrong.
#pragma once

#include <stdexcept>
#include <vector>

#include "engine/comm/process_group.h"

namespace loom::comm::conformance {

class BrokenPromise : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Case {
  const char* name;
  void (*run)(World& world);
  bool on_one_machine = false;  // promised only there
};

const std::vector<Case>& cases();
// How ranks come into groups; nothing moves, so that a simulated world keeps them too (simulated_test.cpp).
const std::vector<Case>& grouping_cases();

}  // namespace loom::comm::conformance
