// A strategy of another signature, without `override`: it hides the mixin's and would never be called. The test looks
// for the compiler's warning.
#include "models/mixin/fsdp2_mixin.h"

namespace {

class HidesTheStrategy : public loom::models::FSDP2Mixin {
 protected:
  void _fully_shard(loom::sharding::FullyShardOptions& fsdp2_kwargs, int depth);
};

}  // namespace

int main() { return sizeof(HidesTheStrategy) > 0 ? 0 : 1; }
