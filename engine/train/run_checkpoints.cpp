#include "engine/train/run_checkpoints.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <set>

#include "engine/checkpoint/loader.h"
#include "engine/checkpoint/resume.h"
#include "engine/core/digest.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/train/pipeline/pipeline.h"
#include "models/hub/config_reader.h"
#include "models/lora/adapter_folder.h"
#include "models/lora/lora.h"
#include "sharding/full_parameters.h"
#include "sharding/reuse_fp32.h"
#include "sharding/tensor/share_matrices.h"

namespace loom::train {
namespace {

using io::PlainValue;

constexpr double kCheckpointVersion = 3.0;  // Megatron's
const std::string kArgs = "args";
const std::string kSchedule = "opt_param_scheduler";
const std::string kRng = "rng_state";
const std::string kScaler = "grad_scaler";
const std::string kSpikes = "spikes";
const std::string kLora = "lora";

void add_arguments(checkpoint::State& state, const SavedArguments& arguments) {
  for (const SavedArgument& argument : arguments) state.add({kArgs, name_in_files(argument.flag)}, argument.value);
}

void add_schedule(checkpoint::State& state, const ScheduleState& schedule) {
  for (const auto& [name, value] : named_values(schedule)) {
    if (const auto* text = std::get_if<std::string>(&value)) {
      state.add({kSchedule, name}, PlainValue::text(*text));
      continue;
    }
    const double number = std::get<double>(value);
    const bool counts = name.ends_with("_steps") && number == std::floor(number);
    state.add({kSchedule, name},
              counts ? PlainValue::whole(static_cast<std::int64_t>(number)) : PlainValue::real(number));
  }
}

void add_loss_scale(checkpoint::State& state, const LossScaleState& scale) {
  state.add({"optimizer", kScaler, "scale"}, PlainValue::real(scale.scale));
  state.add({"optimizer", kScaler, "growth_tracker"}, PlainValue::whole(scale.growth_tracker));
  state.add({"optimizer", kScaler, "hysteresis_tracker"}, PlainValue::whole(scale.hysteresis_tracker));
}

void add_position(checkpoint::State& state, const TrainState& at) {
  state.add({"iteration"}, PlainValue::whole(at.step));
  state.add({"checkpoint_version"}, PlainValue::real(kCheckpointVersion));
  state.add({kArgs, "consumed_train_samples"}, PlainValue::whole(at.samples_consumed));
  state.add({kArgs, "skipped_train_samples"}, PlainValue::whole(at.samples_skipped));
}

// The entries of what a checkpoint of this run holds: of a run with adapters these alone.
nn::StateDict saved_entries(Trainer& trainer) {
  nn::StateDict entries = sharding::local_state_dict(trainer.saved_module());
  if (trainer.pipeline() != nullptr) trainer.pipeline()->add_ties(entries);
  const auto lora = models::lora_of(trainer.sharded_module());
  if (lora == nullptr) return entries;
  std::erase_if(entries, [&](const nn::StateEntry& entry) { return !lora->is_tuned(entry.path); });
  return entries;
}

// Collective over the stages.
checkpoint::Elsewhere paths_elsewhere(Trainer& trainer) {
  if (trainer.pipeline() == nullptr) return {};
  std::vector<std::string> own;
  for (const nn::StateEntry& entry : saved_entries(trainer)) {
    own.push_back(entry.path);
    own.insert(own.end(), entry.tied_paths.begin(), entry.tied_paths.end());
  }
  checkpoint::Elsewhere elsewhere;
  for (const auto& paths : trainer.pipeline()->lines_of_stages(own, "paths of the stages")) {
    elsewhere.insert(paths.begin(), paths.end());
  }
  for (const std::string& path : own) elsewhere.erase(path);
  return elsewhere;
}

// Digest of names, shapes, and the first and last bytes of every tensor.
std::string digest_of(const io::HfWeights& weights) {
  constexpr std::size_t kEndBytes = 4096;
  std::uint64_t found = kDigestSeed;
  for (const std::string& name : weights.names()) {
    const io::StoredTensor& tensor = weights.at(name);
    const std::string shape = fmt::format("{} {} {}", name, to_string(tensor.shape), loom::name(tensor.dtype));
    found = digest(shape.data(), shape.size(), found);
    const std::size_t count = std::min(kEndBytes, tensor.bytes.size());
    found = digest(tensor.bytes.data(), count, found);
    found = digest(tensor.bytes.last(count).data(), count, found);
  }
  return fmt::format("{:016x}", found);
}

// Identifies the base of the adapters. Drawn weights follow from configuration and seed.
std::string base_digest(Trainer& trainer) {
  const io::HfWeights* base = loaded_weights(trainer.inputs(), trainer.model());
  return base == nullptr ? fmt::format("drawn from seed {}", trainer.state().seed) : digest_of(*base);
}

void add_adapters(checkpoint::State& state, Trainer& trainer, const std::string& digest) {
  const auto lora = models::lora_of(trainer.sharded_module());
  if (lora == nullptr) return;
  state.add({kLora, "adapter_config"}, PlainValue::text(models::adapter_config_json(*lora, trainer.base_model())));
  state.add({kLora, "base_model_name_or_path"}, PlainValue::text(trainer.base_model()));
  state.add({kLora, "base_digest"}, PlainValue::text(digest));
}

void add_spikes(checkpoint::State& state, const log::SpikeStates& spikes) {
  for (const auto& [name, spike] : {std::pair("loss", spikes.loss), std::pair("grad_norm", spikes.grad_norm)}) {
    state.add({kSpikes, name, "samples"}, PlainValue::whole(spike.samples));
    state.add({kSpikes, name, "maximum"}, PlainValue::real(spike.maximum));
  }
}

std::optional<std::int64_t> whole(const io::DcpFolder& checkpoint, const std::string& name) {
  const auto value = checkpoint::read_value(checkpoint, name);
  if (!value || !value->is(PlainValue::Kind::kWhole)) return std::nullopt;
  return value->as_whole();
}

std::optional<double> number(const io::DcpFolder& checkpoint, const std::string& name) {
  const auto value = checkpoint::read_value(checkpoint, name);
  if (!value || !(value->is(PlainValue::Kind::kReal) || value->is(PlainValue::Kind::kWhole))) return std::nullopt;
  return value->as_real();
}

std::optional<LossScaleState> loss_scale(const io::DcpFolder& checkpoint) {
  const std::string prefix = "optimizer." + kScaler + ".";
  const auto scale = number(checkpoint, prefix + "scale");
  if (!scale) return std::nullopt;
  return LossScaleState{*scale, whole(checkpoint, prefix + "growth_tracker").value_or(0),
                        whole(checkpoint, prefix + "hysteresis_tracker").value_or(0)};
}

std::optional<log::SpikeStates> spikes_of(const io::DcpFolder& checkpoint) {
  const auto state = [&](const std::string& name) {
    const std::string prefix = fmt::format("{}.{}.", kSpikes, name);
    return log::SpikeState{whole(checkpoint, prefix + "samples").value_or(0),
                           number(checkpoint, prefix + "maximum").value_or(0)};
  };
  if (!whole(checkpoint, kSpikes + ".loss.samples")) return std::nullopt;
  return log::SpikeStates{state("loss"), state("grad_norm")};
}

std::optional<ScheduleState> schedule(const io::DcpFolder& checkpoint) {
  NamedValues values;
  for (const auto& [name, value] : checkpoint::read_values(checkpoint, kSchedule + ".")) {
    if (value.is(PlainValue::Kind::kText)) values[name] = value.as_text();
    if (value.is(PlainValue::Kind::kReal) || value.is(PlainValue::Kind::kWhole)) values[name] = value.as_real();
  }
  if (values.empty()) return std::nullopt;
  return schedule_state(values);
}

// The options of group `i` in the checkpoint, by the names of nn::GroupState.
std::map<std::string, double> options_in(const io::DcpFolder& checkpoint, std::size_t i) {
  const std::string group = fmt::format("optimizer.param_groups.{}.", i);
  std::map<std::string, double> options;
  const auto betas = checkpoint::read_value(checkpoint, group + "betas");
  const bool is_pair = betas && betas->is(PlainValue::Kind::kTuple) && betas->items().size() == 2;
  if (is_pair && betas->items()[0].is(PlainValue::Kind::kReal) && betas->items()[1].is(PlainValue::Kind::kReal)) {
    options["beta1"] = betas->items()[0].as_real();
    options["beta2"] = betas->items()[1].as_real();
  }
  for (const char* name : {"eps", "momentum"}) {
    if (const auto value = number(checkpoint, group + name)) options[name] = *value;
  }
  if (const auto steps = checkpoint::read_value(checkpoint, group + "ns_steps");
      steps && steps->is(PlainValue::Kind::kWhole)) {
    options["ns_steps"] = static_cast<double>(steps->as_whole());
  }
  if (const auto nesterov = checkpoint::read_value(checkpoint, group + "nesterov");
      nesterov && nesterov->is(PlainValue::Kind::kBool)) {
    options["nesterov"] = nesterov->as_bool() ? 1.0 : 0.0;
    if (!options.contains("ns_steps")) options["dampening"] = number(checkpoint, group + "dampening").value_or(0);
  }
  if (!options.empty()) options["lr_mult"] = number(checkpoint, group + "lr_mult").value_or(1);
  return options;
}

// The flag of an option, for messages.
std::string flag_of(const std::string& option, OptimizerKind kind) {
  const std::string_view family = kind == OptimizerKind::kMuon ? "muon" : "sgd";
  if (option == "ns_steps") return "--muon-num-ns-steps";
  if (option == "lr_mult") return "--muon-scalar-lr divided by --lr";
  if (option == "momentum" || option == "nesterov" || option == "dampening") {
    return fmt::format("--{}-{}", family, option);
  }
  return "--adam-" + option;
}

// Another optimizer's state is of no use to this one.
void check_same_optimizer(const io::DcpFolder& checkpoint, const nn::Optimizer& optimizer) {
  const std::vector<nn::GroupState> groups = optimizer.state_dict().groups;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::map<std::string, double> saved = options_in(checkpoint, i);
    if (saved.empty() || groups[i].paths.empty()) continue;
    const bool had_adam = saved.contains("beta1"), has_adam = groups[i].options.contains("beta1");
    if (had_adam == has_adam && saved.contains("ns_steps") == groups[i].options.contains("ns_steps")) continue;
    config_error(
        "{}: parameter group {} was updated by {}, and this run has {}; give the --optimizer of the checkpoint, or "
        "--no-load-optim to begin with a fresh one",
        escaped(checkpoint.folder().string()), i,
        had_adam                     ? "AdamW"
        : saved.contains("ns_steps") ? "Muon"
                                     : "SGD",
        optimizer.name());
  }
}

// The groups that the optimizer continues with: its own, or the checkpoint's.
std::vector<nn::GroupState> continued_groups(const io::DcpFolder& checkpoint, const nn::Optimizer& optimizer,
                                             const OptimizerOptions& optimizer_options,
                                             const ScheduleOptions& schedule) {
  std::vector<nn::GroupState> groups = optimizer.state_dict().groups;
  std::set<std::string> differences;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    groups[i].options.emplace("lr_mult", 1);
    for (const auto& [name, saved] : options_in(checkpoint, i)) {
      const auto own = groups[i].options.find(name);
      if (own == groups[i].options.end() || own->second == saved) continue;
      if (schedule.use_checkpoint_opt_param_scheduler) {
        own->second = saved;
      } else {
        differences.insert(fmt::format("{} is {}, and {} in the checkpoint", flag_of(name, optimizer_options.kind),
                                       own->second, saved));
      }
    }
  }
  if (differences.empty() || schedule.override_opt_param_scheduler) return groups;
  config_error(
      "{}: {}; give the same value, or --override-opt_param-scheduler to go on with the command line's, or "
      "--use-checkpoint-opt_param-scheduler to go on with the checkpoint's",
      escaped(checkpoint.folder().string()), fmt::join(differences, "; "));
}

