// LoraLinear: a linear module with a frozen weight W and an adapter of rank r beside it.
//
// Result    y = W x + bias + scale * B A dropout(x). The adapter computes in the dtype of A; the sum is rounded once
//           to the dtype of W x.
// Base      a layer of engine/nn, whose product is computed here, or an AdaptableLinear, which has one.
// Shapes    A [r, in], B [out, r], for either layout of W: a Linear has W [out, in], a Conv1D [in, out].
// Names     weight and bias keep their names; the adapter's are lora_A.weight and lora_B.weight below them, which
//           are peft's names.
// Shared    by ranks that have some of its inputs: A has these columns, and the sum over the ranks is of both products.
// Zero B    gives the bits of the module without adapter (x + 0 is x).
// Threads   the rank's host thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "engine/nn/layers.h"
#include "models/lora/lora_options.h"

namespace loom::models {

class LoraLinear;

// A linear module that is no layer of engine/nn, such as one of a recorded model.
class AdaptableLinear {
 public:
  // W x + bias of a call with these arguments.
  using Product = std::function<Tensor(const nn::Args& args)>;

  virtual ~AdaptableLinear() = default;
  virtual bool is_conv1d() const = 0;
  // Its product, which reads the adapter's weight and bias from now on and outlives this module. The adapter takes the
  // place of this module.
  virtual Product hand_over(LoraLinear& adapter) = 0;
};

// A or B: y = x . weight^T.
class LoraMatrix final : public nn::Module {
 public:
  LoraMatrix(std::int64_t out, std::int64_t in, nn::Init init);
  std::string_view type_name() const override { return "LoraMatrix"; }
  nn::ParamSlot& weight;

 protected:
  nn::Value forward(const nn::Args& args) override;
};

class LoraLinear final : public nn::MatrixLayer {
 public:
  struct Options {
    std::int64_t r = 0;
    double scale = 1;
    double dropout = 0;
    LoraInit init = LoraInit::kDefault;
  };
  // Takes over the parameters of `base`. Precondition: can_adapt(base).
  LoraLinear(nn::Module& base, const Options& options);
  std::string_view type_name() const override { return "LoraLinear"; }

  // Whether a module is linear: an nn::Linear, nn::Conv1D, nn::TiedLinear or AdaptableLinear.
  static bool can_adapt(const nn::Module& module);

  const Options& options() const { return options_; }
  bool is_conv1d() const { return is_conv1d_; }
  nn::ParamSlot& weight;
  nn::ParamSlot* bias = nullptr;
  LoraMatrix& lora_a() { return *lora_a_; }
  LoraMatrix& lora_b() { return *lora_b_; }
  std::vector<Part> parts() override;
  bool is_one_product() const override { return false; }

 protected:
  nn::Value forward(const nn::Args& args) override;

 private:
  Tensor product(const Tensor& x, const Tensor& bias_of_base) const;
  Tensor adapt(const Tensor& x, const Tensor& y) const;

  const Options options_;
  const bool is_conv1d_;
  nn::Child<LoraMatrix> lora_a_;
  nn::Child<LoraMatrix> lora_b_;
  AdaptableLinear::Product product_of_base_;  // of an AdaptableLinear
};

}  // namespace loom::models
