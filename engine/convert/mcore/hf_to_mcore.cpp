#include <algorithm>
#include <fmt/core.h>
#include <numeric>
#include <set>

#include "engine/convert/hf/expert_tensors.h"
#include "engine/convert/mcore/mcore.h"
#include "engine/convert/mcore/mcore_layers.h"
#include "engine/convert/mcore/mcore_output.h"
#include "engine/convert/mcore/misfits.h"
#include "engine/convert/mcore/model_shape.h"
#include "engine/convert/mcore/tensor_views.h"
#include "engine/convert/tensor_compare.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/output_plan.h"
#include "models/hf/folder_files.h"

namespace loom::checkpoint {
namespace {

// One file: a tensor rank, a stage and an expert rank.
struct Rank {
  int tensor = 0;
  int stage = 0;
  int expert = 0;
};

// The two halves of an MLP's first product, and the second product.
struct Mlp {
  Matrix gate;
  Matrix up;
  Matrix down;
};

class ToMcore {
 public:
  ToMcore(const HfToMcore& options, const ModelShape& shape, const TensorList& list)
      : options_(options),
        shape_(shape),
        list_(list),
        plan_(plan_layers(shape.layers, options.pipeline)),
        misfits_(fmt::format("{}: its tensors do not match {} by {}", options.load_dir.string(), shape.model_type,
                             shape.file.string())) {
    check_sizes();
    tied_ = is_tied();
  }

  // The tensors of each chunk of a rank's stage.
  std::vector<std::vector<OutputTensor>> outputs(const Rank& rank) {
    rank_ = rank;
    std::vector<std::vector<OutputTensor>> chunks(static_cast<std::size_t>(plan_.chunks));
    for (int chunk = 0; chunk < plan_.chunks; ++chunk) {
      to_ = &chunks[static_cast<std::size_t>(chunk)];
      if (rank.stage == 0 && chunk == 0) add_vocabulary("embedding.word_embeddings.weight", kEmbedding);
      for (std::size_t layer = 0; layer < plan_.layers.size(); ++layer) {
        const LayerPlace& place = plan_.layers[layer];
        if (place.stage == rank.stage && place.chunk == chunk) add_layer(layer, place.local);
      }
      if (rank.stage == plan_.last.stage && chunk == plan_.last.chunk) add_end();
    }
    return chunks;
  }

  // Every name of the folder that no file got; refuses those that are missing or have another shape.
  void refuse_misfits() {
    for (const SourceTensor& tensor : list_.tensors()) {
      if (used_.contains(tensor.name) || models::is_stored_buffer(tensor.name)) continue;
      misfits_.add("not expected '{}' {}", shown_text(tensor.name), to_string(tensor.shape));
    }
    misfits_.refuse();
  }

  int chunks() const { return plan_.chunks; }
  std::int64_t padded_vocabulary() const { return padded_; }
  bool tied() const { return tied_; }

 private:
  static constexpr const char* kEmbedding = "model.embed_tokens.weight";
  static constexpr const char* kHead = "lm_head.weight";

  void check_divides(std::int64_t value, std::string_view what, int by, std::string_view flag) const {
    if (value % by == 0) return;
    config_error("{} is {}, but {} has {} {}, which it does not divide; write a divisor of {}", flag, by,
                 shape_.file.string(), value, what, value);
  }

