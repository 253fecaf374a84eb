// convert_records: converts the records of some files on several threads, and passes them to a sink in order. Private
// to engine/text.
//
// Drops    counted by reason, with their first places. A sample that is too long is counted here; the sink decides
//          its treatment.
// Columns  are checked on the first batch.
// Threads  the sink and the watcher are called in any of the workers, one call at a time.
// Errors   the first one in the order of the records.
#pragma once

#include <functional>
#include <optional>

#include "engine/text/preprocess/handler.h"
#include "engine/text/preprocess/preprocess.h"

namespace loom::data {

using SampleSink = std::function<void(SampleIds& sample)>;

// Whether some key of a sample has seq_length ids or more.
bool is_too_long(const SampleIds& sample, const std::optional<std::int64_t>& seq_length);

class DropCounter {
 public:
  void add(DropReason reason, std::string place);
  std::vector<DropCount> counts() const { return counts_; }

 private:
  std::vector<DropCount> counts_;
};

struct RecordSource {
  std::vector<std::filesystem::path> files;
  std::unique_ptr<Handler> handler;
};

struct ConversionOptions {
  int workers = 1;
  std::optional<std::int64_t> max_records = {};
  std::optional<std::int64_t> seq_length = {};  // none if long samples are cut later
};

// The results of all sources of a run so far.
struct ConversionCounts {
  std::int64_t records = 0;
  std::uint64_t done_bytes = 0;  // of the earlier sources
  std::uint64_t all_bytes = 0;
  DropCounter drops;
};

void convert_records(const RecordSource& source, const Tokenizer& tokenizer, const ConversionOptions& options,
                     const SampleSink& sink, const PreprocessWatcher& watch, ConversionCounts& counts);

}  // namespace loom::data
