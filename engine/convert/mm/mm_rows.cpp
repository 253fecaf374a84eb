#include "engine/convert/mm/mm_rows.h"

#include <utility>

namespace loom::checkpoint {
namespace {

constexpr const char* kVisionLayer = "image_encoder.encoder.blocks.layers.{}.";
constexpr const char* kBlock = "visual.blocks.{}.";
constexpr const char* kTextLayer = "text_decoder.decoder.layers.{}.";
constexpr const char* kLayer = "model.layers.{}.";

// Output rows of a linear layer of the folder.
struct Product {
  std::string name;  // without .weight
  std::int64_t rows = 0;
};

class Rows {
 public:
  void at(RowPlace place, std::string name_prefix, std::string folder_prefix) {
    place_ = place;
    name_prefix_ = std::move(name_prefix);
    folder_prefix_ = std::move(folder_prefix);
  }

  void copied(const std::string& name, const std::string& folder_name, const Shape& shape) {
    add(RowForm::kCopied, name, {{folder_name, shape}}, 1);
  }
  void norm(const std::string& name, const std::string& folder_name, std::int64_t width, bool bias) {
    copied(name + ".weight", folder_name + ".weight", {width});
    if (bias) copied(name + ".bias", folder_name + ".bias", {width});
  }
  // The bias of a product that is cut by columns is whole on every rank.
  void columns(const std::string& name, const Product& product, std::int64_t width, bool bias) {
    add(RowForm::kColumns, name + ".weight", {{product.name + ".weight", {product.rows, width}}}, width);
    if (bias) copied(name + ".bias", product.name + ".bias", {product.rows});
  }
  void product(RowForm form, const std::string& name, const std::vector<Product>& products, std::int64_t width,
               bool bias, std::int64_t units) {
    std::vector<FolderTensor> weights;
    std::vector<FolderTensor> biases;
    for (const Product& product : products) {
      weights.push_back({product.name + ".weight", {product.rows, width}});
      biases.push_back({product.name + ".bias", {product.rows}});
    }
    add(form, name + ".weight", weights, units);
    if (bias) add(form, name + ".bias", biases, units);
  }

  std::vector<Row> rows;

 private:
  void add(RowForm form, const std::string& name, std::vector<FolderTensor> folder, std::int64_t units) {
    for (FolderTensor& tensor : folder) tensor.name = folder_prefix_ + tensor.name;
    rows.push_back({place_, form, std::move(folder), name_prefix_ + name, units});
  }

