// Replay: the tensors of a running GraphProgram, and its operators on the tape. Private to models/graph.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/nn/module.h"
#include "engine/tensor/autograd.h"
#include "models/graph/graph_program.h"

namespace loom::models {

class Replay {
 public:
  explicit Replay(std::shared_ptr<const GraphProgram> program);

  const GraphProgram& program() const { return *program_; }
  // Where a parameter or buffer is. Slots and buffers are there as long as the replay runs.
  void set_parameter(int tensor, nn::ParamSlot& slot) { slots_[static_cast<std::size_t>(tensor)] = &slot; }
  void set_buffer(int tensor, nn::Buffer& buffer) { buffers_[static_cast<std::size_t>(tensor)] = &buffer; }
  void set_modules(std::vector<nn::Module*> modules) { modules_ = std::move(modules); }
  void set_module(int number, nn::Module& module) { modules_[static_cast<std::size_t>(number)] = &module; }

  // Runs call `index` of the program with its arguments, in order; its results.
  std::vector<Tensor> run(int index, const std::vector<Tensor>& arguments);
  // The same, for a caller that gives other tensors in place of the results, which are not bound.
  std::vector<Tensor> run_alone(int index, const std::vector<Tensor>& arguments);
  // What surrounds the model's call: before it, with the inputs in their order, and from its results to the loss.
  void run_before(const std::vector<Tensor>& inputs);
  // After the model's call: what its caller holds until the loss is made.
  std::vector<Tensor> take_kept() { return std::exchange(kept_, {}); }
  Tensor loss_of(const std::vector<Tensor>& results);

 private:
  class Frame;

  void run_steps(const std::vector<GraphStep>& steps, std::size_t begin, std::size_t end);
  void run_operation(const GraphOperation& operation);
  void run_call(int index);
  std::vector<Tensor> outputs_of(const GraphOperation& operation);
  std::vector<Tensor> read_all(const std::vector<int>& tensors) const;
  std::vector<Tensor> saved_of(const GraphOperation& operation, const std::vector<int>& saved) const;
  autograd::Grads run_backward(const GraphBackward& node, autograd::Saved saved, const autograd::Grads& grads,
                               const autograd::Needs& needs) const;

  const Tensor& fixed(int tensor) const;
  bool is_fixed(int tensor) const;
  const Tensor& at(int tensor) const;
  Tensor made(int tensor, int name) const;
  Tensor view(const Tensor& of, int tensor) const;
  void free(int storage);
  void clear(const std::vector<int>& tensors);
  std::size_t model_call() const;

  const std::shared_ptr<const GraphProgram> program_;
  std::vector<nn::ParamSlot*> slots_;  // by tensor; null: none
  std::vector<nn::Buffer*> buffers_;   // by tensor; null: none
  std::vector<nn::Module*> modules_;   // by number of a module
  std::vector<Tensor> tensors_;        // what is bound now, by tensor
  std::vector<std::uint32_t> frees_;   // by storage, so far
  std::vector<Tensor> kept_;           // GraphProgram::kept of the last call of the model
  int depth_ = 0;                      // of the running calls
};

}  // namespace loom::models
