#include "tests/train/pipeline_curves.h"

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/functional.h"
#include "engine/train/pipeline/stage_model.h"
#include "engine/train/rank_setup.h"
#include "engine/train/trainer.h"
#include "models/decoder/decoder.h"
#include "sharding/fully_shard.h"
#include "tests/support/case_json.h"
#include "tests/support/schedule_tokens.h"

namespace loom::test {
namespace {

constexpr double kLoss = 5e-5, kGradNorm = 2e-4, kStep1GradNorm = 1e-3, kFinalWeightNorm = 1e-4;

using Norms = std::map<std::string, double>;

struct PipedCase {
  std::filesystem::path base;
  std::string schedule;
  int pp = 1, dp_shard = 1;
  std::int64_t stages_per_rank = 1, micro_batches = 1;
  bool reshards = true;
  std::vector<std::int64_t> layers;                           // of each stage; empty: even
  std::vector<std::pair<std::int64_t, std::int64_t>> stages;  // the layers of each, half-open
  std::int64_t steps = 2;
};

struct Results {
  std::vector<double> loss, grad_norm;
  Norms step1_grad_norm, final_weight_norm;  // of all stages
  std::map<std::string, std::vector<float>> weights;
  std::vector<std::string> tokens;  // of the second step, by rank of the pipeline, on the first data rank
};

PipedCase read_piped(const CaseJson& file) {
  PipedCase c;
  const CaseJson scenario = file.at("scenario");
  c.schedule = scenario.at("schedule").get<std::string>();
  c.pp = scenario.at("pp");
  c.dp_shard = scenario.value("dp_shard", 1);
  c.stages_per_rank = scenario.value("stages_per_rank", std::int64_t{1});
  c.micro_batches = scenario.at("micro_batches");
  c.reshards = scenario.value("reshard_after_forward", true);
  c.layers = scenario.value("layers", std::vector<std::int64_t>{});
  for (const CaseJson& range : file.at("stage_layers").elements()) c.stages.emplace_back(range.at(0), range.at(1));
  return c;
}

// A comma between the layers of the ranks.
std::string joined(const std::vector<std::int64_t>& layers) { return fmt::format("{}", fmt::join(layers, ",")); }

train::TrainSections arguments_of(const PipedCase& c, std::int64_t batch, std::int64_t steps) {
  const CaseJson optimizer = read_case(c.base / "curve.json").at("optimizer");
  train::TrainSections a;
  a.launch.ranks = c.pp * c.dp_shard;
  a.model.init_from_hf_path = c.base;
  a.schedule.global_batch_size = static_cast<int>(batch);
  a.schedule.micro_batch_size = static_cast<int>(batch / c.dp_shard / c.micro_batches);
  a.schedule.train_iters = a.schedule.lr_decay_iters = steps;
  a.schedule.lr = optimizer.at("lr");
  a.schedule.lr_decay_style = train::LrDecayStyle::kConstant;
  a.schedule.weight_decay = optimizer.at("weight_decay");
  a.optimizer.adam_beta1 = optimizer.at("betas").at(0);
  a.optimizer.adam_beta2 = optimizer.at("betas").at(1);
  a.optimizer.adam_eps = optimizer.at("eps");
  a.optimizer.clip_grad = optimizer.at("clip_grad");
  a.kernels.fused = nn::KernelOptions::pytorch();
  a.parallel.use_torch_fsdp2 = true;
  a.parallel.fsdp2_config = std::make_shared<const sharding::Fsdp2Config>(sharding::parse_fsdp2_config(
      fmt::format("sharding_size: {}\nsub_modules_to_wrap: [model.embed_tokens, 'model.layers.{{*}}', lm_head]\n"
                  "reshard_after_forward: {}\n",
                  c.dp_shard, c.reshards),
      "fsdp2_config.yaml"));
  a.parallel.pipeline.pipeline_model_parallel_size = c.pp;
  a.parallel.pipeline.pipeline_parallel_schedule = c.schedule;
  if (c.stages_per_rank > 1) {
    a.parallel.pipeline.num_virtual_stages_per_pipeline_rank = static_cast<int>(c.stages_per_rank);
  }
  if (!c.layers.empty()) a.parallel.pipeline.num_layer_list = joined(c.layers);
  return a;
}

// Sample i is row i % batch of step i / batch.
data::Batch batch_of(const io::StoredTensor& tokens, std::span<const std::int64_t> samples) {
  const std::int64_t length = tokens.shape[2] - 1;
  const Shape shape{static_cast<std::int64_t>(samples.size()), length};
  const Tensor ids = Tensor::host(shape, DType::kI32, "ids"), targets = Tensor::host(shape, DType::kI32, "targets");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::byte* row = tokens.bytes.data() + samples[i] * (length + 1) * 4;
    std::memcpy(ids.data<std::int32_t>() + static_cast<std::int64_t>(i) * length, row, length * 4);
    std::memcpy(targets.data<std::int32_t>() + static_cast<std::int64_t>(i) * length, row + 4, length * 4);
  }
  return {{{"input_ids", ids}, {"targets", targets}}};
}

train::PretrainCallbacks callbacks_of(const PipedCase& c, const io::StoredTensor& tokens) {
  return {.train_valid_test_datasets_provider =
              [&tokens](const train::TrainArguments&) {
                return data::DataLoaders{
                    .train = [&tokens](std::span<const std::int64_t> samples) { return batch_of(tokens, samples); }};
              },
          .model_provider =
              [&c](const train::TrainArguments&) { return models::build_decoder(models::load_decoder_config(c.base)); },
          .forward_step =
              [](data::DataIterator& data, nn::Module& model) {
                const data::Batch batch = data.next();
                return data::ForwardResult{model(batch["input_ids"]),
                                           [targets = batch["targets"]](const nn::Value& logits) -> data::Loss {
                                             return nn::functional::cross_entropy(logits, targets);
                                           }};
              }};
}

// Of the tensor that `pick` takes from each shard of this rank's stages, over the ranks that share it.
Norms norms(nn::Module& model, const std::function<Tensor(const Tensor&)>& pick) {
  Norms result;
  for (const sharding::FsdpState* state : sharding::FsdpState::collect(model)) {
    if (state->group() == nullptr) continue;
    for (const auto& param : state->group()->params()) {
      double sum = 0;
      for (const double value : pick(param->sharded()).to_vector<double>()) sum += value * value;
      const comm::Axis& shard = state->group()->axes().shard;
      if (shard.size() > 1) {
        shard.group().all_reduce(comm::kHostLane, &sum, 1, DType::kF64, comm::ReduceOp::sum(), "norm");
      }
      result[nn::join_path(state->path(), param->home().paths.front())] = std::sqrt(sum);
    }
  }
  return result;
}

// Gradients of the first step, before they are clipped.
class FirstGradients final : public train::StepObserver {
 public:
  explicit FirstGradients(nn::Module& model) : model_(model) {}
  void begin_phase(std::string_view phase) override {
    if (phase != "optimizer" || !found.empty()) return;
    found = norms(model_, [](const Tensor& shard) { return shard.grad(); });
  }
  Norms found;

