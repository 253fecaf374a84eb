#include "engine/plan/dry_reads_of_plan.h"

#include "engine/core/error.h"
#include "engine/nn/call_stack.h"
#include "engine/tensor/dry_reads.h"

namespace loom::plan {
namespace {

void refuse_reads(std::string_view reading, const Tensor& tensor) {
  const auto module = nn::running_module();
  if (!module && reading != "data()") return;
  config_error(
      "{} reads values ({} of a tensor {} {}), and a plan computes none; decide from shapes there, or "
      "run it with shardloom train",
      module ? fmt::format("the forward of {}", *module) : "the program", reading, name(tensor.dtype()),
      to_string(tensor.shape()));
}

}  // namespace

void refuse_reads_of_values(RankContext& context) { context.slot<DryReads>().before = refuse_reads; }

}  // namespace loom::plan
