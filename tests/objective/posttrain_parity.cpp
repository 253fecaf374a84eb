// posttrain_parity DIR: preference losses and curves as trl, MindSpeed-LLM's formulas and PyTorch have them.
//
// DIR/losses      every entry of case.json: the loss and its gradient by the policy's logits, in fp64, the rewards and
//                 the accuracy.
// DIR/*           every other subfolder with a curve.json: the model of `base` (DIR/../training/NAME) is trained on
//                 batches.safetensors through the Trainer, the reference model in shards beside it, at 1, 2 and 4
//                 ranks, in both grains: loss, gradient norm, rewards and accuracy of each step, each parameter's
//                 gradient of the first step, and the weights at the end, within the tolerances of the file.
#include <cmath>

#include "engine/core/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/optim/adamw.h"
#include "engine/objective/preference_step.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/train/rank_setup.h"
#include "engine/train/trainer.h"
#include "models/decoder/decoder.h"
#include "models/hub/model_hub.h"
#include "sharding/full_parameters.h"
#include "tests/support/case_json.h"
#include "tests/support/exact_files.h"
#include "tests/support/files.h"
#include "tests/support/one_rank.h"
#include "tests/support/parity_report.h"

namespace loom::posttrain_parity {
namespace {

using test::CaseJson;
namespace fs = std::filesystem;

template <class T>
std::vector<T> values_of(const io::SafetensorsFile& file, const std::string& name) {
  const io::StoredTensor& tensor = file.at(name);
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

// "dpo_sigmoid", and the file's names of arguments.
objective::PreferenceOptions options_of(const std::string& loss_type, const CaseJson& arguments) {
  const std::size_t bar = loss_type.find('_');
  const std::string family = loss_type.substr(0, bar), type = loss_type.substr(bar + 1);
  const std::map<std::string, objective::PreferenceLossType> types = {
      {"sigmoid", objective::PreferenceLossType::kSigmoid},
      {"hinge", objective::PreferenceLossType::kHinge},
      {"ipo", objective::PreferenceLossType::kIpo}};
  if ((family != "dpo" && family != "simpo") || !types.contains(type)) config_error("loss type {}", loss_type);
  objective::PreferenceOptions options{.loss_type = types.at(type), .beta = family == "dpo" ? 0.1 : 2.5};
  options.simpo = family == "simpo";
  for (const auto& [key, value] : arguments.items()) {
    if (key == "beta") {
      options.beta = value;
    } else if (key == "eps") {
      options.label_smoothing = value;
    } else if (key == "ftx") {
      options.pref_ftx = value;
    } else if (key == "ratio") {
      options.gamma_beta_ratio = value;
    } else {
      config_error("argument {} of {}", key, loss_type);
    }
  }
  return options;
}

// What differs, worst first by what is allowed; empty: nothing.
class Differences {
 public:
  void add(const std::string& what, double actual, double expected, double allowed) {
    const double error = std::abs(actual - expected) / allowed;
    if (!(error <= worst_)) worst_ = error;
    if (!(error <= 1) && text_.empty()) {
      text_ = fmt::format("{} is {}, and {} was expected within {}", what, actual, expected, allowed);
    }
  }
  const std::string& text() const { return text_; }
  double worst() const { return worst_; }

 private:
  std::string text_;
  double worst_ = 0;
};

void tell(test::ParityReport& report, const std::string& name, const Differences& found) {
  if (found.text().empty()) {
    report.passed(name, fmt::format("worst {:.3f} of what is allowed", found.worst()));
  } else {
    report.failed(name, found.text());
  }
}

void compare_reports(Differences& found, const std::string& where,
                     const std::vector<std::pair<std::string, double>>& reports, const CaseJson& expected,
                     double allowed, bool accuracy) {
  const std::map<std::string, double> by_name(reports.begin(), reports.end());
  found.add(where + "rewards/chosen", by_name.at("rewards/chosen"), expected.at("rewards_chosen"), allowed);
  found.add(where + "rewards/rejected", by_name.at("rewards/rejected"), expected.at("rewards_rejected"), allowed);
  const double right = expected.at("accuracy");
  if (accuracy) found.add(where + "rewards/accuracies", by_name.at("rewards/accuracies"), right, 1e-9);
}

// ---- Losses on given logits ---------------------------------------------------------------------------------------

// Labels one further, -100 behind the last.
Tensor targets_of(const std::vector<std::int32_t>& labels, std::int64_t rows) {
  const auto length = static_cast<std::int64_t>(labels.size()) / rows;
  std::vector<std::int32_t> targets;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto first = labels.begin() + row * length;
    targets.insert(targets.end(), first + 1, first + length);
    targets.push_back(-100);
  }
  return Tensor::from(targets, {rows, length});
}

std::vector<std::int64_t> tokens_of(const Tensor& targets) {
  const auto values = targets.to_vector<std::int32_t>();
  const auto length = static_cast<std::size_t>(targets.shape()[1]);
  std::vector<std::int64_t> tokens;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % length == 0) tokens.push_back(0);
    tokens.back() += values[i] != -100;
  }
  return tokens;
}

