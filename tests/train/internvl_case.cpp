#include "tests/train/internvl_case.h"

#include <cmath>
#include <cstring>

#include "engine/core/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/nn/functional.h"
#include "engine/nn/init.h"
#include "engine/nn/optim/adamw.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/vision.h"
#include "models/generation/session.h"
#include "models/hf/hf_folder.h"
#include "models/internvl/internvl.h"
#include "sharding/fully_shard.h"
#include "tests/support/case_json.h"
#include "tests/support/world.h"
#include "tests/train/staged_run.h"

namespace loom::test {
namespace {

using Tokens = std::vector<std::int32_t>;
using Pictures = std::vector<std::size_t>;

constexpr const char* kSmallGradients = "1e-3 where the norm exceeds 1e-6 of the largest";
constexpr double kSmallGradient = 1e-6;

// The worst difference of each kind, and the first thing that is not equal.
struct Findings {
  double features = 0, logits = 0, loss = 0, norm = 0, gradient = 0, weight = 0;
  std::string wrong;

  static void add(double& worst, double difference) {
    if (!(difference <= worst)) worst = difference;  // NaN counts as worse
  }
};

class Run {
 public:
  Run(const std::filesystem::path& folder, const CaseJson& json, comm::World& world)
      : json_(json),
        processor_(read_case(folder / "preprocessor_config.json")),
        config_(models::load_internvl_config(folder)),
        world_(world),
        expected_(folder / "expected.safetensors"),
        model_(models::build_internvl(config_)) {
    const io::HfWeights weights(folder);
    if (world.size() > 1) {
      const char* yaml =
          "sharding_size: auto\nsub_modules_to_wrap: [\"vision_model.encoder.layers.{*}\", "
          "\"text_decoder.decoder.layers.{*}\", text_decoder.embedding]\n";
      models::fully_shard(*model_, world, sharding::parse_fsdp2_config(yaml, "parity.yaml"),
                          {.weights = {.load = [&](nn::Module& sharded) { models::load_weights(sharded, weights); }}});
    } else {
      nn::materialize(*model_);
      models::load_weights(*model_, weights);
    }
  }

  Findings all() {
    first_step();
    generation();
    curve();
    return found_;
  }

 private:
  // pixel_values of these pictures, one behind another.
  Tensor pixels(const Pictures& pictures) const {
    const std::vector<float> mean = processor_.at("image_mean"), std = processor_.at("image_std");
    std::vector<float> values;
    std::int64_t tiles = 0, side = 0;
    for (const std::size_t picture : pictures) {
      const io::StoredTensor& stored = expected_.at(fmt::format("tiles.{}", picture));
      side = stored.shape[3];
      tiles += stored.shape[0];
      const std::size_t plane = static_cast<std::size_t>(side * side);
      for (std::size_t i = 0; i < stored.bytes.size(); ++i) {
        const std::size_t channel = i / plane % 3;
        const auto byte = static_cast<float>(std::to_integer<int>(stored.bytes[i]));
        values.push_back((byte / 255 - mean[channel]) / std[channel]);
      }
    }
    return Tensor::from(values, {tiles, 3, side, side});
  }

  void compare(double& worst, const std::string& name, const std::vector<float>& made) {
    const io::StoredTensor& stored = expected_.at(name);
    std::vector<float> wanted(stored.bytes.size() / sizeof(float));
    std::memcpy(wanted.data(), stored.bytes.data(), stored.bytes.size());
    if (wanted.size() != made.size()) return Findings::add(worst, INFINITY);
    for (std::size_t i = 0; i < made.size(); ++i) Findings::add(worst, std::abs(wanted[i] - made[i]));
  }

  Tensor rows_of(const char* key, std::size_t step, std::size_t first, std::size_t count) const {
    Tokens values;
    for (std::size_t row = first; row < first + count; ++row) {
      const Tokens of_row = json_.at(key).at(step).at(row);
      values.insert(values.end(), of_row.begin(), of_row.end());
    }
    const auto rows = static_cast<std::int64_t>(count);
    return Tensor::from(values, {rows, std::ssize(values) / rows});
  }