  void check_sizes() {
    const int tensor = options_.tensor_size;
    const char* flag = "--target-tensor-parallel-size";
    check_divides(shape_.groups, "key-value heads (num_key_value_heads)", tensor, flag);
    if (shape_.has_dense_layers()) {
      check_divides(shape_.intermediate, "rows of an MLP (intermediate_size)", tensor, flag);
    }
    if (shape_.experts > 0) {
      check_divides(shape_.experts, "experts", options_.expert_size, "--target-expert-parallel-size");
      check_divides(shape_.expert_intermediate, "rows of an expert (moe_intermediate_size)", expert_tensor_size(),
                    flag);
    } else if (options_.expert_size > 1) {
      config_error("--target-expert-parallel-size is {}, but {} has no experts; write 1", options_.expert_size,
                   shape_.file.string());
    }
    const std::int64_t most = std::int64_t{1} << 31;
    if (options_.vocab_divisible_by > most || options_.pad_vocab_to.value_or(0) > most) {
      config_error("--make-vocab-size-divisible-by and --pad-vocab-size-to are at most {}", most);
    }
    const std::int64_t multiple = options_.vocab_divisible_by * tensor;
    padded_ = options_.pad_vocab_to.value_or((shape_.vocabulary + multiple - 1) / multiple * multiple);
    if (padded_ > most)
      config_error("--make-vocab-size-divisible-by {} gives a vocabulary of {} rows; at most {} are written",
                   options_.vocab_divisible_by, padded_, most);
    if (padded_ < shape_.vocabulary || padded_ % tensor != 0) {
      config_error(
          "--pad-vocab-size-to is {}; use a multiple of --target-tensor-parallel-size {} of at least {}, the "
          "vocab_size of {}",
          padded_, tensor, shape_.vocabulary, shape_.file.string());
    }
  }

  int expert_tensor_size() const { return options_.expert_tensor_size == 1 ? 1 : options_.tensor_size; }

  bool is_tied() {
    const SourceTensor* head = list_.find(kHead);
    const SourceTensor* embedding = list_.find(kEmbedding);
    if (!shape_.tied || embedding == nullptr) return shape_.tied;
    if (head == nullptr) return true;
    check_tied(*head, *embedding, options_.load_dir, shape_.file);
    used_.insert(kHead);
    return true;
  }

  const SourceTensor* find(const std::string& name, const Shape& shape) {
    return find_tensor(list_, name, shape, used_, misfits_);
  }

  void put(std::string name, DType dtype, Shape shape, std::vector<TensorPart> parts) {
    check_one_dtype(name, parts);
    if (options_.dtype && is_floating(dtype)) dtype = *options_.dtype;
    to_->push_back({std::move(name), dtype, std::move(shape), std::move(parts)});
  }

  void copy(const std::string& name, const std::string& hf_name, const Shape& shape) {
    const SourceTensor* tensor = find(hf_name, shape);
    if (tensor != nullptr) put(name, tensor->dtype, shape, whole(*tensor, name).parts);
  }

  void by_columns(const std::string& name, const Matrix& matrix, int rank, int size) {
    const std::int64_t width = matrix.columns / size;
    put(name, matrix.from->dtype, {matrix.row_count, width}, {matrix.cols(rank * width, width).part()});
  }

  // A rank's rows; those behind the vocabulary repeat the last one, as Megatron's own converters do.
  void add_vocabulary(const std::string& name, const std::string& hf_name) {
    const SourceTensor* tensor = find(hf_name, {shape_.vocabulary, shape_.hidden});
    if (tensor == nullptr) return;
    const Matrix matrix = matrix_of(*tensor);
    const std::int64_t each = padded_ / options_.tensor_size;
    const std::int64_t begin = std::min(rank_.tensor * each, shape_.vocabulary);
    const std::int64_t real = std::min(each, shape_.vocabulary - begin);
    std::vector<TensorPart> parts;
    if (real > 0) parts.push_back(matrix.rows(begin, real).part());
    if (real < each) {
      parts.push_back(whole(views_.repeated(matrix.rows(shape_.vocabulary - 1, 1), each - real), "").parts.front());
    }
    put(name, tensor->dtype, {each, shape_.hidden}, std::move(parts));
  }

  void add_end() {
    copy("decoder.final_layernorm.weight", "model.norm.weight", {shape_.hidden});
    if (!tied_) return add_vocabulary("output_layer.weight", kHead);
    if (options_.pipeline.stages > 1) add_vocabulary("output_layer.weight", kEmbedding);
  }

