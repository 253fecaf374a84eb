#include <fmt/core.h>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "engine/convert/mcore/mcore_output.h"
#include "engine/convert/mcore/misfits.h"
#include "engine/convert/mcore/tensor_views.h"
#include "engine/convert/mm/mm.h"
#include "engine/convert/mm/mm_rows.h"
#include "engine/convert/tensor_compare.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/output_plan.h"
#include "models/hf/folder_files.h"
#include "models/qwen_vl/stored_names.h"

namespace loom::checkpoint {
namespace {

using Chunks = std::vector<std::vector<OutputTensor>>;

// The tensors of a folder under their published names.
TensorList published(const TensorList& list) {
  std::vector<SourceTensor> tensors = list.tensors();
  for (SourceTensor& tensor : tensors) tensor.name = models::published_qwen_vl_name(tensor.name);
  return TensorList(std::move(tensors));
}

class MmImport {
 public:
  MmImport(const HfToMm& options, const MmModel& model, const MmPlan& plan, const TensorList& list)
      : options_(options),
        model_(model),
        plan_(plan),
        list_(list),
        rows_(mm_rows(model)),
        at_(rows_at(rows_, plan)),
        misfits_(fmt::format("{}: its tensors do not match {} by {}", options.hf_dir.string(),
                             models::model_type(model.config.version), model.file.string())) {
    check_tie();
  }

  // The tensors of each chunk of a tensor rank's stage.
  Chunks outputs(int stage, int rank) {
    Chunks chunks(static_cast<std::size_t>(plan_.chunks));
    for (const RowAt& at : at_) {
      if (at.place.stage == stage) add(at, rank, chunks[static_cast<std::size_t>(at.place.chunk)]);
    }
    return chunks;
  }

  // Every name of the folder that no file got or that is there twice; refuses those, missing ones and other shapes.
  void refuse_misfits() {
    std::set<std::string_view> names;
    for (const SourceTensor& tensor : list_.tensors()) {
      if (!names.insert(tensor.name).second) {
        misfits_.add("'{}' is there under two names, of older and newer transformers", shown_text(tensor.name));
      }
      if (used_.contains(tensor.name) || models::is_stored_buffer(tensor.name)) continue;
      misfits_.add("not expected '{}' {}", shown_text(tensor.name), to_string(tensor.shape));
    }
    misfits_.refuse();
  }

 private:
  // A tied output layer that the folder has is the embedding.
  void check_tie() {
    const SourceTensor* head = list_.find(kFolderHead);
    const SourceTensor* embedding = list_.find(kFolderEmbedding);
    if (!model_.tied() || head == nullptr || embedding == nullptr) return;
    used_.insert(kFolderHead);
    check_tied(*head, *embedding, options_.hf_dir, model_.file);
  }

  const SourceTensor* find(const std::string& name, const Shape& shape) {
    return find_tensor(list_, name, shape, used_, misfits_);
  }

  void add(const RowAt& at, int rank, std::vector<OutputTensor>& to) {
    const Row& row = *at.row;
    const bool is_tied_head = model_.tied() && row.folder.front().name == kFolderHead;
    if (is_tied_head && plan_.stages == 1) return;
    std::vector<const SourceTensor*> tensors;
    for (const FolderTensor& tensor : row.folder) {
      tensors.push_back(find(is_tied_head ? kFolderEmbedding : numbered(tensor.name, at.layer), tensor.shape));
      if (tensors.back() == nullptr) return;
    }
    OutputTensor output{.name = numbered(row.name, at.place.local),
                        .dtype = tensors.front()->dtype,
                        .shape = mm_shape(row, options_.layout.tensor_size),
                        .parts = parts_of(row, tensors, rank)};
    check_one_dtype(output.name, output.parts);
    if (options_.dtype && is_floating(output.dtype)) output.dtype = *options_.dtype;
    to.push_back(std::move(output));
  }

  std::vector<TensorPart> parts_of(const Row& row, const std::vector<const SourceTensor*>& tensors, int rank) const {
    const int size = options_.layout.tensor_size;
    if (row.form == RowForm::kCopied) return whole(*tensors.front(), row.name).parts;
    if (row.form == RowForm::kColumns) {
      const Matrix matrix = matrix_of(*tensors.front());
      const std::int64_t width = matrix.columns / size;
      return {matrix.cols(rank * width, width).part()};
    }
    std::vector<TensorPart> parts;
    for (const Slice& slice : slices_of(row, rank, size)) {
      parts.push_back(matrix_of(*tensors[slice.tensor]).rows(slice.first, slice.count).part());
    }
    return parts;
  }

  const HfToMm& options_;
  const MmModel& model_;
  const MmPlan& plan_;
  const TensorList& list_;
  const std::vector<Row> rows_;
  const std::vector<RowAt> at_;
  std::set<std::string> used_;
  Misfits misfits_;
};

// One file: a stage's tensors of a tensor rank.
struct RankFile {
  std::string name;
  Chunks chunks;
};

void write(McoreOutput& output, TensorCopy& copy, const RankFile& file) {
  std::vector<io::TorchEntry> entries{{.key = "checkpoint_version", .value = io::PlainValue::real(kMegatronVersion)}};
  for (std::size_t chunk = 0; chunk < file.chunks.size(); ++chunk) {
    entries.push_back({.key = file.chunks.size() == 1 ? "model" : fmt::format("model{}", chunk),
                       .tensors = std::vector<io::TensorToWrite>{}});
    for (const OutputTensor& tensor : file.chunks[chunk]) {
      entries.back().tensors->push_back({tensor.name, tensor.dtype, tensor.shape, copy.producer(tensor)});
    }
  }
  output.write(file.name, entries);
}

}  // namespace

Converted convert(const HfToMm& options, const CopyWatcher& watcher) {
  const MmModel model = read_mm_model("--hf-dir", options.hf_dir, options.model_type);
  const MmPlan plan = plan_mm(options.layout, model);
  const io::HfWeights weights(options.hf_dir);
  const TensorList list = published(tensors_of(weights));
  MmImport to_mm(options, model, plan, list);
  std::vector<RankFile> files;
  Converted done;
  for (int stage = 0; stage < plan.stages; ++stage) {
    for (int rank = 0; rank < options.layout.tensor_size; ++rank) {
      files.push_back({mcore_rank_name(rank, plan.stages > 1 ? std::optional(stage) : std::nullopt, std::nullopt),
                       to_mm.outputs(stage, rank)});
      for (const auto& chunk : files.back().chunks) {
        done.tensors += static_cast<std::int64_t>(chunk.size());
        for (const OutputTensor& tensor : chunk) done.bytes += tensor.size_bytes();
      }
    }
  }
  to_mm.refuse_misfits();
  done.files = static_cast<std::int64_t>(files.size());
  io::OutputPlan outputs;
  outputs.reads("--hf-dir", options.hf_dir);
  outputs.writes_folder("--mm-dir", options.mm_dir);
  outputs.check();
  outputs.prepare();
  McoreOutput output("--mm-dir", options.mm_dir, kRelease);
  TensorCopy copy(done.bytes, watcher);
  for (const RankFile& file : files) write(output, copy, file);
  done.path = output.commit();
  done.overflows = copy.overflows();
  return done;
}

}  // namespace loom::checkpoint
