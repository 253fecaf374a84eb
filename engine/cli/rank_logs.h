// RankLogs: the logs of one rank's steps beside progress and metrics, by flag: Megatron-LM's
// line and TensorBoard's scalars on the last rank, warnings of spikes on the first. Private to engine/cli.
//
// Threads  the rank's host thread.
// Errors   ConfigError if the event file cannot be made.
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "engine/cli/words/arguments.h"
#include "engine/log/megatron_log.h"
#include "engine/log/spikes.h"
#include "engine/log/tensorboard.h"
#include "engine/train/params_norm.h"
#include "engine/train/step/step_flops.h"
#include "engine/train/step_figures.h"
#include "engine/train/trainer.h"

namespace loom::cli {

class RankLogs {
 public:
  // The references outlive the object.
  RankLogs(const job::Job& arguments, train::Trainer& trainer, int rank, std::ostream& out);

  void add_to(std::vector<train::StepObserver*>& observers);
  // Before the first step, and after the last evaluation; `whole`: no signal stopped the run.
  void begin();
  void end(bool whole);

  const log::StepFigures& figures() const { return figures_; }

  // Null if this rank does not watch for spikes.
  log::SpikeWatch* spikes() { return spikes_ ? &*spikes_ : nullptr; }

  // What is missing of the rank's outputs; none if they are complete.
  std::optional<std::string> problem() const;

 private:
  const job::Job& arguments_;
  std::ostream& out_;
  const bool says_begin_;  // Megatron's lines of the first rank
  std::optional<log::SpikeWatch> spikes_;
  std::optional<train::StepFlops> flops_;
  // On every rank: the observers that the logs read.
  std::optional<train::ParamsNorm> params_;
  std::optional<train::ZerosInGrad> zeros_;
  std::optional<train::NormsByLayer> layers_;
  log::StepFigures figures_;
  std::optional<log::MegatronLog> log_;
  std::optional<log::MegatronMemoryLine> memory_;
  std::optional<log::TensorBoard> tensorboard_;
};

}  // namespace loom::cli
