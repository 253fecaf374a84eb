// The page docs/planner-accuracy.md: predictions against what was published, row by row, and what they come to.
#pragma once

#include <string>
#include <vector>

#include "bench/published_rows.h"

namespace loom::bench {

struct Compared {
  PublishedRow row;
  PlannedRow plan;

  // Signed, relative; none where nothing was published.
  std::optional<double> speed_error() const;
  std::optional<double> reserved_error() const;
  std::optional<double> allocated_error() const;
  // The row ran out of memory where it should not have, or the other way round.
  bool wrong_about_memory() const;
};

std::string accuracy_page(const PublishedRows& all, const std::vector<Compared>& rows, const std::string& command);
// The mean of the absolute errors in speed on GPU rows that are predicted unchanged; 0 without any.
double mean_speed_error_on_gpus(const std::vector<Compared>& rows);
// One line for the terminal.
std::string accuracy_line(const Compared& compared);

}  // namespace loom::bench