 private:
  nn::Module& model_;
};

// Where a module is: the stage of its layer, or the end of the model.
std::size_t stage_of(const PipedCase& c, const std::string& path) {
  if (path == "model.embed_tokens") return 0;
  const std::string layers = "model.layers.";
  if (!path.starts_with(layers)) return c.stages.size() - 1;
  const std::int64_t layer = std::stoll(path.substr(layers.size()));
  for (std::size_t stage = 0; stage < c.stages.size(); ++stage) {
    if (c.stages[stage].first <= layer && layer < c.stages[stage].second) return stage;
  }
  throw std::runtime_error(fmt::format("'{}' is on no stage", path));
}

// The marks of a step in the words of the reference: "0F0 AG:0.embed_tokens ...".
std::string stage_tokens(const device::Recording& recording, const PipedCase& c) {
  std::vector<std::string> tokens;
  for (const std::string& token : schedule_tokens(recording)) {
    const std::size_t colon = token.find(':');
    if (colon == std::string::npos) continue;
    const std::string kind = token.substr(0, colon), subject = token.substr(colon + 1);
    if (kind == "P") {
      tokens.push_back(subject);
      continue;
    }
    const std::size_t bracket = subject.find('[');
    const std::string path = subject.substr(0, bracket);
    const std::string count = bracket == std::string::npos ? "" : subject.substr(bracket);
    const std::string below = path.starts_with("model.") ? path.substr(6) : path;
    tokens.push_back(fmt::format("{}:{}.{}{}", kind, stage_of(c, path), below, count));
  }
  return fmt::format("{}", fmt::join(tokens, " "));
}

Results train_piped(const PipedCase& c) {
  const io::SafetensorsFile file(c.base / "tokens.safetensors");
  const io::StoredTensor& tokens = file.at("tokens");
  const train::TrainSections arguments = arguments_of(c, tokens.shape[1], c.steps);
  const train::PretrainCallbacks callbacks = callbacks_of(c, tokens);
  const train::TrainingInputs inputs = train::read_inputs(arguments, callbacks);
  Results results;
  results.tokens.resize(static_cast<std::size_t>(c.pp));
  std::mutex mutex;
  launch::run_ranks(arguments.launch.ranks, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
    nn::make_rank(context, train::rank_setup(arguments));
    train::Trainer trainer(arguments, callbacks, inputs, world);
    FirstGradients gradients(trainer.model());
    trainer.set_observers({&gradients});
    std::vector<train::StepMetrics> metrics;
    std::string second;
    for (std::int64_t step = 0; step < c.steps; ++step) {
      std::optional<device::Recorder> recorder;
      if (step == 1) recorder.emplace(device::Device::current(), device::RecorderOptions{.entries = false});
      metrics.push_back(trainer.step());
      if (step == 1) second = stage_tokens(recorder->recording(), c);
    }
    const Norms weights = norms(trainer.model(), [](const Tensor& shard) { return shard; });
    const std::lock_guard lock(mutex);
    const double factor = std::min(1.0, arguments.optimizer.clip_grad / (metrics[0].grad_norm + 1e-6));
    for (const auto& [path, norm] : gradients.found) results.step1_grad_norm[path] = norm * factor;
    results.final_weight_norm.insert(weights.begin(), weights.end());
    for (const auto& [path, slot] : trainer.sharded_module().named_slots()) {
      results.weights[fmt::format("{} on {}", path, context.rank() % c.dp_shard)] = slot->value.to_vector<float>();
    }
    if (context.rank() % c.dp_shard == 0) {
      results.tokens[static_cast<std::size_t>(context.rank() / c.dp_shard)] = second;
    }
    if (context.rank() != 0) return;
    for (const train::StepMetrics& one : metrics) {
      results.loss.push_back(one.loss);
      results.grad_norm.push_back(one.grad_norm);
    }
  });
  return results;
}

