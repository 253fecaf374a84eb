#include <algorithm>
#include <fmt/format.h>
#include <span>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "sharding/pipeline/placed_stages.h"
#include "sharding/pipeline/split.h"

namespace loom::sharding {
namespace {

constexpr std::string_view kSymbols = "EtmL|";
constexpr std::string_view kAllowed =
    "allowed are E (embedding), t (layer), m (layer of multi-token prediction), L (loss), '|' (next stage), commas, "
    "'x*n' and '(..)*n'";

// One letter of the layout with its repetitions written out; `position` is where the text has it.
struct Symbol {
  char letter = 0;
  std::size_t position = 0;
};

using Symbols = std::vector<Symbol>;

template <class... Args>
[[noreturn]] void layout_error(std::string_view text, std::size_t position, fmt::format_string<Args...> format,
                               Args&&... args) {
  config_error("pipeline_model_parallel_layout '{}', character {}: {}", shown_text(text), position + 1,
               fmt::format(format, std::forward<Args>(args)...));
}

// The bytes of the UTF-8 character at `position`.
std::string_view character(std::string_view text, std::size_t position) {
  std::size_t end = position + 1;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
  return text.substr(position, end - position);
}

// The text as symbols. The grammar is in split.h.
class LayoutReader {
 public:
  explicit LayoutReader(std::string_view text) : text_(text) {}

  Symbols read() {
    Symbols all;
    while (!at_end()) {
      const Symbols item = peek() == '(' ? group() : repeated_symbol();
      all.insert(all.end(), item.begin(), item.end());
      check_length(all);
    }
    return all;
  }

 private:
  Symbols group() {
    const std::size_t open = position_++;
    Symbols inside;
    while (!at_end() && peek() != ')') {
      if (peek() == '(') layout_error(text_, position_, "a group inside a group; write out the inner one");
      const Symbols item = repeated_symbol();
      inside.insert(inside.end(), item.begin(), item.end());
      check_length(inside);
    }
    if (at_end()) layout_error(text_, open, "'(' has no ')'; write '(..)*n'");
    if (inside.empty()) layout_error(text_, open, "the group is empty; {}", kAllowed);
    ++position_;
    if (at_end() || peek() != '*') {
      layout_error(text_, open, "the group has no number of repetitions behind it; write '(..)*n'");
    }
    return repeated(inside);
  }

  Symbols repeated_symbol() {
    const char letter = peek();
    if (letter == '*') layout_error(text_, position_, "nothing stands before '*'; write 'x*n' or '(..)*n'");
    if (letter == ')') layout_error(text_, position_, "')' has no '('; write '(..)*n'");
    if (kSymbols.find(letter) == kSymbols.npos) {
      layout_error(text_, position_, "'{}' is unknown; {}", shown_text(character(text_, position_)), kAllowed);
    }
    const Symbols one{{letter, position_++}};
    return !at_end() && peek() == '*' ? repeated(one) : one;
  }

  // Reads '*' and the number.
  Symbols repeated(const Symbols& symbols) {
    const std::size_t star = position_++;
    std::int64_t times = 0;
    bool is_number = false;
    for (; !at_end() && peek() >= '0' && peek() <= '9'; ++position_) {
      times = std::min(times * 10 + (peek() - '0'), kLargestPipeline + 1);
      is_number = true;
    }
    if (!is_number) layout_error(text_, star, "'*' has no number behind it; write 'x*n' or '(..)*n'");
    if (!at_end() && peek() == '*') {
      layout_error(text_, position_, "a repetition is repeated; write one number that is the product");
    }
    if (times * std::ssize(symbols) > kLargestPipeline) too_long(star);
    Symbols all;
    for (std::int64_t i = 0; i < times; ++i) all.insert(all.end(), symbols.begin(), symbols.end());
    return all;
  }

  // Commas are skipped.
  bool at_end() {
    while (position_ < text_.size() && text_[position_] == ',') ++position_;
    return position_ == text_.size();
  }
  char peek() const { return text_[position_]; }
  void check_length(const Symbols& symbols) {
    if (std::ssize(symbols) > kLargestPipeline) too_long(symbols.back().position);
  }
  [[noreturn]] void too_long(std::size_t position) const {
    layout_error(text_, position, "the layout has more than {} letters when repetitions are written out; write less",
                 kLargestPipeline);
  }