  RowPlace place_ = RowPlace::kBeforeText;
  std::string name_prefix_;
  std::string folder_prefix_;
};

void add_tower(Rows& rows, const models::QwenVlConfig& config) {
  const models::QwenVisionConfig& c = config.vision;
  const bool is_2 = config.version == models::QwenVlVersion::k2;
  rows.at(RowPlace::kBeforeVision, "image_encoder.encoder.", "visual.");
  rows.copied("patch_embed.proj.weight", "patch_embed.proj.weight",
              {c.hidden_size, c.in_channels, c.temporal_patch_size, c.patch_size, c.patch_size});

  rows.at(RowPlace::kVisionLayer, kVisionLayer, kBlock);
  rows.norm("input_layernorm", "norm1", c.hidden_size, is_2);
  rows.product(RowForm::kThirds, "self_attention.linear_qkv", {{"attn.qkv", 3 * c.hidden_size}}, c.hidden_size, true,
               c.num_heads);
  rows.columns("self_attention.linear_proj", {"attn.proj", c.hidden_size}, c.hidden_size, true);
  rows.norm("pre_mlp_layernorm", "norm2", c.hidden_size, is_2);
  if (is_2) {
    rows.product(RowForm::kRows, "mlp.linear_fc1", {{"mlp.fc1", c.intermediate_size}}, c.hidden_size, true, 1);
    rows.columns("mlp.linear_fc2", {"mlp.fc2", c.hidden_size}, c.intermediate_size, true);
  } else {
    rows.product(RowForm::kRows, "mlp.linear_fc1",
                 {{"mlp.gate_proj", c.intermediate_size}, {"mlp.up_proj", c.intermediate_size}}, c.hidden_size, true,
                 1);
    rows.columns("mlp.linear_fc2", {"mlp.down_proj", c.hidden_size}, c.intermediate_size, true);
  }

  rows.at(RowPlace::kBehindVision, "image_encoder.projector.", "visual.merger.");
  const std::int64_t cell = c.merged() * c.hidden_size;
  rows.norm("layernorm", "ln_q", c.hidden_size, is_2);
  rows.product(RowForm::kRows, "encoder.linear_fc1", {{"mlp.0", cell}}, cell, true, 1);
  rows.columns("encoder.linear_fc2", {"mlp.2", c.out_hidden_size}, cell, true);
}

void add_text(Rows& rows, const models::DecoderConfig& c) {
  rows.at(RowPlace::kBeforeText, "text_decoder.", "model.");
  rows.product(RowForm::kRows, "embedding.word_embeddings", {{"embed_tokens", c.vocab_size}}, c.hidden_size, false, 1);

  rows.at(RowPlace::kTextLayer, kTextLayer, kLayer);
  const std::int64_t queries = c.num_attention_heads * c.head_dim;
  const std::int64_t keys = c.num_key_value_heads * c.head_dim;
  rows.norm("input_layernorm", "input_layernorm", c.hidden_size, false);
  rows.product(RowForm::kGroups, "self_attention.linear_qkv",
               {{"self_attn.q_proj", queries}, {"self_attn.k_proj", keys}, {"self_attn.v_proj", keys}}, c.hidden_size,
               c.qkv_bias, c.num_key_value_heads);
  rows.columns("self_attention.linear_proj", {"self_attn.o_proj", c.hidden_size}, queries, c.attention_output_bias);
  rows.norm("pre_mlp_layernorm", "post_attention_layernorm", c.hidden_size, false);
  rows.product(RowForm::kRows, "mlp.linear_fc1",
               {{"mlp.gate_proj", c.intermediate_size}, {"mlp.up_proj", c.intermediate_size}}, c.hidden_size, false, 1);
  rows.columns("mlp.linear_fc2", {"mlp.down_proj", c.hidden_size}, c.intermediate_size, false);

  rows.at(RowPlace::kBehindText, "text_decoder.", "");
  rows.norm("decoder.final_layernorm", "model.norm", c.hidden_size, false);
  rows.product(RowForm::kRows, "output_layer", {{"lm_head", c.vocab_size}}, c.hidden_size, false, 1);
}

}  // namespace

std::vector<Row> mm_rows(const MmModel& model) {
  Rows rows;
  add_tower(rows, model.config);
  add_text(rows, model.config.text);
  return std::move(rows.rows);
}

std::vector<Slice> slices_of(const Row& row, int rank, int tensor_size) {
  std::vector<Slice> slices;
  if (row.form == RowForm::kRows) {
    for (std::size_t i = 0; i < row.folder.size(); ++i) {
      const std::int64_t each = row.folder[i].shape[0] / tensor_size;
      slices.push_back({i, rank * each, each});
    }
    return slices;
  }
  const bool thirds = row.form == RowForm::kThirds;
  const std::int64_t units = row.units / tensor_size;
  for (std::int64_t unit = rank * units; unit < (rank + 1) * units; ++unit) {
    for (std::size_t part = 0; part < 3; ++part) {
      const std::size_t tensor = thirds ? 0 : part;
      const std::int64_t rows = row.folder[tensor].shape[0] / (thirds ? 3 : 1);
      const std::int64_t each = rows / row.units;
      slices.push_back({tensor, (thirds ? static_cast<std::int64_t>(part) * rows : 0) + unit * each, each});
    }
  }
  return slices;
}

Shape mm_shape(const Row& row, int tensor_size) {
  Shape shape = row.folder.front().shape;
  if (row.form == RowForm::kCopied) return shape;
  if (row.form == RowForm::kColumns) {
    shape[1] /= tensor_size;
    return shape;
  }
  shape[0] = 0;
  for (const FolderTensor& tensor : row.folder) shape[0] += tensor.shape[0] / tensor_size;
  return shape;
}

std::string numbered(const std::string& name, std::int64_t number) {
  const std::size_t at = name.find("{}");
  return at == std::string::npos ? name : name.substr(0, at) + std::to_string(number) + name.substr(at + 2);
}

std::vector<RowAt> rows_at(const std::vector<Row>& rows, const MmPlan& plan) {
  std::vector<RowAt> all;
  for (const Row& row : rows) {
    const bool is_vision = row.place <= RowPlace::kBehindVision;
    const TowerPlan& tower = is_vision ? plan.vision : plan.text;
    if (row.place == RowPlace::kVisionLayer || row.place == RowPlace::kTextLayer) {
      for (std::size_t layer = 0; layer < tower.layers.size(); ++layer) {
        all.push_back({&row, static_cast<std::int64_t>(layer), tower.layers[layer]});
      }
      continue;
    }
    const bool is_before = row.place == RowPlace::kBeforeVision || row.place == RowPlace::kBeforeText;
    all.push_back({&row, 0, is_before ? tower.before() : tower.behind()});
  }
  return all;
}

}  // namespace loom::checkpoint
