// The module trees of the schedule references (tests/reference/generate/schedule.py): toy, toy_tied and two_tower.
//
//   Toy       embed -> layers[n]{up, down} -> norm -> head; toy_tied: the head's weight is the embedding's
//   TwoTower  image_encoder{patch, blocks[2]} -> projector; text_decoder (a Toy of 3 layers, whose own forward does not
//             run)
//
// Every recorded module marks the recording where its own forward begins ("F") and ends ("f"), inside whatever
// wraps it: a forward that is run again in backward marks again, and one that is stopped early has no end.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/device/device.h"
#include "engine/nn/layers.h"
#include "engine/nn/module.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "tests/support/step_marks.h"

namespace loom::test {

constexpr std::int64_t kToyDim = 16;
constexpr std::int64_t kToyVocab = 32;
constexpr std::int64_t kPatchDim = 8;
constexpr double kToyStd = 0.1;

// Both [B, S_i, D] -> [B, S_a + S_b, D].
inline Tensor concatenate_sequences(const Tensor& a, const Tensor& b) {
  const std::int64_t batch = a.shape()[0];
  const std::int64_t a_row = a.numel() / batch * element_bytes(a.dtype());
  const std::int64_t b_row = b.numel() / batch * element_bytes(b.dtype());
  // Moves the rows of `one` and `two` into or out of the long rows of `both`.
  const auto move_rows = [batch, a_row, b_row](const Tensor& both, const Tensor& one, const Tensor& two, bool into) {
    auto* whole = static_cast<std::byte*>(both.raw());
    const auto move = [into](std::byte* inside, std::byte* outside, std::int64_t bytes) {
      std::memcpy(into ? inside : outside, into ? outside : inside, static_cast<std::size_t>(bytes));
    };
    for (std::int64_t i = 0; i < batch; ++i) {
      std::byte* row = whole + i * (a_row + b_row);
      move(row, static_cast<std::byte*>(one.raw()) + i * a_row, a_row);
      move(row + a_row, static_cast<std::byte*>(two.raw()) + i * b_row, b_row);
    }
  };
  const Tensor both = Tensor::empty({batch, a.shape()[1] + b.shape()[1], a.shape()[2]}, a.dtype());
  move_rows(both, a, b, /*into=*/true);
  const auto backward = [move_rows, a_shape = a.shape(), b_shape = b.shape()](
                            autograd::Saved, const autograd::Grads& outputs,
                            const autograd::Needs&) -> autograd::Grads {
    const Tensor a_grad = Tensor::empty(a_shape, outputs[0].dtype());
    const Tensor b_grad = Tensor::empty(b_shape, outputs[0].dtype());
    move_rows(outputs[0], a_grad, b_grad, /*into=*/false);
    return {a_grad, b_grad};
  };
  autograd::record("concatenate_sequences", {a, b}, {}, {both}, backward);
  return both;
}

class RecordedModule : public nn::Module {
 public:
  // From now on forwards are marked, under this path.
  void record_as(std::string path) {
    path_ = std::move(path);
    recorded_ = true;
  }

 protected:
  nn::Value forward(const nn::Args& args) final {
    mark(kForwardMark);
    nn::Value output = run(args);
    mark(kForwardEndMark);
    return output;
  }
  virtual nn::Value run(const nn::Args& args) = 0;

 private:
  void mark(device::MarkKind kind) const {
    if (recorded_) device::Device::current().log().add_mark({.kind = kind, .subject = path_});
  }

  std::string path_;
  bool recorded_ = false;
};

class ToyLinear final : public RecordedModule {
 public:
  ToyLinear(std::int64_t in, std::int64_t out, bool with_bias)
      : weight(register_parameter("weight", {out, in}, nn::Init::normal(kToyStd))) {
    if (with_bias) bias = &register_parameter("bias", {out}, nn::Init::zeros());
  }
  explicit ToyLinear(const nn::ParamSlot& tied) : weight(register_tied("weight", tied)) {}
  std::string_view type_name() const override { return "Linear"; }

