// vision_parity DIR
//
// Qwen2-VL, Qwen2.5-VL, Qwen3-VL and InternVL (internvl_case.h) as in transformers: tower, positions, logits,
// generation with pictures, and curves.
//
// Every folder in DIR with a config.json and a case.json is a case (tests/reference/README.md). Its model is built and
// loaded on 1, 2 and 4 ranks, sharded by fully_shard where there are several. Compared are
//   tower.N        a picture alone through tower and merger; Qwen3-VL's deepstack
//   steps 0, 1     features of the pictures, positions and deltas, logits where attention_mask is 1
//   video          positions and logits by the rule of the papers; that of transformers 5.23 is not ours
//   generation     greedy tokens, with a cache and without
//   curve          losses, gradient norms, the first step's norm of each gradient, the last norm of each weight
//
// A batch has two rows: rank r of 2 has row r, and of 4 ranks two have the same row.
#include <cmath>
#include <cstring>

#include "engine/core/error.h"
#include "engine/device/device.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/functional.h"
#include "engine/nn/init.h"
#include "engine/nn/optim/adamw.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "models/generation/session.h"
#include "models/hf/hf_folder.h"
#include "models/internvl/internvl_config.h"
#include "models/qwen_vl/mrope_positions.h"
#include "models/qwen_vl/qwen_vl.h"
#include "models/qwen_vl/vision_grid.h"
#include "sharding/fsdp/fsdp_state.h"
#include "sharding/fully_shard.h"
#include "tests/support/case_json.h"
#include "tests/support/parity_report.h"
#include "tests/support/world.h"
#include "tests/train/internvl_case.h"
#include "tests/train/staged_run.h"

namespace loom::vision_parity {
namespace {

using models::VisionGrid;
using test::CaseJson;
using Tokens = std::vector<std::int32_t>;

template <class T>
std::vector<T> values_of(const io::StoredTensor& stored) {
  std::vector<T> values(stored.bytes.size() / sizeof(T));
  std::memcpy(values.data(), stored.bytes.data(), stored.bytes.size());
  return values;
}

// The worst difference of something.
struct Worst {
  double value = 0;
  std::string where = "-";
  void add(double difference, const std::string& place) {
    if (difference <= value) return;  // NaN counts as worse
    value = difference;
    where = place;
  }
};

struct Tolerance {
  double features, loss, norm, weight;
  double logits = 5e-5;
  double gradient = 1e-3;  // of norms above kSmallGradient of the largest

  explicit Tolerance(const CaseJson& file)
      : features(file.at("image_features")),
        loss(file.at("loss")),
        norm(file.at("grad_norm_relative")),
        weight(file.at("final_weight_norm_relative")) {
    for (const char* key : {"position_ids", "rope_delta", "tokens"}) expect(file, key, "equal");
    expect(file, "logits", "5e-5, unmasked positions");
    expect(file, "step1_grad_norm_relative", "1e-3 where the norm exceeds 1e-6 of the largest");
  }

 private:
  static void expect(const CaseJson& file, const char* key, const char* text) {
    if (!(file.at(key) == text)) config_error("the tolerance of {} is not '{}'", key, text);
  }
};
constexpr double kSmallGradient = 1e-6;

struct Findings {
  Worst features, logits, loss, norm, gradient, weight;
  std::string wrong;  // positions and tokens
  std::size_t texts = 0;

  bool agree(const Tolerance& tolerance) const {
    return wrong.empty() && texts == 2 && features.value <= tolerance.features && logits.value <= tolerance.logits &&
           loss.value <= tolerance.loss && norm.value <= tolerance.norm && gradient.value <= tolerance.gradient &&
           weight.value <= tolerance.weight;
  }
};

// The pictures of a reference: their patches and grids.
class Pictures {
 public:
  explicit Pictures(const std::filesystem::path& folder) : file_(folder / "pixel_values.safetensors") {
    const CaseJson images = test::read_case(folder / "case.json").at("images");
    for (const CaseJson& image : images.elements()) {
      const std::vector<std::int64_t> grid = image.at("grid_thw");
      grids_.push_back({grid.at(0), grid.at(1), grid.at(2)});
    }
  }

  std::size_t size() const { return grids_.size(); }
  // pixel_values and image_grid_thw of these, in order.
  nn::ValueDict inputs(const std::vector<std::size_t>& numbers) const {
    std::vector<float> patches;
    std::vector<VisionGrid> grids;
    std::int64_t width = 0;
    for (const std::size_t number : numbers) {
      const io::StoredTensor& stored = file_.at(fmt::format("pixel_values.{}", number));
      const std::vector<float> values = values_of<float>(stored);
      patches.insert(patches.end(), values.begin(), values.end());
      grids.push_back(grids_.at(number));
      width = stored.shape[1];
    }
    return {{"pixel_values", Tensor::from(patches, {std::ssize(patches) / width, width})},
            {"image_grid_thw", models::to_value(grids)}};
  }