Tensor logits_of(const io::SafetensorsFile& file, const std::string& name) {
  const std::vector<float> values = values_of<float>(file, name);
  return Tensor::from(std::vector<double>(values.begin(), values.end()), Shape(file.at(name).shape));
}

// What the losses of a file are made of, a row each.
void compare_inputs(Differences& found, const CaseJson& all, const std::vector<double>& policy,
                    const std::vector<double>& reference, const std::vector<std::int64_t>& tokens, double allowed) {
  for (std::size_t row = 0; row < policy.size(); ++row) {
    found.add(fmt::format("policy_logps {}", row), policy[row], all.at("policy_logps").at(row), allowed);
    found.add(fmt::format("reference_logps {}", row), reference[row], all.at("reference_logps").at(row), allowed);
    found.add(fmt::format("answer_tokens {}", row), static_cast<double>(tokens[row]), all.at("answer_tokens").at(row),
              1e-9);
  }
}

void run_losses(const fs::path& folder, test::ParityReport& report) {
  const CaseJson all = test::read_case(folder / "case.json");
  const io::SafetensorsFile file(folder / "tensors.safetensors");
  const double loss_allowed = all.at("tolerance").at("loss"), gradient_allowed = all.at("tolerance").at("gradient");
  for (const CaseJson& c : all.at("cases").elements()) {
    const test::OneRank rank;
    const std::string type = c.at("loss_type");
    const objective::PreferenceOptions options = options_of(type, c.at("arguments"));
    const Tensor policy = logits_of(file, "policy_logits").set_requires_grad(true);
    const Tensor targets = targets_of(values_of<std::int32_t>(file, "labels"), policy.shape()[0]);
    const auto reference = ops::sequence_log_probs(logits_of(file, "reference_logits"), targets).to_vector<double>();
    const auto tokens = tokens_of(targets);
    const Tensor log_probs = ops::sequence_log_probs(policy, targets);
    const objective::PreferenceLoss result = objective::preference_loss(log_probs, {reference, tokens}, options);
    autograd::backward(result.loss);
    Differences found;
    compare_inputs(found, all, log_probs.to_vector<double>(), reference, tokens, loss_allowed);
    found.add("loss", result.loss.item(), c.at("loss"), loss_allowed);
    compare_reports(found, "", result.reports, c, loss_allowed, true);
    const auto expected = values_of<float>(file, c.at("gradient"));
    const auto actual = policy.grad().to_vector<double>();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      found.add(fmt::format("gradient {}", i), actual[i], static_cast<double>(expected[i]), gradient_allowed);
    }
    const std::string name = fmt::format("losses/{} {}", type, c.at("arguments").dump());
    const std::string unread = c.unread({"noise_float32", "checked_with_trl"});
    unread.empty() ? tell(report, name, found) : report.failed(name, unread);
  }
  all.check_all_read({"cases"});
}

