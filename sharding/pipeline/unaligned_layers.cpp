#include <algorithm>
#include <fmt/format.h>
#include <numeric>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "sharding/pipeline/placed_stages.h"
#include "sharding/pipeline/split.h"

namespace loom::sharding {
namespace {

using Row = std::vector<std::int64_t>;  // the chunks of a rank

// "[[2,1],[3]*2]" as rows.
class RowsReader {
 public:
  explicit RowsReader(std::string_view text) : text_(text) {}

  std::vector<Row> read() {
    expect('[', "a list of lists");
    std::vector<Row> rows;
    while (next() == '[') repeat(rows, row());
    expect(']', "one list for each pipeline rank");
    if (next() != 0) wrong("the end of the text");
    return rows;
  }

 private:
  Row row() {
    expect('[', "a list");
    Row numbers;
    while (is_digit(next())) repeat(numbers, number());
    expect(']', "numbers");
    return numbers;
  }

  // Adds `item` once, or as often as '*n' behind it says.
  template <class Item>
  void repeat(std::vector<Item>& all, Item item) {
    std::int64_t times = 1;
    if (next() == '*') {
      ++position_;
      if (!is_digit(next())) wrong("a number behind '*'");
      times = number();
    }
    if (std::ssize(all) + times > kLargestPipeline) {
      config_error("{}: more than {} entries when repetitions are written out; write less", place(), kLargestPipeline);
    }
    all.insert(all.end(), static_cast<std::size_t>(times), item);
  }

  std::int64_t number() {
    std::int64_t value = 0;
    for (; position_ < text_.size() && is_digit(text_[position_]); ++position_) {
      value = std::min(value * 10 + (text_[position_] - '0'), kLargestPipeline + 1);
    }
    if (value > kLargestPipeline) config_error("{}: a number above {}; write less", place(), kLargestPipeline);
    return value;
  }

  void expect(char wanted, std::string_view what) {
    if (next() != wanted) wrong(fmt::format("{} in '[' and ']'", what));
    ++position_;
  }
  // The next character that does not separate; 0 at the end.
  char next() {
    while (position_ < text_.size() && (text_[position_] == ',' || text_[position_] == ' ')) ++position_;
    return position_ < text_.size() ? text_[position_] : '\0';
  }
  [[noreturn]] void wrong(std::string_view wanted) const {
    const std::string found =
        position_ < text_.size() ? fmt::format("'{}'", escaped(text_.substr(position_, 1))) : "the end of the text";
    config_error(
        "{}: {} stands where {} is allowed; write one list a pipeline rank with one number a chunk, as "
        "[[2,1],[3,2]] or [[2,1]*4]",
        place(), found, wanted);
  }
  std::string place() const {
    return fmt::format("pipeline_num_transformer_layers '{}', character {}", shown_text(text_), position_ + 1);
  }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  const std::string_view text_;
  std::size_t position_ = 0;
};

void check_rows(const UnalignedSplit& split, const std::vector<Row>& rows) {
  const std::string text = shown_text(split.pipeline_num_transformer_layers);
  if (std::ssize(rows) != split.ranks) {
    config_error(
        "pipeline_num_transformer_layers '{}' has {} lists, and pipeline_model_parallel_size is {}; write one "
        "list a rank",
        text, rows.size(), split.ranks);
  }
  std::int64_t sum = 0;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    if (std::ssize(rows[rank]) != split.chunks) {
      config_error(
          "pipeline_num_transformer_layers '{}' has {} numbers for rank {}, and a rank has {} chunks; write "
          "one number a chunk",
          text, rows[rank].size(), rank, split.chunks);
    }
    sum = std::accumulate(rows[rank].begin(), rows[rank].end(), sum);
  }
  if (sum == split.layers) return;
  config_error(
      "pipeline_num_transformer_layers '{}' adds up to {}, and num_layers is {}; write numbers that add up to "
      "{}",
      text, sum, split.layers, split.layers);
}

}  // namespace

std::vector<StageLayout> split_mindspeed_unaligned(const UnalignedSplit& split) {
  check_pipeline(split.layers, split.ranks, split.chunks);
  const std::vector<Row> rows = RowsReader(split.pipeline_num_transformer_layers).read();
  check_rows(split, rows);
  std::vector<std::int64_t> counts;
  for (std::size_t chunk = 0; chunk < static_cast<std::size_t>(split.chunks); ++chunk) {
    for (const Row& row : rows) counts.push_back(row[chunk]);
  }
  return placed_stages(counts, split.ranks);
}

}  // namespace loom::sharding
