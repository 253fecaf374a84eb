// RunCheckpoints: the checkpoints of a training run: what they hold of a trainer, and how a run resumes from one.
//
// Saved     model.*, optimizer.*, opt_param_scheduler.*, rng_state.*, iteration, checkpoint_version, and under args.*
//           the flags that steer the computation (docs/formats.md lists every name).
// Adapters  in a run with adapters (models/lora), model.* and optimizer.* hold these alone; lora.* holds their
//           configuration and a digest of the base. The base is loaded as for a new run and must be the same.
// Resume    at the iteration, sample, schedule, loss scale and seed of the checkpoint, under any number of ranks.
//           Dropout goes by sample and needs no state. The state of an older checkpoint (rng_state.draws) is not read:
//           its run continues with other drops, equally distributed.
// Foreign   a checkpoint of PyTorch has no run state: iteration is its "step", or the number of its folder; samples are
//           iterations times the global batch.
// Threads   the rank's host thread; load(), save() and finish() are collective.
// Errors    ConfigError for what does not fit; Error for a save that fails (checkpoint/saver.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/checkpoint/loader.h"
#include "engine/checkpoint/resume.h"
#include "engine/checkpoint/saver.h"
#include "engine/log/spikes.h"
#include "engine/train/saved_arguments.h"
#include "engine/train/step/step_observer.h"
#include "engine/train/trainer.h"

namespace loom::train {

class RunCheckpoints final : public StepObserver {
 public:
  using Say = std::function<void(const std::string& line)>;

  // `saved`: the arguments for checkpoints, below args.*. `say` gets the lines of rank 0. The references outlive it.
  RunCheckpoints(Trainer& trainer, const TrainSections& arguments, SavedArguments saved, comm::World& world, Say say);
  ~RunCheckpoints() override;

  // Loads the checkpoint of --load into the trainer; returns its iteration, or none if the run starts from scratch.
  std::optional<std::int64_t> load();
  // Saves the trainer's state between steps to --save.
  void save();
  // Saves the watch's state from now on; the watch starts with the state that load() has read. Rank 0; the
  // watch outlives this object.
  void keep(log::SpikeWatch& spikes);
  // Waits until everything is on disk.
  void finish();

  // Whether --save makes checkpoints.
  bool saves() const { return saver_ != nullptr; }
  // The iteration of the last checkpoint that this run has on disk.
  std::optional<std::int64_t> last_saved() const;

  // Checks on a save in the background.
  void step_done(const StepMetrics& metrics) override;

 private:
  checkpoint::State state() const;
  nn::OptimizerState optimizer_state() const;
  void read(const io::DcpFolder& checkpoint, const checkpoint::Resumed& from);
  void read_weights(const io::DcpFolder& checkpoint, checkpoint::Strictness strictness);
  void check_adapters(const io::DcpFolder& checkpoint, const io::PlainValue& config) const;
  void read_position(const io::DcpFolder& checkpoint, const std::optional<std::int64_t>& iteration);
  void say(const std::string& line) const;

  Trainer& trainer_;
  const TrainSections& arguments_;
  const SavedArguments saved_arguments_;
  const std::shared_ptr<comm::ProcessGroup> everyone_;
  const Say say_;
  std::unique_ptr<checkpoint::Saver> saver_;
  log::SpikeWatch* spikes_ = nullptr;
  std::optional<log::SpikeStates> loaded_spikes_;
  checkpoint::Elsewhere elsewhere_;  // what other stages load
  std::string base_digest_;          // of the weights that the adapters belong to; empty: there are none
};

}  // namespace loom::train
