#include "engine/train/pretrain.h"

#include <cstdlib>
#include <exception>
#include <iostream>

#include "engine/comm/launch.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/train/inputs.h"
#include "engine/train/report_run.h"
#include "engine/train/trainer.h"
#include "models/fsdp2_mixin.h"
#include "sharding/apply.h"

namespace loom::train {
namespace {

void warn_of_max_connections() {
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (connections == nullptr || std::string_view(connections) != "1") return;
  logger().warn(
      "CUDA_DEVICE_MAX_CONNECTIONS is 1, which changes nothing here; MindSpeed refuses it with FSDP2: export 2 there");
}

void describe(const TrainArguments& arguments, const TrainingInputs& inputs, nn::Module& model, std::ostream& out) {
  // The model inside a wrapper of one (models::TransformersModel) is what users know.
  out << fmt::format("{} of {} parameters on {} rank{}{}{}\n", models::sharded_module(model).type_name(),
                     model.parameter_count(), arguments.ranks, arguments.ranks == 1 ? "" : "s",
                     inputs.data.about.empty() ? "" : "; ", inputs.data.about);
  if (!inputs.fsdp2) return;
  warn_of_max_connections();
  for (const std::string& warning : inputs.fsdp2->warnings) logger().warn("{}", warning);
  out << sharding::describe_groups(models::sharded_module(model), inputs.fsdp2->written_as);
  if (inputs.fsdp2->recomputed.empty()) return;
  out << fmt::format("{} of the modules recomputed in backward, {}\n", inputs.fsdp2->recomputed.size(),
                     inputs.fsdp2->use_reentrant ? "reentrant" : "not reentrant");
}

void train_rank(const TrainArguments& arguments, const PretrainCallbacks& callbacks, const TrainingInputs& inputs,
                RankContext& context, comm::World& world, std::ostream& out) {
  set_up_rank(context, arguments);
  Trainer trainer(arguments, callbacks, inputs, world);
  const bool first = context.rank() == 0;
  if (first) describe(arguments, inputs, trainer.model(), out);
  trainer.run(out);
  if (arguments.save) {
    trainer.save(*arguments.save);
    if (first) out << fmt::format("model written to {}\n", arguments.save->string());
  }
  trainer.write_report(out);
  if (callbacks.after_training) {
    std::ostream silent(nullptr);
    callbacks.after_training(trainer.model(), arguments, first ? out : silent);
  }
}

}  // namespace

const nn::Value& Batch::at(std::string_view name) const {
  std::vector<std::string_view> names;
  for (const auto& [key, value] : values) {
    if (key == name) return value;
    names.push_back(key);
  }
  raise<InvariantError>("the batch has no '{}'; it has {}", name, fmt::join(names, ", "));
}

void pretrain(const TrainArguments& arguments, const PretrainCallbacks& callbacks, std::ostream& out) {
  TrainingInputs inputs = read_inputs(arguments, callbacks);
  if (arguments.report) inputs.report = std::make_shared<ReportInputs>(read_report_inputs(arguments));
  const comm::CommOptions options{std::chrono::minutes(arguments.distributed_timeout_minutes)};
  const comm::RankMain main = [&](RankContext& context, comm::World& world) {
    train_rank(arguments, callbacks, inputs, context, world, out);
  };
  if (comm::launched_by_mpi()) {
    comm::run_mpi_rank(options, main);
  } else {
    comm::run_ranks(arguments.ranks, options, main);
  }
}

int pretrain(int argc, const char* const* argv, const PretrainCallbacks& callbacks) {
  const std::string name = std::filesystem::path(argv[0]).filename().string();
  // In one piece: ranks that are processes write to one terminal.
  const auto complain = [&](const std::exception& error) { std::cerr << name + ": " + error.what() + "\n"; };
  try {
    const ParsedProgram parsed = parse_program_arguments(argc, argv, callbacks.extra_args_provider);
    if (const auto* help = std::get_if<EarlyExit>(&parsed)) {
      std::cout << help->text;
      return help->code;
    }
    pretrain(std::get<TrainArguments>(parsed), callbacks, std::cout);
    return 0;
  } catch (const ConfigError& error) {
    complain(error);
    return kExitUsage;
  } catch (const std::exception& error) {
    complain(error);
    return 1;
  }
}

}  // namespace loom::train
