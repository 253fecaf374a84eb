// Promise: moments that are swapped, and an optimizer on the host, train and are planned by flags, leave the curve
//          as it is, and show in the plan's memory; what they do not go with is refused with status 2.
// World:   the built program; the tiny model of the folder.
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> curve(const ProgramFolder& folder, const Words& words) {
  std::filesystem::remove(folder.path("run.jsonl"));
  const Outcome outcome = folder.run(words + Words{"--nproc-per-node", "2", "--metrics-path", "run.jsonl"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::vector<std::string> lines;
  for (const auto& line : folder.metrics("run.jsonl")) {
    lines.push_back(line.at("loss").dump() + " " + line.at("grad_norm").dump());
  }
  return lines;
}

const Words kSwapped[] = {{"--optimizer", "adamw_swap", "--mem-fraction-static", "0.9"},
                          {"--swap-optimizer", "--use-distributed-optimizer"},
                          {"--swap-optimizer", "--swap-optimizer-times", "5"}};

TEST(SwappedOptimizers, LeaveTheCurveAsItIs) {
  const ProgramFolder folder;
  const std::vector<std::string> plain = curve(folder, kFourSteps);
  EXPECT_EQ(plain.size(), 4U);
  for (const Words& flags : kSwapped) EXPECT_EQ(curve(folder, kFourSteps + flags), plain) << flags[0];
}

TEST(SwappedOptimizers, MoveTheMomentsToTheHostInThePlan) {
  const ProgramFolder folder;
  const auto plain = plan_of_four(folder, {});
  EXPECT_EQ(plain.at("memory").at("host_bytes"), 0);
  const auto state_between_steps = [](const nlohmann::json& plan) {
    return plan.at("memory").at("phases").front().at("by_category_at_peak").at("optimizer_state_bytes").get<double>();
  };
  EXPECT_GT(state_between_steps(plain), 0);
  for (const Words& flags : kSwapped) {
    const auto plan = plan_of_four(folder, flags);
    EXPECT_EQ(state_between_steps(plan), 0) << flags[0];
    // Two moments of 4 bytes an element of rank 0's shards: rows divide by 4 but for nothing here.
    EXPECT_EQ(plan.at("memory").at("host_bytes").get<std::int64_t>(),
              2 * 4 * plan.at("parameters").get<std::int64_t>() / 4)
        << flags[0];
    EXPECT_GT(plan.at("time").at("step_ns").get<std::int64_t>(), plain.at("time").at("step_ns").get<std::int64_t>());
  }
}

TEST(SwappedOptimizers, ShowTheirHostMemoryInTheMetrics) {
  const ProgramFolder folder;
  const auto host_bytes = [&](const Words& flags) {
    curve(folder, kFourSteps + flags);
    return folder.metrics("run.jsonl").back().at("peak_host_memory_bytes").get<std::int64_t>();
  };
  const auto elements = plan_of_four(folder, {}).at("parameters").get<std::int64_t>() / 2;  // of a shard, two ranks
  EXPECT_EQ(host_bytes({}), 0);
  for (const Words& flags : kSwapped) EXPECT_EQ(host_bytes(flags), 2 * 4 * elements) << flags[0];
  folder.write("fsdp2.yaml", folder.read("fsdp2.yaml") + "offload_to_cpu: true\n");
  EXPECT_EQ(host_bytes({}), 4 * 4 * elements) << "shards, gradients and two moments";
}

TEST(OffloadedOptimizer, IsHiddenInThePlanUnlessBackwardWaits) {
  const ProgramFolder folder;
  folder.write("fsdp2.yaml",
               "sharding_size: auto\noffload_to_cpu: true\npin_memory: true\n"
               "sub_modules_to_wrap: [\"model.embed_tokens\", \"model.layers.{*}\", \"lm_head\"]\n");
  const auto step_ns = [&](const Words& flags) {
    return plan_of_four(folder, flags).at("time").at("step_ns").get<std::int64_t>();
  };
  const Words no_norm{"--clip-grad", "0", "--no-check-for-nan-in-loss-and-grad"};
  const Words overlap{"--overlap-cpu-optimizer-d2h-h2d"}, wait{"--no-overlap-cpu-optimizer-d2h-h2d"};
  EXPECT_EQ(step_ns(no_norm), step_ns(no_norm + overlap));
  EXPECT_LT(step_ns(no_norm), step_ns(no_norm + wait));
  const Words pytorch = no_norm + Words{"--kernels", "pytorch"};
  EXPECT_EQ(step_ns(pytorch), step_ns(pytorch + wait));
  EXPECT_LT(step_ns(pytorch + overlap), step_ns(pytorch));
  EXPECT_EQ(curve(folder, kFourSteps + no_norm), curve(folder, kFourSteps + no_norm + wait));
}

TEST(SwappedOptimizers, RefuseOffloadedParametersAndWhatIsNotBuilt) {
  const ProgramFolder folder;
  folder.write("offload.yaml", "sharding_size: auto\noffload_to_cpu: true\n");
  const Words offloaded = with_value(kFourSteps, "--fsdp2-config-path", "offload.yaml");
  for (const Words& flags : kSwapped) {
    const Outcome outcome = folder.run(offloaded + flags);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("is in host memory (offload_to_cpu), and its moments are there already; set "
                                       "offload_to_cpu: false, or use --optimizer adam without --swap-optimizer"));
  }
  const Outcome virtual_optimizer = folder.run(kFourSteps + Words{"--virtual-optimizer", "6", "5"});
  EXPECT_EQ(virtual_optimizer.exit_code, 2);
  EXPECT_THAT(virtual_optimizer.err,
              HasSubstr("--virtual-optimizer maps moments in host memory into the device, which is not built; write "
                        "--optimizer adamw_swap, which copies them"));
  const Outcome both = folder.run(kFourSteps + Words{"--swap-optimizer", "--reuse-fp32-param"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("--reuse-fp32-param"));
}

}  // namespace
}  // namespace loom::test