// Flags that are not what they were; the schedule's are an error elsewhere.
void warn_of_other_arguments(const io::DcpFolder& checkpoint, const SavedArguments& arguments) {
  std::vector<std::string> changed;
  for (const SavedArgument& own : arguments) {
    const auto saved = checkpoint::read_value(checkpoint, fmt::format("{}.{}", kArgs, name_in_files(own.flag)));
    if (!saved || is_same_argument(*saved, own.value)) continue;
    changed.push_back(fmt::format("{} is {} (was {})", own.flag, shown_argument(own.value), shown_argument(*saved)));
  }
  if (!changed.empty()) log_warning("the run goes on with other flags: {}", fmt::join(changed, ", "));
}

// That share matrices.
int tensor_ranks(Trainer& trainer) {
  const auto shares = trainer.sharded_module().attachment<sharding::TensorShares>();
  return shares == nullptr ? 1 : shares->matrices.ranks;
}

}  // namespace

RunCheckpoints::RunCheckpoints(Trainer& trainer, const TrainSections& arguments, SavedArguments saved,
                               comm::World& world, Say say)
    : trainer_(trainer),
      arguments_(arguments),
      saved_arguments_(std::move(saved)),
      everyone_(world.everyone("checkpoints")),
      say_(std::move(say)) {
  if (models::lora_of(trainer.sharded_module()) != nullptr) base_digest_ = base_digest(trainer);
  if (!arguments.checkpoint.save || arguments.checkpoint.ckpt_format != CheckpointFormat::kTorchDcp) return;
  checkpoint::SaverOptions options;
  options.folder = *arguments.checkpoint.save;
  options.async = arguments.checkpoint.async_save;
  options.stop_on_error = arguments.checkpoint.on_save_error == OnSaveError::kStop;
  options.keep_last = arguments.checkpoint.keep_last;
  options.tensor_ranks = tensor_ranks(trainer);
  options.pipeline_ranks = trainer.dims().degrees().pp;
  options.patience = std::chrono::minutes(arguments.launch.distributed_timeout_minutes);
  saver_ =
      std::make_unique<checkpoint::Saver>(options, everyone_, [this](const std::string& line) { this->say(line); });
}

