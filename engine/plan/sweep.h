// sweep: the fastest configuration of a world: degrees of parallelism, keys of the file, micro-batches.
//
// Degrees   pp, tp, ulysses, ring and ep; dp_shard x dp_replicate is the rest. A degree that a flag gives stays; one of
//           the file is tried, and others.
// Stages    of a pipeline may be on any nodes, and a step has as many micro-batches at least. Numbers of stages are
//           tried in ascending order, with the same other degrees while the most by then is the fastest, or none fits.
//           Of the best meshes 2 and 4 stages a rank are tried too.
// Nodes     tp x ulysses x ring neighbours share the tokens of a sequence, ep neighbours the experts: their links
//           decide over the step. Both products divide the devices of a node (so that no group crosses nodes) where
//           anything of these fits; else twice as many devices, and so on. dp_shard and dp_replicate may cross nodes.
//           The file's own degrees are always tried.
// Pruned    what the world, the model or the global batch cannot have, each with its reason. A degree that does not go
//           by itself is left out of all products.
// Survey    each mesh, with sharding over all its ranks and over those of a node, without recompute for 1, 2, 4, ...
//           sequences until they do not fit or gain less than a hundredth; where they did not fit, with recompute from
//           there on.
// Search    of the three best meshes: sharding (as in the survey) x recompute x reshard, each with 1, 2, 4, ... and
//           about the most sequences that fit. Of each one's best configuration: the divisors of a node and all whole
//           nodes as sharding sizes; with its micro-batch, where a step has several, parameters gathered or gradients
//           reduced once a step (reshard_after_backward, sync_each_batch), and prefetch 0, 1, 2. Of the three best
//           configurations: all micro-batches that fit, or 64 evenly spaced ones.
// Memory    of each mesh's best configuration, where it recomputes, or where more sequences would fit and pay with more
//           memory: recompute by operator, of every 2nd, 3rd and 4th module, and with inputs on the host; then, of
//           the best by now, the loss in chunks. With 1, 2, 4, ... sequences. Elsewhere these are counted as pruned.
// Pareto    rows that no other row beats: none has as little memory (peak reserved) and is faster, and none is as
//           fast with less.
// Batches   as in plan_choice.h. Steps of many micro-batches are compared by few, of a pipeline by as many for each
//           stage; the ten best are then planned whole.
// Sequence  parallelism is on with each tp that is not the file's own and that divides a rank's tokens.
// Errors    ConfigError of the configuration as given, and where there is no file.
// Threads   plans run on all cores; the result does not depend on their number.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/plan_choice.h"

namespace loom::plan {

// Candidates that were not planned, or that the model cannot have.
struct Pruned {
  std::string reason;
  std::int64_t candidates = 0;

  bool operator==(const Pruned&) const = default;
};

// A part of the device time of a token.
struct TokenTime {
  std::string part;  // "compute", "exposed dp_shard", ..., "exposed copies", "idle"
  double ns = 0;     // per token and device
};

// One of the three best meshes, by its fastest configuration.
struct BestMesh {
  std::size_t row = 0;  // of Sweep::fitting
  Degrees degrees;
  std::vector<virtual_time::AxisTime> exposed = {};  // over each axis with any
  // Against the first; of the first, against the second: how much longer a token takes here, as a share of that, by
  // part, and how much more memory is reserved at the peak. Negative: less.
  std::optional<std::size_t> against = {};  // a row; none: there is only one mesh
  double longer = 0;
  std::vector<TokenTime> differences = {};  // the largest first
  std::int64_t more_bytes = 0;
};

struct Sweep {
  std::vector<Candidate> fitting;    // planned whole; the fastest per token first; without their recordings
  std::int64_t fitting_in_part = 0;  // further ones, that fit with fewer micro-batches
  std::vector<Pruned> pruned;        // in the order of the search
  std::int64_t meshes = 0;           // surveyed
  std::int64_t meshes_that_fit = 0;
  int together = 1;  // devices among which the ranks of tp x ulysses x ring, and of ep, lie
  std::vector<BestMesh> best;
  std::vector<std::size_t> pareto;  // rows, ascending: from the fastest to the one with the least memory
};

Sweep sweep(const ChoicePlans& plans);

// The parts of the device time of a token; their sum is step / (tokens / devices).
std::vector<TokenTime> token_time(const StepEstimate& plan);

}  // namespace loom::plan
