// Packing: several samples in one line of exactly seq_length ids.
//
// Bins       greedy: while lengths remain, a new bin repeatedly takes the largest length that still fits. Among equal
//            lengths, the sample that comes last in `lengths` goes first. The capacity is seq_length - 1.
//            Lengths 8 3 5 1 9 4 and capacity 9 give the bins of lengths [9] [8 1] [5 4] [3].
// Line       the samples of a bin one after the other, filled up: input_ids with the pad id, labels with -100,
//            attention_mask with 1. With --neat-pack attention_mask is 1 over the first sample, 2 over the second, ...,
//            and 0 in the padding.
// Too long   seq_length ids or more: dropped before, with --neat-pack cut to seq_length - 1 by cut_sample().
// Threads    pure functions.
// Errors     InvariantError for a sample that does not fit.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/text/preprocess/handler.h"

namespace loom::data {

inline constexpr TokenId kIgnoredLabel = -100;

struct PackedLine {
  std::int64_t seq_length = 0;
  TokenId pad = 0;
  bool neat = false;
};

// Whether samples of these keys can be packed: input_ids, attention_mask and labels, in any order.
bool can_pack(std::span<const std::string> keys);

// The numbers of the samples in each bin, in the order of the line.
std::vector<std::vector<std::int64_t>> pack_bins(std::span<const std::int64_t> lengths, std::int64_t capacity);

void cut_sample(SampleIds& sample, std::int64_t length);

// `samples` are the samples of one bin.
SampleIds pack_bin(std::span<const std::string> keys, std::span<const SampleIds> samples, const PackedLine& line);

}  // namespace loom::data