  Pictures pictures_of(std::size_t step, std::size_t first, std::size_t count) const {
    Pictures all;
    for (std::size_t row = first; row < first + count; ++row) {
      const Pictures of_row = json_.at("pictures").at(step).at(row);
      all.insert(all.end(), of_row.begin(), of_row.end());
    }
    return all;
  }

  // Sharded modules are called whole: without the features alone.
  void first_step() {
    const autograd::NoGrad no_grad;
    const std::size_t rows = json_.at("input_ids").at(std::size_t{0}).size();
    if (world_.size() == 1) features();
    const Tensor ids = rows_of("input_ids", 0, 0, rows);
    const Tensor logits = (*model_)(ids, pixels(pictures_of(0, 0, rows)));
    const std::int64_t vocab = logits.shape()[2];
    const std::vector<float> all = logits.to_vector<float>();
    std::vector<float> fourth;
    for (std::int64_t i = 0; i < logits.numel() / vocab; ++i) {
      if (i % ids.shape()[1] % 4 == 0)
        fourth.insert(fourth.end(), all.begin() + i * vocab, all.begin() + (i + 1) * vocab);
    }
    compare(found_.logits, "logits.0", fourth);
  }

  void features() {
    nn::Module &tower = *model_->find("model.vision_tower"), &projector = *model_->find("model.multi_modal_projector");
    for (std::size_t picture = 0; expected_.find(fmt::format("tiles.{}", picture)) != nullptr; ++picture) {
      const Tensor pixel_values = pixels({picture});
      const std::int64_t side = pixel_values.shape()[2] / config_.vision.patch_size;
      Tensor made = tower(pixel_values).tensor();
      made = ops::reshape(ops::slice_sequence(made, 1, side * side), {made.shape()[0], side, side, made.shape()[2]});
      made = ops::pixel_shuffle(made, config_.downsample_factor);
      const Shape s = made.shape();
      made = projector(ops::reshape(made, {s[0], s[1] * s[2], s[3]}));
      compare(found_.features, fmt::format("features.{}", picture), made.to_vector<float>());
    }
  }

  void generation() {
    const CaseJson given = json_.at("generation");
    const Tokens prompt = given.at("prompt"), wanted = given.at("tokens");
    models::GenerationSession session(*model_, config_.text);
    for (const bool use_cache : {true, false}) {
      models::DecodingOptions options{.max_new_tokens = std::ssize(wanted), .use_cache = use_cache};
      options.inputs = {{"pixel_values", pixels(given.at("pictures"))}};
      Tokens made = session.generate({prompt}, options).front().tokens;
      made.erase(made.begin(), made.begin() + std::ssize(prompt));
      if (made != wanted) found_.wrong = fmt::format(", WRONG tokens {}", fmt::join(made, " "));
    }
  }

  void curve() {
    const CaseJson optimizer = json_.at("optimizer"), curve = json_.at("curve");
    if (!(optimizer.at("name") == "AdamW")) config_error("its optimizer is not AdamW");
    check_steps(curve);
    nn::AdamW adamw(nn::make_parameter_groups(*model_), {.lr = optimizer.at("lr"),
                                                         .beta1 = optimizer.at("betas").at(0),
                                                         .beta2 = optimizer.at("betas").at(1),
                                                         .eps = optimizer.at("eps"),
                                                         .weight_decay = optimizer.at("weight_decay")});
    for (std::size_t step = 0; step < curve.size(); ++step) {
      Findings::add(found_.loss, std::abs(train_step(step) - curve.at(step).at("loss").get<double>()));
      const double norm = sharding::clip_grad_norm(*model_, optimizer.at("clip_grad"));
      const double wanted = curve.at(step).at("grad_norm");
      Findings::add(found_.norm, std::abs(norm - wanted) / wanted);
      if (step == 0) {
        compare_norms(found_.gradient, "step1_grad_norm_by_param", [](const Tensor& t) { return t.grad(); });
      }
      adamw.step();
      adamw.zero_grad();
    }
    compare_norms(found_.weight, "final_weight_norm_by_param", [](const Tensor& t) { return t; });
  }