  void add_layer(std::size_t layer, std::int64_t local) {
    const std::string from = fmt::format("model.layers.{}.", layer);
    const std::string to = fmt::format("decoder.layers.{}.", local);
    copy(to + "input_layernorm.weight", from + "input_layernorm.weight", {shape_.hidden});
    add_qkv(to, from, "weight");
    if (shape_.qkv_bias) add_qkv(to, from, "bias");
    if (shape_.head_norms) {
      for (const char* which : {"q", "k"}) {
        copy(fmt::format("{}self_attention.{}_layernorm.weight", to, which),
             fmt::format("{}self_attn.{}_norm.weight", from, which), {shape_.head_width});
      }
    }
    const SourceTensor* o_proj =
        find(from + "self_attn.o_proj.weight", {shape_.hidden, shape_.heads * shape_.head_width});
    if (o_proj != nullptr) {
      by_columns(to + "self_attention.linear_proj.weight", matrix_of(*o_proj), rank_.tensor, options_.tensor_size);
    }
    if (shape_.output_bias)
      copy(to + "self_attention.linear_proj.bias", from + "self_attn.o_proj.bias", {shape_.hidden});
    copy(to + "pre_mlp_layernorm.weight", from + "post_attention_layernorm.weight", {shape_.hidden});
    if (shape_.has_experts(static_cast<std::int64_t>(layer))) return add_experts(to, from);
    if (const auto mlp = dense_mlp(from + "mlp.", shape_.intermediate)) {
      add_mlp(to + "mlp.", *mlp, rank_.tensor, options_.tensor_size);
    }
  }

  void add_qkv(const std::string& to, const std::string& from, const std::string& kind) {
    const std::int64_t width = shape_.head_width;
    const bool is_bias = kind == "bias";
    const auto shape = [&](std::int64_t rows) { return is_bias ? Shape{rows} : Shape{rows, shape_.hidden}; };
    const SourceTensor* q = find(from + "self_attn.q_proj." + kind, shape(shape_.heads * width));
    const SourceTensor* k = find(from + "self_attn.k_proj." + kind, shape(shape_.groups * width));
    const SourceTensor* v = find(from + "self_attn.v_proj." + kind, shape(shape_.groups * width));
    if (q == nullptr || k == nullptr || v == nullptr) return;
    const std::int64_t q_rows = shape_.heads_of_group() * width;
    const std::int64_t each = shape_.groups / options_.tensor_size;
    std::vector<TensorPart> parts;
    for (std::int64_t group = rank_.tensor * each; group < (rank_.tensor + 1) * each; ++group) {
      parts.push_back(matrix_of(*q).rows(group * q_rows, q_rows).part());
      parts.push_back(matrix_of(*k).rows(group * width, width).part());
      parts.push_back(matrix_of(*v).rows(group * width, width).part());
    }
    put(to + "self_attention.linear_qkv." + kind, q->dtype, shape(shape_.qkv_rows() / options_.tensor_size),
        std::move(parts));
  }

  // --- MLPs

  std::optional<Mlp> dense_mlp(const std::string& from, std::int64_t rows) {
    const SourceTensor* gate = find(from + "gate_proj.weight", {rows, shape_.hidden});
    const SourceTensor* up = find(from + "up_proj.weight", {rows, shape_.hidden});
    const SourceTensor* down = find(from + "down_proj.weight", {shape_.hidden, rows});
    if (gate == nullptr || up == nullptr || down == nullptr) return std::nullopt;
    return Mlp{matrix_of(*gate), matrix_of(*up), matrix_of(*down)};
  }

  // Of either spelling (models/decoder/expert_weights.h).
  std::optional<Mlp> expert_mlp(const std::string& from, std::int64_t expert) {
    const std::int64_t rows = shape_.expert_intermediate;
    if (list_.find(from + "experts.gate_up_proj") == nullptr) {
      return dense_mlp(fmt::format("{}experts.{}.", from, expert), rows);
    }
    const SourceTensor* gate_up = find(from + "experts.gate_up_proj", {shape_.experts, 2 * rows, shape_.hidden});
    const SourceTensor* down = find(from + "experts.down_proj", {shape_.experts, shape_.hidden, rows});
    if (gate_up == nullptr || down == nullptr) return std::nullopt;
    const Matrix both = matrix_of(*gate_up, expert);
    return Mlp{both.rows(0, rows), both.rows(rows, rows), matrix_of(*down, expert)};
  }

  void add_mlp(const std::string& to, const Mlp& mlp, int rank, int size) {
    const std::int64_t rows = mlp.gate.row_count / size;
    put(to + "linear_fc1.weight", mlp.gate.from->dtype, {2 * rows, mlp.gate.columns},
        {mlp.gate.rows(rank * rows, rows).part(), mlp.up.rows(rank * rows, rows).part()});
    by_columns(to + "linear_fc2.weight", mlp.down, rank, size);
  }

