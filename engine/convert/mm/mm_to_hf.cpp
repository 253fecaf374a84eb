#include <algorithm>
#include <fmt/core.h>
#include <set>
#include <tuple>
#include <utility>

#include "engine/convert/hf/assets.h"
#include "engine/convert/hf/hf_output.h"
#include "engine/convert/mcore/mcore_folder.h"
#include "engine/convert/mcore/misfits.h"
#include "engine/convert/mcore/tensor_views.h"
#include "engine/convert/mm/mm.h"
#include "engine/convert/mm/mm_rows.h"
#include "engine/convert/tensor_compare.h"
#include "engine/convert/whole_folder.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/output_plan.h"
#include "models/hf/folder_files.h"
#include "models/qwen_vl/stored_names.h"

namespace loom::checkpoint {
namespace {

// A tensor of each tensor rank.
using RankTensors = std::vector<const SourceTensor*>;

void check_folder(const McoreFolder& folder, const MmLayout& layout, const MmPlan& plan) {
  const auto check = [&](int there, int given, const char* what, const char* flag) {
    if (there == given) return;
    config_error("{} has {} {}, but {} says {}; write the sizes that it was made with", folder.path().string(), there,
                 what, flag, given);
  };
  check(folder.tensor_size(), layout.tensor_size, "tensor ranks", "--tp-size");
  check(folder.stages(), plan.stages, "stages", "--llm-pp-layers");
  check(folder.chunks(), plan.chunks, "virtual stages", "--llm-pp-layers");
  if (folder.expert_size() == 1) return;
  config_error("{} has {} expert ranks, but these models have no experts; give the folder of a Qwen-VL",
               folder.path().string(), folder.expert_size());
}

class MmExport {
 public:
  MmExport(const MmToHf& options, const MmModel& model, const MmPlan& plan, const Assets& assets, McoreFolder& folder)
      : options_(options),
        model_(model),
        assets_(assets),
        folder_(folder),
        rows_(mm_rows(model)),
        at_(rows_at(rows_, plan)),
        misfits_(fmt::format("{}: its tensors do not match {} by {}", folder.path().string(),
                             models::model_type(model.config.version), model.file.string())) {
    if (assets.names()) {
      for (const std::string& name : *assets.names()) wanted_.insert(models::published_qwen_vl_name(name));
    }
  }

  // Every tensor of the folder, in the model's order. Refuses what does not fit, all of it in one error.
  std::vector<OutputTensor> outputs() {
    for (const RowAt& at : at_) add(at);
    if (model_.tied()) add_tied_head();
    note_unexpected();
    add_names(outputs_, wanted_, assets_.wanted_by(), misfits_);
    misfits_.refuse();
    const bool is_published = !assets_.names() || models::are_published_qwen_vl_names(*assets_.names());
    for (OutputTensor& output : outputs_) {
      if (!is_published) output.name = models::qwen_vl_path(output.name);
    }
    return std::move(outputs_);
  }

 private:
  const TensorList& list(const McoreFile& file, int chunk) const {
    return file.chunks[static_cast<std::size_t>(chunk)];
  }

  std::string place_of(const McoreFile& file, int chunk) const {
    return folder_.chunks() == 1 ? file.name : fmt::format("{}, model{}", file.name, chunk);
  }

  // Of a tensor rank. Null, and noted, where it is missing or of another shape.
  const SourceTensor* find(const RowAt& at, int rank) {
    const McoreFile& file = folder_.first_of(at.place.stage, rank);
    const std::string name = numbered(at.row->name, at.place.local);
    const Shape shape = mm_shape(*at.row, folder_.tensor_size());
    const std::string place = place_of(file, at.place.chunk);
    expected_.insert({at.place.stage, at.place.chunk, name});
    const SourceTensor* tensor = list(file, at.place.chunk).find(name);
    if (tensor == nullptr) {
      misfits_.add("missing '{}' {} in {}", name, to_string(shape), place);
    } else if (tensor->shape != shape) {
      misfits_.add("'{}' of {} is {}, not {}", name, place, to_string(tensor->shape), to_string(shape));
      return nullptr;
    }
    return tensor;
  }

  // Empty where one has none that fits.
  RankTensors of_ranks(const RowAt& at) {
    RankTensors ranks;
    const int size = at.row->form == RowForm::kCopied ? 1 : folder_.tensor_size();
    for (int rank = 0; rank < size; ++rank) {
      if (const SourceTensor* tensor = find(at, rank)) ranks.push_back(tensor);
    }
    if (ranks.size() != static_cast<std::size_t>(size)) ranks.clear();
    return ranks;
  }

  void put(std::string name, Shape shape, std::vector<TensorPart> parts) {
    check_one_dtype(name, parts);
    DType dtype = parts.front().from->dtype;
    if (options_.dtype && is_floating(dtype)) dtype = *options_.dtype;
    outputs_.push_back({std::move(name), dtype, std::move(shape), std::move(parts)});
  }