  nn::ParamSlot& weight;
  nn::ParamSlot* bias = nullptr;

 protected:
  nn::Value run(const nn::Args& args) override {
    return ops::linear(args.tensor(0), weight.value, bias == nullptr ? Tensor{} : bias->value);
  }
};

class ToyEmbedding final : public RecordedModule {
 public:
  ToyEmbedding() : weight(register_parameter("weight", {kToyVocab, kToyDim}, nn::Init::normal(kToyStd))) {}
  std::string_view type_name() const override { return "Embedding"; }

  nn::ParamSlot& weight;

 protected:
  nn::Value run(const nn::Args& args) override { return ops::embedding(args.tensor(0), weight.value); }
};

class RecordedBlock final : public RecordedModule {
 public:
  RecordedBlock()
      : up_(register_module("up", std::make_shared<ToyLinear>(kToyDim, 2 * kToyDim, true))),
        down_(register_module("down", std::make_shared<ToyLinear>(2 * kToyDim, kToyDim, true))) {}
  std::string_view type_name() const override { return "Block"; }

 protected:
  nn::Value run(const nn::Args& args) override {
    const Tensor& x = args.tensor(0);
    return ops::add(x, down_(ops::tanh(up_(x))));
  }

 private:
  ToyLinear& up_;
  ToyLinear& down_;
};

inline std::shared_ptr<nn::ModuleList> blocks(int count) {
  auto list = std::make_shared<nn::ModuleList>();
  for (int i = 0; i < count; ++i) list->append(std::make_shared<RecordedBlock>());
  return list;
}

inline Tensor run_blocks(const nn::ModuleList& list, Tensor x) {
  for (std::size_t i = 0; i < list.size(); ++i) x = list[i](x);
  return x;
}

class Toy final : public RecordedModule {
 public:
  Toy(int layer_count, bool tied)
      : embed(register_module("embed", std::make_shared<ToyEmbedding>())),
        layers(register_module("layers", blocks(layer_count))),
        norm(register_module("norm", std::make_shared<nn::LayerNorm>(kToyDim, 1e-5))),
        head(register_module("head", tied ? std::make_shared<ToyLinear>(embed.weight)
                                          : std::make_shared<ToyLinear>(kToyDim, kToyVocab, false))) {}
  std::string_view type_name() const override { return "Toy"; }

  ToyEmbedding& embed;
  nn::ModuleList& layers;
  nn::LayerNorm& norm;
  ToyLinear& head;

 protected:
  nn::Value run(const nn::Args& args) override { return head(norm(run_blocks(layers, embed(args.tensor(0))))); }
};

class Vision final : public RecordedModule {
 public:
  Vision()
      : patch_(register_module("patch", std::make_shared<ToyLinear>(kPatchDim, kToyDim, true))),
        blocks_(register_module("blocks", blocks(2))) {}
  std::string_view type_name() const override { return "Vision"; }

 protected:
  nn::Value run(const nn::Args& args) override { return run_blocks(blocks_, patch_(args.tensor(0))); }

 private:
  ToyLinear& patch_;
  nn::ModuleList& blocks_;
};

class TwoTower final : public RecordedModule {
 public:
  TwoTower()
      : image_encoder_(register_module("image_encoder", std::make_shared<Vision>())),
        projector_(register_module("projector", std::make_shared<ToyLinear>(kToyDim, kToyDim, true))),
        text_decoder_(register_module("text_decoder", std::make_shared<Toy>(3, false))) {}
  std::string_view type_name() const override { return "TwoTower"; }

 protected:
  nn::Value run(const nn::Args& args) override {
    const nn::Value image = projector_(image_encoder_(args.tensor(1)));
    const nn::Value text = text_decoder_.embed(args.tensor(0));
    const Tensor x = run_blocks(text_decoder_.layers, concatenate_sequences(image, text));
    return text_decoder_.head(text_decoder_.norm(x));
  }

 private:
  Vision& image_encoder_;
  ToyLinear& projector_;
  Toy& text_decoder_;
};

}  // namespace loom::test