RunCheckpoints::~RunCheckpoints() = default;

void RunCheckpoints::say(const std::string& line) const {
  if (everyone_->rank() == 0) say_(line);
}

// The lists of paths are of all stages; the state is this rank's.
nn::OptimizerState RunCheckpoints::optimizer_state() const {
  nn::OptimizerState state = trainer_.optimizer().state_dict();
  const Pipeline* pipeline = trainer_.pipeline();
  if (pipeline == nullptr) return state;
  for (std::size_t i = 0; i < state.groups.size(); ++i) {
    std::vector<std::string> all;
    for (auto& paths : pipeline->lines_of_stages(state.groups[i].paths, fmt::format("optimizer group {}", i))) {
      std::ranges::move(paths, std::back_inserter(all));
    }
    state.groups[i].paths = std::move(all);
  }
  return state;
}

checkpoint::State RunCheckpoints::state() const {
  checkpoint::State state;
  state.is_part = trainer_.pipeline() != nullptr;
  checkpoint::add_module(state, saved_entries(trainer_));
  add_adapters(state, trainer_, base_digest_);
  if (!arguments_.checkpoint.no_save_optim) {
    const nn::OptimizerState optimizer = optimizer_state();
    // All stages have made their first update, or none has.
    checkpoint::add_optimizer(state, optimizer,
                              optimizer.parameters.empty() ? checkpoint::Elsewhere{} : paths_elsewhere(trainer_));
    add_schedule(state, trainer_.schedule_state());
    if (trainer_.state().loss_scale) add_loss_scale(state, *trainer_.state().loss_scale);
  }
  if (!arguments_.checkpoint.no_save_rng) {
    state.add({kRng, "seed"}, PlainValue::whole(static_cast<std::int64_t>(trainer_.state().seed)));
  }
  if (spikes_ != nullptr) add_spikes(state, spikes_->state());
  add_position(state, trainer_.state());
  add_arguments(state, saved_arguments_);
  return state;
}