// ---- Curves -------------------------------------------------------------------------------------------------------

constexpr const char* kFsdp2 =
    "sharding_size: auto\nsub_modules_to_wrap: [\"model.embed_tokens\", \"model.layers.{*}\", \"lm_head\"]\n";

struct Curve {
  fs::path folder;
  fs::path base;
  fs::path fsdp2;
  CaseJson file;
  std::int64_t pairs = 0;
};

// Sample s is pair s mod n of step s / n; the rows of a micro-batch are chosen answers and then rejected ones.
data::DataLoader loader_of(const Curve& curve) {
  const io::SafetensorsFile file(curve.folder / "batches.safetensors");
  const auto ids = values_of<std::int32_t>(file, "input_ids"), labels = values_of<std::int32_t>(file, "labels");
  const std::int64_t rows = file.at("input_ids").shape[1], length = file.at("input_ids").shape[2];
  return [=, pairs = curve.pairs](std::span<const std::int64_t> samples) {
    std::vector<std::int32_t> inputs, answers;
    for (const std::int64_t half : {0, 1}) {
      for (const std::int64_t sample : samples) {
        const std::int64_t at = (sample / pairs * rows + half * pairs + sample % pairs) * length;
        inputs.insert(inputs.end(), ids.begin() + at, ids.begin() + at + length);
        answers.insert(answers.end(), labels.begin() + at, labels.begin() + at + length);
      }
    }
    const auto count = 2 * static_cast<std::int64_t>(samples.size());
    return data::Batch{{{"input_ids", Tensor::from(inputs, {count, length})}, {"targets", targets_of(answers, count)}}};
  };
}

train::TrainSections arguments_of(const Curve& curve, int ranks, train::KernelSet kernels) {
  const CaseJson optimizer = curve.file.at("optimizer");
  if (!(optimizer.at("name") == "AdamW")) config_error("the optimizer {} is not known", optimizer.at("name").dump());
  train::TrainSections a;
  a.launch.ranks = ranks;
  a.model.init_from_hf_path = curve.base;
  a.schedule.global_batch_size = static_cast<int>(curve.pairs);
  a.schedule.train_iters = a.schedule.lr_decay_iters = curve.file.at("steps").get<std::int64_t>();
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
  a.objective.preference = options_of(curve.file.at("loss_type"), curve.file.at("arguments"));
  return a;
}

double norm_of(const Tensor& tensor) {
  double sum = 0;
  for (const double value : tensor.to_vector<double>()) sum += value * value;
  return std::sqrt(sum);
}

struct Run {
  std::vector<train::StepMetrics> steps;
  std::map<std::string, double> first_gradients;  // norms, after clipping
  std::map<std::string, double> final_norms;
};

// After the first step AdamW's exp_avg is (1 - beta1) times the gradient.
std::map<std::string, double> first_gradients(train::Trainer& trainer, comm::World& world, double beta1) {
  std::map<std::string, double> norms;
  for (const auto& [path, state] : trainer.optimizer().state_dict().parameters) {
    double sum = 0;
    for (const double value : std::get<nn::LocalTensor>(state.at("exp_avg")).value.to_vector<double>())
      sum += value * value;
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
            return models::ModelHub::global().build(models::ConfigReader::load(curve.base));
          },
      .forward_step = objective::preference_step(arguments.objective.preference),
      .has_reference_model = arguments.objective.preference.has_reference()};
  const train::TrainingInputs inputs = train::read_inputs(arguments, callbacks);
  Run run;
  launch::run_ranks(ranks, {std::chrono::seconds(120)}, [&](RankContext& context, comm::World& world) {
    nn::make_rank(context, train::rank_setup(arguments));
    train::Trainer trainer(arguments, callbacks, inputs, world);
    for (std::int64_t step = 0; step < arguments.schedule.train_iters; ++step) {
      train::StepMetrics metrics = trainer.step();
      if (context.rank() == 0) run.steps.push_back(std::move(metrics));
      if (step > 0) continue;
      auto gradients = first_gradients(trainer, world, arguments.optimizer.adam_beta1);
      if (context.rank() == 0) run.first_gradients = std::move(gradients);
    }
    sharding::for_each_full_parameter(trainer.sharded_module(), [&](const std::string& path, const Tensor& full) {
      if (context.rank() == 0) run.final_norms[path] = norm_of(full);
    });
  });
  return run;
}