  const std::string_view text_;
  std::size_t position_ = 0;
};

std::int64_t count_of(std::span<const Symbol> symbols, char letter) {
  return std::ranges::count(symbols, letter, &Symbol::letter);
}

// Exactly one `letter` in the layout.
void check_once(std::string_view text, std::span<const Symbol> symbols, char letter, std::string_view name) {
  const auto first = std::ranges::find(symbols, letter, &Symbol::letter);
  const auto second = std::ranges::find(std::next(first), symbols.end(), letter, &Symbol::letter);
  if (second == symbols.end()) return;
  layout_error(text, second->position, "a second {} ({}); write one", letter, name);
}

// `layers` are all symbols but '|'.
void check_order(std::string_view text, std::span<const Symbol> layers) {
  if (layers.empty()) {
    config_error("pipeline_model_parallel_layout '{}' has no layers; write E, the layers t and L, as 'Ett|ttL'",
                 shown_text(text));
  }
  if (layers.front().letter != 'E') {
    layout_error(text, layers.front().position,
                 "the first layer is {}, and it has to be E (embedding); write E before it", layers.front().letter);
  }
  if (layers.back().letter != 'L') {
    layout_error(text, layers.back().position, "the last layer is {}, and it has to be L (loss); write L behind it",
                 layers.back().letter);
  }
  check_once(text, layers, 'E', "embedding");
  check_once(text, layers, 'L', "loss");
  const auto first_mtp = std::ranges::find(layers, 'm', &Symbol::letter);
  if (first_mtp != layers.end() && std::ranges::find(first_mtp, layers.end(), 't', &Symbol::letter) != layers.end()) {
    layout_error(text, first_mtp->position, "m stands before a t; write every m behind all t");
  }
}

void check_counts(const MegatronLayoutSplit& split, std::span<const Symbol> layers) {
  const std::string text = shown_text(split.pipeline_model_parallel_layout);
  if (const std::int64_t found = count_of(layers, 't'); found != split.layers) {
    config_error(
        "pipeline_model_parallel_layout '{}' has {} layers (t), and num_layers is {}; write {} t, or "
        "num_layers {}",
        text, found, split.layers, split.layers, found);
  }
  if (const std::int64_t found = count_of(layers, 'm'); found != split.mtp_layers) {
    config_error(
        "pipeline_model_parallel_layout '{}' has {} layers of multi-token prediction (m), and mtp_num_layers "
        "is {}; write {} m, or mtp_num_layers {}",
        text, found, split.mtp_layers, split.mtp_layers, found);
  }
}

// One span a stage.
std::vector<std::span<const Symbol>> stages_of(std::span<const Symbol> symbols) {
  std::vector<std::span<const Symbol>> stages;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= symbols.size(); ++i) {
    if (i < symbols.size() && symbols[i].letter != '|') continue;
    stages.push_back(symbols.subspan(begin, i - begin));
    begin = i + 1;
  }
  return stages;
}

void check_stages(const MegatronLayoutSplit& split, std::int64_t stages) {
  const std::string text = shown_text(split.pipeline_model_parallel_layout);
  if (stages % split.ranks != 0) {
    config_error(
        "pipeline_model_parallel_layout '{}' has {} stages, and pipeline_model_parallel_size is {}; write {} "
        "stages, or a size that divides {}",
        text, stages, split.ranks, multiples_beside(stages, split.ranks), stages);
  }
  const std::int64_t found = stages / split.ranks;
  if (!split.chunks || *split.chunks == found) return;
  config_error(
      "pipeline_model_parallel_layout '{}' has {} stages for {} pipeline ranks, which makes the number of "
      "chunks {}, and {} is requested; leave that number out, or write {} stages",
      text, stages, split.ranks, found, *split.chunks, split.ranks * *split.chunks);
}

// All m in one stage, and that in the last chunk of its rank.
void check_mtp(const MegatronLayoutSplit& split, std::span<const std::span<const Symbol>> stages) {
  for (std::int64_t i = 0; i < std::ssize(stages); ++i) {
    const std::span<const Symbol> stage = stages[static_cast<std::size_t>(i)];
    const auto mtp = std::ranges::find(stage, 'm', &Symbol::letter);
    if (mtp == stage.end()) continue;
    const std::string& text = split.pipeline_model_parallel_layout;
    if (i < std::ssize(stages) - split.ranks) {
      layout_error(text, mtp->position,
                   "m stands in stage {} of {}, which is not the last chunk of its rank; write it in one of the last "
                   "{} stages",
                   i, stages.size(), split.ranks);
    }
    if (const std::int64_t found = count_of(stage, 'm'); found != split.mtp_layers) {
      layout_error(text, mtp->position, "this stage has {} of {} m; write all of them in one stage", found,
                   split.mtp_layers);
    }
  }
}

}  // namespace

std::vector<StageLayout> split_megatron_layout(const MegatronLayoutSplit& split) {
  check_pipeline(split.layers, split.ranks, split.chunks.value_or(1));
  check_size("mtp_num_layers", split.mtp_layers, 0);
  const std::string& text = split.pipeline_model_parallel_layout;
  const Symbols symbols = LayoutReader(text).read();
  Symbols layers;
  std::ranges::copy_if(symbols, std::back_inserter(layers), [](const Symbol& each) { return each.letter != '|'; });
  check_order(text, layers);
  const std::vector<std::span<const Symbol>> stages = stages_of(symbols);
  check_stages(split, std::ssize(stages));
  check_counts(split, layers);
  check_mtp(split, stages);

  std::vector<std::int64_t> counts;
  for (const auto& stage : stages) counts.push_back(count_of(stage, 't'));
  std::vector<StageLayout> placed = placed_stages(counts, split.ranks);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    placed[i].embedding = count_of(stages[i], 'E') > 0;
    placed[i].loss = count_of(stages[i], 'L') > 0;
    placed[i].mtp = count_of(stages[i], 'm');
  }
  return placed;
}

}  // namespace loom::sharding
