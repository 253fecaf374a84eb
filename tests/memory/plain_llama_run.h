// PlainLlamaRun: the steps of tests/memory/mx_rows.json as dry runs of this engine: rank 0 of a simulated world.
//
// Wrapped    every block, then the root: embedding, last norm and output belong to the root's group; all are resharded.
// Step       micro-batches of forward, loss, (logits dropped), backward; then AdamW in one kernel, gradients dropped.
#pragma once

#include <memory>
#include <string>

#include "engine/comm/process_group.h"
#include "engine/core/rank_context.h"
#include "engine/device/device.h"
#include "engine/nn/optim/adamw.h"
#include "recompute/checkpoint.h"
#include "tests/memory/plain_llama.h"
#include "tests/support/case_json.h"

namespace loom::test {

struct PlainLlamaRow {
  std::string name;
  std::string model;
  PlainLlamaConfig config;
  int world = 1;
  std::int64_t micro_batch = 1;
  int micro_batches = 1;
  bool recompute = false;
  recompute::Keep keep = recompute::Keep::kNothing;
  int explicit_prefetch = 0;
  DType reduce_dtype = DType::kF32;
  bool offload_to_cpu = false;

  // `models`: dimensions by name.
  static PlainLlamaRow from_json(const CaseJson& row, const CaseJson& models);
  std::string text() const;
};

// Of one step; bytes.
struct StepBytes {
  std::int64_t forward_peak = 0;  // these three: of the first micro-batch
  std::int64_t after_forward = 0;
  std::int64_t backward_peak = 0;
  std::int64_t peak_allocated = 0;  // of the whole step
  std::int64_t peak_reserved = 0;   // so far
  std::int64_t steady = 0;
};

class PlainLlamaRun {
 public:
  explicit PlainLlamaRun(const PlainLlamaRow& row);
  ~PlainLlamaRun();

  StepBytes step();
  device::Device& device() { return *device_; }

 private:
  void wrap();
  void micro_batch(StepBytes& bytes, bool first);
  // The peak since it was last asked for.
  std::int64_t take_peak(StepBytes& bytes);

  const PlainLlamaRow row_;
  RankContext context_;
  RankScope scope_;
  device::Device* device_;
  std::unique_ptr<comm::World> world_;
  std::shared_ptr<device::Block> workspace_;
  std::shared_ptr<nn::Module> model_;
  std::unique_ptr<nn::AdamW> optimizer_;
  Tensor ids_;
};

}  // namespace loom::test
