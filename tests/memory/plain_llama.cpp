#include "tests/memory/plain_llama.h"

#include <cmath>
#include <tuple>

#include "engine/device/device.h"
#include "engine/kernels/dispatch.h"
#include "engine/nn/layers.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/composed.h"

namespace loom::test {
namespace {

using nn::Args;
using nn::Value;

constexpr double kEps = 1e-5;
constexpr double kTheta = 500000;
constexpr double kInitStd = 0.02;

std::shared_ptr<nn::Linear> linear(std::int64_t in, std::int64_t out) {
  return std::make_shared<nn::Linear>(in, out, false, kInitStd);
}

// x [B,S,H,D] as complex numbers [B,S,H,D/2], times table [S,D/2,2] fp32, conjugated on the way back.
Tensor times_phases(std::string_view kernel, const Tensor& x, const Tensor& table, bool conjugated) {
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  const device::Cost cost{.flops = 3.0 * static_cast<double>(x.numel()),
                          .read_bytes = x.nbytes() + table.nbytes(),
                          .written_bytes = y.nbytes()};
  device::Device::current().launch(kernel, cost, [&] {
    kernels::visit_float_dtype(kernel, x.dtype(), [&]<class T>() {
      const std::int64_t pairs = x.shape()[3] / 2, heads = x.shape()[2], seq = x.shape()[1];
      const auto* phases = table.data<float>();
      const T* from = x.data<T>();
      T* to = y.data<T>();
      for (std::int64_t i = 0; i < x.numel() / 2; ++i) {
        const std::int64_t phase = (i / (pairs * heads) % seq) * pairs + i % pairs;
        const float c = phases[2 * phase], s = conjugated ? -phases[2 * phase + 1] : phases[2 * phase + 1];
        const auto re = static_cast<float>(from[2 * i]), im = static_cast<float>(from[2 * i + 1]);
        to[2 * i] = T(re * c - im * s);
        to[2 * i + 1] = T(re * s + im * c);
      }
    });
  });
  return y;
}

Tensor turned(std::string_view kernel, const Tensor& x, const Tensor& table) {
  Tensor y = times_phases(kernel, x, table, false);
  autograd::record(kernel, {x}, {table}, {y},
                   [grad_kernel = std::string(kernel) + "_backward"](
                       autograd::Saved saved, const autograd::Grads& grads, const autograd::Needs&) -> autograd::Grads {
                     return {times_phases(grad_kernel, grads[0], saved[0], true)};
                   });
  return y;
}

// One tensor after the other; a piece is freed when the next one is there.
Tensor rotated(const Tensor& x, const Tensor& table) {
  Tensor wide = ops::cast(x, DType::kF32);
  wide = turned("complex_mul", wide, table);
  return ops::cast(wide, x.dtype());
}

// [B,S,G,D] -> [B,S,G * times,D], a copy unless times is 1.
Tensor repeat_heads(const Tensor& x, std::int64_t times) {
  if (times == 1) return x;
  const Shape& s = x.shape();
  const Tensor rows = ops::reshape(x, {s[0] * s[1], s[2], 1, s[3]});
  return ops::reshape(ops::repeat_kv(rows, times), {s[0], s[1], s[2] * times, s[3]});
}

class Attention final : public nn::Module {
 public:
  explicit Attention(const PlainLlamaConfig& c)
      : config_(c),
        head_dim_(c.hidden / c.heads),
        wq_(register_module("wq", linear(c.hidden, c.heads * head_dim_))),
        wk_(register_module("wk", linear(c.hidden, c.kv_heads * head_dim_))),
        wv_(register_module("wv", linear(c.hidden, c.kv_heads * head_dim_))),
        wo_(register_module("wo", linear(c.heads * head_dim_, c.hidden))) {}
  std::string_view type_name() const override { return "Attention"; }

 protected:
  Value forward(const Args& args) override {
    const Tensor& x = args.tensor(0);
    const Shape& s = x.shape();
    Tensor q = wq_(x).tensor(), k = wk_(x).tensor(), v = wv_(x).tensor();
    q = ops::reshape(q, {s[0], s[1], config_.heads, head_dim_});
    k = ops::reshape(k, {s[0], s[1], config_.kv_heads, head_dim_});
    v = ops::reshape(v, {s[0], s[1], config_.kv_heads, head_dim_});
    const auto rope = [&](const Tensor& x) {
      return config_.compiled ? turned("rope", x, args.tensor(1)) : rotated(x, args.tensor(1));
    };
    std::tie(q, k) = std::pair{rope(q), rope(k)};  // q first; both are there before the old ones are freed
    const std::int64_t times = config_.heads / config_.kv_heads;
    k = repeat_heads(k, times);
    v = repeat_heads(v, times);
    const Tensor out = ops::attention(q, k, v, 1.0 / std::sqrt(static_cast<double>(head_dim_)));
    return wo_(ops::reshape(out, {s[0], s[1], config_.heads * head_dim_}));
  }

