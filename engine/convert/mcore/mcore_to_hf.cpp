#include <algorithm>
#include <fmt/core.h>
#include <iterator>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "engine/convert/hf/assets.h"
#include "engine/convert/hf/hf_output.h"
#include "engine/convert/mcore/mcore.h"
#include "engine/convert/mcore/mcore_folder.h"
#include "engine/convert/mcore/misfits.h"
#include "engine/convert/mcore/model_shape.h"
#include "engine/convert/mcore/tensor_views.h"
#include "engine/convert/tensor_compare.h"
#include "engine/convert/whole_folder.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/output_plan.h"
#include "models/decoder/expert_weights.h"

namespace loom::checkpoint {
namespace {

constexpr std::string_view kLayerPrefix = "decoder.layers.";
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kMcoreEmbedding = "embedding.word_embeddings.weight";
constexpr const char* kMcoreHead = "output_layer.weight";
constexpr const char* kMcoreNorm = "decoder.final_layernorm.weight";

// Where one of the model's layers is.
struct LayerAt {
  int stage = 0;
  int chunk = 0;
  std::int64_t local = 0;
};

// A tensor of each tensor rank, or of one.
using Ranks = std::vector<const SourceTensor*>;

// The parts of an MLP, by tensor rank.
struct MlpRanks {
  std::vector<Matrix> gate;
  std::vector<Matrix> up;
  std::vector<Matrix> down;
};

// The number in "decoder.layers.7.mlp...."; nothing for another name.
std::optional<std::int64_t> layer_of(std::string_view name) {
  if (!name.starts_with(kLayerPrefix)) return std::nullopt;
  std::int64_t number = 0;
  std::size_t at = kLayerPrefix.size();
  const std::size_t begin = at;
  for (; at < name.size() && name[at] >= '0' && name[at] <= '9' && at - begin < 9; ++at) {
    number = number * 10 + (name[at] - '0');
  }
  return at > begin && at < name.size() && name[at] == '.' ? std::optional(number) : std::nullopt;
}

class ToHf {
 public:
  ToHf(const McoreToHf& options, const ModelShape& shape, const Assets& assets, McoreFolder& folder)
      : options_(options),
        shape_(shape),
        assets_(assets),
        folder_(folder),
        misfits_(fmt::format("{}: its tensors do not match {} by {}", folder.path().string(), shape.model_type,
                             shape.file.string())) {
    if (assets.names()) {
      for (const std::string& name : *assets.names()) wanted_.insert(models::qwen_spelling(name));
    }
    place_layers();
    check_groups();
  }

  // Every tensor of the folder, in the model's order. Refuses what does not fit, all of it in one error.
  std::vector<OutputTensor> outputs() {
    at_ = {0, 0, 0};
    embedding_ = vocabulary_rows(kMcoreEmbedding);
    if (!embedding_.empty()) put_rows(kEmbedding, embedding_);
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      at_ = layers_[layer];
      add_layer(static_cast<std::int64_t>(layer));
    }
    at_ = {last_stage_, last_chunk_, 0};
    copy("model.norm.weight", kMcoreNorm, {shape_.hidden});
    add_head();
    note_unexpected();
    add_names(outputs_, wanted_, assets_.wanted_by(), misfits_);
    misfits_.refuse();
    if (shape_.mixtral_names && !is_fused()) {
      for (OutputTensor& output : outputs_) output.name = models::mixtral_spelling(output.name);
    }
    return std::move(outputs_);
  }

 private:
  // The assets name all experts of a layer as one tensor.
  bool is_fused() const {
    return std::ranges::any_of(wanted_,
                               [](const std::string& name) { return name.ends_with(".experts.gate_up_proj"); });
  }

  // --- where layers are

  const TensorList& list(const McoreFile& file, int chunk) const {
    return file.chunks[static_cast<std::size_t>(chunk)];
  }