Differences compare(const Curve& curve, const Run& run) {
  Differences found;
  const CaseJson allowed = curve.file.at("tolerance");
  const CaseJson steps = curve.file.at("curve");
  if (run.steps.size() != steps.size()) config_error("{} steps of {}", run.steps.size(), steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const CaseJson expected = steps.at(i);
    const train::StepMetrics& actual = run.steps[i];
    const std::string where = fmt::format("step {}: ", i + 1);
    const double norm = expected.at("grad_norm");
    found.add(where + "loss", actual.loss, expected.at("loss"), allowed.at("loss"));
    found.add(where + "grad norm", actual.grad_norm, norm, allowed.at("grad_norm_relative").get<double>() * norm);
    const bool tied = expected.at("rewards_chosen") == 0.0 && expected.at("rewards_rejected") == 0.0;
    compare_reports(found, where, actual.reports, expected, allowed.at("rewards"), !tied);
  }
  for (const auto& [path, expected] : curve.file.at("step1_grad_norm_by_param").items()) {
    const double norm = expected;
    found.add("first gradient of " + path, run.first_gradients.at(path), norm,
              allowed.at("step1_grad_norm_relative").get<double>() * norm);
  }
  for (const auto& [path, expected] : curve.file.at("final_weight_norm_by_param").items()) {
    const double norm = expected;
    found.add("final weights of " + path, run.final_norms.at(path), norm,
              allowed.at("final_weight_norm_relative").get<double>() * norm);
  }
  return found;
}

void run_curves(const fs::path& folder, test::ParityReport& report) {
  const test::Scratch scratch("posttrain_parity");
  Curve curve{.folder = folder,
              .base = {},
              .fsdp2 = test::write_file(scratch.path() / "fsdp2.yaml", kFsdp2),
              .file = test::read_case(folder / "curve.json"),
              .pairs = 0};
  curve.base =
      folder.parent_path().parent_path() / "training" / fs::path(curve.file.at("base").get<std::string>()).filename();
  curve.pairs = curve.file.at("pairs");
  test::check_steps(curve.file.at("curve"));
  for (const auto& [grain, kernels] :
       {std::pair{"fast", train::KernelSet::kFast}, {"pytorch", train::KernelSet::kPytorch}}) {
    for (const int ranks : {1, 2, 4}) {
      const std::string name =
          fmt::format("{} {} {} rank{}", folder.filename().string(), grain, ranks, ranks == 1 ? "" : "s");
      if (curve.pairs % ranks != 0) {
        report.skipped(name, fmt::format("its {} pairs do not divide by {} ranks", curve.pairs, ranks));
        continue;
      }
      const Differences found = compare(curve, run_curve(curve, ranks, kernels));
      const std::string unread = curve.file.unread({"rows"});
      unread.empty() ? tell(report, name, found) : report.failed(name, unread);
    }
  }
}

int run(const fs::path& folder) {
  test::ParityReport report;
  const auto run_each = [&](const char* marker, void (*run_one)(const fs::path&, test::ParityReport&)) {
    for (const fs::path& each : test::case_folders(folder, marker)) {
      try {
        run_one(each, report);
      } catch (const std::exception& error) {
        report.failed(each.filename().string(), error.what());
      }
    }
  };
  run_each("case.json", run_losses);
  run_each("curve.json", run_curves);
  return report.finish();
}

}  // namespace
}  // namespace loom::posttrain_parity

int main_of_posttrain_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "posttrain_parity", loom::posttrain_parity::run);
}
