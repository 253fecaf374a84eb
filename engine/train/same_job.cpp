#include "engine/train/same_job.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <numeric>

#include "engine/core/digest.h"
#include "engine/core/shown_text.h"
#include "engine/data/content.h"
#include "engine/device/device.h"
#include "engine/train/optimizer_words.h"
#include "models/hub/config_reader.h"
#include "models/lora/adapter_folder.h"
#include "models/mixin/fsdp2_mixin.h"

namespace loom::train {
namespace {

using Entries = std::vector<comm::SaidEntry>;

template <class T>
void add(Entries& entries, std::string key, const T& value) {
  entries.push_back({std::move(key), fmt::format("{}", value)});
}

std::string_view given(bool is_given) { return is_given ? "the flag" : "none"; }

template <class T>
std::string given(const std::optional<T>& value) {
  return value ? fmt::format("{}", *value) : "none";
}

void add_batch_and_schedule(Entries& entries, const TrainArguments& a) {
  add(entries, "--seed", a.seed);
  add(entries, "--seq-length", a.seq_length);
  add(entries, "--held-out-fraction", a.held_out_fraction);
  add(entries, "--micro-batch-size", a.micro_batch_size);
  add(entries, "--global-batch-size", a.global_batch_size);
  add(entries, "--train-iters", a.train_iters);
  add(entries, "--eval-interval", a.eval_interval);
  add(entries, "--eval-iters", a.eval_iters);
  add(entries, "--save-interval", a.save_interval);
  add(entries, "--exit-interval", a.exit_interval);
  add(entries, "--exit-duration-in-mins", a.exit_duration_in_mins);
  add(entries, "--exit-signal-handler", given(a.exit_signal_handler));
  add(entries, "--skip-train", given(a.skip_train));
  add(entries, "--no-check-for-nan-in-loss-and-grad", given(!a.check_for_nan_in_loss_and_grad));
  add(entries, "--lr", a.lr);
  add(entries, "--min-lr", a.min_lr);
  add(entries, "--lr-decay-style", word_of(a.lr_decay_style));
  add(entries, "--lr-decay-iters", a.lr_decay_iters);
  add(entries, "--lr-warmup-iters", a.lr_warmup_iters);
  add(entries, "--lr-warmup-fraction", given(a.lr_warmup_fraction));
  add(entries, "--lr-warmup-init", a.lr_warmup_init);
  add(entries, "--lr-wsd-decay-style", word_of(a.lr_wsd_decay_style));
  add(entries, "--lr-wsd-decay-iters", a.lr_wsd_decay_iters);
  add(entries, "--override-opt_param-scheduler", given(a.override_opt_param_scheduler));
  add(entries, "--use-checkpoint-opt_param-scheduler", given(a.use_checkpoint_opt_param_scheduler));
}

// Which samples, and what of them; the data itself is compared by its bytes.
void add_token_data(Entries& entries, const TrainArguments& a) {
  add(entries, "--data-path, weights", fmt::format("{}", fmt::join(data::data_weights(a), " ")));
  add(entries, "--split", a.split.value_or("none"));
  add(entries, "--tokenizer-name-or-path", given(a.tokenizer_name_or_path.has_value()));
  add(entries, "--reset-position-ids", given(a.reset_position_ids));
  add(entries, "--reset-attention-mask", given(a.reset_attention_mask));
  add(entries, "--eod-mask-loss", given(a.eod_mask_loss));
  add(entries, "--is-instruction-dataset", given(a.is_instruction_dataset));
  add(entries, "--stage", a.stage.value_or("none"));
  if (a.is_pairwise_dataset) {
    add(entries, "--dpo-loss-type, --simpo-loss-type", static_cast<int>(a.preference.loss_type));
    add(entries, "--dpo-beta, --simpo-beta", a.preference.beta);
    add(entries, "--dpo-label-smoothing, --simpo-label-smoothing", a.preference.label_smoothing);
    add(entries, "--gamma-beta-ratio", a.preference.gamma_beta_ratio);
    add(entries, "--pref-ftx", a.preference.pref_ftx);
    add(entries, "--ref-model", given(a.ref_model.has_value()));
    add(entries, "--ref-logps-cache", given(a.ref_logps_cache.has_value()));
  }
  add(entries, "--placeholder-token", a.placeholder_token.value_or("none"));
  add(entries, "--reward-tokens",
      a.reward_tokens.empty() ? "none" : fmt::format("{}", fmt::join(a.reward_tokens, " ")));
  add(entries, "--neat-pack", given(a.neat_pack));
  add(entries, "--no-shuffle", given(a.no_shuffle));
  add(entries, "--padded-samples", given(a.padded_samples));
  add(entries, "--no-cut-token", given(a.no_cut_token));
  add(entries, "--cut-max-seqlen", given(a.cut_max_seqlen));
  add(entries, "--variable-seq-lengths", given(a.variable_seq_lengths));
  add(entries, "--pad-to-multiple-of", a.pad_to_multiple_of);
}

void add_samples_and_loss_scale(Entries& entries, const TrainArguments& a) {
  add(entries, "--train-samples", a.train_samples);
  add(entries, "--lr-decay-samples", a.lr_decay_samples);
  add(entries, "--lr-warmup-samples", a.lr_warmup_samples);
  add(entries, "--lr-wsd-decay-samples", a.lr_wsd_decay_samples);
  add(entries, "--iterations-to-skip",
      a.iterations_to_skip.empty() ? "none" : fmt::format("{}", fmt::join(a.iterations_to_skip, " ")));
  add(entries, "--fp16", given(a.fp16));
  add(entries, "--loss-scale", given(a.loss_scale.constant));
  add(entries, "--initial-loss-scale", a.loss_scale.initial);
  add(entries, "--min-loss-scale", a.loss_scale.minimum);
  add(entries, "--loss-scale-window", a.loss_scale.window);
  add(entries, "--hysteresis", a.loss_scale.hysteresis);
}

void add_optimizer(Entries& entries, const TrainArguments& a) {
  add(entries, "--optimizer", word_of(a.optimizer));
  if (a.optimizer == OptimizerKind::kSgd) {
    add(entries, "--sgd-momentum", a.sgd_momentum);
    add(entries, "--sgd-nesterov", given(a.sgd_nesterov));
  }
  add(entries, "--mem-fraction-static", a.mem_fraction_static);
  add(entries, "--swap-optimizer", given(a.swap_optimizer));
  add(entries, "--swap-optimizer-times", a.swap_optimizer_times);
  add(entries, "--overlap-cpu-optimizer-d2h-h2d", given(a.overlap_cpu_optimizer));
  if (a.optimizer != OptimizerKind::kMuon) return;
  add(entries, "--muon-momentum", a.muon.momentum);
  add(entries, "--muon-nesterov", given(a.muon.nesterov));
  add(entries, "--muon-num-ns-steps", a.muon.steps);
  add(entries, "--muon-coefficient-type", word_of(a.muon.coefficients));
  add(entries, "--muon-scale-mode", word_of(a.muon.scale));
  add(entries, "--muon-extra-scale-factor", a.muon.extra_scale);
}

void add_optimizer_and_kernels(Entries& entries, const TrainArguments& a) {
  add(entries, "--weight-decay", a.weight_decay);
  add(entries, "--weight-decay-incr-style", word_of(a.weight_decay_incr_style));
  add(entries, "--start-weight-decay", given(a.start_weight_decay));
  add(entries, "--end-weight-decay", given(a.end_weight_decay));
  add(entries, "--no-weight-decay-on-norms-and-biases", given(a.no_weight_decay_on_norms_and_biases));
  add(entries, "--clip-grad", a.clip_grad);
  add(entries, "--bf16", given(a.bf16));
  add_optimizer(entries, a);
  add(entries, "--adam-beta1", a.adam_beta1);
  add(entries, "--adam-beta2", a.adam_beta2);
  add(entries, "--adam-eps", a.adam_eps);
  add(entries, "--kernels", a.kernels == KernelSet::kFast ? "fast" : "pytorch");
  add(entries, "--use-fused-rmsnorm", given(a.fused.fused_rmsnorm));
  add(entries, "--use-fused-swiglu", given(a.fused.fused_swiglu));
  add(entries, "--use-fused-rotary-pos-emb", given(a.fused.fused_rotary_pos_emb));
  add(entries, "--use-flash-attn", given(a.fused.flash_attn));
  add(entries, "--cross-entropy-loss-fusion", given(a.fused.fused_cross_entropy));
  add(entries, "--loss-chunk-size", a.loss_chunk_size);
  add(entries, "--use-torch-fsdp2", given(a.use_torch_fsdp2));
}

std::string joined(const std::vector<std::string>& texts) {
  return texts.empty() ? "none" : fmt::format("{}", fmt::join(texts, " "));
}

void add_tuning(Entries& entries, const TrainArguments& a) {
  add(entries, "--freeze", joined(a.freeze));
  add(entries, "--lora-r", given(a.lora.r));
  add(entries, "--lora-alpha", given(a.lora.alpha));
  add(entries, "--lora-dropout", given(a.lora.dropout));
  add(entries, "--lora-target-modules", joined(a.lora.target_modules));
  add(entries, "--lora-modules-to-save", joined(a.lora.modules_to_save));
  add(entries, "--use-rslora", given(a.lora.use_rslora));
}

// What decides whether ranks come to the same collectives: whether these are given, not what they name.
void add_paths(Entries& entries, const TrainArguments& a) {
  add(entries, "--model-config", given(a.model_config.has_value()));
  add(entries, "--init-from-hf-path", given(a.init_from_hf_path.has_value()));
  add(entries, "--untie-embeddings-and-output-weights", given(a.untie_embeddings_and_output_weights));
  add(entries, "--downcast-to-bf16", given(a.downcast_to_bf16));
  add(entries, "--save", given(a.save.has_value()));
}

// One form for each meaning: 1e-6 and 1.0e-6 are one number.
std::string meaning(const config::Value& value) {
  if (const auto flag = value.boolean()) return *flag ? "true" : "false";
  if (const auto whole = value.whole()) return fmt::format("{}", *whole);
  if (const auto number = value.number()) return fmt::format("{}", *number);
  return escaped(value.json());
}

void add_values(Entries& entries, const config::Value& value) {
  if (!value.is_mapping() && !value.is_list()) return add(entries, "model " + value.path(), meaning(value));
  for (const config::Value& item : value.items()) add_values(entries, item);
}

void add_configuration(Entries& entries, const TrainArguments& a) {
  const auto& path = a.init_from_hf_path ? a.init_from_hf_path : a.model_config;
  if (path) add_values(entries, models::ConfigReader::load(*path).value());
}

void add_parameters(Entries& entries, const TrainArguments& arguments, const PretrainCallbacks& callbacks,
                    const Tuning& tuning) {
  RankContext context(0, 1);  // for what a model's constructor puts on the device, as in read_inputs()
  const RankScope scope(context);
  device::Device::install(context, {});
  const auto model = provide_tuned_model(arguments, callbacks, tuning);
  add(entries, "the model's class", models::sharded_module(*model).type_name());
  for (auto& [path, slot] : model->named_slots()) {
    const Tensor& tensor = slot->value;
    entries.push_back({"parameters",
                       fmt::format("{} {} {}{}", escaped(path), to_string(tensor.shape()), loom::name(tensor.dtype()),
                                   tensor.requires_grad() ? "" : ", frozen"),
                       true});
  }
}

std::string hexadecimal(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

}  // namespace

void add_weights(Entries& entries, const io::HfWeights& weights) {
  constexpr std::size_t kEndBytes = 4096;
  for (const std::string& name : weights.names()) {
    const io::StoredTensor& tensor = weights.at(name);
    const std::size_t count = std::min(kEndBytes, tensor.bytes.size());
    std::uint64_t found = digest(tensor.bytes.data(), count);
    found = digest(tensor.bytes.last(count).data(), count, found);
    add(entries, fmt::format("weights of '{}'", shown_text(name)),
        fmt::format("{} bytes with the digest {}", tensor.bytes.size(), hexadecimal(found)));
  }
}

void add_adapter(Entries& entries, const models::AdapterFolder& folder) {
  for (const auto& [path, tensor] : folder.tensors()) {
    add(entries, fmt::format("adapter's '{}'", shown_text(path)),
        fmt::format("{} bytes with the digest {}", tensor->bytes.size(),
                    hexadecimal(digest(tensor->bytes.data(), tensor->bytes.size()))));
  }
}

namespace {

std::uint64_t digest_of(const nn::Value& value) {
  std::uint64_t found = kDigestSeed;
  value.map_tensors([&](const Tensor& tensor) {
    const bool has_bytes = !tensor.is_meta() && tensor.raw() != nullptr;
    if (has_bytes) found = digest(tensor.raw(), static_cast<std::size_t>(tensor.nbytes()), found);
    return tensor;
  });
  return found;
}

void add_data(Entries& entries, const TrainArguments& arguments, const data::DataLoaders& loaders) {
  if (const auto inputs = data::data_inputs(arguments); !inputs.empty()) {
    const data::Content content = data::content_of(inputs);
    return add(entries, "--data-path",
               fmt::format("{} bytes in {} files with the digest {}", content.bytes, content.files,
                           hexadecimal(content.digest)));
  }
  std::vector<std::int64_t> samples(static_cast<std::size_t>(arguments.micro_batch_size));
  std::iota(samples.begin(), samples.end(), 0);
  RankContext context(0, 1);
  const RankScope scope(context);
  device::Device::install(context, {});
  for (const auto& [name, value] : loaders.train(samples).values) {
    add(entries, fmt::format("'{}' of the first micro-batch", shown_text(name)),
        fmt::format("the digest {}", hexadecimal(digest_of(value))));
  }
}

}  // namespace

std::vector<comm::SaidEntry> hyper_parameters(const TrainArguments& arguments) {
  Entries entries;
  add_batch_and_schedule(entries, arguments);
  add_token_data(entries, arguments);
  add_samples_and_loss_scale(entries, arguments);
  add_optimizer_and_kernels(entries, arguments);
  add_tuning(entries, arguments);
  return entries;
}

std::vector<comm::SaidEntry> job_entries(const TrainArguments& arguments, const PretrainCallbacks& callbacks,
                                         const TrainingInputs& inputs) {
  Entries entries = hyper_parameters(arguments);
  add_paths(entries, arguments);
  add_configuration(entries, arguments);
  add_parameters(entries, arguments, callbacks, inputs.tuning);
  if (inputs.weights) add_weights(entries, *inputs.weights);
  if (inputs.tuning.lora && inputs.tuning.lora->load) {
    add_adapter(entries, models::AdapterFolder(*inputs.tuning.lora->load));
  }
  add_data(entries, arguments, inputs.data);
  return entries;
}

void check_same_job(const std::vector<comm::SaidEntry>& entries, comm::ProcessGroup& everyone) {
  comm::check_same_entries(entries, everyone,
                           {.tag = "agreement on the job",
                            .differ = "ranks do not train the same",
                            .advice = "start every rank with the same flags, model and data"});
}

}  // namespace loom::train
