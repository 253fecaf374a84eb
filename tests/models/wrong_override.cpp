// Must not compile: a strategy of another signature, with `override`.
#include "models/mixin/fsdp2_mixin.h"

namespace {

class WrongOverride : public loom::models::FSDP2Mixin {
 protected:
  void _fully_shard(loom::sharding::FullyShardOptions& fsdp2_kwargs, int depth) override;
};

}  // namespace

int main() { return sizeof(WrongOverride) > 0 ? 0 : 1; }