  void add_experts(const std::string& to, const std::string& from) {
    copy(to + "mlp.router.weight", from + "mlp.gate.weight", {shape_.experts, shape_.hidden});
    const std::int64_t each = shape_.experts / options_.expert_size;
    const int size = expert_tensor_size();
    const int rank = size == 1 ? 0 : rank_.tensor;
    std::vector<Mlp> mlps;
    for (std::int64_t local = 0; local < each; ++local) {
      const auto mlp = expert_mlp(from + "mlp.", rank_.expert * each + local);
      if (!mlp) return;
      if (!options_.grouped_experts) {
        add_mlp(fmt::format("{}mlp.experts.local_experts.{}.", to, local), *mlp, rank, size);
      }
      mlps.push_back(*mlp);
    }
    if (options_.grouped_experts) add_grouped(to + "mlp.experts.", mlps, rank, size);
  }

  // Every expert's matrices transposed, one expert behind another.
  void add_grouped(const std::string& to, const std::vector<Mlp>& mlps, int rank, int size) {
    const std::int64_t rows = shape_.expert_intermediate / size;
    const auto count = static_cast<std::int64_t>(mlps.size());
    std::vector<TensorPart> first;
    std::vector<TensorPart> second;
    for (const Mlp& mlp : mlps) {
      const SourceTensor& both =
          views_.below(mlp.gate.from->name, {mlp.gate.rows(rank * rows, rows), mlp.up.rows(rank * rows, rows)});
      first.push_back(whole(views_.transposed(matrix_of(both)), "").parts.front());
      second.push_back(whole(views_.transposed(mlp.down.cols(rank * rows, rows)), "").parts.front());
    }
    put(to + "weight1", mlps.front().gate.from->dtype, {shape_.hidden, count * 2 * rows}, std::move(first));
    put(to + "weight2", mlps.front().down.from->dtype, {count * rows, shape_.hidden}, std::move(second));
  }