  // The loss over the batch's labels; with several ranks this one's row, weighed by its labels.
  double train_step(std::size_t step) {
    const bool whole = world_.size() == 1;
    const std::size_t all_rows = json_.at("input_ids").at(step).size(), rows = whole ? all_rows : 1;
    const std::size_t first = whole ? 0 : static_cast<std::size_t>(world_.rank()) % all_rows;
    const Tensor ids = rows_of("input_ids", step, first, rows), labels = rows_of("labels", step, first, rows);
    const Tensor targets = Tensor::host(labels.shape(), DType::kI32, "targets");
    const Tokens values = labels.to_vector<std::int32_t>();
    double scored = 0;
    for (std::int64_t i = 0; i < targets.numel(); ++i) {
      const bool last = i % ids.shape()[1] == ids.shape()[1] - 1;
      targets.data<std::int32_t>()[i] = last ? -100 : values[static_cast<std::size_t>(i) + 1];
      scored += targets.data<std::int32_t>()[i] == -100 ? 0 : 1;
    }
    double all = scored;
    if (!whole) world_.everyone()->all_reduce(comm::kHostLane, &all, 1, DType::kF64, comm::ReduceOp::avg(), "scored");
    const Tensor logits = (*model_)(ids, pixels(pictures_of(step, first, rows)));
    const Tensor loss = ops::scale(nn::functional::cross_entropy(logits, targets), scored / all);
    autograd::backward(loss);
    double mean = loss.item();
    if (!whole) world_.everyone()->all_reduce(comm::kHostLane, &mean, 1, DType::kF64, comm::ReduceOp::avg(), "loss");
    return mean;
  }

  template <class Of>
  void compare_norms(double& worst, const char* key, Of of) {
    const std::map<std::string, double> made = norms_of_parameters(*model_, of);
    double largest = 0;
    for (const auto& [path, value] : json_.at(key).items()) largest = std::max(largest, value.template get<double>());
    for (const auto& [path, value] : json_.at(key).items()) {
      const double wanted = value;
      if (wanted <= kSmallGradient * largest) continue;
      const auto found = made.find(path);
      Findings::add(worst, found == made.end() ? INFINITY : std::abs(found->second - wanted) / wanted);
    }
  }

  const CaseJson& json_;
  const CaseJson processor_;
  const models::InternVLConfig config_;
  comm::World& world_;
  const io::SafetensorsFile expected_;
  const std::shared_ptr<models::InternVL> model_;
  Findings found_;
};

struct Tolerance {
  double features, logits, loss, norm, weight;
  double gradient = 1e-3;  // of norms above kSmallGradient of the largest

  explicit Tolerance(const CaseJson& file)
      : features(file.at("features")),
        logits(file.at("logits")),
        loss(file.at("loss")),
        norm(file.at("grad_norm_relative")),
        weight(file.at("final_weight_norm_relative")) {
    if (!(file.at("tokens") == "equal") || !(file.at("step1_grad_norm_relative") == kSmallGradients)) {
      config_error("its tolerances of tokens and gradients are not known");
    }
  }

  bool hold(const Findings& found) const {
    return found.wrong.empty() && found.features <= features && found.logits <= logits && found.loss <= loss &&
           found.norm <= norm && found.gradient <= gradient && found.weight <= weight;
  }
};

}  // namespace

void run_internvl_case(const std::filesystem::path& folder, ParityReport& report) {
  const CaseJson json = read_case(folder / "case.json");
  const Tolerance tolerance(json.at("tolerance"));
  for (const int ranks : {1, 2, 4}) {
    const std::string name = fmt::format("{} on {} rank{}", folder.filename().string(), ranks, ranks == 1 ? "" : "s");
    const std::vector<Findings> of_ranks =
        of_each_rank(ranks, [&](RankContext&, comm::World& world) { return Run(folder, json, world).all(); });
    const Findings& found = of_ranks.front();
    const std::string detail =
        fmt::format("features {:.1e}, logits {:.1e}, loss {:.1e}, grad_norm {:.1e}, gradients {:.1e}, weights {:.1e}{}",
                    found.features, found.logits, found.loss, found.norm, found.gradient, found.weight, found.wrong);
    json.check_all_read({"pixel_values", "logits", "question", "smallest_gap_of_best_two_logits"});
    const auto agree = [&](const Findings& rank) { return tolerance.hold(rank); };
    std::ranges::all_of(of_ranks, agree) ? report.passed(name, detail) : report.failed(name, detail);
  }
}

}  // namespace loom::test
