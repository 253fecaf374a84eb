#include "engine/text/preprocess/preprocess.h"

#include <fmt/ranges.h>
#include <system_error>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/text/preprocess/conversion.h"
#include "engine/text/preprocess/dataset_info.h"
#include "engine/text/preprocess/merge_pairs.h"
#include "engine/text/preprocess/packing.h"
#include "engine/text/preprocess/pair_outputs.h"
#include "engine/text/preprocess/preprocess_rules.h"
#include "engine/text/preprocess/sample_store.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSamplesBetweenReports = 4096;

struct OpenTokenizer {
  Tokenizer tokenizer;
  SpecialIds ids;
};

// A name of the hub, and a folder of another kind of tokenizer, are met here.
void check_tokenizer(const fs::path& path) {
  std::error_code none;
  if (!fs::exists(path, none)) {
    config_error(
        "--tokenizer-name-or-path: {} is not there; give a Hugging Face folder with tokenizer.json, nothing is "
        "downloaded",
        escaped(path.string()));
  }
  if (!fs::is_directory(path, none) || fs::exists(path / "tokenizer.json", none)) return;
  config_error(
      "--tokenizer-name-or-path: {} has no tokenizer.json; transformers writes one: "
      "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
      escaped(path.string()));
}

OpenTokenizer open_tokenizer(const PreprocessOptions& options) {
  const fs::path& path = options.tokenizer_name_or_path;
  check_tokenizer(path);
  Tokenizer tokenizer = Tokenizer::from_file(path);
  SpecialIds ids = read_special_ids(fs::is_directory(path) ? path : path.parent_path(), tokenizer);
  if (options.append_eod && !ids.eos) {
    config_error(
        "--append-eod: the tokenizer of {} has no eos token; name it in tokenizer_config.json (eos_token), or remove "
        "--append-eod",
        escaped(path.string()));
  }
  return {std::move(tokenizer), std::move(ids)};
}

// One for each data set of a dataset_info.json; else one.
std::vector<RecordSource> open_sources(const PreprocessOptions& options, const OpenTokenizer& opened) {
  std::vector<RecordSource> sources;
  const auto add = [&](const char* flag, const fs::path& path, const HandlerOptions& handler) {
    sources.push_back({record_files(flag, path), make_handler(handler, opened.tokenizer, opened.ids)});
  };
  if (options.dataset_dir.empty()) {
    add("--input", options.input, options);
    return sources;
  }
  for (const DatasetInfo& dataset : read_dataset_info(options.dataset_dir, options.input)) {
    add("--dataset-dir", dataset.path, options_of(dataset, options));
  }
  return sources;
}

NamedInputs inputs_of(const PreprocessOptions& options, const std::vector<RecordSource>& sources) {
  NamedInputs inputs{{"--tokenizer-name-or-path", options.tokenizer_name_or_path}};
  if (!options.prompt_type_path.empty()) inputs.emplace_back("--prompt-type-path", options.prompt_type_path);
  if (!options.dataset_dir.empty()) inputs.emplace_back("--dataset-dir", options.dataset_dir);
  for (const RecordSource& source : sources) {
    for (const fs::path& file : source.files) inputs.emplace_back("--input", file);
  }
  return inputs;
}

PairOutputs open_outputs(const PreprocessOptions& options, const std::vector<RecordSource>& sources) {
  const Handler& handler = *sources.front().handler;
  std::vector<PairOutputs::Kind> kinds;
  for (const std::string& key : handler.keys()) {
    kinds.push_back({.name = fmt::format("{}{}_document", handler.is_pretrain() ? "" : "packed_", key)});
  }
  return {options.output_prefix, kinds, inputs_of(options, sources)};
}

std::uint64_t bytes_of(const std::vector<RecordSource>& sources) {
  std::uint64_t bytes = 0;
  for (const RecordSource& source : sources) {
    for (const fs::path& file : source.files) bytes += fs::file_size(file);
  }
  return bytes;
}

class Run {
 public:
  Run(const PreprocessOptions& options, const PreprocessWatcher& watch)
      : options_(options),
        watch_(watch),
        opened_(open_tokenizer(options)),
        sources_(open_sources(options, opened_)),
        handler_(*sources_.front().handler),
        outputs_(open_outputs(options, sources_)) {
    if (options.pack && !can_pack(handler_.keys())) {
      config_error("--pack: samples of the keys {} have lengths of their own; remove --pack",
                   fmt::join(handler_.keys(), ", "));
    }
    counts_.all_bytes = bytes_of(sources_);
  }

