#include "engine/train/schedule/pipeline_csv.h"

#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <iterator>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/atomic_file.h"

namespace loom::train {
namespace {

std::string_view trimmed(std::string_view cell) {
  const std::size_t first = cell.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return "";
  return cell.substr(first, cell.find_last_not_of(" \t\r") - first + 1);
}

// Takes the next cell off the row; a quoted one may hold commas.
std::string_view take_cell(std::string_view& row, std::size_t number) {
  std::size_t end = 0;
  std::string_view cell = row;
  if (row.starts_with('"')) {
    const std::size_t close = row.find('"', 1);
    if (close == std::string_view::npos) {
      config_error("row {} of a pipeline's CSV has a quote that does not end: {}", number, shown_text(row));
    }
    cell = row.substr(1, close - 1);
    end = std::min(row.find(',', close), row.size());
    if (!trimmed(row.substr(close + 1, end - close - 1)).empty()) {
      config_error("row {} of a pipeline's CSV has text behind a quoted cell: {}", number, shown_text(row));
    }
  } else {
    end = std::min(row.find(','), row.size());
    cell = row.substr(0, end);
  }
  row.remove_prefix(std::min(end + 1, row.size()));
  return trimmed(cell);
}

PipelineList parse_row(std::string_view row, std::size_t number) {
  PipelineList list;
  for (std::size_t cell_number = 1; !row.empty(); ++cell_number) {
    const std::string_view cell = take_cell(row, number);
    if (cell.empty()) continue;
    try {
      list.push_back(parse_pipeline_step(cell));
    } catch (const ConfigError& error) {
      config_error("row {}, cell {}: {}", number, cell_number, error.what());
    }
  }
  return list;
}

}  // namespace

PipelineLists parse_pipeline_csv(std::string_view text) {
  PipelineLists lists;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lists.push_back(parse_row(text.substr(0, end), lists.size() + 1));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  while (!lists.empty() && lists.back().empty()) lists.pop_back();
  return lists;
}

std::string to_pipeline_csv(const PipelineLists& lists) {
  std::string text;
  for (const PipelineList& list : lists) {
    std::vector<std::string> cells;
    for (const PipelineStep& step : list) {
      const std::string token = to_text(step);
      cells.push_back(token.find(',') == std::string::npos ? token : fmt::format("\"{}\"", token));
    }
    text += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return text;
}

PipelineLists read_pipeline_csv(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream)
    config_error("the pipeline's order {} cannot be read; write the name of a CSV file", shown_text(file.string()));
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  try {
    return parse_pipeline_csv(text);
  } catch (const ConfigError& error) {
    config_error("{}: {}", shown_text(file.string()), error.what());
  }
}

void write_pipeline_csv(const std::filesystem::path& file, const PipelineLists& lists) {
  try {
    io::write_text(file, to_pipeline_csv(lists));
  } catch (const ConfigError& error) {
    config_error("the pipeline's order cannot be written to {}: {}", shown_text(file.string()), error.what());
  }
}

}  // namespace loom::train
