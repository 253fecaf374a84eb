#include "models/qwen_vl/qwen_vl_vision.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/nn/functional.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/composed.h"
#include "engine/tensor/ops/general.h"
#include "engine/tensor/ops/vision.h"
#include "models/decoder/named_module.h"
#include "models/qwen_vl/vision_positions.h"

namespace loom::models {
namespace {

using nn::Args;
using nn::Init;
using nn::Value;
using Config = QwenVisionConfig;

constexpr double kEps = 1e-6;

// The classes of a version in transformers.
struct ClassNames {
  std::string_view tower, patch_embed, block, attention, mlp, merger;
};
const ClassNames& names_of(QwenVlVersion version) {
  static constexpr ClassNames k2{"Qwen2VisionTransformerPretrainedModel",
                                 "PatchEmbed",
                                 "Qwen2VLVisionBlock",
                                 "VisionAttention",
                                 "VisionMlp",
                                 "PatchMerger"};
  static constexpr ClassNames k2_5{"Qwen2_5_VisionTransformerPretrainedModel",
                                   "Qwen2_5_VisionPatchEmbed",
                                   "Qwen2_5_VLVisionBlock",
                                   "Qwen2_5_VLVisionAttention",
                                   "Qwen2_5_VLMLP",
                                   "Qwen2_5_VLPatchMerger"};
  static constexpr ClassNames k3{"Qwen3VLVisionModel",     "Qwen3VLVisionPatchEmbed", "Qwen3VLVisionBlock",
                                 "Qwen3VLVisionAttention", "Qwen3VLVisionMLP",        "Qwen3VLVisionPatchMerger"};
  return version == QwenVlVersion::k2 ? k2 : version == QwenVlVersion::k2_5 ? k2_5 : k3;
}

std::shared_ptr<nn::Linear> linear(const Config& c, std::int64_t in, std::int64_t out, bool bias = true) {
  return std::make_shared<nn::Linear>(in, out, bias, c.initializer_range);
}

std::shared_ptr<nn::Module> norm(const Config& c, std::int64_t size) {
  if (c.version == QwenVlVersion::k2_5) return std::make_shared<nn::RMSNorm>(size, kEps);
  return std::make_shared<nn::LayerNorm>(size, kEps);
}

// x * sigmoid(1.702 x), as transformers' QuickGELUActivation.
Tensor quick_gelu(const Tensor& x) { return ops::mul(x, ops::sigmoid(ops::scale(x, 1.702))); }

// A convolution whose kernel is its stride and the whole patch; weight [out, C, T, P, P].
class PatchConvolution final : public nn::Module {
 public:
  explicit PatchConvolution(const Config& c)
      : weight_(register_parameter("weight",
                                   {c.hidden_size, c.in_channels, c.temporal_patch_size, c.patch_size, c.patch_size},
                                   Init::normal(c.initializer_range))) {
    if (c.version == QwenVlVersion::k3) bias_ = &register_parameter("bias", {c.hidden_size}, Init::zeros());
  }
  std::string_view type_name() const override { return "Conv3d"; }

 protected:
  Value forward(const Args& args) override {
    const Tensor& weight = weight_.value;
    const std::int64_t out = weight.shape()[0];
    return ops::linear(ops::cast(args.tensor(0), weight.dtype()),
                       ops::reshape(weight, {out, weight.shape().row_elems()}),
                       bias_ == nullptr ? Tensor{} : bias_->value);
  }

 private:
  nn::ParamSlot& weight_;
  nn::ParamSlot* bias_ = nullptr;
};

class PatchEmbed final : public NamedModule {
 public:
  explicit PatchEmbed(const Config& c)
      : NamedModule(std::string(names_of(c.version).patch_embed)),
        proj_(register_module("proj", std::make_shared<PatchConvolution>(c))) {}

 protected:
  Value forward(const Args& args) override { return proj_(args.tensor(0)); }

 private:
  nn::Child<nn::Module> proj_;
};

// Of neighbouring segments with equal lengths: how many, and their length.
struct SegmentRun {
  std::int64_t segments = 0;
  std::int64_t length = 0;
};
std::vector<SegmentRun> runs_of(const Value& lengths) {
  std::vector<SegmentRun> runs;
  for (const Value& length : lengths.list()) {
    if (runs.empty() || runs.back().length != length.number()) runs.push_back({0, length.number()});
    ++runs.back().segments;
  }
  return runs;
}

// Call: (hidden [P,D], cos, sin, the lengths of segments).
class Attention final : public NamedModule {
 public:
  explicit Attention(const Config& c)
      : NamedModule(std::string(names_of(c.version).attention)),
        heads_(c.num_heads),
        scale_(1.0 / std::sqrt(static_cast<double>(c.hidden_size / c.num_heads))),
        qkv_(register_module("qkv", linear(c, c.hidden_size, 3 * c.hidden_size))),
        proj_(register_module("proj", linear(c, c.hidden_size, c.hidden_size))) {}

