#include "engine/cli/words/host_optimizer_checks.h"

#include "engine/cli/words/distributed_optimizer.h"
#include "engine/cli/words/schedule_rules.h"

namespace loom::cli {

void check_host_optimizer(const Command& app, const job::Job& a) {
  using Kind = train::OptimizerKind;
  if (!a.optimizer.swap_optimizer) return;
  check_limit("--swap-optimizer-times", a.optimizer.swap_optimizer_times, 4096);
  if (a.optimizer.kind != Kind::kAdam) {
    config_error("--swap-optimizer moves the state of --optimizer adam, and --optimizer is {}; {}",
                 app.text_of("--optimizer"),
                 a.optimizer.kind == Kind::kAdamSwap ? "keep one of the two"
                                                     : "use --optimizer adam, or remove --swap-optimizer");
  }
  if (!has_distributed_optimizer(a) && !a.parallel.use_torch_fsdp2) {
    config_error(
        "--swap-optimizer is given without --use-torch-fsdp2 and without --use-distributed-optimizer; add "
        "--use-torch-fsdp2 and a file, which shards the optimizer state, or --use-distributed-optimizer");
  }
}

}  // namespace loom::cli