  // The last norm says where the model ends: at the first stage where stages hold a slice from each end.
  void place_layers() {
    last_stage_ = folder_.stages() - 1;
    last_chunk_ = folder_.chunks() - 1;
    const bool folds =
        folder_.chunks() == 2 && folder_.stages() > 1 && list(folder_.first_of(0, 0), 1).find(kMcoreNorm) != nullptr;
    if (folds) last_stage_ = 0;
    for (int chunk = 0; chunk < folder_.chunks(); ++chunk) {
      for (int i = 0; i < folder_.stages(); ++i) {
        const int stage = folds && chunk == 1 ? folder_.stages() - 1 - i : i;
        std::set<std::int64_t> numbers;
        for (const SourceTensor& tensor : list(folder_.first_of(stage, 0), chunk).tensors()) {
          if (const auto number = layer_of(tensor.name)) numbers.insert(*number);
        }
        for (const std::int64_t number : numbers) layers_.push_back({stage, chunk, number});
      }
    }
    if (static_cast<std::int64_t>(layers_.size()) == shape_.layers) return;
    config_error(
        "{} has {} layers in {} stages, but {} has {} (num_hidden_layers); give the folder of the model with "
        "--hf-cfg-dir",
        folder_.path().string(), layers_.size(), folder_.stages(), shape_.file.string(), shape_.layers);
  }

  void check_groups() const {
    const int size = folder_.tensor_size();
    if (shape_.groups % size == 0 && (!shape_.has_dense_layers() || shape_.intermediate % size == 0)) return;
    config_error(
        "{} has {} tensor ranks, which divide not both num_key_value_heads {} and intermediate_size {} of {}; give the "
        "folder of the model with --hf-cfg-dir",
        folder_.path().string(), size, shape_.groups, shape_.intermediate, shape_.file.string());
  }

  std::string place_of(const McoreFile& file) const {
    return folder_.chunks() == 1 ? file.name : fmt::format("{}, model{}", file.name, at_.chunk);
  }

  std::string layer_name(std::string_view rest) const { return fmt::format("{}{}.{}", kLayerPrefix, at_.local, rest); }

  // --- tensors of ranks

  void expect(const std::string& name) { expected_.insert({at_.stage, at_.chunk, name}); }

  // Null, and noted, where it is missing or of another shape.
  const SourceTensor* find(const McoreFile& file, const std::string& name, const Shape& shape) {
    expect(name);
    const SourceTensor* tensor = list(file, at_.chunk).find(name);
    if (tensor == nullptr) {
      misfits_.add("missing '{}' {} in {}", name, to_string(shape), place_of(file));
      return nullptr;
    }
    if (tensor->shape == shape) return tensor;
    misfits_.add("'{}' of {} is {}, not {}", name, place_of(file), to_string(tensor->shape), to_string(shape));
    return nullptr;
  }

  // Of every tensor rank; empty where one has none that fits.
  Ranks of_ranks(const std::string& name, const Shape& shape) {
    Ranks ranks;
    for (int t = 0; t < folder_.tensor_size(); ++t) {
      if (const auto* tensor = find(folder_.first_of(at_.stage, t), name, shape)) ranks.push_back(tensor);
    }
    if (ranks.size() != static_cast<std::size_t>(folder_.tensor_size())) ranks.clear();
    return ranks;
  }

  // --- tensors of the folder

  void put(std::string name, Shape shape, std::vector<TensorPart> parts) {
    check_one_dtype(name, parts);
    DType dtype = parts.front().from->dtype;
    if (options_.dtype && is_floating(dtype)) dtype = *options_.dtype;
    outputs_.push_back({std::move(name), dtype, std::move(shape), std::move(parts)});
  }

  void copy(const std::string& hf_name, const std::string& name, const Shape& shape) {
    const SourceTensor* tensor = find(folder_.first_of(at_.stage, 0), name, shape);
    if (tensor != nullptr) put(hf_name, shape, whole(*tensor, hf_name).parts);
  }

  // The rows of the vocabulary; those that fill it up stay out.
  std::vector<Matrix> vocabulary_rows(const std::string& name) {
    const McoreFile& first = folder_.first_of(at_.stage, 0);
    const SourceTensor* tensor = list(first, at_.chunk).find(name);
    std::int64_t rows = (shape_.vocabulary + folder_.tensor_size() - 1) / folder_.tensor_size();
    if (tensor != nullptr && tensor->shape.ndim() == 2) rows = std::max(rows, tensor->shape[0]);
    std::vector<Matrix> parts;
    std::int64_t left = shape_.vocabulary;
    for (const SourceTensor* rank : of_ranks(name, {rows, shape_.hidden})) {
      const std::int64_t count = std::min(rows, left);
      if (count > 0) parts.push_back(matrix_of(*rank).rows(0, count));
      left -= count;
    }
    return parts;
  }

