// Cases of training_parity whose ranks share sequences: axes/context of the reference (its README).
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "engine/data/step.h"
#include "engine/device/recording.h"
#include "sharding/parallelize.h"
#include "tests/support/case_json.h"

namespace loom::test {

struct ContextCase {
  sharding::SharedSequences sequences;
  std::optional<std::filesystem::path> packed;  // batches.safetensors
  CaseJson collectives;                         // of one layer

  bool is_shared() const { return sequences.degrees.ranks() > 1; }
};

// Throws for degrees that are not those of cp, and for token ranges that are not ours.
ContextCase read_context(const std::filesystem::path& folder, const CaseJson& curve);

// Part `part` of `parts` of the rows of a step of batches.safetensors, whole sequences.
data::Batch packed_batch(const std::filesystem::path& file, std::int64_t step, int part, int parts);
// A batch of these tokens, whole.
data::Batch plain_batch(const Tensor& inputs, const Tensor& targets);

// What of the first layer's collectives in `direction` is not as the case says, or nothing.
std::string check_collectives(const device::Recording& recording, const CaseJson& expected, int ranks);

}  // namespace loom::test
