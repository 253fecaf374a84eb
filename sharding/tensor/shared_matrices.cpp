// The plan of a model and a file, checked.
#include <algorithm>

#include "engine/core/error.h"
#include "engine/dist/context_attention.h"
#include "engine/nn/absent.h"
#include "sharding/fsdp/chunk.h"
#include "sharding/selected_modules.h"
#include "sharding/tensor/matrix_cutter.h"

namespace loom::sharding {
namespace {

std::vector<ModulePattern> parsed(const std::vector<std::string>& patterns) {
  std::vector<ModulePattern> result;
  for (const std::string& pattern : patterns) {
    result.push_back(ModulePattern::parse(pattern, "the model's plan", {"the model's plan", 0, 0}));
  }
  return result;
}

class PathsOfPlan {
 public:
  explicit PathsOfPlan(nn::Module& model) : model_(model), tree_(model) {}

  std::vector<std::string> of(const std::vector<ModulePattern>& given, const std::vector<std::string>& own) {
    return listed_modules(model_, given.empty() ? parsed(own) : given, tree_, warnings_, written_as_);
  }

 private:
  nn::Module& model_;
  const ModelTree tree_;
  std::vector<std::string> warnings_;
  WrittenAs written_as_;
};

void check_outputs(nn::Module& model, const std::string& path, const SharedMatrices& matrices,
                   const std::string& where) {
  const std::int64_t outputs = outputs_of(matrix_at(model, path, where));
  const std::int64_t units = units_of(model, path, matrices);
  if (units % matrices.ranks == 0) return;
  const auto attention = model.find(parent_of(path))->attachment<dist::ContextSlot>();
  const std::int64_t most_heads = attention == nullptr ? 0 : attention->heads;
  if (units < most_heads && matrices.ranks % units == 0) return;  // copies of key/value heads
  config_error("{}: {} ranks cannot share '{}', which has {} {}; use a tensor_parallel_size that divides {}", where,
               matrices.ranks, path, units, units == outputs ? "outputs" : "heads", units);
}

void check_inputs(nn::Module& model, const std::string& path, const SharedMatrices& matrices,
                  const std::string& where) {
  const std::int64_t inputs = inputs_of(matrix_at(model, path, where));
  if (inputs % matrices.ranks == 0) return;
  config_error("{}: {} ranks cannot share '{}', which has {} inputs; use a tensor_parallel_size that divides {}", where,
               matrices.ranks, path, inputs, inputs);
}

// Each rank has at least one id.
void check_vocabulary(nn::Module& model, const SharedMatrices& matrices, const std::string& where) {
  const std::int64_t vocab = model.find(matrices.embedding)->own_parameters().front()->shard.global_shape[0];
  if (chunk_of(vocab, matrices.ranks - 1, matrices.ranks).rows > 0) return;
  config_error("{}: {} ranks cannot share a vocabulary of {}: the last one would have no id; use fewer", where,
               matrices.ranks, vocab);
}

void check_output(const nn::Module& output, const SharedMatrices& matrices, const std::string& where) {
  if (output.type_name() == "Linear") return;
  config_error("{}: '{}' is a {}, and tensor parallelism shares the vocabulary of a Linear; take it out of {}", where,
               matrices.output, output.type_name(),
               output.type_name() == "LoraLinear" ? "the modules with adapters" : "the plan");
}

// A layer that is recomputed alone keeps its whole input for that.
void check_recompute(const SharedMatrices& matrices, const Fsdp2Config& config, PathsOfPlan& paths) {
  if (!matrices.gathers_again || config.recompute_modules.empty()) return;
  for (const std::string& recomputed : paths.of(config.recompute_modules, {})) {
    for (const std::string& path : matrices.colwise) {
      const bool is_alone = config.recompute_children ? parent_of(path) == recomputed : path == recomputed;
      if (!is_alone) continue;
      config_error(
          "{}: regather_colwise_input is true, but '{}' is recomputed by itself and keeps its whole input; recompute "
          "the block around it, or remove the key",
          config.value_mark("regather_colwise_input").text(), path);
    }
  }
}

}  // namespace

SharedMatrices shared_matrices(nn::Module& model, const Fsdp2Config& config) {
  SharedMatrices matrices;
  matrices.ranks = config.tensor_parallel_size;
  matrices.sequence_parallel = config.sequence_parallel;
  matrices.loss_parallel = config.loss_parallel;
  matrices.slices = config.overlap_slices;
  matrices.slices_mark = config.value_mark("overlap_slices").text();
  matrices.gathers_again = config.regather_colwise_input;
  if (matrices.ranks == 1) return matrices;
  const std::string where = config.value_mark("tensor_parallel_size").text();
  const auto plan = model.attachment<TensorPlan>();
  if (plan == nullptr) {
    config_error("{}: {} has no plan of tensor parallelism; write 1", where, model.type_name());
  }
  PathsOfPlan paths(model);
  matrices.colwise = paths.of(config.colwise_parallel, plan->colwise);
  matrices.rowwise = paths.of(config.rowwise_parallel, plan->rowwise);
  matrices.tokens = paths.of({}, plan->tokens);
  for (const JoinedMatrices& joined : plan->joined) {
    for (const std::string& path : paths.of({}, {joined.layer})) matrices.joined.push_back({path, joined.matrices});
  }
  // Another stage of a pipeline may have them.
  if (!nn::is_absent(*model.find(plan->embedding))) matrices.embedding = plan->embedding;
  if (!nn::is_absent(*model.find(plan->output))) matrices.output = plan->output;
  matrices.head = plan->head;
  for (const std::string& path : matrices.colwise) check_outputs(model, path, matrices, where);
  for (const std::string& path : matrices.rowwise) check_inputs(model, path, matrices, where);
  check_recompute(matrices, config, paths);
  if (!matrices.embedding.empty()) check_vocabulary(model, matrices, where);
  if (matrices.head.empty() && !matrices.output.empty()) check_output(*model.find(matrices.output), matrices, where);
  return matrices;
}

}  // namespace loom::sharding
