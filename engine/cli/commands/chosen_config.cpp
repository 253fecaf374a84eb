#include "engine/cli/commands/chosen_config.h"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>

#include "engine/cli/words/written_flags.h"
#include "engine/core/units.h"
#include "engine/io/atomic_file.h"

namespace loom::cli {
namespace {

using Words = std::vector<std::string>;

// The value of one of the flags that a choice sets; ranks are not a flag of every command.
void add_flag(Words& words, std::string_view flag, std::int64_t value) {
  words = without_flags(words, {flag});
  words.insert(words.end(), {std::string(flag), fmt::to_string(value)});
}

Words command_of(const PlanArguments& arguments, const plan::Candidate& chosen,
                 const virtual_time::HardwareProfile& profile) {
  Words words = words_of_training(arguments.train.report.command_line);
  const bool own_program = words.empty() || words.front() != "train";
  words.insert(words.begin(), own_program ? program_invocation_short_name : "shardloom");
  if (std::ranges::find(words, "--use-torch-fsdp2") == words.end()) words.emplace_back("--use-torch-fsdp2");
  words = without_flags(words, {"--fsdp2-config-path", "--total-chunk-size"});
  words.insert(words.end(), {"--fsdp2-config-path", arguments.write_config->string()});
  const int world = chosen.choice.world;
  if (world <= static_cast<int>(profile.devices_per_node())) {
    add_flag(words, "--nproc-per-node", world);
  } else {
    words.insert(words.begin(), {"mpirun", "-n", fmt::to_string(world)});
  }
  for (const plan::FlagValue& flag : plan::flags_of(chosen.choice)) {
    if (flag.flag != "--world-size" && flag.value != flag.without) add_flag(words, flag.flag, flag.value);
  }
  add_flag(words, "--global-batch-size", chosen.plan.throughput.tokens / chosen.plan.seq_length);
  return words;
}

}  // namespace

plan::WrittenConfig write_chosen(const PlanArguments& arguments, const plan::Candidate& chosen,
                                 std::optional<std::size_t> row, const virtual_time::HardwareProfile& profile) {
  plan::WrittenConfig written{
      .path = arguments.write_config.value(), .row = row, .command = command_of(arguments, chosen, profile)};
  const plan::StepEstimate& plan = chosen.plan;
  io::write_text(written.path,
                 fmt::format("# {} on {} x {}, as planned: {} tokens/s per device, peak reserved {} of {}.\n"
                             "# Flags that are not keys of this file are in the command that trains with it:\n#   {}\n",
                             plan.model, plan.world, plan.device, figure(plan.throughput.tokens_per_s_per_device, 0),
                             memory_text(plan.memory.peak_reserved_bytes), memory_text(plan.memory.capacity_bytes),
                             plan::command_line(written.command)) +
                     plan::file_text(chosen.choice.config));
  return written;
}

}  // namespace loom::cli
