// Layers: modules with parameters around one operator. Shapes and initial values as in torch.nn and Hugging Face.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "engine/nn/module.h"
#include "engine/tensor/ops/linear_rows.h"

namespace loom::nn {

// A layer whose matrix ranks may share: each computes some of the outputs, or has some of the inputs.
class MatrixLayer : public Module {
 public:
  // A parameter, and the dims of it that go by the layer's outputs and inputs.
  struct Part {
    ParamSlot* slot = nullptr;
    std::optional<int> outputs = {};
    std::optional<int> inputs = {};
  };
  // What the layer computes of x before what the ranks compute is joined.
  struct Product {
    std::function<Tensor(const Tensor& x)> run;
    // Where it is one product, which may be computed for some rows of x at a time.
    std::optional<ops::LinearMatrix> matrix = {};

    Tensor operator()(const Tensor& x) const { return run(x); }
  };
  using RunProduct = std::function<Tensor(const Tensor& x, const Product& product)>;
  enum class Bias : std::uint8_t { kOfProduct, kAfterIt };

  // The matrix first.
  virtual std::vector<Part> parts() = 0;
  // Whether it has a Product::matrix.
  virtual bool is_one_product() const { return true; }
  // `run` calls `product`, or computes what it does, and joins what the ranks compute of it.
  void run_product_by(RunProduct run, Bias bias = Bias::kAfterIt) {
    run_ = std::move(run);
    bias_ = bias;
  }

 protected:
  bool is_shared() const { return run_ != nullptr; }
  // Of a shared layer: `run` computes the product with the given bias, which may be undefined. `weight` is the matrix
  // where that is one product.
  Tensor shared_product(const Tensor& x, const std::function<Tensor(const Tensor& x, const Tensor& bias)>& run,
                        const std::optional<ops::LinearMatrix>& weight, const Tensor& bias) const;

 private:
  RunProduct run_;
  Bias bias_ = Bias::kAfterIt;
};

// y = x . weight^T + bias; weight [out, in].
class Linear final : public MatrixLayer {
 public:
  Linear(std::int64_t in, std::int64_t out, bool bias, double init_std);
  std::string_view type_name() const override { return "Linear"; }
  ParamSlot& weight;
  ParamSlot* bias = nullptr;
  std::vector<Part> parts() override;

 protected:
  Value forward(const Args& args) override;
};

// GPT-2's Conv1D: y = x . weight + bias; weight [in, out].
class Conv1D final : public MatrixLayer {
 public:
  Conv1D(std::int64_t in, std::int64_t out, double init_std);
  std::string_view type_name() const override { return "Conv1D"; }
  ParamSlot& weight;
  ParamSlot& bias;
  std::vector<Part> parts() override;

 protected:
  Value forward(const Args& args) override;
};

// Rows of weight [vocab, dim] by id; the row of padding, if there is one, gets no gradient.
class Embedding final : public Module {
 public:
  Embedding(std::int64_t vocab, std::int64_t dim, double init_std);
  std::string_view type_name() const override { return "Embedding"; }
  ParamSlot& weight;

  void set_padding(std::int64_t id) { padding_ = id; }
  std::int64_t padding() const { return padding_; }  // -1: none

  // Where other ranks have the other rows: looks up this rank's and joins the ranks' results.
  void look_up_by(std::function<Tensor(const Tensor& ids, const Tensor& table)> lookup) { lookup_ = std::move(lookup); }

 protected:
  Value forward(const Args& args) override;

 private:
  std::int64_t padding_ = -1;
  std::function<Tensor(const Tensor& ids, const Tensor& table)> lookup_;
};

class RMSNorm final : public Module {
 public:
  RMSNorm(std::int64_t dim, double eps);
  std::string_view type_name() const override { return "RMSNorm"; }
  ParamSlot& weight;

 protected:
  Value forward(const Args& args) override;

 private:
  const double eps_;
};

class LayerNorm final : public Module {
 public:
  LayerNorm(std::int64_t dim, double eps);
  std::string_view type_name() const override { return "LayerNorm"; }
  ParamSlot& weight;
  ParamSlot& bias;

 protected:
  Value forward(const Args& args) override;

 private:
  const double eps_;
};

// Zeros elements with probability p while the module trains (ops/general.h); nothing in evaluation.
class Dropout final : public Module {
 public:
  // ModelError unless 0 <= p < 1, when it is called.
  explicit Dropout(double p) : p_(p) {}
  std::string_view type_name() const override { return "Dropout"; }

 protected:
  Value forward(const Args& args) override;

 private:
  const double p_;
};

// A head whose weight is another layer's (tied embeddings): y = x . weight^T.
class TiedLinear final : public Module {
 public:
  explicit TiedLinear(const ParamSlot& shared);
  std::string_view type_name() const override { return "Linear"; }
  ParamSlot& weight;

 protected:
  Value forward(const Args& args) override;
};

}  // namespace loom::nn