 protected:
  Value forward(const Args& args) override {
    const Tensor& hidden = args.tensor(0);
    const std::int64_t patches = hidden.shape()[0], width = hidden.shape()[1];
    std::vector<Tensor> qkv = ops::split(qkv_(hidden), {width, width, width}, 1);
    for (std::size_t i = 0; i < qkv.size(); ++i) {
      qkv[i] = ops::reshape(qkv[i], {1, patches, heads_, width / heads_});
      if (i < 2) qkv[i] = turned(qkv[i], args.tensor(1), args.tensor(2));
    }
    return proj_(ops::reshape(attend(qkv, runs_of(args.positional[3])), {patches, width}));
  }

 private:
  static Tensor turned(const Tensor& x, const Tensor& cos, const Tensor& sin) {
    return ops::cast(nn::functional::rope(ops::cast(x, cos.dtype()), cos, sin), x.dtype());
  }

  // q, k and v [1,P,H,d]: each run of segments is a batch.
  Tensor attend(const std::vector<Tensor>& qkv, const std::vector<SegmentRun>& runs) const {
    if (runs.size() == 1) return attend_run(qkv[0], qkv[1], qkv[2], runs.front());
    std::vector<std::int64_t> sizes;
    for (const SegmentRun& run : runs) sizes.push_back(run.segments * run.length);
    std::vector<std::vector<Tensor>> parts;
    for (const Tensor& x : qkv) parts.push_back(ops::split(x, sizes, 1));
    std::vector<Tensor> attended;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      attended.push_back(attend_run(parts[0][i], parts[1][i], parts[2][i], runs[i]));
    }
    return ops::concat(attended, 1);
  }

  Tensor attend_run(const Tensor& q, const Tensor& k, const Tensor& v, const SegmentRun& run) const {
    const Shape& s = q.shape();
    const Shape batch{run.segments, run.length, s[2], s[3]};
    const Tensor attended = nn::functional::attention(ops::reshape(q, batch), ops::reshape(k, batch),
                                                      ops::reshape(v, batch), scale_, /*causal=*/false);
    return ops::reshape(attended, s);
  }

  const std::int64_t heads_;
  const double scale_;
  nn::Child<nn::Module> qkv_;
  nn::Child<nn::Module> proj_;
};

// Two layers: fc1 and fc2, in Qwen3-VL linear_fc1 and linear_fc2.
class PlainMlp final : public NamedModule {
 public:
  explicit PlainMlp(const Config& c)
      : NamedModule(std::string(names_of(c.version).mlp)),
        quick_(c.version == QwenVlVersion::k2),
        fc1_(register_module(quick_ ? "fc1" : "linear_fc1", linear(c, c.hidden_size, c.intermediate_size))),
        fc2_(register_module(quick_ ? "fc2" : "linear_fc2", linear(c, c.intermediate_size, c.hidden_size))) {}

 protected:
  Value forward(const Args& args) override {
    const Tensor hidden = fc1_(args.tensor(0));
    return fc2_(quick_ ? quick_gelu(hidden) : nn::functional::gelu(hidden, ops::Gelu::kTanh));
  }

 private:
  const bool quick_;
  nn::Child<nn::Module> fc1_;
  nn::Child<nn::Module> fc2_;
};

class GatedMlp final : public NamedModule {
 public:
  explicit GatedMlp(const Config& c)
      : NamedModule(std::string(names_of(c.version).mlp)),
        gate_proj_(register_module("gate_proj", linear(c, c.hidden_size, c.intermediate_size))),
        up_proj_(register_module("up_proj", linear(c, c.hidden_size, c.intermediate_size))),
        down_proj_(register_module("down_proj", linear(c, c.intermediate_size, c.hidden_size))) {}

 protected:
  Value forward(const Args& args) override {
    const Tensor& hidden = args.tensor(0);
    const Tensor gate = gate_proj_(hidden);
    return down_proj_(nn::functional::swiglu(gate, up_proj_(hidden)));
  }

 private:
  nn::Child<nn::Module> gate_proj_;
  nn::Child<nn::Module> up_proj_;
  nn::Child<nn::Module> down_proj_;
};

std::shared_ptr<nn::Module> make_mlp(const Config& c) {
  if (c.version == QwenVlVersion::k2_5) return std::make_shared<GatedMlp>(c);
  return std::make_shared<PlainMlp>(c);
}

class Block final : public NamedModule {
 public:
  explicit Block(const Config& c)
      : NamedModule(std::string(names_of(c.version).block)),
        norm1_(register_module("norm1", norm(c, c.hidden_size))),
        norm2_(register_module("norm2", norm(c, c.hidden_size))),
        attn_(register_module("attn", std::make_shared<Attention>(c))),
        mlp_(register_module("mlp", make_mlp(c))) {}

