// optimizer_parity DIR: the optimizers of PyTorch and the schedules of Megatron's OptimizerParamScheduler.
//
// Every schedule of DIR/schedules.json is a case: learning rate and weight decay of each of its steps must agree within
// 1e-12 of the reference, relative. Every subfolder of DIR with a curve.json is a case: the model and the tokens of its
// base, a folder of DIR/../training, are trained with its optimizer and schedule on 1, 2 and 4 ranks, fully sharded;
// the losses, gradient norms, the first step's gradients and updates and the last weights must agree within the
// tolerances that the file names.
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include "engine/core/error.h"
#include "engine/device/device.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/launch/run_ranks.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/orthogonalize.h"
#include "engine/train/lr_schedule.h"
#include "engine/train/make_optimizer.h"
#include "models/decoder/decoder.h"
#include "models/hf/hf_folder.h"
#include "sharding/full_parameters.h"
#include "sharding/fully_shard.h"
#include "tests/support/case_json.h"
#include "tests/support/parity_report.h"

namespace loom::optimizer_parity {
namespace {

using test::CaseJson;

constexpr double kRelative = 1e-12;

template <class Style>
Style style_of(const CaseJson& word) {
  if (word.is_null()) return Style{};
  for (const auto& [known, style] : train::style_words<Style>()) {
    if (word == known) return style;
  }
  config_error("the style {} is not known", word.dump());
}

std::int64_t count_of(const CaseJson& number) { return number.is_null() ? 0 : number.get<std::int64_t>(); }

train::LrSchedule learning_rate(const CaseJson& a) {
  return {.max_lr = a.at("max_lr"),
          .min_lr = a.at("min_lr"),
          .style = style_of<train::LrDecayStyle>(a.at("lr_decay_style")),
          .warmup_steps = a.at("lr_warmup_steps"),
          .decay_steps = a.at("lr_decay_steps"),
          .init_lr = a.at("init_lr"),
          .wsd_style = style_of<train::WsdDecayStyle>(a.at("lr_wsd_decay_style")),
          .wsd_decay_steps = count_of(a.at("wsd_decay_steps"))};
}

train::WeightDecaySchedule weight_decay(const CaseJson& a) {
  return {.start = a.at("start_wd"),
          .end = a.at("end_wd"),
          .style = style_of<train::WeightDecayIncrStyle>(a.at("wd_incr_style")),
          .incr_steps = a.at("wd_incr_steps")};
}

std::string name_of(const CaseJson& a, std::size_t index) {
  std::string name = fmt::format("schedule {}: {}", index, a.at("lr_decay_style").get<std::string>());
  if (!a.at("lr_wsd_decay_style").is_null()) name.append(" ").append(a.at("lr_wsd_decay_style").get<std::string>());
  return fmt::format("{}, weight decay {}", name, a.at("wd_incr_style").get<std::string>());
}

// The worst relative difference over the steps, and its step.
template <class Schedule>
std::pair<double, std::size_t> worst(const Schedule& schedule, const CaseJson& expected) {
  std::pair<double, std::size_t> found{0, 0};
  for (std::size_t step = 0; step < expected.size(); ++step) {
    const double right = expected.at(step);
    const double difference = std::abs(schedule.at(static_cast<std::int64_t>(step)) - right);
    const double relative = difference == 0 ? 0 : difference / std::abs(right);
    if (!(relative <= found.first)) found = {relative, step + 1};
  }
  return found;
}

void run_schedule(const CaseJson& c, std::size_t index, test::ParityReport& report) {
  const CaseJson a = c.at("arguments");
  const std::string name = name_of(a, index);
  if (c.at("lr").empty() || c.at("lr").size() != c.at("weight_decay").size()) {
    return report.failed(name, "it has no steps, or not as many rates as weight decays");
  }
  const auto [lr, lr_step] = worst(learning_rate(a), c.at("lr"));
  const auto [decay, decay_step] = worst(weight_decay(a), c.at("weight_decay"));
  const std::string detail = fmt::format("{} steps, learning rate {:.1e} (step {}), weight decay {:.1e} (step {})",
                                         c.at("lr").size(), lr, lr_step, decay, decay_step);
  if (const std::string unread = c.unread(); !unread.empty()) return report.failed(name, unread);
  lr <= kRelative&& decay <= kRelative ? report.passed(name, detail) : report.failed(name, detail);
}

// --- curves

// Muon's iteration and step, and AdamW for the rest.
void read_muon(const CaseJson& optimizer, double weight_decay, train::OptimizerOptions& options) {
  options.kind = train::OptimizerKind::kMuon;
  options.muon.momentum = optimizer.at("momentum");
  options.muon.nesterov = optimizer.at("nesterov");
  options.muon.steps = optimizer.at("ns_steps");
  const std::string adjust = optimizer.at("adjust_lr_fn");
  if (adjust != "match_rms_adamw" && adjust != "original") config_error("adjust_lr_fn {} is not known", adjust);
  if (adjust == "original") {
    options.muon.scale = nn::MuonScale::kShapeScaling;
    options.muon.extra_scale = 1;
  }
  const ops::NewtonSchulz iteration = ops::newton_schulz(options.muon.steps);
  if (optimizer.at("ns_coefficients").get<std::array<double, 3>>() != iteration.coefficients.front()) {
    config_error("ns_coefficients {} are not those of --muon-coefficient-type simple",
                 optimizer.at("ns_coefficients").dump());
  }
  if (!(optimizer.at("eps") == iteration.eps)) config_error("eps of Muon is {}", optimizer.at("eps").dump());
  const CaseJson rest = optimizer.at("rest");
  options.muon.scalar_lr = rest.at("lr").get<double>();
  if (!(rest.at("weight_decay") == weight_decay)) {
    config_error("weight_decay is {}, and {} of the rest; this program has one for both", weight_decay,
                 rest.at("weight_decay").dump());
  }
}

// The optimizer of a curve.json, as options of a run.
struct CurveOptions {
  train::OptimizerOptions optimizer = {};
  double lr = 0;
  double weight_decay = 0;
};

// Throws ConfigError for what this program does not know.
CurveOptions options_of(const CaseJson& scenario) {
  const CaseJson optimizer = scenario.at("optimizer");
  CurveOptions curve{.lr = optimizer.at("lr"), .weight_decay = optimizer.at("weight_decay")};
  train::OptimizerOptions& options = curve.optimizer;
  const std::string name = optimizer.at("name");
  const CaseJson adam = name == "Muon" ? optimizer.at("rest") : optimizer;
  if (name != "SGD") {
    options.adam_beta1 = adam.at("betas").at(0);
    options.adam_beta2 = adam.at("betas").at(1);
    options.adam_eps = adam.at("eps");
  }
  options.clip_grad = scenario.at("clip_grad");
  options.no_weight_decay_on_norms_and_biases = optimizer.value("no_decay", name == "Muon");
  if (name == "SGD") {
    options.kind = train::OptimizerKind::kSgd;
    options.sgd_momentum = optimizer.at("momentum");
    options.sgd_dampening = optimizer.value("dampening", 0.0);
    options.sgd_nesterov = optimizer.at("nesterov");
  } else if (name == "Muon") {
    read_muon(optimizer, curve.weight_decay, options);
  } else if (name != "AdamW") {
    config_error("the optimizer {} is not known", name);
  }
  return curve;
}

// By the names of the schedules' arguments. A file without min_lr has it as the rate of its last step, which lies
// behind the decay.
train::LrSchedule schedule_of(const CaseJson& file, double max_lr) {
  const CaseJson scenario = file.at("scenario");
  train::LrSchedule schedule{.max_lr = max_lr, .min_lr = 0, .style = train::LrDecayStyle::kConstant};
  schedule.decay_steps = 1 << 20;
  if (!scenario.contains("schedule")) return schedule;
  const CaseJson given = scenario.at("schedule");
  schedule.style = style_of<train::LrDecayStyle>(given.at("lr_decay_style"));
  schedule.warmup_steps = given.at("lr_warmup_steps");
  schedule.decay_steps = given.at("lr_decay_steps");
  schedule.init_lr = given.value("init_lr", schedule.init_lr);
  schedule.min_lr = given.value("min_lr", file.at("curve").back().at("lr").get<double>());
  if (given.value("max_lr", max_lr) != max_lr) config_error("max_lr is not the optimizer's lr");
  if (given.contains("lr_wsd_decay_style")) {
    schedule.wsd_style = style_of<train::WsdDecayStyle>(given.at("lr_wsd_decay_style"));
  }
  if (given.contains("wsd_decay_steps")) schedule.wsd_decay_steps = count_of(given.at("wsd_decay_steps"));
  if (schedule.style == train::LrDecayStyle::kWsd && schedule.wsd_decay_steps == 0) {
    config_error("the schedule is WSD, and wsd_decay_steps is missing");
  }
  return schedule;
}

using Norms = std::map<std::string, double>;

struct Curve {
  std::vector<double> loss;
  std::vector<double> grad_norm;
  std::vector<double> lr;
  Norms step1_grad_norm;
  Norms step1_update_norm;
  Norms final_weight_norm;
};

class Run {
 public:
  Run(const std::filesystem::path& base, const CaseJson& file, RankContext& context, comm::World& world)
      : tokens_(base / "tokens.safetensors"),
        options_(options_of(file.at("scenario"))),
        schedule_(schedule_of(file, options_.lr)),
        rank_(world.rank()),
        ranks_(world.size()) {
    device::Device::install(context, {});
    context.slot<nn::KernelOptions>() = nn::KernelOptions::fast();
    model_ = models::build_decoder(models::load_decoder_config(base));
    sharding::FullyShardOptions wrap;
    wrap.axes = sharding::FsdpAxes::over(world, world.size());
    wrap.layout = sharding::GatherLayout::kFast;
    for (auto& [index, layer] : model_->find("model.layers")->children()) sharding::fully_shard(*layer, wrap);
    sharding::fully_shard(*model_, wrap);
    sharding::materialize_shards(*model_);
    models::load_weights(*model_, io::HfWeights(base));
    optimizer_ = train::make_optimizer(options_.optimizer, *model_,
                                       nn::make_parameter_groups(*model_, train::grouping_of(options_.optimizer)),
                                       {.lr = options_.lr, .weight_decay = options_.weight_decay});
    group_ = world.everyone();
  }

