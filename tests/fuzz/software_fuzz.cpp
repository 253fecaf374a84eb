// Software (configs/software).
#include "engine/virtual_time/software.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(software) {
  using namespace loom;
  return fuzz::answered_or_refused([&] { virtual_time::parse_software(fuzz::text_of(data, size), "software.yaml"); });
}
