// The table of tensors that both directions of MindSpeed-MM's conversion read: which tensors of the Hugging Face folder
// are which tensor of a tensor rank, and in which rows. Private to engine/convert.
//
// Names    of the folder are the published ones (models/qwen_vl/stored_names.h); "{}" is a layer's number.
// Rows     a tensor that is cut by rows is described once, by its Slices; the way back takes the same slices.
// Threads  any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/convert/mm/mm_model.h"
#include "engine/core/shape.h"

namespace loom::checkpoint {

inline constexpr const char* kFolderEmbedding = "model.embed_tokens.weight";
inline constexpr const char* kFolderHead = "lm_head.weight";

enum class RowPlace : std::uint8_t {
  kBeforeVision,  // where the tower's first layer is
  kVisionLayer,
  kBehindVision,
  kBeforeText,
  kTextLayer,
  kBehindText,
};

enum class RowForm : std::uint8_t {
  kCopied,   // whole on every rank
  kColumns,  // cut by columns
  kRows,     // of each tensor a rank's rows, one tensor behind another
  kGroups,   // for each unit of a rank, of each tensor the unit's rows
  kThirds,   // one tensor of three thirds: for each unit of a rank, of each third the unit's rows
};

struct FolderTensor {
  std::string name;
  Shape shape;
};

struct Row {
  RowPlace place = RowPlace::kBeforeText;
  RowForm form = RowForm::kCopied;
  std::vector<FolderTensor> folder;  // one; gate and up; query, key and value
  std::string name;                  // in MindSpeed-MM
  std::int64_t units = 1;            // heads of the tower, or groups of heads; a multiple of the tensor ranks
};

// Rows [first, first + count) of a tensor of `folder`.
struct Slice {
  std::size_t tensor = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

std::vector<Row> mm_rows(const MmModel& model);
// The rows of a tensor rank's tensor, of kRows, kGroups and kThirds.
std::vector<Slice> slices_of(const Row& row, int rank, int tensor_size);
Shape mm_shape(const Row& row, int tensor_size);

// "a.{}.b" with the number.
std::string numbered(const std::string& name, std::int64_t number);

// A row at a layer, or at the one place that it has.
struct RowAt {
  const Row* row = nullptr;
  std::int64_t layer = 0;  // of the model
  LayerPlace place;
};
std::vector<RowAt> rows_at(const std::vector<Row>& rows, const MmPlan& plan);

}  // namespace loom::checkpoint
