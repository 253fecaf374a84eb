// Recorded models: a file is read, compiled, and one step of it runs on a dry device.
#include "engine/nn/init.h"
#include "engine/nn/make_rank.h"
#include "engine/tensor/autograd.h"
#include "models/graph/graph_model.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace loom;

// One step; shapes that an operator of the engine rejects, and sizes beyond the device, are answers too.
void step(nn::Module& model, const models::GraphProgram& program) {
  try {
    nn::materialize(model);
    data::DataIterator batch(data::to_device(models::graph_batch(program)));
    const data::ForwardResult result = models::graph_forward_step(batch, model);
    const Tensor loss = result.loss_func(result.output).loss;
    if (loss.requires_grad() && loss.numel() == 1) autograd::backward(loss);
  } catch (const ModelError&) {
  } catch (const OutOfMemoryError&) {
  }
}

}  // namespace

LOOM_FUZZ_TARGET(model_graph) {
  return fuzz::answered_or_refused([&] {
    const std::filesystem::path file = fuzz::written("graph.json", fuzz::text_of(data, size));
    const auto program =
        std::make_shared<const models::GraphProgram>(models::make_graph_program(models::GraphFile(file).at()));
    RankContext context(0, 1);
    const RankScope scope(context);
    nn::make_rank(context, {.device = {.dry_run = true}});
    step(*models::make_graph_model(program), *program);
  });
}