  void add(const RowAt& at) {
    const Row& row = *at.row;
    const bool is_tied_head = model_.tied() && row.folder.front().name == kFolderHead;
    if (is_tied_head && list(folder_.first_of(at.place.stage, 0), at.place.chunk).find(row.name) == nullptr) return;
    const RankTensors ranks = of_ranks(at);
    if (ranks.empty()) return;
    const std::string& first = row.folder.front().name;
    if (row.form == RowForm::kCopied) {
      return put(numbered(first, at.layer), row.folder.front().shape, whole(*ranks.front(), first).parts);
    }
    if (row.form == RowForm::kColumns) return add_columns(at, ranks);
    std::vector<std::vector<TensorPart>> parts = parts_of(row, ranks);
    if (is_tied_head) return check_tie(parts.front());
    for (std::size_t i = 0; i < row.folder.size(); ++i) {
      if (row.folder[i].name == kFolderEmbedding) embedding_ = parts[i];
      put(numbered(row.folder[i].name, at.layer), row.folder[i].shape, std::move(parts[i]));
    }
  }

  void add_columns(const RowAt& at, const RankTensors& ranks) {
    std::vector<Matrix> parts;
    for (const SourceTensor* tensor : ranks) parts.push_back(matrix_of(*tensor));
    const FolderTensor& tensor = at.row->folder.front();
    const SourceTensor& made = views_.beside(tensor.name, parts);
    put(numbered(tensor.name, at.layer), tensor.shape, whole(made, tensor.name).parts);
  }

  // The parts of each of the row's tensors in the folder, in their order: the ranks' slices, sorted by their first row.
  std::vector<std::vector<TensorPart>> parts_of(const Row& row, const RankTensors& ranks) const {
    std::vector<std::vector<std::pair<std::int64_t, TensorPart>>> found(row.folder.size());
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      std::int64_t at = 0;
      for (const Slice& slice : slices_of(row, static_cast<int>(rank), folder_.tensor_size())) {
        found[slice.tensor].emplace_back(slice.first, matrix_of(*ranks[rank]).rows(at, slice.count).part());
        at += slice.count;
      }
    }
    std::vector<std::vector<TensorPart>> parts(found.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      std::ranges::sort(found[i], {}, [](const auto& part) { return part.first; });
      for (auto& [first, part] : found[i]) parts[i].push_back(std::move(part));
    }
    return parts;
  }

  // --- ties

  const SourceTensor& joined(const std::string& name, const std::vector<TensorPart>& parts) {
    std::vector<Matrix> matrices;
    for (const TensorPart& part : parts) matrices.push_back(matrix_of(*part.from));
    return views_.below(name, matrices);
  }

  void check_tie(const std::vector<TensorPart>& head) {
    if (embedding_.empty()) return;
    const SourceTensor& a = joined(kFolderHead, head);
    const SourceTensor& b = joined(kFolderEmbedding, embedding_);
    if (a.dtype == b.dtype && a.shape == b.shape && compare(a, b).elements == 0) return;
    config_error(
        "{}: 'text_decoder.output_layer.weight' and 'text_decoder.embedding.word_embeddings.weight' are one tensor by "
        "tie_word_embeddings of {}, but have different values; set it to false there, if the model was trained untied",
        folder_.path().string(), model_.file.string());
  }

  void add_tied_head() {
    if (!wanted_.contains(kFolderHead) || embedding_.empty()) return;
    put(kFolderHead, {model_.config.text.vocab_size, model_.config.text.hidden_size}, embedding_);
  }

  // --- what does not fit

  void note_unexpected() {
    for (const McoreFile& file : folder_.files()) {
      for (int chunk = 0; chunk < folder_.chunks(); ++chunk) {
        for (const SourceTensor& tensor : list(file, chunk).tensors()) {
          if (expected_.contains({file.rank.stage, chunk, tensor.name})) continue;
          misfits_.add("not expected '{}' {} in {}", shown_text(tensor.name), to_string(tensor.shape),
                       place_of(file, chunk));
        }
      }
    }
  }

  const MmToHf& options_;
  const MmModel& model_;
  const Assets& assets_;
  McoreFolder& folder_;
  const std::vector<Row> rows_;
  const std::vector<RowAt> at_;
  std::set<std::string> wanted_;  // published names of the assets; empty where they have none
  Views views_;
  std::vector<TensorPart> embedding_;
  std::set<std::tuple<int, int, std::string>> expected_;  // stage, chunk, name
  Misfits misfits_;
  std::vector<OutputTensor> outputs_;
};

}  // namespace

Converted convert(const MmToHf& options, const CopyWatcher& watcher) {
  const MmModel model = read_mm_model("--hf-dir", options.hf_dir, options.model_type);
  const MmPlan plan = plan_mm(options.layout, model);
  const Assets assets(options.hf_dir, "--hf-dir");
  McoreFolder folder("--mm-dir", options.mm_dir);
  check_folder(folder, options.layout, plan);
  MmExport to_hf(options, model, plan, assets, folder);
  const Shards shards = shards_of(to_hf.outputs(), options.shard_bytes, assets);
  io::OutputPlan outputs;
  outputs.reads("--mm-dir", options.mm_dir);
  outputs.reads("--mm-dir", folder.path());
  outputs.reads("--hf-dir", options.hf_dir);
  outputs.writes_folder("--save-dir", options.save_dir);
  outputs.check();
  refuse_taken("--save-dir", options.save_dir);
  outputs.prepare();
  return write_hf_folder(options.save_dir, shards, assets, watcher);
}

}  // namespace loom::checkpoint
