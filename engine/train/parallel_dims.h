// ParallelDims: the degrees of parallelism of a job, and their effect on a training step: the samples a rank reads, the
// ranks over which the loss is averaged, and the rank that reports it.
//
//   const ParallelDims dims({.dp_replicate = 2, .dp_shard = 4}, world.size());
//   const auto mesh = comm::DeviceMesh::create(world, dims.axes());
//   const comm::Axis loss = dims.loss_axis(mesh);
//
// Ranks    the mesh's order (comm/mesh.h), slowest first: pp, dp_replicate, dp_shard, cp, tp.
// Samples  ranks that differ in dp_replicate or dp_shard read different samples; ranks that differ only in cp, tp or
//          pp work on the same.
// Errors   ConfigError, the same on every rank:
//            dp_replicate 2 x dp_shard 2 = 4, but 8 ranks run; give degrees whose product is 8
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/comm/mesh.h"

namespace loom::train {

struct ParallelDegrees {
  int dp_replicate = 1;  // replicas of every shard
  int dp_shard = 1;      // ranks that share the parameters
  int cp = 1;            // ranks that share a sequence
  int tp = 1;            // ranks that share a matrix
  int pp = 1;            // stages
};

class ParallelDims {
 public:
  // Throws ConfigError unless every degree is 1 or more, and their product is `ranks`.
  ParallelDims(const ParallelDegrees& degrees, int ranks);

  const ParallelDegrees& degrees() const { return degrees_; }
  // For comm::DeviceMesh::create().
  std::vector<comm::AxisSize> axes() const;

  // The number of parts of a global batch, and the part that a world rank reads.
  int data_size() const { return degrees_.dp_replicate * degrees_.dp_shard; }
  int data_rank(int rank) const;
  // Of a world rank, among those that share its sequences.
  int context_rank(int rank) const { return rank / degrees_.tp % degrees_.cp; }
  // Micro-batches of a step on each rank.
  std::int64_t micro_batches(std::int64_t global_batch_size, std::int64_t micro_batch_size) const {
    return global_batch_size / (micro_batch_size * data_size());
  }

  // The ranks that together hold the loss of the whole batch, each of as many tokens; with stages, of all of them,
  // which know the loss of the last one. Collective.
  comm::Axis loss_axis(const comm::DeviceMesh& mesh) const;
  // True for one rank of the job, which has the loss: it prints, and writes single files.
  bool reports(int rank) const;

 private:
  ParallelDegrees degrees_;
};

// Replaces each value by its mean over the ranks of the axis. Collective.
void mean_over(const comm::Axis& axis, std::span<double> values);

}  // namespace loom::train
