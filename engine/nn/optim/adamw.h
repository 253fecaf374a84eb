// AdamW, as torch.optim.AdamW: decoupled weight decay, bias correction, fp32 moments (fp64 for fp64 parameters).
//
// Parameters  are leaves with bytes, usually this rank's shards: make the optimizer after sharding. Parameters without
//             gradient are skipped and keep their step count. Empty shards take part and do nothing.
// Memory      two moments per parameter, category optimizer_state, made beside it (on its device, or on the host with
//             the same pinning) at the first step that has a gradient; with foreach also the temporaries of a step.
// Where       on the device for tensors of the device; on the CPU for tensors of the host. Reading a gradient waits
//             until it has landed there.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/tensor/tensor.h"

namespace loom::nn {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  // torch.optim.AdamW(foreach=True): a step holds one temporary as large as all parameters it updates on the device.
  // The values are the same.
  bool foreach = false;
};

class AdamW {
 public:
  // Keeps the parameters that require grad.
  AdamW(std::vector<Tensor> parameters, const AdamWOptions& options);

  void set_lr(double lr) { options_.lr = lr; }
  // One update from the collected gradients; bumps the parameters' versions.
  void step();
  // Drops the gradients.
  void zero_grad();
  const std::vector<Tensor>& parameters() const { return parameters_; }

 private:
  struct State {
    Tensor m;
    Tensor v;
    std::int64_t step = 0;
  };
  std::vector<Tensor> foreach_temporaries() const;

  AdamWOptions options_;
  std::vector<Tensor> parameters_;
  std::vector<State> states_;
};

// Sum of squares of the gradients of `parameters`, in parameter order, in double.
double gradient_sum_of_squares(const std::vector<Tensor>& parameters);
// Multiplies every gradient by `factor`.
void scale_gradients(const std::vector<Tensor>& parameters, double factor);

}  // namespace loom::nn
