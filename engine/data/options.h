// DataOptions: which samples a job trains on, and in which order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace loom::data {

struct DataOptions {
  std::vector<std::filesystem::path> data_path;  // `shardloom train`: at least one
  int seq_length = 128;                          // tokens of a sequence
  double held_out_fraction = 0.05;               // share of the data kept for evaluation, [0, 1); 0 = no evaluation
  bool bytes_as_tokens = false;                  // text is read as bytes although the model has a tokenizer
  std::uint64_t seed = 1234;                     // of the order of samples, and of every other draw of the job
};

}  // namespace loom::data
