// Files of measured kernels (docs/calibration.md).
#include "engine/calibrate/kernel_times.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(kernel_times) {
  using namespace loom;
  return fuzz::answered_or_refused([&] { calibrate::parse_kernel_times(fuzz::text_of(data, size), "times.json"); });
}
