// moe_parity DIR: the routers of transformers and Megatron, and training with the routers' loss.
//
// Every subfolder of DIR with a case.json has cases on given logits (routing_cases.h): choices and weights of routers,
// auxiliary losses with their gradients, updates of the correction bias, capacity.
//
// Every subfolder with a curve.json is a curve: the model of `base` (DIR/../training/NAME) with the router's keys of
// the scenario is trained through the Trainer, fully sharded, on 1, 2 and 4 ranks, in both grains, where these divide
// the `parts` of the batch. Loss, cross-entropy, the routers' loss and gradient norm of each step, each parameter's
// gradient of the first step and the last weights must agree within the tolerances of the file.
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/data/byte_batches.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/launch/run_ranks.h"
#include "engine/train/rank_setup.h"
#include "engine/train/trainer.h"
#include "models/hub/model_hub.h"
#include "sharding/full_parameters.h"
#include "tests/support/case_json.h"
#include "tests/support/exact_files.h"
#include "tests/support/files.h"
#include "tests/train/routing_cases.h"

namespace loom::moe_parity {
namespace {

using test::CaseJson;
namespace fs = std::filesystem;

constexpr const char* kFsdp2 =
    "sharding_size: auto\nsub_modules_to_wrap: [\"model.embed_tokens\", \"model.layers.{*}\", \"lm_head\"]\n";

struct Curve {
  CaseJson file;
  fs::path base = {};
  fs::path config = {};  // the base's, with the router's keys
  fs::path fsdp2 = {};
  std::int64_t parts = 1;
  std::int64_t batch = 0;
};

Curve read_curve(const fs::path& folder, const fs::path& scratch) {
  Curve curve{.file = test::read_case(folder / "curve.json")};
  const CaseJson scenario = curve.file.at("scenario");
  curve.base =
      folder.parent_path().parent_path() / "training" / fs::path(curve.file.at("base").get<std::string>()).filename();
  auto config = nlohmann::json::parse(test::read_file(curve.base / "config.json"));
  config["router_aux_loss_coef"] = scenario.at("router_aux_loss_coef").get<double>();
  config["output_router_logits"] = scenario.at("output_router_logits").get<bool>();
  curve.config = test::write_file(scratch / "config.json", config.dump());
  curve.fsdp2 = test::write_file(scratch / "fsdp2.yaml", kFsdp2);
  curve.parts = scenario.at("parts");
  curve.batch = io::SafetensorsFile(curve.base / "tokens.safetensors").at("tokens").shape[1];
  test::check_steps(curve.file.at("curve"));
  if (curve.batch % curve.parts != 0) config_error("{} parts of a batch of {}", curve.parts, curve.batch);
  if (!(scenario.at("steps") == curve.file.at("curve").size())) config_error("steps is not the length of the curve");
  if (curve.parts % scenario.at("world").get<std::int64_t>() != 0) config_error("world does not divide the parts");
  return curve;
}

// Sample s is row s mod batch of step s / batch.
data::DataLoader loader_of(const Curve& curve) {
  const io::SafetensorsFile file(curve.base / "tokens.safetensors");
  const io::StoredTensor& stored = file.at("tokens");
  const std::int64_t length = stored.shape[2];
  std::vector<std::int32_t> tokens(stored.bytes.size() / sizeof(std::int32_t));
  std::memcpy(tokens.data(), stored.bytes.data(), stored.bytes.size());
  return [tokens = std::move(tokens), length](std::span<const std::int64_t> samples) {
    std::vector<std::int32_t> inputs, targets;
    for (const std::int64_t sample : samples) {
      const auto row = tokens.begin() + sample * length;
      inputs.insert(inputs.end(), row, row + length - 1);
      targets.insert(targets.end(), row + 1, row + length);
    }
    const Shape shape{static_cast<std::int64_t>(samples.size()), length - 1};
    return data::Batch{{{"input_ids", Tensor::from(inputs, shape)}, {"targets", Tensor::from(targets, shape)}}};
  };
}

train::TrainSections arguments_of(const Curve& curve, int ranks, train::KernelSet kernels) {
  const CaseJson optimizer = curve.file.at("optimizer");
  if (!(optimizer.at("name") == "AdamW")) config_error("the optimizer {} is not known", optimizer.at("name").dump());
  train::TrainSections a;
  a.launch.ranks = ranks;
  a.model.init_from_hf_path = curve.base;
  a.schedule.global_batch_size = static_cast<int>(curve.batch);
  a.schedule.micro_batch_size = static_cast<int>(curve.batch / curve.parts);
  a.schedule.train_iters = a.schedule.lr_decay_iters = static_cast<std::int64_t>(curve.file.at("curve").size());
  a.schedule.lr = optimizer.at("lr");
  a.schedule.lr_decay_style = train::LrDecayStyle::kConstant;
  a.optimizer.adam_beta1 = optimizer.at("betas").at(0);
  a.optimizer.adam_beta2 = optimizer.at("betas").at(1);
  a.optimizer.adam_eps = optimizer.at("eps");
  a.schedule.weight_decay = optimizer.at("weight_decay");
  a.optimizer.clip_grad = optimizer.at("clip_grad");
  a.kernels.set = kernels;
  if (kernels == train::KernelSet::kPytorch) a.kernels.fused = nn::KernelOptions::pytorch();
  a.parallel.use_torch_fsdp2 = true;
  a.parallel.fsdp2_config_path = curve.fsdp2;
  return a;
}

double norm_of(const Tensor& tensor) {
  double sum = 0;
  for (const double value : tensor.to_vector<double>()) sum += value * value;
  return std::sqrt(sum);
}

using Norms = std::map<std::string, double>;

struct Run {
  std::vector<train::StepMetrics> steps;
  Norms first_gradients;  // after clipping
  Norms final_norms;
};

// After the first step AdamW's exp_avg is (1 - beta1) times the gradient.
Norms first_gradients(train::Trainer& trainer, comm::World& world, double beta1) {
  Norms norms;
  for (const auto& [path, state] : trainer.optimizer().state_dict().parameters) {
    double sum = std::pow(norm_of(std::get<nn::LocalTensor>(state.at("exp_avg")).value), 2);
    world.everyone()->all_reduce(comm::kHostLane, &sum, 1, DType::kF64, comm::ReduceOp::sum(), path);
    norms[path] = std::sqrt(sum) / (1 - beta1);
  }
  return norms;
}

Run run_curve(const Curve& curve, int ranks, train::KernelSet kernels) {
  const train::TrainSections arguments = arguments_of(curve, ranks, kernels);
  const train::PretrainCallbacks callbacks{
      .train_valid_test_datasets_provider =
          [&](const train::TrainArguments&) { return data::DataLoaders{.train = loader_of(curve)}; },
      .model_provider =
          [&](const train::TrainArguments&) {
            return models::ModelHub::global().build(models::ConfigReader::load(curve.config));
          },
      .forward_step = data::next_token_step};
  const train::TrainingInputs inputs = train::read_inputs(arguments, callbacks);
  Run run;
  launch::run_ranks(ranks, {std::chrono::seconds(120)}, [&](RankContext& context, comm::World& world) {
    nn::make_rank(context, train::rank_setup(arguments));
    train::Trainer trainer(arguments, callbacks, inputs, world);
    for (std::int64_t step = 0; step < arguments.schedule.train_iters; ++step) {
      train::StepMetrics metrics = trainer.step();
      if (context.rank() == 0) run.steps.push_back(std::move(metrics));
      if (step > 0) continue;
      Norms gradients = first_gradients(trainer, world, arguments.optimizer.adam_beta1);
      if (context.rank() == 0) run.first_gradients = std::move(gradients);
    }
    sharding::for_each_full_parameter(trainer.sharded_module(), [&](const std::string& path, const Tensor& full) {
      if (context.rank() == 0) run.final_norms[path] = norm_of(full);
    });
  });
  return run;
}

// The worst difference of each figure, and whether all are within their tolerances.
class Differences {
 public:
  void add(const std::string& figure, double off, double allowed) {
    agrees_ = agrees_ && off <= allowed;
    double& worst = worst_[figure];
    if (!(off <= worst)) worst = off;
  }
  void add_norms(const std::string& figure, const CaseJson& expected, const Norms& actual, double allowed) {
    if (expected.size() != actual.size()) add(figure, INFINITY, allowed);
    for (const auto& [path, value] : expected.items()) {
      const double right = value;
      const auto found = actual.find(path);
      add(figure, found == actual.end() ? INFINITY : std::abs(found->second - right) / right, allowed);
    }
  }
  bool agree() const { return agrees_; }
  std::string text() const {
    std::string text;
    for (const auto& [figure, worst] : worst_)
      text += fmt::format("{}{} {:.1e}", text.empty() ? "" : ", ", figure, worst);
    return text;
  }