 private:
  const PlainLlamaConfig config_;
  const std::int64_t head_dim_;
  nn::Child<nn::Module> wq_;
  nn::Child<nn::Module> wk_;
  nn::Child<nn::Module> wv_;
  nn::Child<nn::Module> wo_;
};

class FeedForward final : public nn::Module {
 public:
  explicit FeedForward(const PlainLlamaConfig& c)
      : compiled_(c.compiled),
        w1_(register_module("w1", linear(c.hidden, c.intermediate))),
        w2_(register_module("w2", linear(c.intermediate, c.hidden))),
        w3_(register_module("w3", linear(c.hidden, c.intermediate))) {}
  std::string_view type_name() const override { return "FeedForward"; }

 protected:
  Value forward(const Args& args) override {
    const Tensor& x = args.tensor(0);
    return w2_(compiled_ ? fused(x) : composed(x));
  }

 private:
  // A reassigned name frees the piece before, as it does in Python.
  Tensor composed(const Tensor& x) {
    Tensor hidden = w1_(x).tensor();
    hidden = ops::silu(hidden);
    return ops::mul(hidden, w3_(x).tensor());
  }
  Tensor fused(const Tensor& x) {
    const Tensor gate = w1_(x).tensor();
    return ops::swiglu(gate, w3_(x));
  }

  const bool compiled_;
  nn::Child<nn::Module> w1_;
  nn::Child<nn::Module> w2_;
  nn::Child<nn::Module> w3_;
};

class Block final : public nn::Module {
 public:
  explicit Block(const PlainLlamaConfig& c)
      : attention_(register_module("attention", std::make_shared<Attention>(c))),
        feed_forward_(register_module("feed_forward", std::make_shared<FeedForward>(c))),
        attention_norm_(register_module("attention_norm", std::make_shared<nn::RMSNorm>(c.hidden, kEps))),
        ffn_norm_(register_module("ffn_norm", std::make_shared<nn::RMSNorm>(c.hidden, kEps))) {}
  std::string_view type_name() const override { return "TransformerBlock"; }

 protected:
  Value forward(const Args& args) override {
    const Tensor& x = args.tensor(0);
    const Tensor h = ops::add(x, attention_(attention_norm_(x), args.tensor(1)).tensor());
    return ops::add(h, feed_forward_(ffn_norm_(h)).tensor());
  }

 private:
  nn::Child<nn::Module> attention_;
  nn::Child<nn::Module> feed_forward_;
  nn::Child<nn::Module> attention_norm_;
  nn::Child<nn::Module> ffn_norm_;
};

class PlainLlama final : public nn::Module {
 public:
  explicit PlainLlama(const PlainLlamaConfig& c)
      : config_(c),
        tok_embeddings_(
            register_module("tok_embeddings", std::make_shared<nn::Embedding>(c.vocab, c.hidden, kInitStd))),
        layers_(register_module("layers", std::make_shared<nn::ModuleList>())),
        norm_(register_module("norm", std::make_shared<nn::RMSNorm>(c.hidden, kEps))),
        output_(register_module("output", linear(c.hidden, c.vocab))) {
    for (std::int64_t i = 0; i < c.layers; ++i) layers_.append(std::make_shared<Block>(c));
  }
  std::string_view type_name() const override { return "PlainLlama"; }

 protected:
  Value forward(const Args& args) override {
    if (!phases_.defined()) phases_ = make_phases();
    Tensor h = tok_embeddings_(args.tensor(0)).tensor();
    const Tensor phases = phases_.rows(0, h.shape()[1]);
    for (std::size_t i = 0; i < layers_.size(); ++i) h = layers_[i](h, phases).tensor();
    return output_(norm_(h));
  }

 private:
  Tensor make_phases() const {
    const std::int64_t pairs = config_.hidden / config_.heads / 2, rows = 2 * config_.seq;
    Tensor table = Tensor::empty({rows, pairs, 2}, DType::kF32, device::MemCategory::kActivation, "rotary phases");
    device::Device::current().launch("phases", {.written_bytes = table.nbytes()}, [&] {
      auto* values = table.data<float>();
      for (std::int64_t i = 0; i < rows * pairs; ++i) {
        const double frequency = std::pow(kTheta, -static_cast<double>(i % pairs) / static_cast<double>(pairs));
        const double angle = static_cast<double>(i / pairs) * frequency;
        values[2 * i] = static_cast<float>(std::cos(angle));
        values[2 * i + 1] = static_cast<float>(std::sin(angle));
      }
    });
    return table;
  }

  const PlainLlamaConfig config_;
  Tensor phases_;
  nn::Child<nn::Module> tok_embeddings_;
  nn::ModuleList& layers_;
  nn::Child<nn::Module> norm_;
  nn::Child<nn::Module> output_;
};

}  // namespace

std::shared_ptr<nn::Module> make_plain_llama(const PlainLlamaConfig& config) {
  return std::make_shared<PlainLlama>(config);
}

}  // namespace loom::test