  const HfToMcore& options_;
  const ModelShape& shape_;
  const TensorList& list_;
  const LayerPlan plan_;
  bool tied_ = false;
  std::int64_t padded_ = 0;
  Views views_;
  Rank rank_;
  std::vector<OutputTensor>* to_ = nullptr;
  std::set<std::string> used_;
  Misfits misfits_;
};

// The ranks that have a file. Experts that are whole on each tensor rank are on the rank that counts both at once.
std::vector<Rank> ranks_of(const HfToMcore& options) {
  std::vector<Rank> ranks;
  const bool is_whole = options.expert_tensor_size == 1;
  const int count =
      is_whole ? std::lcm(options.tensor_size, options.expert_size) : options.tensor_size * options.expert_size;
  for (int stage = 0; stage < options.pipeline.stages; ++stage) {
    for (int i = 0; i < count; ++i) {
      ranks.push_back({i % options.tensor_size, stage, is_whole ? i % options.expert_size : i / options.tensor_size});
    }
  }
  return ranks;
}

io::PlainValue arguments(const HfToMcore& options, const ModelShape& shape, const ToMcore& model) {
  using Value = io::PlainValue;
  std::vector<std::pair<Value, Value>> entries;
  const auto whole = [&](const char* name, std::int64_t value) {
    entries.emplace_back(Value::text(name), Value::whole(value));
  };
  const auto flag = [&](const char* name, bool value) {
    entries.emplace_back(Value::text(name), Value::boolean(value));
  };
  const auto real = [&](const char* name, double value) {
    entries.emplace_back(Value::text(name), Value::real(value));
  };
  const auto text = [&](const char* name, const char* value) {
    entries.emplace_back(Value::text(name), Value::text(value));
  };
  whole("tensor_model_parallel_size", options.tensor_size);
  whole("pipeline_model_parallel_size", options.pipeline.stages);
  whole("expert_model_parallel_size", options.expert_size);
  whole("expert_tensor_parallel_size", options.expert_tensor_size == 1 ? 1 : options.tensor_size);
  whole("num_layers", shape.layers + static_cast<std::int64_t>(options.pipeline.noop_layers.size()));
  whole("hidden_size", shape.hidden);
  whole("ffn_hidden_size", shape.intermediate);
  whole("num_attention_heads", shape.heads);
  flag("group_query_attention", shape.groups != shape.heads);
  whole("num_query_groups", shape.groups);
  whole("kv_channels", shape.head_width);
  whole("max_position_embeddings", shape.positions);
  whole("padded_vocab_size", model.padded_vocabulary());
  whole("make_vocab_size_divisible_by", options.vocab_divisible_by);
  flag("untie_embeddings_and_output_weights", !model.tied());
  flag("add_bias_linear", false);
  flag("add_qkv_bias", shape.qkv_bias);
  flag("add_dense_bias", shape.output_bias);
  flag("qk_layernorm", shape.head_norms);
  flag("swiglu", true);
  text("normalization", "RMSNorm");
  text("position_embedding_type", "rope");
  real("rotary_base", shape.rotary_base);
  real("norm_epsilon", shape.norm_eps);
  if (shape.rotary_scaling.type == models::RopeType::kLlama3) {
    flag("use_rope_scaling", true);
    real("rope_scaling_factor", shape.rotary_scaling.factor);
  }
  if (shape.rotary_scaling.type == models::RopeType::kLinear)
    real("rotary_seq_len_interpolation_factor", shape.rotary_scaling.factor);
  if (shape.experts > 0) {
    whole("num_experts", shape.experts);
    whole("moe_router_topk", shape.experts_per_token);
    whole("moe_ffn_hidden_size", shape.expert_intermediate);
    flag("moe_grouped_gemm", options.grouped_experts);
  }
  whole("iteration", 1);
  whole("consumed_train_samples", 0);
  whole("consumed_valid_samples", 0);
  return Value::dict(std::move(entries));
}

}  // namespace

Converted convert(const HfToMcore& options, const CopyWatcher& watcher) {
  const ModelShape shape = read_model_shape("--load-dir", options.load_dir);
  check_model(shape, options.checks);
  const io::HfWeights weights(options.load_dir);
  const TensorList list = with_qwen_spelling(tensors_of(weights));
  ToMcore model(options, shape, list);
  const std::vector<Rank> ranks = ranks_of(options);
  std::vector<std::vector<std::vector<OutputTensor>>> files;
  Converted done{.files = static_cast<std::int64_t>(ranks.size())};
  for (const Rank& rank : ranks) {
    files.push_back(model.outputs(rank));
    for (const auto& chunk : files.back()) {
      done.tensors += static_cast<std::int64_t>(chunk.size());
      for (const OutputTensor& tensor : chunk) done.bytes += tensor.size_bytes();
    }
  }
  model.refuse_misfits();
  io::OutputPlan plan;
  plan.reads("--load-dir", options.load_dir);
  plan.writes_folder("--save-dir", options.save_dir);
  plan.check();
  plan.prepare();
  McoreOutput output("--save-dir", options.save_dir, CheckpointId{1});
  TensorCopy copy(done.bytes, watcher);
  const io::PlainValue args = arguments(options, shape, model);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::vector<io::TorchEntry> entries{{.key = "args", .value = args, .as_attributes = true},
                                        {.key = "checkpoint_version", .value = io::PlainValue::real(kMegatronVersion)},
                                        {.key = "iteration", .value = io::PlainValue::whole(1)}};
    for (std::size_t chunk = 0; chunk < files[i].size(); ++chunk) {
      entries.push_back({.key = model.chunks() == 1 ? "model" : fmt::format("model{}", chunk),
                         .tensors = std::vector<io::TensorToWrite>{}});
      for (const OutputTensor& tensor : files[i][chunk]) {
        entries.back().tensors->push_back({tensor.name, tensor.dtype, tensor.shape, copy.producer(tensor)});
      }
    }
    const Rank& rank = ranks[i];
    output.write(mcore_rank_name(rank.tensor, options.pipeline.stages > 1 ? std::optional(rank.stage) : std::nullopt,
                                 options.expert_size > 1 ? std::optional(rank.expert) : std::nullopt),
                 entries);
  }
  done.path = output.commit();
  done.overflows = copy.overflows();
  return done;
}

}  // namespace loom::checkpoint
