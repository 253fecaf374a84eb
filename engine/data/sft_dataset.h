// SftDataset: the samples of one part (training, validation, test) of a data set for supervised fine-tuning, in the
// form of GptDataset, so that one loader and one loss serve both.
//
// Sample     a line of the files (sft_files.h): a conversation, or several packed into one line.
// Labels     are shifted here: label i of a sample is the label of token i + 1, -100 for the last token; the loss mask
//            is 0 where the label is negative. With neat_pack the first token of the next sample is no target.
//            With labels_in_place they are not shifted: label i belongs to token i.
// Cut        of a sample longer than seq_length: CutRule.
// Padding    behind the sample up to the row's length: the pad id, label -100, a segment of its own.
// Segments   what attends what, and where positions begin again:
//              neat_pack              each number of the mask
//              reset_attention_mask   attention alone: behind each EOD
//              reset_position_ids     positions alone: behind each EOD
// Order      lines of the part, each epoch shuffled by numpy's generator, epoch behind epoch (`shuffle`).
// State      none: sample i is a function of the files, the options and i.
// Memory     8 bytes a sample, mapped from the cache where there is one.
// Threads    const after construction: the rank threads of a process may share one.
// Errors     ConfigError with the flag and the files: nothing to draw from, no id to pad with; from fill(): a mask that
//            is none, a line that does not fit and must not be cut. Error from fill(): the files changed.
// Source     MindSpeed-LLM decoder_packed_mtf_dataset.py; departures in docs/formats.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/data/data_split.h"
#include "engine/data/gpt_dataset.h"
#include "engine/data/index_cache.h"
#include "engine/data/sft_files.h"

namespace loom::data {

enum class CutRule : std::uint8_t {
  kTurns,  // prompt and answer of each turn in their shares (rule B of preprocess/cut.h)
  kEnd,    // --cut-max-seqlen: what lies behind seq_length
  kNone,   // --no-cut-token: refused where rows have seq_length tokens
};

struct SftSampleOptions {
  std::int64_t seq_length = 0;  // at least 1
  std::uint64_t seed = 1234;
  std::int32_t eod = -1;  // id at the end of a document; -1: none
  std::int32_t pad = -1;  // id of padding; -1: the eod pads
  bool neat_pack = false;
  bool labels_in_place = false;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  CutRule cut = CutRule::kTurns;
  bool variable_lengths = false;        // rows as long as their samples need (padded_length)
  std::int64_t pad_to_multiple_of = 8;  // of such rows
  bool shuffle = true;
  std::int64_t padded_batch = 1;  // an epoch has a multiple of this many samples: the part's first lines again
};

class SftDataset {
 public:
  // `flag`: what named the files. `samples`: at least so many, of whole epochs; none: one epoch.
  SftDataset(const std::string& flag, std::shared_ptr<const SftFiles> files, DataSplit split, const SplitShare& share,
             std::optional<std::int64_t> samples, const SftSampleOptions& options, const IndexCache& cache);

  const SftFiles& files() const { return *files_; }
  const SequenceRange& range() const { return range_; }
  std::int64_t sample_count() const { return static_cast<std::int64_t>(lines_.size()); }
  // The line of each sample.
  std::span<const std::int64_t> line_index() const { return lines_; }

  // --- Before: 0 <= sample < sample_count(). ---

  // Tokens of a sample, after the cut.
  std::int64_t length(std::int64_t sample) const;
  // The length of a row for each of these samples: seq_length, or with variable_lengths the longest one rounded up to a
  // multiple of pad_to_multiple_of, no more than seq_length unless a sample is longer (CutRule::kNone).
  std::int64_t padded_length(std::span<const std::int64_t> samples) const;
  // The parts of a row that are wanted are of one length, at least length(sample).
  void fill(std::int64_t sample, const GptSampleRow& row) const;

 private:
  struct Line;
  std::int64_t line_of(std::int64_t sample) const;
  Line read(std::int64_t sample) const;
  void cut(Line& line) const;
  void check_mask(const Line& line) const;
  void pad(Line& line, std::size_t size) const;
  template <class Write>
  void for_each_segment(const Line& line, bool resets, Write&& write) const;

  std::string flag_;
  std::shared_ptr<const SftFiles> files_;
  SftSampleOptions options_;
  std::int32_t pad_ = -1;
  SequenceRange range_;
  IndexArrays index_;
  std::span<const std::int64_t> lines_;
};

}  // namespace loom::data