  void add_head() {
    const bool is_there = list(folder_.first_of(at_.stage, 0), at_.chunk).find(kMcoreHead) != nullptr;
    if (!shape_.tied || is_there) {
      const std::vector<Matrix> head = vocabulary_rows(kMcoreHead);
      if (head.empty()) return;
      if (!shape_.tied) return put_rows(kHead, head);
      if (!embedding_.empty()) {
        check_tied(views_.below(kMcoreHead, head), views_.below(kMcoreEmbedding, embedding_), folder_.path(),
                   shape_.file);
      }
    }
    if (wanted_.contains(kHead) && !embedding_.empty()) put_rows(kHead, embedding_);
  }

  // --- layers

  void add_layer(std::int64_t layer) {
    const std::string to = fmt::format("model.layers.{}.", layer);
    copy(to + "input_layernorm.weight", layer_name("input_layernorm.weight"), {shape_.hidden});
    add_qkv(to + "self_attn.", "weight");
    if (shape_.qkv_bias) add_qkv(to + "self_attn.", "bias");
    if (shape_.head_norms) {
      for (const char* which : {"q", "k"}) {
        copy(fmt::format("{}self_attn.{}_norm.weight", to, which),
             layer_name(fmt::format("self_attention.{}_layernorm.weight", which)), {shape_.head_width});
      }
    }
    add_columns(to + "self_attn.o_proj.weight",
                of_ranks(layer_name("self_attention.linear_proj.weight"),
                         {shape_.hidden, shape_.heads * shape_.head_width / folder_.tensor_size()}));
    if (shape_.output_bias) {
      copy(to + "self_attn.o_proj.bias", layer_name("self_attention.linear_proj.bias"), {shape_.hidden});
    }
    copy(to + "post_attention_layernorm.weight", layer_name("pre_mlp_layernorm.weight"), {shape_.hidden});
    if (shape_.has_experts(layer)) return add_experts(to + "mlp.");
    if (const auto mlp = dense_mlp()) put_mlp(to + "mlp.", *mlp);
  }

  void add_columns(const std::string& hf_name, const Ranks& ranks) {
    if (ranks.empty()) return;
    std::vector<Matrix> parts;
    for (const SourceTensor* tensor : ranks) parts.push_back(matrix_of(*tensor));
    put_columns(hf_name, parts);
  }

  void put_columns(const std::string& hf_name, const std::vector<Matrix>& parts) {
    const SourceTensor& made = views_.beside(hf_name, parts);
    put(hf_name, made.shape, whole(made, hf_name).parts);
  }

  void put_rows(const std::string& hf_name, const std::vector<Matrix>& parts) {
    Shape shape{0, parts.front().columns};
    std::vector<TensorPart> boxes;
    for (const Matrix& part : parts) {
      shape[0] += part.row_count;
      boxes.push_back(part.part());
    }
    put(hf_name, shape, std::move(boxes));
  }

  void add_qkv(const std::string& to, const std::string& kind) {
    const std::int64_t width = shape_.head_width;
    const std::int64_t q_rows = shape_.heads_of_group() * width;
    const bool is_bias = kind == "bias";
    const auto shape = [&](std::int64_t rows) { return is_bias ? Shape{rows} : Shape{rows, shape_.hidden}; };
    const Ranks ranks =
        of_ranks(layer_name("self_attention.linear_qkv." + kind), shape(shape_.qkv_rows() / folder_.tensor_size()));
    if (ranks.empty()) return;
    std::vector<TensorPart> q, k, v;
    for (const SourceTensor* tensor : ranks) {
      const Matrix matrix = matrix_of(*tensor);
      for (std::int64_t row = 0; row < matrix.row_count; row += q_rows + 2 * width) {
        q.push_back(matrix.rows(row, q_rows).part());
        k.push_back(matrix.rows(row + q_rows, width).part());
        v.push_back(matrix.rows(row + q_rows + width, width).part());
      }
    }
    put(to + "q_proj." + kind, shape(shape_.heads * width), std::move(q));
    put(to + "k_proj." + kind, shape(shape_.groups * width), std::move(k));
    put(to + "v_proj." + kind, shape(shape_.groups * width), std::move(v));
  }

  // --- MLPs

