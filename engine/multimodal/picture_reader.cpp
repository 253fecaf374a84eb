#include "engine/multimodal/picture_reader.h"

#include "engine/core/checked.h"
#include "engine/core/error.h"

namespace loom::multimodal {

std::int64_t token_count(const Grid& grid, std::int64_t merge_size) {
  require(grid.t > 0 && grid.h > 0 && grid.w > 0 && merge_size > 0, "a grid of {} x {} x {} patches, merged by {}",
          grid.t, grid.h, grid.w, merge_size);
  const auto plane = checked_multiply(grid.h, grid.w);
  const auto patches = plane ? checked_multiply(*plane, grid.t) : std::nullopt;
  require(patches && *patches % (merge_size * merge_size) == 0, "a grid of {} x {} x {} patches, merged by {}", grid.t,
          grid.h, grid.w, merge_size);
  return *patches / (merge_size * merge_size);
}

}  // namespace loom::multimodal