void RunCheckpoints::save() {
  if (!saver_) return;
  const sharding::JoinedShards joined(trainer_.model());
  saver_->save(trainer_.state().step, state());
}

void RunCheckpoints::keep(log::SpikeWatch& spikes) {
  spikes_ = &spikes;
  if (loaded_spikes_) spikes.set_state(*loaded_spikes_);
}

void RunCheckpoints::finish() {
  if (saver_) saver_->finish();
}

std::optional<std::int64_t> RunCheckpoints::last_saved() const { return saver_ ? saver_->last_saved() : std::nullopt; }

void RunCheckpoints::step_done(const StepMetrics&) {
  if (saver_) saver_->poll();
}

void RunCheckpoints::read_position(const io::DcpFolder& checkpoint, const std::optional<std::int64_t>& iteration) {
  TrainState state = trainer_.state();
  const auto saved = whole(checkpoint, "iteration");
  const auto step = saved ? saved : whole(checkpoint, "step");
  state.step = step ? *step : iteration.value_or(0);
  state.samples_consumed =
      whole(checkpoint, kArgs + ".consumed_train_samples").value_or(state.step * arguments_.schedule.global_batch_size);
  state.samples_skipped = whole(checkpoint, kArgs + ".skipped_train_samples").value_or(0);
  state.schedule_samples = state.samples_consumed - state.samples_skipped;
  if (!arguments_.checkpoint.no_load_optim) state.loss_scale = loss_scale(checkpoint);
  if (!arguments_.checkpoint.no_load_rng) {
    if (const auto seed = whole(checkpoint, kRng + ".seed")) state.seed = static_cast<std::uint64_t>(*seed);
  }
  trainer_.set_state(state);
  if (arguments_.checkpoint.no_load_optim) return;
  if (const auto saved_schedule = schedule(checkpoint)) trainer_.load_schedule(*saved_schedule);
}

