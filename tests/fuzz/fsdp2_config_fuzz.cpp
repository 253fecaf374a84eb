// fsdp2_config.yaml.
#include "sharding/config/fsdp2_config.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(fsdp2_config) {
  using namespace loom;
  return fuzz::answered_or_refused([&] {
    const auto config = sharding::parse_fsdp2_config(fuzz::text_of(data, size), "fsdp2_config.yaml");
    sharding::validate_against_world(config, 8);
  });
}