  void put_mlp(const std::string& to, const MlpRanks& mlp) {
    put_rows(to + "gate_proj.weight", mlp.gate);
    put_rows(to + "up_proj.weight", mlp.up);
    put_columns(to + "down_proj.weight", mlp.down);
  }

  static void add_rank(MlpRanks& mlp, const Matrix& fc1, const Matrix& fc2) {
    const std::int64_t rows = fc1.row_count / 2;
    mlp.gate.push_back(fc1.rows(0, rows));
    mlp.up.push_back(fc1.rows(rows, rows));
    mlp.down.push_back(fc2);
  }

  std::optional<MlpRanks> dense_mlp() {
    const std::int64_t rows = shape_.intermediate / folder_.tensor_size();
    const Ranks fc1 = of_ranks(layer_name("mlp.linear_fc1.weight"), {2 * rows, shape_.hidden});
    const Ranks fc2 = of_ranks(layer_name("mlp.linear_fc2.weight"), {shape_.hidden, rows});
    if (fc1.empty() || fc2.empty()) return std::nullopt;
    MlpRanks mlp;
    for (std::size_t t = 0; t < fc1.size(); ++t) add_rank(mlp, matrix_of(*fc1[t]), matrix_of(*fc2[t]));
    return mlp;
  }

  void add_experts(const std::string& to) {
    copy(to + "gate.weight", layer_name("mlp.router.weight"), {shape_.experts, shape_.hidden});
    if (shape_.experts % folder_.expert_size() != 0) {
      config_error(
          "{} has {} expert ranks, which do not divide the {} experts of {}; give the folder of the model with "
          "--hf-cfg-dir",
          folder_.path().string(), folder_.expert_size(), shape_.experts, shape_.file.string());
    }
    std::vector<MlpRanks> experts;
    for (int rank = 0; rank < folder_.expert_size(); ++rank) add_experts_of(rank, experts);
    if (static_cast<std::int64_t>(experts.size()) != shape_.experts) return;
    if (wanted_.contains(to + "experts.gate_up_proj")) return put_fused(to + "experts.", experts);
    for (std::size_t e = 0; e < experts.size(); ++e) put_mlp(fmt::format("{}experts.{}.", to, e), experts[e]);
  }

  // The files that hold the experts of a rank: of every tensor rank, or of one where they are whole.
  std::vector<const McoreFile*> expert_files(int rank, const std::string& name, int dim, std::int64_t whole_size) {
    const McoreFile& first = folder_.first_of_expert(at_.stage, rank);
    const SourceTensor* tensor = list(first, at_.chunk).find(name);
    const bool is_whole = tensor != nullptr && tensor->shape.ndim() == 2 && tensor->shape[dim] == whole_size;
    if (is_whole || shape_.expert_intermediate % folder_.tensor_size() != 0) return {&first};
    std::vector<const McoreFile*> files;
    for (int t = 0; t < folder_.tensor_size(); ++t) {
      const McoreFile* file = folder_.file({t, at_.stage, rank});
      if (file == nullptr) return {&first};  // experts of such ranks are whole
      files.push_back(file);
    }
    return files;
  }

  void add_experts_of(int rank, std::vector<MlpRanks>& experts) {
    const std::int64_t each = shape_.experts / folder_.expert_size();
    const TensorList& tensors = list(folder_.first_of_expert(at_.stage, rank), at_.chunk);
    if (tensors.find(layer_name("mlp.experts.weight1")) != nullptr) return add_grouped(rank, each, experts);
    const std::int64_t whole = 2 * shape_.expert_intermediate;
    for (std::int64_t local = 0; local < each; ++local) {
      const std::string prefix = layer_name(fmt::format("mlp.experts.local_experts.{}.", local));
      const auto files = expert_files(rank, prefix + "linear_fc1.weight", 0, whole);
      const std::int64_t rows = shape_.expert_intermediate / static_cast<std::int64_t>(files.size());
      MlpRanks mlp;
      for (const McoreFile* file : files) {
        const SourceTensor* fc1 = find(*file, prefix + "linear_fc1.weight", {2 * rows, shape_.hidden});
        const SourceTensor* fc2 = find(*file, prefix + "linear_fc2.weight", {shape_.hidden, rows});
        if (fc1 != nullptr && fc2 != nullptr) add_rank(mlp, matrix_of(*fc1), matrix_of(*fc2));
      }
      if (mlp.gate.size() == files.size()) experts.push_back(std::move(mlp));
    }
  }