  Curve train(std::int64_t steps) {
    Curve curve;
    for (std::int64_t step = 0; step < steps; ++step) {
      double loss = micro_batch(step);
      group_->all_reduce(comm::kHostLane, &loss, 1, DType::kF64, comm::ReduceOp::avg(), "loss");
      curve.loss.push_back(loss);
      curve.grad_norm.push_back(sharding::clip_grad_norm(*model_, options_.optimizer.clip_grad));
      curve.lr.push_back(schedule_.at(step));
      Values before;
      if (step == 0) {
        curve.step1_grad_norm = norms(values([](const Tensor& shard) { return shard.grad(); }), nullptr);
        before = values([](const Tensor& shard) { return shard; });
      }
      optimizer_->set_lr(schedule_.at(step));
      optimizer_->step();
      optimizer_->zero_grad();
      if (step > 0) continue;
      curve.step1_update_norm = norms(values([](const Tensor& shard) { return shard; }), &before);
    }
    curve.final_weight_norm = norms(values([](const Tensor& shard) { return shard; }), nullptr);
    return curve;
  }

 private:
  using Values = std::map<std::string, std::vector<double>>;

  Values values(const std::function<Tensor(const Tensor&)>& pick) const {
    Values found;
    for (auto& [path, shard] : model_->named_parameters()) found[path] = pick(shard).to_vector<double>();
    return found;
  }

