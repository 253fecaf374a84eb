#include "engine/text/preprocess/conversion.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/ordered_work.h"
#include "engine/core/shown_text.h"
#include "engine/text/preprocess/record_files_reader.h"

namespace loom::data {
namespace {

// What a record became. The place is kept where it is dropped alone.
struct Outcome {
  std::optional<SampleIds> sample;
  std::optional<DropReason> dropped;
  std::string where;
};

class Conversion {
 public:
  Conversion(const RecordSource& source, const Tokenizer& tokenizer, const ConversionOptions& options,
             const SampleSink& sink, const PreprocessWatcher& watch, ConversionCounts& counts)
      : handler_(*source.handler),
        tokenizer_(tokenizer),
        options_(options),
        sink_(sink),
        watch_(watch),
        counts_(counts),
        reader_(source.files),
        encoders_(static_cast<std::size_t>(options.workers)) {}

  void run() {
    run_in_order(options_.workers, [this] { return next(); });
    counts_.done_bytes += reader_.all_bytes();
    report(0);
  }

  std::int64_t records() const { return taken_; }

 private:
  class Batch final : public OrderedItem {
   public:
    Batch(Conversion& run, std::unique_ptr<RecordBatch> batch, bool first)
        : run_(run), batch_(std::move(batch)), first_(first), done_bytes_(run.reader_.done_bytes()) {}
    // Instead of a batch that cannot be read.
    Batch(Conversion& run, std::exception_ptr error) : run_(run), first_(false), done_bytes_(0), error_(error) {}

    void work(int worker) override {
      if (error_) return;
      try {
        outcomes_ = run_.convert(*batch_, first_, worker);
      } catch (...) {
        error_ = std::current_exception();
      }
      batch_ = nullptr;
    }
    void take() override {
      if (run_.full()) return;  // a single worker would not have read so far
      if (error_) std::rethrow_exception(error_);
      for (Outcome& outcome : outcomes_) run_.take(outcome);
      run_.report(done_bytes_);
    }

   private:
    Conversion& run_;
    std::unique_ptr<RecordBatch> batch_;
    const bool first_;
    const std::uint64_t done_bytes_;
    std::vector<Outcome> outcomes_;
    std::exception_ptr error_;
  };

  bool full() const { return options_.max_records && taken_ >= *options_.max_records; }

  std::unique_ptr<OrderedItem> next() {
    if (full() || broken_) return nullptr;
    try {
      auto batch = reader_.next();
      if (!batch) return nullptr;
      return std::make_unique<Batch>(*this, std::move(batch), !std::exchange(begun_, true));
    } catch (const Error&) {
      broken_ = true;
      return std::make_unique<Batch>(*this, std::current_exception());
    }
  }

  std::vector<Outcome> convert(const RecordBatch& batch, bool first, int worker) {
    auto& encoder = encoders_[static_cast<std::size_t>(worker)];
    if (!encoder) encoder.emplace(tokenizer_);
    std::vector<Record> records = batch.records();
    if (first) handler_.check_columns(records);
    std::vector<Outcome> outcomes;
    outcomes.reserve(records.size());
    for (Record& record : records) {
      Converted converted = handler_.convert(record, *encoder);
      if (converted.sample && is_too_long(*converted.sample, options_.seq_length)) {
        converted.dropped = DropReason::kTooLong;
      }
      std::string where = converted.dropped ? std::move(record.where) : std::string();
      outcomes.push_back({std::move(converted.sample), converted.dropped, std::move(where)});
    }
    return outcomes;
  }

  void take(Outcome& outcome) {
    if (full()) return;
    ++taken_;
    ++counts_.records;
    if (outcome.dropped) counts_.drops.add(*outcome.dropped, std::move(outcome.where));
    if (outcome.sample) sink_(*outcome.sample);
  }

  void report(std::uint64_t done_bytes) const {
    if (watch_) watch_({counts_.done_bytes + done_bytes, counts_.all_bytes, counts_.records});
  }

  const Handler& handler_;
  const Tokenizer& tokenizer_;
  const ConversionOptions& options_;
  const SampleSink& sink_;
  const PreprocessWatcher& watch_;
  ConversionCounts& counts_;
  RecordFilesReader reader_;
  std::vector<std::optional<TokenEncoder>> encoders_;  // one a worker
  bool begun_ = false;
  bool broken_ = false;
  std::atomic<std::int64_t> taken_ = 0;  // by take(), looked at by next()
};

}  // namespace

bool is_too_long(const SampleIds& sample, const std::optional<std::int64_t>& seq_length) {
  return seq_length && std::ranges::any_of(sample, [&](const auto& ids) { return std::ssize(ids) >= *seq_length; });
}

void DropCounter::add(DropReason reason, std::string place) {
  auto count = std::ranges::find(counts_, reason, &DropCount::reason);
  if (count == counts_.end()) count = counts_.insert(counts_.end(), DropCount{.reason = reason, .places = {}});
  ++count->records;
  if (count->places.size() < kPlacesOfDrops) count->places.push_back(std::move(place));
}

void convert_records(const RecordSource& source, const Tokenizer& tokenizer, const ConversionOptions& options,
                     const SampleSink& sink, const PreprocessWatcher& watch, ConversionCounts& counts) {
  Conversion conversion(source, tokenizer, options, sink, watch, counts);
  conversion.run();
  if (conversion.records() == 0) {
    config_error("--input: {} has no records; give a file that has some", escaped(source.files.front().string()));
  }
}

}  // namespace loom::data