  // Every expert's matrices are transposed, one expert behind another.
  void add_grouped(int rank, std::int64_t each, std::vector<MlpRanks>& experts) {
    const std::string name1 = layer_name("mlp.experts.weight1");
    const std::string name2 = layer_name("mlp.experts.weight2");
    const auto files = expert_files(rank, name1, 1, each * 2 * shape_.expert_intermediate);
    const std::int64_t rows = shape_.expert_intermediate / static_cast<std::int64_t>(files.size());
    std::vector<MlpRanks> mlps(static_cast<std::size_t>(each));
    for (const McoreFile* file : files) {
      const SourceTensor* weight1 = find(*file, name1, {shape_.hidden, each * 2 * rows});
      const SourceTensor* weight2 = find(*file, name2, {each * rows, shape_.hidden});
      if (weight1 == nullptr || weight2 == nullptr) return;
      const SourceTensor& fc1 = folder_.reshaped(*weight1, {each, shape_.hidden, 2 * rows});
      const SourceTensor& fc2 = folder_.reshaped(*weight2, {each, rows, shape_.hidden});
      for (std::int64_t local = 0; local < each; ++local) {
        add_rank(mlps[static_cast<std::size_t>(local)], matrix_of(views_.transposed(matrix_of(fc1, local))),
                 matrix_of(views_.transposed(matrix_of(fc2, local))));
      }
    }
    std::ranges::move(mlps, std::back_inserter(experts));
  }

  void put_fused(const std::string& to, const std::vector<MlpRanks>& experts) {
    const std::int64_t rows = shape_.expert_intermediate;
    std::vector<TensorPart> gate_up, down;
    for (const MlpRanks& mlp : experts) {
      for (const auto* half : {&mlp.gate, &mlp.up}) {
        for (const Matrix& part : *half) gate_up.push_back(part.part());
      }
      const SourceTensor& made = views_.beside(to + "down_proj", mlp.down);
      down.push_back(whole(made, "").parts.front());
    }
    put(to + "gate_up_proj", {shape_.experts, 2 * rows, shape_.hidden}, std::move(gate_up));
    put(to + "down_proj", {shape_.experts, shape_.hidden, rows}, std::move(down));
  }

  // --- what does not fit

  void note_unexpected() {
    for (const McoreFile& file : folder_.files()) {
      for (int chunk = 0; chunk < folder_.chunks(); ++chunk) {
        at_ = {file.rank.stage, chunk, 0};
        for (const SourceTensor& tensor : list(file, chunk).tensors()) {
          if (expected_.contains({file.rank.stage, chunk, tensor.name})) continue;
          misfits_.add("not expected '{}' {} in {}", shown_text(tensor.name), to_string(tensor.shape), place_of(file));
        }
      }
    }
  }

  const McoreToHf& options_;
  const ModelShape& shape_;
  const Assets& assets_;
  McoreFolder& folder_;
  std::set<std::string> wanted_;  // names of the assets; empty where they have none
  std::vector<LayerAt> layers_;   // by the model's number
  int last_stage_ = 0;
  int last_chunk_ = 0;
  LayerAt at_;
  Views views_;
  std::vector<Matrix> embedding_;
  std::set<std::tuple<int, int, std::string>> expected_;  // stage, chunk, name
  Misfits misfits_;
  std::vector<OutputTensor> outputs_;
};

}  // namespace

Converted convert(const McoreToHf& options, const CopyWatcher& watcher) {
  const ModelShape shape = read_model_shape("--hf-cfg-dir", options.hf_cfg_dir);
  check_model(shape, options.checks);
  const Assets assets(options.hf_cfg_dir, "--hf-cfg-dir");
  McoreFolder folder("--load-dir", options.load_dir);
  ToHf model(options, shape, assets, folder);
  const Shards shards = shards_of(model.outputs(), options.shard_bytes, assets);
  io::OutputPlan plan;
  plan.reads("--load-dir", options.load_dir);
  plan.reads("--load-dir", folder.path());
  plan.reads("--hf-cfg-dir", options.hf_cfg_dir);
  plan.writes_folder("--save-dir", options.save_dir);
  plan.check();
  refuse_taken("--save-dir", options.save_dir);
  plan.prepare();
  return write_hf_folder(options.save_dir, shards, assets, watcher);
}

}  // namespace loom::checkpoint