 protected:
  Value forward(const Args& args) override {
    const Tensor& hidden = args.tensor(0);
    const Tensor normed = norm1_(hidden);
    const Tensor attended =
        ops::add(hidden, attn_(normed, args.tensor(1), args.tensor(2), args.positional[3]).tensor());
    return ops::add(attended, mlp_(norm2_(attended)).tensor());
  }

 private:
  nn::Child<nn::Module> norm1_;
  nn::Child<nn::Module> norm2_;
  nn::Child<nn::Module> attn_;
  nn::Child<nn::Module> mlp_;
};

// torch.nn.Sequential of two layers with GELU, which has no parameters, between.
class TwoLayers final : public NamedModule {
 public:
  TwoLayers(const Config& c, std::int64_t width)
      : NamedModule("Sequential"),
        first_(register_module("0", linear(c, width, width))),
        second_(register_module("2", linear(c, width, c.out_hidden_size))) {}

 protected:
  Value forward(const Args& args) override {
    return second_(nn::functional::gelu(first_(args.tensor(0)), ops::Gelu::kErf));
  }

 private:
  nn::Child<nn::Module> first_;
  nn::Child<nn::Module> second_;
};

// Mergers: [P,D] -> [P / M, D of the text]. That of Qwen2-VL and Qwen2.5-VL:
class Merger final : public NamedModule {
 public:
  explicit Merger(const Config& c)
      : NamedModule(std::string(names_of(c.version).merger)),
        joined_(c.merged() * c.hidden_size),
        ln_q_(register_module("ln_q", norm(c, c.hidden_size))),
        mlp_(register_module("mlp", std::make_shared<TwoLayers>(c, joined_))) {}

 protected:
  Value forward(const Args& args) override {
    const Tensor normed = ln_q_(args.tensor(0));
    return mlp_(ops::reshape(normed, {normed.numel() / joined_, joined_}));
  }

 private:
  const std::int64_t joined_;
  nn::Child<nn::Module> ln_q_;
  nn::Child<nn::Module> mlp_;
};

// That of Qwen3-VL; `after`: its norm is of what was joined (deepstack).
class Merger3 final : public NamedModule {
 public:
  Merger3(const Config& c, bool after)
      : NamedModule(std::string(names_of(c.version).merger)),
        joined_(c.merged() * c.hidden_size),
        after_(after),
        norm_(register_module("norm", norm(c, after ? joined_ : c.hidden_size))),
        linear_fc1_(register_module("linear_fc1", linear(c, joined_, joined_))),
        linear_fc2_(register_module("linear_fc2", linear(c, joined_, c.out_hidden_size))) {}

 protected:
  Value forward(const Args& args) override {
    const Tensor& hidden = args.tensor(0);
    Tensor joined = after_ ? hidden : norm_(hidden).tensor();
    joined = ops::reshape(joined, {joined.numel() / joined_, joined_});
    if (after_) joined = norm_(joined).tensor();
    return linear_fc2_(nn::functional::gelu(linear_fc1_(joined), ops::Gelu::kErf));
  }