double relative(double actual, double expected) { return std::abs(actual - expected) / std::abs(expected); }

// The first parameter that is off, or nothing.
std::string off(const Norms& actual, const CaseJson& expected, double tolerance, std::string_view what) {
  std::set<std::string> wanted;
  for (const auto& [path, value] : expected.items()) {
    wanted.insert(path);
    const auto found = actual.find(path);
    if (found == actual.end()) return fmt::format("; {} of '{}' is missing", what, path);
    const double norm = value;
    if (relative(found->second, norm) > tolerance) {
      return fmt::format("; {} of '{}' is {}, expected {}", what, path, found->second, norm);
    }
  }
  return actual.size() == wanted.size() ? ""
                                        : fmt::format("; {} parameters, expected {}", actual.size(), wanted.size());
}

// Cases whose weights have one hash in the reference have the same bits here.
using WeightsOfHash = std::map<std::string, std::map<std::string, std::vector<float>>>;

void run_curve(const std::filesystem::path& path, WeightsOfHash& weights_of, ParityReport& report) {
  const CaseJson file = read_case(path);
  PipedCase c = read_piped(file);
  c.base = base_folder(path, std::filesystem::path(file.at("base").get<std::string>()));
  const CaseJson curve = file.at("curve");
  check_steps(curve);
  c.steps = static_cast<std::int64_t>(curve.size());
  const Results results = train_piped(c);
  double loss = 0, grad_norm = 0;
  for (std::size_t step = 0; step < curve.size(); ++step) {
    loss = std::max(loss, std::abs(results.loss[step] - curve.at(step).at("loss").get<double>()));
    grad_norm = std::max(grad_norm, relative(results.grad_norm[step], curve.at(step).at("grad_norm").get<double>()));
  }
  std::string wrong = off(results.step1_grad_norm, file.at("step1_grad_norm_by_param"), kStep1GradNorm, "gradient");
  wrong += off(results.final_weight_norm, file.at("final_weight_norm_by_param"), kFinalWeightNorm, "weight");
  const auto [same, is_new] = weights_of.emplace(file.at("final_weights_sha256"), results.weights);
  if (!is_new && same->second != results.weights) wrong += "; its weights are not those of the cases with its hash";
  if (loss > kLoss || !(grad_norm <= kGradNorm)) wrong += "; the curve is left";
  file.check_all_read({"made_by"});
  const std::string text =
      fmt::format("loss {:.1e}, gradient norm {:.1e} off over {} steps{}", loss, grad_norm, curve.size(), wrong);
  wrong.empty() ? report.passed("curves/" + path.stem().string(), text)
                : report.failed("curves/" + path.stem().string(), text);
}