 private:
  const io::SafetensorsFile file_;
  std::vector<VisionGrid> grids_;
};

struct Case {
  std::filesystem::path folder;
  CaseJson json;
  models::QwenVlConfig config;
  const Pictures& pictures;

  // Of one row, or of all.
  std::vector<std::size_t> pictures_of(std::size_t step, std::optional<std::size_t> row) const {
    std::vector<std::size_t> all;
    const CaseJson rows = json.at("pictures").at(step);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::vector<std::size_t> of_row = rows.at(r);
      if (!row || *row == r) all.insert(all.end(), of_row.begin(), of_row.end());
    }
    return all;
  }
};

class Run {
 public:
  Run(const Case& of, comm::World& world)
      : case_(of),
        world_(world),
        expected_(of.folder / "expected.safetensors"),
        batches_(of.folder / "batches.safetensors") {
    model_ = models::build_qwen_vl(of.config);
    const io::HfWeights weights(of.folder);
    if (world.size() > 1) {
      std::string yaml =
          "sharding_size: auto\nsub_modules_to_wrap: [\"visual.blocks.{*}\", visual.merger, "
          "\"text_decoder.decoder.layers.{*}\", text_decoder.embedding, lm_head]\n";
      models::fully_shard(*model_, world, sharding::parse_fsdp2_config(yaml, "parity.yaml"),
                          {.weights = {.load = [&](nn::Module& sharded) { models::load_weights(sharded, weights); }}});
    } else {
      nn::materialize(*model_);
      models::load_weights(*model_, weights);
    }
  }

  Findings all() {
    {
      const autograd::NoGrad no_grad;
      if (world_.size() == 1) towers();
      for (const std::size_t step : {std::size_t{0}, std::size_t{1}}) first_steps(step);
      if (case_.json.contains("video")) video();
    }
    generation();
    curve();
    return found_;
  }

 private:
  void compare(Worst& worst, const std::string& name, const std::vector<float>& actual) {
    const std::vector<float> wanted = values_of<float>(expected_.at(name));
    if (wanted.size() != actual.size()) return worst.add(INFINITY, name + " has another size");
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      worst.add(std::abs(static_cast<double>(wanted[i]) - static_cast<double>(actual[i])), name);
    }
  }

  void wrong(const std::string& what) {
    if (found_.wrong.empty()) found_.wrong = ", WRONG " + what;
  }

  nn::Value tower(const nn::ValueDict& inputs) {
    nn::Module& visual = *model_->find("model.visual");
    return visual(inputs[0].second, inputs[1].second);
  }
  static std::vector<float> features_of(const nn::Value& of_tower) {
    return (of_tower.is_tensor() ? of_tower : of_tower.list().front()).tensor().to_vector<float>();
  }

  void towers() {
    for (std::size_t i = 0; i < case_.pictures.size(); ++i) {
      const std::string name = fmt::format("tower.{}", i);
      const nn::Value made = tower(case_.pictures.inputs({i}));
      compare(found_.features, name, features_of(made));
      for (std::size_t deep = 1; !made.is_tensor() && deep < made.list().size(); ++deep) {
        compare(found_.features, fmt::format("{}.deepstack.{}", name, deep - 1),
                made.list()[deep].tensor().to_vector<float>());
      }
    }
    for (const std::size_t step : {std::size_t{0}, std::size_t{1}}) {
      compare(found_.features, fmt::format("image_features.{}", step),
              features_of(tower(case_.pictures.inputs(case_.pictures_of(step, {})))));
    }
  }

  Tensor rows_of(const char* name, std::size_t step, std::int64_t first, std::int64_t count) const {
    const io::StoredTensor& stored = batches_.at(name);
    const std::int64_t rows = stored.shape[1], length = stored.shape[2];
    const auto* values = reinterpret_cast<const std::int32_t*>(stored.bytes.data());
    return Tensor::from(std::span(values + (static_cast<std::int64_t>(step) * rows + first) * length,
                                  static_cast<std::size_t>(count * length)),
                        {count, length});
  }

