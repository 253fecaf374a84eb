#include "engine/data/sft_dataset.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/data/numpy_random.h"
#include "engine/data/turn_cut.h"

namespace loom::data {
namespace {

constexpr std::int32_t kNotLearnt = -100;

std::string shown_prefix(const SftFiles& files) { return escaped(files.prefix().string()); }

// --- the order of lines ---

// Samples of one epoch: the lines of the part, then its first lines again up to a whole batch.
std::int64_t epoch_size(const SequenceRange& range, const SftSampleOptions& options) {
  const std::int64_t rest = range.size() % options.padded_batch;
  return range.size() + (rest == 0 ? 0 : options.padded_batch - rest);
}

struct Epochs {
  std::int64_t size = 0;
  std::int64_t count = 0;
};

Epochs epochs_of(const std::string& flag, const SftFiles& files, DataSplit split, const SequenceRange& range,
                 std::optional<std::int64_t> samples, const SftSampleOptions& options) {
  if (samples.value_or(0) > 0 && range.size() == 0) {
    config_error(
        "{} {}: {} samples are needed of its part for {}, lines [{}, {}) of {}, which has no line; give that part more "
        "in --split, or ask for no sample of it",
        flag, shown_prefix(files), *samples, name_of(split), range.begin, range.end, files.line_count());
  }
  if (range.size() == 0) return {};
  const std::int64_t size = epoch_size(range, options);
  const std::int64_t wanted = samples.value_or(size);
  const std::int64_t count = wanted / size + (wanted % size == 0 ? 0 : 1);
  if (!checked_multiply(count, size * 8)) {
    config_error("{} {}: {} samples are needed of its part for {}; ask for fewer", flag, shown_prefix(files), wanted,
                 name_of(split));
  }
  return {size, count};
}

std::vector<std::int64_t> order_of(const SequenceRange& range, const Epochs& epochs, const SftSampleOptions& options) {
  std::vector<std::int64_t> lines(static_cast<std::size_t>(epochs.size * epochs.count));
  NumpyRandom random(static_cast<std::uint32_t>(options.seed));
  for (std::int64_t epoch = 0; epoch < epochs.count; ++epoch) {
    const auto part =
        std::span(lines).subspan(static_cast<std::size_t>(epoch * epochs.size), static_cast<std::size_t>(epochs.size));
    for (std::size_t i = 0; i < part.size(); ++i) part[i] = range.begin + static_cast<std::int64_t>(i) % range.size();
    if (options.shuffle) random.shuffle(part);
  }
  return lines;
}

std::string described_samples(const SequenceRange& range, const Epochs& epochs, const SftSampleOptions& options) {
  return fmt::format("SFT samples\nrange {} {}\nepochs {} of {}\nseed {}\nshuffle {}\n", range.begin, range.end,
                     epochs.count, epochs.size, options.seed, options.shuffle);
}

std::int32_t padding_id(const std::string& flag, const SftFiles& files, const SftSampleOptions& options) {
  if (options.pad >= 0) return options.pad;
  if (options.eod >= 0) return options.eod;
  config_error(
      "{} {}: samples for fine-tuning are padded, and no tokenizer gives an id for that; give "
      "--tokenizer-name-or-path DIR with a pad_token or an eos_token",
      flag, shown_prefix(files));
}

void check_files(const std::string& flag, const SftFiles& files, const SftSampleOptions& options) {
  require(options.seq_length >= 1 && options.pad_to_multiple_of >= 1 && options.padded_batch >= 1,
          "seq_length {}, pad_to_multiple_of {}, padded_batch {}", options.seq_length, options.pad_to_multiple_of,
          options.padded_batch);
  if (!std::in_range<std::uint32_t>(options.seed)) {
    config_error("--seed {}: samples for fine-tuning are shuffled by numpy's generator, whose seeds are 0 to {}",
                 options.seed, std::numeric_limits<std::uint32_t>::max());
  }
  const bool resets = options.reset_attention_mask || options.reset_position_ids;
  if (resets && !options.neat_pack && options.eod < 0) {
    config_error(
        "{} {}: --reset-attention-mask and --reset-position-ids need the id that ends a document, and no tokenizer "
        "gives one; give --tokenizer-name-or-path DIR with an eos_token",
        flag, shown_prefix(files));
  }
}

// --- the turns of a sample ---

// A prompt is a run of labels below 0, and what follows is its answer. Before the first prompt there may be an answer.
template <class Visit>
void for_each_turn(std::span<const std::int32_t> labels, Visit&& visit) {
  for (auto begin = labels.begin(); begin != labels.end();) {
    const auto learnt = std::find_if(begin, labels.end(), [](std::int32_t label) { return label >= 0; });
    const auto end = std::find_if(learnt, labels.end(), [](std::int32_t label) { return label < 0; });
    if (!visit(begin - labels.begin(), TurnLengths{learnt - begin, end - learnt})) return;
    begin = end;
  }
}

void keep(std::vector<std::int32_t>& values, std::size_t& kept, std::ptrdiff_t begin, std::int64_t count) {
  std::copy_n(values.begin() + begin, count, values.begin() + static_cast<std::ptrdiff_t>(kept));
  kept += static_cast<std::size_t>(count);
}

// The kept parts of all turns move to the front; how many tokens these are.
std::size_t cut_turns(std::vector<std::int32_t>& ids, std::vector<std::int32_t>& labels, std::int64_t most) {
  const std::vector<std::int32_t> all = labels;
  std::size_t kept_ids = 0;
  std::size_t kept_labels = 0;
  for_each_turn(all, [&](std::ptrdiff_t begin, const TurnLengths& turn) {
    const std::int64_t room = most - static_cast<std::int64_t>(kept_ids);
    if (room <= 0) return false;
    const TurnLengths part = cut_b(turn, room);
    for (const auto& [from, count] : {std::pair{begin, part.prompt}, {begin + turn.prompt, part.answer}}) {
      keep(ids, kept_ids, from, count);
      keep(labels, kept_labels, from, count);
    }
    return true;
  });
  return kept_ids;
}

std::size_t row_size(const GptSampleRow& row) {
  const std::size_t size = std::max(
      {row.tokens.size(), row.labels.size(), row.loss_mask.size(), row.position_ids.size(), row.attend_from.size()});
  for (const std::size_t each :
       {row.tokens.size(), row.labels.size(), row.loss_mask.size(), row.position_ids.size(), row.attend_from.size()}) {
    require(each == 0 || each == size, "a row's parts have {} and {} values", each, size);
  }
  return size;
}

}  // namespace

// A sample as the files have it; then cut; then padded. `size`: without padding.
struct SftDataset::Line {
  std::int64_t number = 0;
  std::vector<std::int32_t> ids, labels, mask;
  std::size_t size = 0;
};

SftDataset::SftDataset(const std::string& flag, std::shared_ptr<const SftFiles> files, DataSplit split,
                       const SplitShare& share, std::optional<std::int64_t> samples, const SftSampleOptions& options,
                       const IndexCache& cache)
    : flag_(flag), files_(std::move(files)), options_(options) {
  check_files(flag_, *files_, options_);
  pad_ = padding_id(flag_, *files_, options_);
  range_ = range_of(share, files_->line_count());
  const Epochs epochs = epochs_of(flag_, *files_, split, range_, samples, options_);
  index_ = cached_indices(cache, fmt::format("sft-{}", name_of(split)), described_samples(range_, epochs, options_),
                          {sizeof(std::int64_t)},
                          [&] { return std::vector<IndexVector>{order_of(range_, epochs, options_)}; });
  lines_ = index_.get<std::int64_t>(0);
}

// The index may come from a file of somebody else.
std::int64_t SftDataset::line_of(std::int64_t sample) const {
  require(0 <= sample && sample < sample_count(), "sample {} of {}", sample, sample_count());
  const std::int64_t line = lines_[static_cast<std::size_t>(sample)];
  if (range_.begin <= line && line < range_.end) return line;
  raise<Error>("{}: the index of sample {} leads out of the data; remove the cached indices and start again",
               shown_prefix(*files_), sample);
}

SftDataset::Line SftDataset::read(std::int64_t sample) const {
  Line line{.number = line_of(sample), .ids = {}, .labels = {}, .mask = {}};
  line.size = static_cast<std::size_t>(files_->length(line.number));
  const auto read_key = [&](const io::IndexedDataset& pair, std::vector<std::int32_t>& to) {
    to.resize(line.size);
    pair.read(line.number, 0, to);
  };
  read_key(files_->input_ids(), line.ids);
  read_key(files_->labels(), line.labels);
  if (const io::IndexedDataset* mask = files_->attention_mask()) {
    read_key(*mask, line.mask);
  } else {
    line.mask.assign(line.size, 1);
  }
  check_mask(line);
  cut(line);
  return line;
}

void SftDataset::check_mask(const Line& line) const {
  std::int32_t before = 0;
  for (std::size_t i = 0; i < line.size; ++i) {
    const std::int32_t number = line.mask[i];
    const std::int32_t most = i == 0 ? 1 : before == 0 ? 0 : before + 1;
    if (number != 0 && (number > most || number < before)) {
      config_error(
          "{} {}: attention_mask of line {} is {} at token {}, where {} is the most; it numbers the samples of a line "
          "1, "
          "2, 3 in turn and is 0 behind them",
          flag_, shown_prefix(*files_), line.number, number, i, most);
    }
    if (number > 1 && !options_.neat_pack) {
      config_error(
          "{} {}: attention_mask of line {} numbers the samples of the line, which would see each other; give "
          "--neat-pack",
          flag_, shown_prefix(*files_), line.number);
    }
    before = number;
  }
}

void SftDataset::cut(Line& line) const {
  const auto most = static_cast<std::size_t>(options_.seq_length);
  if (line.size <= most) return;
  if (options_.neat_pack) {
    config_error(
        "{} {}: line {} has {} tokens of packed samples, more than --seq-length {}; preprocess with this --seq-length",
        flag_, shown_prefix(*files_), line.number, line.size, most);
  }
  switch (options_.cut) {
    case CutRule::kTurns:
      line.size = cut_turns(line.ids, line.labels, options_.seq_length);
      break;
    case CutRule::kEnd:
      line.size = most;
      break;
    case CutRule::kNone:
      if (options_.variable_lengths) return;
      config_error(
          "line {} of {} {} has {} tokens, more than --seq-length {}, and is not cut; give --variable-seq-lengths, or "
          "preprocess with this --seq-length",
          line.number, flag_, shown_prefix(*files_), line.size, most);
  }
  line.ids.resize(line.size);
  line.labels.resize(line.size);
  line.mask.assign(line.size, 1);
}

void SftDataset::pad(Line& line, std::size_t size) const {
  require(size >= line.size, "a sample of {} tokens in a row of {}", line.size, size);
  line.ids.resize(size, pad_);
  line.labels.resize(size, kNotLearnt);
  line.mask.resize(size, 0);
}

// Calls write(begin, end) for the segments of a padded line.
template <class Write>
void SftDataset::for_each_segment(const Line& line, bool resets, Write&& write) const {
  const std::size_t size = line.ids.size();
  const auto ends = [&](std::size_t i) {
    if (options_.neat_pack) return line.mask[i] != line.mask[i - 1];
    return i == line.size || (resets && i < line.size && line.ids[i - 1] == options_.eod);
  };
  for (std::size_t begin = 0; begin < size;) {
    std::size_t end = begin + 1;
    while (end < size && !ends(end)) ++end;
    write(begin, end);
    begin = end;
  }
}

std::int64_t SftDataset::length(std::int64_t sample) const {
  const std::int64_t length = files_->length(line_of(sample));
  if (length <= options_.seq_length) return length;
  return static_cast<std::int64_t>(read(sample).size);
}

std::int64_t SftDataset::padded_length(std::span<const std::int64_t> samples) const {
  if (!options_.variable_lengths) return options_.seq_length;
  std::int64_t longest = 1;
  for (const std::int64_t sample : samples) longest = std::max(longest, length(sample));
  const std::int64_t multiple = options_.pad_to_multiple_of;
  const std::int64_t rounded = (longest + multiple - 1) / multiple * multiple;
  return longest <= options_.seq_length ? std::min(rounded, options_.seq_length) : rounded;
}

void SftDataset::fill(std::int64_t sample, const GptSampleRow& row) const {
  files_->check_unchanged();
  Line line = read(sample);
  pad(line, row_size(row));
  std::ranges::copy(std::span(line.ids).first(row.tokens.size()), row.tokens.begin());
  const auto label = [&](std::size_t i) {
    if (options_.labels_in_place) return line.labels[i];
    const bool last = i + 1 == line.ids.size() || (options_.neat_pack && line.mask[i] != line.mask[i + 1]);
    return last ? kNotLearnt : line.labels[i + 1];
  };
  for (std::size_t i = 0; i < row.labels.size(); ++i) row.labels[i] = label(i);
  for (std::size_t i = 0; i < row.loss_mask.size(); ++i) row.loss_mask[i] = label(i) < 0 ? 0.0F : 1.0F;
  if (!row.position_ids.empty() && !options_.neat_pack && !options_.reset_position_ids) {
    std::iota(row.position_ids.begin(), row.position_ids.end(), 0);
  } else if (!row.position_ids.empty()) {
    for_each_segment(line, true, [&](std::size_t begin, std::size_t end) {
      std::iota(row.position_ids.begin() + static_cast<std::ptrdiff_t>(begin),
                row.position_ids.begin() + static_cast<std::ptrdiff_t>(end), 0);
    });
  }
  if (row.attend_from.empty()) return;
  for_each_segment(line, options_.reset_attention_mask, [&](std::size_t begin, std::size_t end) {
    std::fill(row.attend_from.begin() + static_cast<std::ptrdiff_t>(begin),
              row.attend_from.begin() + static_cast<std::ptrdiff_t>(end), static_cast<std::int32_t>(begin));
  });
}

}  // namespace loom::data
