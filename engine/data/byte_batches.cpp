#include "engine/data/byte_batches.h"

#include <algorithm>
#include <fmt/core.h>
#include <functional>
#include <memory>
#include <utility>

#include "engine/core/error.h"
#include "engine/data/byte_dataset.h"
#include "engine/data/loss_in_model.h"
#include "engine/nn/functional.h"
#include "engine/nn/router_loss.h"
#include "engine/tensor/ops/general.h"

namespace loom::data {
namespace {

Batch batch_of(const ByteDataset& data, std::span<const std::int64_t> samples, std::int64_t seq) {
  const Shape shape{static_cast<std::int64_t>(samples.size()), seq};
  const Tensor inputs = Tensor::host(shape, DType::kI32, "input_ids");
  const Tensor targets = Tensor::host(shape, DType::kI32, "targets");
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(seq + 1));
  for (std::size_t row = 0; row < samples.size(); ++row) {
    data.fill(samples[row], tokens);
    const auto at = static_cast<std::int64_t>(row) * seq;
    std::copy(tokens.begin(), tokens.end() - 1, inputs.data<std::int32_t>() + at);
    std::copy(tokens.begin() + 1, tokens.end(), targets.data<std::int32_t>() + at);
  }
  return {{{"input_ids", inputs}, {"targets", targets}}};
}

}  // namespace

void refuse_samples(const DataOptions& options, std::string_view data) {
  if (!options.is_instruction_dataset) return;
  config_error(
      "--stage and --is-instruction-dataset are for samples for fine-tuning, and this program trains on {}; use "
      "shardloom train, or remove the flag",
      data);
}

DataLoaders byte_data_loaders(const DataOptions& options) {
  refuse_samples(options, "the bytes of files");
  const auto data = std::make_shared<const ByteData>(open_byte_data({.paths = options.data_path,
                                                                     .seq_length = options.seq_length,
                                                                     .held_out_fraction = options.held_out_fraction,
                                                                     .seed = options.seed}));
  const std::int64_t seq = options.seq_length;
  DataLoaders loaders;
  loaders.train = [data, seq](std::span<const std::int64_t> samples) { return batch_of(data->train, samples, seq); };
  const std::int64_t held_out = data->held_out ? data->held_out->stream_bytes() : 0;
  if (data->held_out) {
    loaders.valid = [data, seq](std::span<const std::int64_t> samples) {
      return batch_of(*data->held_out, samples, seq);
    };
  }
  loaders.about = fmt::format("{} held out of {} bytes of text", held_out, data->train.stream_bytes() + held_out);
  return loaders;
}

namespace {

nn::Args ids_of(const Batch& batch) {
  nn::Args args;
  args.positional.emplace_back(batch["input_ids"]);
  for (const char* name : {"position_ids", "actual_seq_len", "attention_mask", "pixel_values", "image_grid_thw",
                           "pixel_values_videos", "video_grid_thw", "second_per_grid_ts"}) {
    if (!batch.find(name).is_none()) args.named.emplace_back(name, batch.find(name));
  }
  return args;
}

// Targets of each row that count; of shapes without values, all.
std::vector<std::int64_t> tokens_of_rows(const Tensor& targets) {
  const std::int64_t rows = targets.shape()[0], length = targets.numel() / rows;
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(rows), length);
  if (targets.raw() == nullptr) return tokens;
  const auto* first = targets.data<std::int32_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    tokens[static_cast<std::size_t>(row)] = length - std::count(first + row * length, first + (row + 1) * length,
                                                                static_cast<std::int32_t>(ops::kIgnoreIndex));
  }
  return tokens;
}

// The loss of a model that was given its targets.
Tensor loss_of_output(const nn::Value& output, const nn::Module& model) {
  if (output.is_tensor() && output.tensor().shape().ndim() == 0) return output.tensor();
  config_error(
      "--loss-chunk-size: {} gives no loss where it is called with targets and loss_chunk_size; compute it there as "
      "Qwen2ForCausalLM does, or leave the flag out",
      model.type_name());
}

// Calls the model; the loss is `cross_entropy` of its output, and of its routers' losses if it has some.
ForwardResult with_router_loss(nn::Module& model, nn::Args args,
                               std::function<Tensor(const nn::Value&)> cross_entropy) {
  const auto routers = nn::router_loss_of(model);
  if (routers == nullptr) return forward_with_loss(model, std::move(args), std::move(cross_entropy));
  args.named.emplace_back("router_loss", true);
  const auto loss_func = [cross_entropy = std::move(cross_entropy), routers](nn::Value output) -> Loss {
    nn::ValueList parts = output.list();
    output = {};
    Tensor sum = cross_entropy(std::exchange(parts[0], {}));
    Loss loss{sum, {{"cross_entropy", sum.item()}}};
    for (std::size_t i = 0; i < routers->terms.size(); ++i) {
      const auto& [name, coefficient] = routers->terms[i];
      const Tensor term = parts[i + 1];
      sum = ops::add(sum, ops::scale(ops::cast(term, sum.dtype()), coefficient));
      loss.reports.emplace_back(name, term.item());
    }
    loss.loss = sum;
    return loss;
  };
  return forward_with_loss(model, std::move(args), loss_func);
}

// Minus the mean over the rows of log_probs[row] / tokens[row].
Tensor mean_of_rows(const Tensor& log_probs, const std::vector<std::int64_t>& tokens) {
  std::vector<double> factors;
  for (const std::int64_t count : tokens) factors.push_back(count == 0 ? 0 : -1 / static_cast<double>(count));
  return ops::mean(ops::mul(log_probs, Tensor::from(factors, log_probs.shape(), log_probs.dtype())));
}

}  // namespace

nn::Value call_with_ids(nn::Module& model, const Batch& batch) { return model.call(ids_of(batch)); }

ForwardResult next_token_step(DataIterator& data, nn::Module& model) {
  const Batch batch = data.next();
  if (const std::int64_t chunk = data.loss_chunk_size(); chunk > 0 || model.attachment<nn::OwnLoss>() != nullptr) {
    nn::Args args = ids_of(batch);
    args.named.emplace_back("targets", batch["targets"]);
    args.named.emplace_back("loss_chunk_size", chunk);
    return with_router_loss(model, std::move(args),
                            [&model](const nn::Value& output) { return loss_of_output(output, model); });
  }
  return with_router_loss(model, ids_of(batch), [targets = batch["targets"]](const nn::Value& logits) {
    return nn::functional::cross_entropy(logits, targets);
  });
}

ForwardResult next_token_step_per_sample(DataIterator& data, nn::Module& model) {
  const Batch batch = data.next();
  return with_router_loss(model, ids_of(batch), [targets = batch["targets"]](const nn::Value& logits) {
    const std::vector<std::int64_t> tokens = tokens_of_rows(targets);
    return mean_of_rows(ops::sequence_log_probs(logits, targets), tokens);
  });
}

}  // namespace loom::data
