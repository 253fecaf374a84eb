#include "engine/cli/words/epoch_rules.h"

#include "engine/cli/words/flags.h"
#include "engine/core/error.h"
#include "engine/data/token_batches.h"

namespace loom::cli {
namespace {

constexpr std::int64_t kMostEpochs = 1'000'000;

void check_epochs(const Command& app, job::Program program, const job::Job& job, std::string_view flag,
                  std::int64_t epochs) {
  if (epochs > kMostEpochs) config_error("{} is {}; use at most {}", flag, epochs, kMostEpochs);
  if (job::is_users(program)) {
    config_error("{} counts the samples of shardloom's own data sets, and this program has its own data; give {}", flag,
                 flag == "--train-epochs" ? "--train-iters" : "--save-interval");
  }
  if (job.data.data_path.empty() && job.data.part_data_path[data::place_of(data::DataSplit::kTrain)].empty()) {
    config_error("{} counts the samples of the training data, and none is given; give --data-path PATH, or {}", flag,
                 flag == "--train-epochs" ? "--train-iters" : "--save-interval");
  }
  if (flag != "--train-epochs") return;
  for (const char* length : {"--train-iters", "--train-samples"}) {
    if (given(app, length)) config_error("{} and --train-epochs are both given; keep one", length);
  }
}

std::int64_t steps_of_an_epoch(const job::Job& job, std::string_view flag) {
  const std::int64_t samples = data::epoch_samples(job.data, job.schedule.global_batch_size);
  const std::int64_t steps = samples / job.schedule.global_batch_size;
  if (steps > 0) return steps;
  config_error(
      "{} is given, and the training data has {} samples, less than one --global-batch-size of {}; use a smaller batch "
      "or --train-iters",
      flag, samples, job.schedule.global_batch_size);
}

}  // namespace

void settle_epochs(const Command& app, job::Program program, job::Job& job) {
  train::ScheduleOptions& schedule = job.schedule;
  const std::string_view flag = schedule.train_epochs > 0 ? "--train-epochs" : "--save-epochs";
  if (schedule.skip_train || (schedule.train_epochs == 0 && schedule.save_epochs == 0)) return;
  if (schedule.train_epochs > 0) check_epochs(app, program, job, "--train-epochs", schedule.train_epochs);
  if (schedule.save_epochs > 0) check_epochs(app, program, job, "--save-epochs", schedule.save_epochs);
  const std::int64_t steps = steps_of_an_epoch(job, flag);
  if (schedule.train_epochs > 0) schedule.train_iters = schedule.train_epochs * steps;
  schedule.save_epoch_iters = schedule.save_epochs * steps;
}

}  // namespace loom::cli
