#include "engine/cli/graph_callbacks.h"

#include <map>
#include <mutex>

#include "engine/core/error.h"
#include "models/graph/graph_model.h"
#include "models/mixin/fsdp2_mixin.h"

namespace loom::cli {
namespace {

using Recorded = std::shared_ptr<const models::GraphProgram>;

// One program for each size that a search tries. Any thread.
class RecordedModels {
 public:
  explicit RecordedModels(const std::filesystem::path& file) : file_(file) {}

  train::MicroBatchSizes micro_batch_sizes() const {
    const auto rows = file_.symbols().find("B");
    return rows != file_.symbols().end() ? train::MicroBatchSizes{rows->second.least, rows->second.most}
                                         : train::MicroBatchSizes{};
  }
  Recorded at(const train::TrainSections& job) {
    const std::pair sizes{job.schedule.micro_batch_size, job.data.seq_length};
    const std::lock_guard lock(mutex_);
    Recorded& program = programs_[sizes];
    if (program == nullptr) {
      program = std::make_shared<const models::GraphProgram>(
          models::make_graph_program(file_.at({{"B", sizes.first}, {"S", sizes.second}})));
    }
    return program;
  }

 private:
  const models::GraphFile file_;
  std::mutex mutex_;
  std::map<std::pair<std::int64_t, std::int64_t>, Recorded> programs_;
};

std::vector<std::string> graph_warnings(const models::GraphProgram& program, const train::TrainSections& job) {
  std::vector<std::string> warnings;
  if (job.objective.loss_chunk_size > 0) {
    warnings.push_back(fmt::format(
        "{}: --loss-chunk-size {} does not act on a recording, whose loss is as it was recorded; a run that "
        "computes it in chunks needs less memory",
        program.graph.file, job.objective.loss_chunk_size));
  }
  constexpr double kPercent = 100;
  for (const models::UnknownOperator& unknown : program.unknown) {
    warnings.push_back(fmt::format(
        "{}: operator {} has no price of its own; its time is that of the bytes it moves, {:.2g} % of all bytes",
        program.graph.file, unknown.name, kPercent * unknown.share));
  }
  return warnings;
}

}  // namespace

train::PretrainCallbacks graph_callbacks(const train::TrainSections& arguments) {
  const auto programs = std::make_shared<RecordedModels>(*arguments.model.model_graph);
  programs->at(arguments);  // what is wrong with the file is reported before anything is built
  train::PretrainCallbacks callbacks;
  callbacks.micro_batch_sizes = programs->micro_batch_sizes();
  callbacks.model_provider = [programs](const train::TrainArguments& asked) {
    return models::make_graph_model(programs->at(asked.job));
  };
  callbacks.train_valid_test_datasets_provider = [programs](const train::TrainArguments& asked) {
    const Recorded program = programs->at(asked.job);
    data::DataLoaders loaders;
    loaders.about = fmt::format("the recorded inputs of {}", program->graph.type);
    loaders.warnings = graph_warnings(*program, asked.job);
    loaders.train = [program](std::span<const std::int64_t>) { return models::graph_batch(*program); };
    return loaders;
  };
  callbacks.forward_step = models::graph_forward_step;
  return callbacks;
}

}  // namespace loom::cli