 private:
  const std::int64_t joined_;
  const bool after_;
  nn::Child<nn::Module> norm_;
  nn::Child<nn::Module> linear_fc1_;
  nn::Child<nn::Module> linear_fc2_;
};

std::shared_ptr<nn::Module> make_merger(const Config& c) {
  if (c.version == QwenVlVersion::k3) return std::make_shared<Merger3>(c, /*after=*/false);
  return std::make_shared<Merger>(c);
}

Value numbers(const std::vector<std::int64_t>& of) { return nn::ValueList(of.begin(), of.end()); }

// Of each frame.
std::vector<std::int64_t> frame_lengths(const std::vector<VisionGrid>& grids) {
  std::vector<std::int64_t> lengths;
  for (const VisionGrid& grid : grids) lengths.insert(lengths.end(), static_cast<std::size_t>(grid.t), grid.h * grid.w);
  return lengths;
}

std::vector<std::int64_t> inverse(const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> inverted(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    inverted[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  }
  return inverted;
}

class Vision final : public NamedModule {
 public:
  explicit Vision(const Config& c)
      : NamedModule(std::string(names_of(c.version).tower)),
        config_(c),
        patch_embed_(register_module("patch_embed", std::make_shared<PatchEmbed>(c))),
        blocks_(register_module("blocks", std::make_shared<nn::ModuleList>())),
        merger_(register_module("merger", make_merger(c))) {
    for (std::int64_t i = 0; i < c.depth; ++i) blocks_.append(std::make_shared<Block>(c));
    if (c.version != QwenVlVersion::k3) return;
    pos_embed_ = register_module(
        "pos_embed", std::make_shared<nn::Embedding>(c.num_position_embeddings, c.hidden_size, c.initializer_range));
    deepstack_ = &*register_module("deepstack_merger_list", std::make_shared<nn::ModuleList>());
    for (std::size_t i = 0; i < c.deepstack_visual_indexes.size(); ++i) {
      deepstack_->append(std::make_shared<Merger3>(c, /*after=*/true));
    }
  }

 protected:
  Value forward(const Args& args) override {
    const std::vector<VisionGrid> grids = grids_of(args.positional.at(1));
    check(args.tensor(0), grids);
    Tensor hidden = patch_embed_(args.tensor(0));
    if (pos_embed_) hidden = ops::add(hidden, positions_of(grids, hidden.dtype()));
    return config_.version == QwenVlVersion::k2_5 ? run_windows(hidden, grids) : run_frames(hidden, grids);
  }

 private:
  void check(const Tensor& pixel_values, const std::vector<VisionGrid>& grids) const {
    check_grids(grids, config_.spatial_merge_size);
    std::int64_t patches = 0;
    for (const VisionGrid& g : grids) patches += g.t * g.h * g.w;
    const Shape expected{patches, config_.patch_values()};
    if (pixel_values.shape() != expected) {
      config_error(
          "pixel_values {}, but the grids of {} picture{} make {} patches of {} values; give [{}, {}] (patch_size {}, "
          "temporal_patch_size {})",
          to_string(pixel_values.shape()), grids.size(), grids.size() == 1 ? "" : "s", patches, expected[1], patches,
          expected[1], config_.patch_size, config_.temporal_patch_size);
    }
  }

  Value run_frames(Tensor hidden, const std::vector<VisionGrid>& grids) {
    const auto [cos, sin] = vision_rotary(places_of(grids, config_.spatial_merge_size), head_dim());
    const Value frames = numbers(frame_lengths(grids));
    std::vector<Tensor> features{Tensor()};
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      hidden = blocks_[i](hidden, cos, sin, frames).tensor();
      const auto& taken = config_.deepstack_visual_indexes;
      const auto found = std::ranges::find(taken, static_cast<std::int64_t>(i));
      if (deepstack_ == nullptr || found == taken.end()) continue;
      features.push_back((*deepstack_)[features.size() - 1](hidden).tensor());
    }
    features.front() = merger_(hidden).tensor();
    return deepstack_ == nullptr ? Value(features.front()) : Value(features);
  }

  // Patches lie window by window while the blocks run.
  Value run_windows(const Tensor& patches, const std::vector<VisionGrid>& grids) {
    const Windows windows = windows_of(grids, config_);
    const std::int64_t merged = config_.merged();
    std::vector<PatchPlace> places = places_of(grids, config_.spatial_merge_size), moved;
    for (const std::int64_t cell : windows.order) {
      moved.insert(moved.end(), places.begin() + cell * merged, places.begin() + (cell + 1) * merged);
    }
    const auto [cos, sin] = vision_rotary(moved, head_dim());
    const Value frames = numbers(frame_lengths(grids)), parts = numbers(windows.lengths);
    Tensor hidden = ops::reorder_rows(patches, windows.order, merged);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const bool whole = std::ranges::binary_search(config_.fullatt_block_indexes, static_cast<std::int64_t>(i));
      hidden = blocks_[i](hidden, cos, sin, whole ? frames : parts).tensor();
    }
    return ops::reorder_rows(merger_(hidden), inverse(windows.order));
  }

  // The square of learned positions, at each patch between its four neighbours.
  Tensor positions_of(const std::vector<VisionGrid>& grids, DType dtype) {
    Tensor sum;
    for (const WeightedPositions& corner :
         interpolated_positions(grids, config_.spatial_merge_size, config_.num_position_embeddings)) {
      const Tensor weighted = ops::mul_rows(pos_embed_(corner.ids), ops::cast(corner.weights, dtype));
      sum = sum.defined() ? ops::add(sum, weighted) : weighted;
    }
    return sum;
  }

  std::int64_t head_dim() const { return config_.hidden_size / config_.num_heads; }

  const Config config_;
  nn::Child<nn::Module> patch_embed_;
  nn::ModuleList& blocks_;
  nn::Child<nn::Module> merger_;
  nn::Child<nn::Module> pos_embed_;
  nn::ModuleList* deepstack_ = nullptr;
};

}  // namespace

std::shared_ptr<nn::Module> make_qwen_vision(const QwenVisionConfig& config) {
  return std::make_shared<Vision>(config);
}

}  // namespace loom::models