  void check_positions(const std::string& suffix, const models::MropePositions& made, const Tokens& mask) {
    const Tokens wanted =
        values_of<std::int32_t>(expected_.at(suffix.empty() ? "video.position_ids" : "position_ids" + suffix));
    const Tokens actual = made.ids.to_vector<std::int32_t>();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (mask[i % mask.size()] == 1 && wanted[i] != actual.at(i)) wrong("position " + std::to_string(i) + suffix);
    }
    const Tokens deltas =
        values_of<std::int32_t>(expected_.at(suffix.empty() ? "video.rope_delta" : "rope_delta" + suffix));
    for (std::size_t row = 0; row < deltas.size(); ++row) {
      if (made.deltas.at(row) != deltas[row]) wrong(fmt::format("delta {}{}: {}", row, suffix, made.deltas[row]));
    }
  }

  void first_steps(std::size_t step) {
    const std::string suffix = fmt::format(".{}", step);
    const std::int64_t rows = batches_.at("input_ids").shape[1];
    const Tensor ids = rows_of("input_ids", step, 0, rows), mask = rows_of("attention_mask", step, 0, rows);
    nn::ValueDict inputs = case_.pictures.inputs(case_.pictures_of(step, {}));
    const Tokens masked = mask.to_vector<std::int32_t>();
    check_positions(suffix, models::mrope_positions(ids, mask, {models::grids_of(inputs[1].second), {}}, case_.config),
                    masked);
    inputs.emplace_back("attention_mask", mask);
    const std::vector<float> logits = model_->call({{ids}, inputs}).tensor().to_vector<float>();
    const std::vector<float> wanted = values_of<float>(expected_.at("logits" + suffix));
    const std::size_t vocab = wanted.size() / masked.size();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (masked[i / vocab] == 0) continue;
      found_.logits.add(std::abs(static_cast<double>(wanted[i]) - static_cast<double>(logits.at(i))),
                        "logits" + suffix);
    }
  }

  void video() {
    const Tokens ids = values_of<std::int32_t>(expected_.at("video.input_ids"));
    const Tensor input_ids = Tensor::from(ids, {1, std::ssize(ids)});
    const Tokens grid = values_of<std::int32_t>(expected_.at("video.grid_thw"));
    const Tensor grids = Tensor::from(grid, {std::ssize(grid) / 3, 3});
    models::VisionInputs videos{{}, models::grids_of(grids)};
    nn::ValueDict inputs{{"video_grid_thw", grids}};
    if (const CaseJson seconds = case_.json.at("video_second_per_grid"); !seconds.is_null()) {
      videos.second_per_grid = seconds.get<std::vector<float>>();
      inputs.emplace_back("second_per_grid_ts",
                          Tensor::from(videos.second_per_grid, {std::ssize(videos.second_per_grid)}));
    }
    check_positions("", models::mrope_positions(input_ids, {}, videos, case_.config), Tokens(ids.size(), 1));
    const io::StoredTensor& patches = expected_.at("video.patches");
    inputs.emplace_back("pixel_values_videos", Tensor::from(values_of<float>(patches), patches.shape));
    compare(found_.logits, "video.logits", model_->call({{input_ids}, inputs}).tensor().to_vector<float>());
  }

  void generation() {
    const CaseJson given = case_.json.at("generation");
    const Tokens prompt = given.at("prompt"), wanted = given.at("tokens");
    models::GenerationSession session(*model_, case_.config.text);
    for (const bool use_cache : {true, false}) {
      models::DecodingOptions options{.max_new_tokens = std::ssize(wanted), .use_cache = use_cache};
      options.inputs = case_.pictures.inputs(given.at("pictures").get<std::vector<std::size_t>>());
      Tokens made = session.generate({prompt}, options).front().tokens;
      made.erase(made.begin(), made.begin() + std::ssize(prompt));
      if (made != wanted)
        wrong(fmt::format("tokens {}: {}", use_cache ? "with a cache" : "without a cache", fmt::join(made, " ")));
      found_.texts += made == wanted ? 1 : 0;
    }
  }

  void curve() {
    const CaseJson optimizer = case_.json.at("optimizer"), curve = case_.json.at("curve");
    if (!(optimizer.at("name") == "AdamW")) config_error("its optimizer is not AdamW");
    if (!case_.json.at("freeze").is_null()) config_error("its frozen modules are not read");
    test::check_steps(curve);
    nn::AdamW adamw(nn::make_parameter_groups(*model_), {.lr = optimizer.at("lr"),
                                                         .beta1 = optimizer.at("betas").at(0),
                                                         .beta2 = optimizer.at("betas").at(1),
                                                         .eps = optimizer.at("eps"),
                                                         .weight_decay = optimizer.at("weight_decay")});
    for (std::size_t step = 0; step < curve.size(); ++step) {
      const double loss = train_step(step);
      const double norm = sharding::clip_grad_norm(*model_, optimizer.at("clip_grad"));
      const std::string where = fmt::format("step {}", step + 1);
      found_.loss.add(std::abs(loss - curve.at(step).at("loss").get<double>()), where);
      const double wanted = curve.at(step).at("grad_norm");
      found_.norm.add(std::abs(norm - wanted) / wanted, where);
      if (step == 0)
        compare_norms(found_.gradient, "step1_grad_norm_by_param", [](const Tensor& t) { return t.grad(); });
      adamw.step();
      adamw.zero_grad();
    }
    compare_norms(found_.weight, "final_weight_norm_by_param", [](const Tensor& t) { return t; });
  }

  // The loss over the batch's labels; with several ranks this one's row, weighed by its labels.
  double train_step(std::size_t step) {
    const std::int64_t all_rows = batches_.at("input_ids").shape[1], length = batches_.at("input_ids").shape[2];
    const bool whole = world_.size() == 1;
    const std::int64_t first = whole ? 0 : world_.rank() % all_rows, rows = whole ? all_rows : 1;
    const Tokens labels = rows_of("labels", step, first, rows).to_vector<std::int32_t>();
    const Tensor targets = Tensor::host({rows, length}, DType::kI32, "targets");
    double scored = 0;
    for (std::int64_t i = 0; i < rows * length; ++i) {
      const bool last = i % length == length - 1;
      targets.data<std::int32_t>()[i] = last ? -100 : labels[static_cast<std::size_t>(i) + 1];
      scored += targets.data<std::int32_t>()[i] == -100 ? 0 : 1;
    }
    double all = scored;
    if (!whole) world_.everyone()->all_reduce(comm::kHostLane, &all, 1, DType::kF64, comm::ReduceOp::avg(), "scored");
    nn::ValueDict inputs = case_.pictures.inputs(
        case_.pictures_of(step, whole ? std::optional<std::size_t>() : static_cast<std::size_t>(first)));
    inputs.emplace_back("attention_mask", rows_of("attention_mask", step, first, rows));
    const Tensor logits = model_->call({{rows_of("input_ids", step, first, rows)}, inputs});
    const Tensor loss = ops::scale(nn::functional::cross_entropy(logits, targets), scored / all);
    autograd::backward(loss);
    double mean = loss.item();
    if (!whole) world_.everyone()->all_reduce(comm::kHostLane, &mean, 1, DType::kF64, comm::ReduceOp::avg(), "loss");
    return mean;
  }

  template <class Of>
  void compare_norms(Worst& worst, const char* key, Of of) {
    const std::map<std::string, double> made = test::norms_of_parameters(*model_, of);
    double largest = 0;
    for (const auto& [path, value] : case_.json.at(key).items()) {
      const double norm = value;
      largest = std::max(largest, norm);
    }
    for (const auto& [path, value] : case_.json.at(key).items()) {
      const double wanted = value;
      const auto found = made.find(path);
      if (wanted <= kSmallGradient * largest) continue;
      worst.add(found == made.end() ? INFINITY : std::abs(found->second - wanted) / wanted, path);
    }
  }

  const Case& case_;
  comm::World& world_;
  const io::SafetensorsFile expected_, batches_;
  std::shared_ptr<models::QwenVl> model_;
  Findings found_;
};

