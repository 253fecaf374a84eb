#include "engine/cli/words/host_optimizer_checks.h"

#include "engine/cli/words/schedule_rules.h"
#include "engine/job/foreign.h"

namespace loom::cli {
namespace {

bool has_distributed_optimizer(const job::Job& job) {
  return job::foreign_value(job.written, "--use-distributed-optimizer").has_value();
}

}  // namespace

std::vector<std::string> refused_distributed_optimizer(const job::Job& values) {
  if (!has_distributed_optimizer(values) || values.optimizer.swap_optimizer) return {};
  return {
      "--use-distributed-optimizer does not go with a file of --use-torch-fsdp2, which says itself how the optimizer's "
      "state is shared out; remove it, and write reshard_after_forward: false, reshard_after_backward: false and "
      "sync_each_batch: false into the file for what it does"};
}

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