 private:
  bool agrees_ = true;
  std::map<std::string, double> worst_;
};

Differences compare(const Curve& curve, const Run& run) {
  const CaseJson allowed = curve.file.at("tolerance"), steps = curve.file.at("curve");
  Differences found;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const CaseJson expected = steps.at(i);
    const train::StepMetrics& actual = run.steps.at(i);
    const std::map<std::string, double> reports(actual.reports.begin(), actual.reports.end());
    const auto add = [&](const char* key, double value) {
      found.add(key, std::abs(value - expected.at(key).get<double>()), allowed.at(key));
    };
    add("loss", actual.loss);
    add("cross_entropy", reports.at("cross_entropy"));
    add("aux", reports.at("router_aux_loss"));
    const double norm = expected.at("grad_norm");
    found.add("grad norm", std::abs(actual.grad_norm - norm) / norm, allowed.at("grad_norm_relative"));
  }
  found.add_norms("gradients of step 1", curve.file.at("step1_grad_norm_by_param"), run.first_gradients,
                  allowed.at("step1_grad_norm_relative"));
  found.add_norms("last weights", curve.file.at("final_weight_norm_by_param"), run.final_norms,
                  allowed.at("final_weight_norm_relative"));
  return found;
}

void run_curves(const fs::path& folder, test::ParityReport& report) {
  const test::Scratch scratch("moe_parity");
  const Curve curve = read_curve(folder, scratch.path());
  for (const auto& [grain, kernels] :
       {std::pair{"fast", train::KernelSet::kFast}, {"pytorch", train::KernelSet::kPytorch}}) {
    for (const int ranks : {1, 2, 4}) {
      if (curve.parts % ranks != 0) continue;
      const std::string name = fmt::format("{} {} {}", folder.filename().string(), grain,
                                           ranks == 1 ? "1 rank" : fmt::format("{} ranks", ranks));
      const Differences found = compare(curve, run_curve(curve, ranks, kernels));
      const std::string unread = curve.file.unread({"model"});
      if (!unread.empty()) {
        report.failed(name, unread);
        continue;
      }
      found.agree() ? report.passed(name, found.text()) : report.failed(name, found.text());
    }
  }
}

int run(const fs::path& folder) {
  test::ParityReport report;
  for (const auto& cases : test::case_folders(folder, "case.json")) test::run_routing_cases(cases, report);
  for (const auto& curve : test::case_folders(folder, "curve.json")) {
    try {
      run_curves(curve, report);
    } catch (const std::exception& error) {
      report.failed(curve.filename().string(), error.what());
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace loom::moe_parity

int main_of_moe_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "moe_parity", loom::moe_parity::run);
}
