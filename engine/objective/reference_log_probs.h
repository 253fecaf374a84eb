// The log-probabilities that a reference model gives the answers of a data set, and their file
// (--ref-logps-cache): a run that reads them holds no reference model.
//
// File     safetensors: "chosen" and "rejected", fp64 [pairs], by number of pair (data::NumberedSamples); the metadata
//          holds the facts they were computed from.
// Errors   ConfigError with the file: one of another format, and one for other weights or other samples, with the
//          difference.
// Threads  any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace loom::objective {

struct ReferenceLogProbs {
  std::vector<double> chosen, rejected;  // one per pair
};

// The facts that log-probabilities depend on. A file fits if all but the places are the same.
struct ReferenceFacts {
  std::string weights;     // digest of the reference model's weights, and their rounding
  std::string weights_at;  // their place, for messages
  std::string data;        // digest of the data set
  std::string data_at;
  std::int64_t pairs = 0;
  std::int64_t seq_length = 0;
  std::string cut;    // of longer answers: "end" (--cut-max-seqlen), "none"
  std::string dtype;  // the dtype of computation
};

// Both lists have facts.pairs numbers. The file appears whole or not at all, and replaces an earlier one.
void write_reference_log_probs(const std::filesystem::path& file, const ReferenceFacts& facts,
                               const ReferenceLogProbs& values);

ReferenceLogProbs read_reference_log_probs(const std::filesystem::path& file, const ReferenceFacts& facts);

}  // namespace loom::objective
