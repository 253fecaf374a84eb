// The log-probabilities that a reference model gives the answers of a data set, and the file they are kept in
// (--ref-logps-cache): a run that reads them holds no reference model.
//
// File     safetensors: "chosen" and "rejected", fp64 [pairs], by number of pair (data::NumberedSamples); what they
//          were computed from is in its metadata.
// Errors   ConfigError with the file: one that is no such file, and one of other weights or other samples, with what
//          differs.
// Threads  any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace loom::objective {

struct ReferenceLogProbs {
  std::vector<double> chosen, rejected;  // one of each for every pair
};

// What log-probabilities are computed from. A file fits where all but the names of places are the same.
struct ReferenceFacts {
  std::string weights;     // digest of the reference model's, and how they are rounded
  std::string weights_at;  // where they are, for messages
  std::string data;        // digest of the data set
  std::string data_at;
  std::int64_t pairs = 0;
  std::int64_t seq_length = 0;
  std::string cut;    // of answers that are longer: "end" (--cut-max-seqlen), "none"
  std::string dtype;  // that the model computes in
};

// Both lists have facts.pairs numbers. The file appears whole or not at all, in the place of an earlier one.
void write_reference_log_probs(const std::filesystem::path& file, const ReferenceFacts& facts,
                               const ReferenceLogProbs& values);

ReferenceLogProbs read_reference_log_probs(const std::filesystem::path& file, const ReferenceFacts& facts);

}  // namespace loom::objective