void run_case(const Case& of, test::ParityReport& report) {
  const Tolerance tolerance(of.json.at("tolerance"));
  for (const int ranks : {1, 2, 4}) {
    const std::string name =
        fmt::format("{} on {} rank{}", of.folder.filename().string(), ranks, ranks == 1 ? "" : "s");
    try {
      const std::vector<Findings> of_ranks =
          test::of_each_rank(ranks, [&](RankContext&, comm::World& world) { return Run(of, world).all(); });
      const Findings& found = of_ranks.front();
      const std::string detail = fmt::format(
          "features {:.1e}, logits {:.1e} ({}), loss {:.1e}, grad_norm {:.1e}, gradients {:.1e} ({}), weights {:.1e}{}",
          found.features.value, found.logits.value, found.logits.where, found.loss.value, found.norm.value,
          found.gradient.value, found.gradient.where, found.weight.value, found.wrong);
      of.json.check_all_read({"names_in_file", "pictures", "pixel_values", "video", "loss", "equal_without_cache",
                              "smallest_gap_of_best_two_logits"});
      const auto agrees = [&](const Findings& rank) { return rank.agree(tolerance); };
      std::ranges::all_of(of_ranks, agrees) ? report.passed(name, detail) : report.failed(name, detail);
    } catch (const std::exception& error) {
      report.failed(name, error.what());
    }
  }
}

int run(const std::filesystem::path& folder) {
  test::ParityReport report;
  const Pictures pictures(folder / "images");
  for (const auto& case_folder : test::case_folders(folder, "config.json")) {
    try {
      if (models::is_internvl(case_folder)) {
        test::run_internvl_case(case_folder, report);
        continue;
      }
      run_case(
          {case_folder, test::read_case(case_folder / "case.json"), models::load_qwen_vl_config(case_folder), pictures},
          report);
    } catch (const std::exception& error) {
      report.failed(case_folder.filename().string(), error.what());
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace loom::vision_parity

int main_of_vision_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "vision_parity", loom::vision_parity::run);
}