// Gathers of one UNSHARD, the waits for them before the first action, and (RE, RS) behind one REDUCE_GRAD are sets.
std::vector<std::string> with_sets(const std::string& line) {
  std::vector<std::string> tokens;
  std::multiset<std::string> set;
  const auto flush = [&] {
    tokens.insert(tokens.end(), set.begin(), set.end());
    set.clear();
  };
  bool reduces = false, computes = false;
  std::istringstream words(line);
  for (std::string token, pair; words >> token;) {
    const bool is_action = token.find(':') == std::string::npos;
    if (is_action) {
      flush();
      reduces = token.ends_with("REDUCE_GRAD");
      computes = !reduces;
      tokens.push_back(token);
    } else if (reduces && token.starts_with("RE:")) {
      pair = token;
    } else if (reduces && token.starts_with("RS:")) {
      set.insert(pair + " " + token);
    } else if (!computes && (token.starts_with("AG:") || token.starts_with("W:"))) {
      if (!set.empty() && set.begin()->front() != token.front()) flush();
      set.insert(token);
    } else {
      flush();
      tokens.push_back(token);
    }
  }
  flush();
  return tokens;
}

void run_stage_case(const std::filesystem::path& path, ParityReport& report) {
  const CaseJson file = read_case(path);
  PipedCase c = read_piped(file);
  const std::filesystem::path curve = path.parent_path().parent_path() / "curves" / path.filename();
  c.base = base_folder(curve, std::filesystem::path(read_case(curve).at("base").get<std::string>()));
  const Results results = train_piped(c);
  const auto expected = file.at("ranks").get<std::vector<std::string>>();
  file.check_all_read({"made_by"});
  const std::string name = "stages/" + path.stem().string();
  std::size_t count = 0;
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    const auto wanted = with_sets(expected[rank]), found = with_sets(results.tokens.at(rank));
    count += wanted.size();
    const auto [ours, theirs] = std::mismatch(found.begin(), found.end(), wanted.begin(), wanted.end());
    if (ours == found.end() && theirs == wanted.end()) continue;
    return report.failed(name, fmt::format("rank {}, token {}: {}, expected {}; found {}", rank, ours - found.begin(),
                                           ours == found.end() ? "the end" : *ours,
                                           theirs == wanted.end() ? "the end" : *theirs, fmt::join(found, " ")));
  }
  report.passed(name, fmt::format("{} tokens", count));
}

template <class Run>
void run_files(const std::filesystem::path& folder, std::string_view family, ParityReport& report, const Run& run) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const std::filesystem::path& file : files) {
    try {
      run(file);
    } catch (const std::exception& error) {
      report.failed(fmt::format("{}/{}", family, file.stem().string()), error.what());
    }
  }
}

}  // namespace

void run_pipeline_curves(const std::filesystem::path& folder, ParityReport& report) {
  WeightsOfHash weights;
  run_files(folder, "curves", report, [&](const auto& file) { run_curve(file, weights, report); });
}

void run_pipeline_stages(const std::filesystem::path& folder, ParityReport& report) {
  run_files(folder, "stages", report, [&](const auto& file) { run_stage_case(file, report); });
}

}  // namespace loom::test