  // Over the whole parameters; of the difference to `before` where there is one.
  Norms norms(const Values& own, const Values* before) const {
    Norms result;
    for (const auto& [path, numbers] : own) {
      double sum = 0;
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const double value = numbers[i] - (before == nullptr ? 0 : before->at(path)[i]);
        sum += value * value;
      }
      group_->all_reduce(comm::kHostLane, &sum, 1, DType::kF64, comm::ReduceOp::sum(), path);
      result[path] = std::sqrt(sum);
    }
    return result;
  }

  double micro_batch(std::int64_t step) {
    const io::StoredTensor& stored = tokens_.at("tokens");  // [steps, batch, sequence + 1]
    const std::int64_t rows = stored.shape[1] / ranks_, seq = stored.shape[2] - 1;
    const Tensor inputs = Tensor::host({rows, seq}, DType::kI32, "inputs");
    const Tensor targets = Tensor::host({rows, seq}, DType::kI32, "targets");
    const auto* all = reinterpret_cast<const std::int32_t*>(stored.bytes.data());
    const auto bytes = static_cast<std::size_t>(seq) * sizeof(std::int32_t);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int32_t* line = all + ((step * stored.shape[1]) + rank_ * rows + row) * (seq + 1);
      std::memcpy(inputs.data<std::int32_t>() + row * seq, line, bytes);
      std::memcpy(targets.data<std::int32_t>() + row * seq, line + 1, bytes);
    }
    const Tensor loss = ops::cross_entropy((*model_)(inputs).tensor(), targets);
    autograd::backward(loss);
    return loss.item();
  }

  const io::SafetensorsFile tokens_;
  const CurveOptions options_;
  const train::LrSchedule schedule_;
  const int rank_;
  const int ranks_;
  std::shared_ptr<nn::Module> model_;
  std::unique_ptr<nn::Optimizer> optimizer_;
  std::shared_ptr<comm::ProcessGroup> group_;
};

// The worst of something within its tolerance, as text; false where it is not.
struct Check {
  bool agrees = true;
  std::string text;