// A run with adapters goes on from adapters: their base is not in a checkpoint, so it cannot come from one either.
void RunCheckpoints::read_weights(const io::DcpFolder& checkpoint, checkpoint::Strictness strictness) {
  const auto lora = models::lora_of(trainer_.sharded_module());
  const auto config = checkpoint::read_value(checkpoint, kLora + ".adapter_config");
  const std::string where = escaped(checkpoint.folder().string());
  if (lora == nullptr && config) {
    config_error(
        "{}: the checkpoint holds LoRA adapters alone, and this run has none; add the --lora flags (or the key lora) "
        "of the run that saved it",
        where);
  }
  if (lora != nullptr && !config) {
    config_error(
        "{}: the checkpoint holds a whole model and no adapters; make a folder of it with shardloom convert dcp-to-hf, "
        "and give that as --init-from-hf-path",
        where);
  }
  if (config) check_adapters(checkpoint, *config);
  checkpoint::load_module(checkpoint, saved_entries(trainer_), strictness, "model", elsewhere_);
}

// The adapters of the checkpoint are of this run's form, beside this run's base.
void RunCheckpoints::check_adapters(const io::DcpFolder& checkpoint, const PlainValue& config) const {
  const auto lora = models::lora_of(trainer_.sharded_module());
  const std::string where = escaped(checkpoint.folder().string());
  const auto saved = models::ConfigReader::from_json(config.is(PlainValue::Kind::kText) ? config.as_text() : "",
                                                     where + " lora.adapter_config");
  const auto own = models::ConfigReader::from_json(models::adapter_config_json(*lora, ""), "the run");
  for (const char* key : {"r", "lora_alpha", "use_rslora", "target_modules", "modules_to_save", "layers_to_transform",
                          "rank_pattern", "alpha_pattern"}) {
    const config::Value* was = saved.given(key);
    const config::Value* is = own.given(key);
    if (was == nullptr || is == nullptr || was->json() == is->json()) continue;
    config_error("{}: {} of its adapters is {}, and {} in this run; start it with the adapters it was saved with",
                 where, key, was->json(), is->json());
  }
  const auto digest = checkpoint::read_value(checkpoint, kLora + ".base_digest");
  const std::string known = digest && digest->is(PlainValue::Kind::kText) ? digest->as_text() : "";
  if (known == base_digest_) return;
  const auto base = checkpoint::read_value(checkpoint, kLora + ".base_model_name_or_path");
  const std::string folder = base && base->is(PlainValue::Kind::kText) ? base->as_text() : "";
  config_error("{}: its adapters were trained beside {}, and the base of this run has other weights; give that base",
               where, folder.empty() ? "drawn weights" : shown_text(folder));
}