  PreprocessSummary run() {
    if (options_.pack) {
      SampleStore store = make_store();
      convert_all([&](SampleIds& sample) { put_aside(sample, store); });
      write_bins(store);
    } else {
      convert_all([&](SampleIds& sample) { write(sample); });
    }
    return {counts_.records, counts_.all_bytes, outputs_.commit(), counts_.drops.counts()};
  }

 private:
  SampleStore make_store() const { return {options_.output_prefix.parent_path(), handler_.keys().size()}; }

  void convert_all(const SampleSink& sink) {
    if (options_.mix_strategy == MixStrategy::kConcat) {
      for (const RecordSource& source : sources_) convert(source, sink);
      return;
    }
    // How often a data set is begun again depends on how many samples all of them give.
    std::vector<std::unique_ptr<SampleStore>> stores;
    std::vector<std::int64_t> sizes;
    for (const RecordSource& source : sources_) {
      SampleStore& store = *stores.emplace_back(
          std::make_unique<SampleStore>(options_.output_prefix.parent_path(), handler_.keys().size()));
      convert(source, [&](SampleIds& sample) { store.add(sample); });
      sizes.push_back(store.size());
    }
    const std::int64_t count = mixed_count(options_.mix_strategy, sizes);
    for (std::int64_t i = 0; i < count; ++i) {
      const MixedSample from = mixed_sample(options_.mix_strategy, sizes, i);
      SampleIds sample = stores[from.dataset]->read(from.sample);
      sink(sample);
      report(i);
    }
  }

  void convert(const RecordSource& source, const SampleSink& sink) {
    const bool cut_later = options_.pack && options_.neat_pack;
    const ConversionOptions conversion{.workers = options_.workers,
                                       .max_records = options_.max_samples,
                                       .seq_length = cut_later ? std::nullopt : options_.seq_length};
    convert_records(source, opened_.tokenizer, conversion, sink, watch_, counts_);
  }

  // A sample that is too long leaves a document without sequences.
  void write(const SampleIds& sample) {
    if (is_too_long(sample, options_.seq_length)) return outputs_.add_empty_document();
    for (std::size_t key = 0; key < sample.size(); ++key) {
      if (!sample[key].empty() || !handler_.is_pretrain()) outputs_.add_document(key, sample[key]);
    }
  }

  void put_aside(SampleIds& sample, SampleStore& store) const {
    if (is_too_long(sample, options_.seq_length)) {
      if (!options_.neat_pack) return;
      cut_sample(sample, *options_.seq_length - 1);
    }
    store.add(sample);
  }

  void write_bins(SampleStore& store) {
    const SpecialIds& ids = handler_.special_ids();
    if (!ids.pad) {
      config_error("--pack: the tokenizer of {} has neither a pad nor an eos token; name one in tokenizer_config.json",
                   escaped(options_.tokenizer_name_or_path.string()));
    }
    const PackedLine line{.seq_length = *options_.seq_length, .pad = *ids.pad, .neat = options_.neat_pack};
    std::int64_t bins = 0;
    for (const auto& bin : pack_bins(store.lengths(), line.seq_length - 1)) {
      std::vector<SampleIds> samples;
      for (const std::int64_t sample : bin) samples.push_back(store.read(sample));
      const SampleIds packed = pack_bin(handler_.keys(), samples, line);
      for (std::size_t key = 0; key < packed.size(); ++key) outputs_.add_document(key, packed[key]);
      report(bins++);
    }
  }

  void report(std::int64_t samples) const {
    if (watch_ && samples % kSamplesBetweenReports == 0) {
      watch_({counts_.all_bytes, counts_.all_bytes, counts_.records});
    }
  }

  const PreprocessOptions& options_;
  const PreprocessWatcher& watch_;
  const OpenTokenizer opened_;
  const std::vector<RecordSource> sources_;
  const Handler& handler_;  // of the first source; all of them write the same keys
  PairOutputs outputs_;
  ConversionCounts counts_;
};

}  // namespace

PreprocessSummary run_preprocess(const PreprocessOptions& options, const PreprocessWatcher& watch) {
  check_options(options);
  if (!options.merge_group_keys.empty()) return merge_pairs(options, watch);
  return Run(options, watch).run();
}

}  // namespace loom::data