  void add(std::string_view what, double value, const std::string& where, double tolerance) {
    agrees = agrees && value <= tolerance;
    text += fmt::format("{}{} {:.1e} ({})", text.empty() ? "" : ", ", what, value, where);
  }
  // Relative to the reference; where that is 0, absolute.
  void add_norms(std::string_view what, const CaseJson& expected, const Norms& actual, double tolerance) {
    double worst = expected.size() == actual.size() ? 0 : INFINITY;
    std::string where = "-";
    for (const auto& [path, right] : expected.items()) {
      const auto found = actual.find(path);
      const double norm = right.get<double>();
      double off = found == actual.end() ? INFINITY : std::abs(found->second - norm);
      if (norm != 0) off /= norm;
      if (!(off <= worst)) worst = off, where = path;
    }
    add(what, worst, where, tolerance);
  }
};

Check compare(const CaseJson& file, const Curve& actual) {
  const CaseJson tolerance = file.at("tolerance");
  Check check;
  double loss = 0, norm = 0, lr = 0;
  for (std::size_t i = 0; i < actual.loss.size(); ++i) {
    const CaseJson expected = file.at("curve").at(i);
    const double right_norm = expected.at("grad_norm");
    loss = std::max(loss, std::abs(actual.loss[i] - expected.at("loss").get<double>()));
    norm = std::max(norm, std::abs(actual.grad_norm[i] - right_norm) / right_norm);
    lr = std::max(lr, std::abs(actual.lr[i] - expected.at("lr").get<double>()));
    check.agrees = check.agrees && std::isfinite(actual.loss[i]) && std::isfinite(actual.grad_norm[i]);
  }
  check.add("loss", loss, "all steps", tolerance.at("loss"));
  check.add("gradient norm", norm, "all steps", tolerance.at("grad_norm_relative"));
  check.add("learning rate", lr, "all steps", 1e-15);
  check.add_norms("gradients of step 1", file.at("step1_grad_norm_by_param"), actual.step1_grad_norm,
                  tolerance.at("step1_grad_norm_relative"));
  check.add_norms("updates of step 1", file.at("step1_update_norm_by_param"), actual.step1_update_norm,
                  tolerance.at("step1_update_norm_relative"));
  check.add_norms("last weights", file.at("final_weight_norm_by_param"), actual.final_weight_norm,
                  tolerance.at("final_weight_norm_relative"));
  return check;
}

Curve trained(const std::filesystem::path& base, const CaseJson& file, int ranks) {
  const auto steps = static_cast<std::int64_t>(file.at("curve").size());
  Curve curve;
  launch::run_ranks(ranks, {std::chrono::seconds(120)}, [&](RankContext& context, comm::World& world) {
    Curve own = Run(base, file, context, world).train(steps);
    if (context.rank() == 0) curve = std::move(own);
  });
  return curve;
}

void run_curve(const std::filesystem::path& folder, test::ParityReport& report) {
  const CaseJson file = test::read_case(folder / "curve.json");
  const CaseJson scenario = file.at("scenario");
  const auto base = folder.parent_path().parent_path() / "training" /
                    std::filesystem::path(scenario.at("base").get<std::string>()).filename();
  test::check_steps(file.at("curve"));
  if (scenario.value("steps", file.at("curve").size()) != file.at("curve").size()) {
    config_error("steps is {}, and the curve has {}", scenario.at("steps").dump(), file.at("curve").size());
  }
  const std::int64_t batch = io::SafetensorsFile(base / "tokens.safetensors").at("tokens").shape[1];
  for (const int ranks : {1, 2, 4}) {
    const std::string name = fmt::format("{}, {} {}", folder.filename().string(), ranks, ranks == 1 ? "rank" : "ranks");
    if (batch % ranks != 0) {
      report.skipped(name, fmt::format("its batch of {} does not divide by {} ranks", batch, ranks));
      continue;
    }
    const Check check = compare(file, trained(base, file, ranks));
    const std::string unread = file.unread();
    check.agrees&& unread.empty() ? report.passed(name, check.text)
                                  : report.failed(name, unread.empty() ? check.text : unread);
  }
}

int run(const std::filesystem::path& folder) {
  test::ParityReport report;
  const std::vector<std::filesystem::path> curves = test::case_folders(folder, "curve.json");
  if (std::filesystem::exists(folder / "schedules.json")) {
    const CaseJson file = test::read_case(folder / "schedules.json");
    const CaseJson schedules = file.at("schedules");
    for (std::size_t i = 0; i < schedules.size(); ++i) run_schedule(schedules.at(i), i, report);
    file.check_all_read({"schedules", "tolerance"});  // in words
  }
  for (const auto& curve : curves) {
    try {
      run_curve(curve, report);
    } catch (const std::exception& error) {
      report.failed(curve.filename().string(), error.what());
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace loom::optimizer_parity

int main_of_optimizer_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "optimizer_parity", loom::optimizer_parity::run);
}