void RunCheckpoints::read(const io::DcpFolder& checkpoint, const checkpoint::Resumed& from) {
  const checkpoint::Strictness strictness = arguments_.checkpoint.dist_ckpt_strictness;
  read_weights(checkpoint, strictness);
  if (arguments_.checkpoint.finetune || from.is_release) return;
  if (everyone_->rank() == 0 && !arguments_.schedule.skip_train) warn_of_other_arguments(checkpoint, saved_arguments_);
  if (!arguments_.checkpoint.no_load_optim) {
    nn::Optimizer& optimizer = trainer_.optimizer();
    if (!checkpoint::has_optimizer(checkpoint)) {
      config_error(
          "{}: the checkpoint has no optimizer state; give --no-load-optim to begin with a fresh one, or "
          "--finetune to begin a new run with its weights",
          escaped(checkpoint.folder().string()));
    }
    check_same_optimizer(checkpoint, optimizer);
    nn::OptimizerState state = checkpoint::read_optimizer(checkpoint, optimizer, strictness, elsewhere_);
    state.groups = continued_groups(checkpoint, optimizer, arguments_.optimizer, arguments_.schedule);
    optimizer.load_state_dict(state);
  }
  read_position(checkpoint, from.iteration);
  loaded_spikes_ = spikes_of(checkpoint);
}

std::optional<std::int64_t> RunCheckpoints::load() {
  if (!arguments_.checkpoint.load) return std::nullopt;
  const sharding::JoinedShards joined(trainer_.model());
  elsewhere_ = paths_elsewhere(trainer_);
  const auto from = checkpoint::resume(
      *arguments_.checkpoint.load, arguments_.checkpoint.ckpt_step, *everyone_,
      [&](const io::DcpFolder& checkpoint, const checkpoint::Resumed& found) { read(checkpoint, found); });
  const std::string folder = escaped(arguments_.checkpoint.load->string());
  if (!from) {
    if (arguments_.checkpoint.exit_on_missing_checkpoint) {
      config_error(
          "--load is {}, where no checkpoint is, and --exit-on-missing-checkpoint is given; give a folder "
          "that has one, or leave that flag out",
          folder);
    }
    say(fmt::format("WARNING: could not find the metadata file {}/latest_checkpointed_iteration.txt", folder));
    const io::HfWeights* weights = loaded_weights(trainer_.inputs(), trainer_.model());
    say(fmt::format("    will not load any checkpoints and will start from {}",
                    weights == nullptr ? "random" : "the weights of " + escaped(weights->folder().string())));
    return std::nullopt;
  }
  say(fmt::format("  successfully loaded checkpoint from {} [ t 1/{}, p 1/{} ] at iteration {}", folder,
                  tensor_ranks(trainer_), trainer_.dims().degrees().pp, trainer_.state().step));
  return trainer_.state().step;
}

}  // namespace loom::train
