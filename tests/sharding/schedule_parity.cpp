// schedule_parity DIR: the same order of events as PyTorch FSDP2.
//
// Every DIR/*.json is a case: the module tree of tests/support/schedule_models.h, sharded by the case's `yaml` through
// the YAML route, and trained for a few steps. What rank 0's host issued in the last one must be `last_iteration`,
// token for token; the contract of the tokens is in tests/reference/README.md. Each case runs in both gather layouts,
// with the executor that belongs to each. Ranks are threads. Cases with a `base` are of experts that ranks share
// (expert_schedule.h).
#include <algorithm>
#include <fmt/ranges.h>
#include <optional>
#include <sstream>

#include "engine/core/error.h"
#include "engine/device/device.h"
#include "engine/device/recorder.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/optim/adamw.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/fully_shard.h"
#include "sharding/parallelize.h"
#include "tests/sharding/expert_schedule.h"
#include "tests/support/case_json.h"
#include "tests/support/parity_report.h"
#include "tests/support/schedule_models.h"
#include "tests/support/schedule_tokens.h"

namespace loom::schedule_parity {
namespace {

using nlohmann::json;
using Tokens = std::vector<std::string>;

struct Way {
  const char* name;
  sharding::GatherLayout layout;
  device::ExecutorKind executor;
};
constexpr Way kWays[] = {{"buffered", sharding::GatherLayout::kBuffered, device::ExecutorKind::kInline},
                         {"fast", sharding::GatherLayout::kFast, device::ExecutorKind::kThreaded}};

struct Case {
  std::string name;
  std::string model;
  int layers = 4;
  int world = 2;
  int iterations = 2;
  int accum = 1;
  std::vector<std::string> frozen;
  std::string yaml;
  Tokens expected;
};

// --- Reading a case

// The case's `yaml` as a user writes it, with what an absent key means there.
std::string yaml_text(json keys) {
  const json absent = {{"sharding_size", "auto"},
                       {"reshard_after_forward", true},
                       {"num_to_forward_prefetch", 0},
                       {"num_to_backward_prefetch", 0},
                       {"use_reentrant", true}};
  for (const auto& [key, value] : absent.items()) {
    if (!keys.contains(key)) keys[key] = value;
  }
  if (keys.value("param_dtype", "") == "bf16" && !keys.contains("reduce_dtype")) keys["reduce_dtype"] = "fp32";
  std::string text;
  for (const auto& [key, value] : keys.items()) {
    text += fmt::format("{}: {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return text;
}

// Leaves out the ends of forwards after a micro-batch's first B: a recompute that stops early has none.
Tokens comparable(const Tokens& tokens) {
  Tokens kept;
  bool in_backward = false;
  for (const std::string& token : tokens) {
    if (token == "B") in_backward = true;
    if (token == "F:") in_backward = false;  // the root's forward: the next micro-batch
    if (!in_backward || !token.starts_with("f:")) kept.push_back(token);
  }
  return kept;
}

Tokens split(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

Case read_case(const std::filesystem::path& file) {
  const test::CaseJson content = test::read_case(file);
  const test::CaseJson scenario = content.at("scenario");
  Case c;
  c.name = file.stem().string();
  c.model = scenario.at("model").get<std::string>();
  c.layers = scenario.value("n", c.layers);
  c.world = scenario.value("world", content.value("world", c.world));
  if (content.value("world", c.world) != c.world) config_error("world is not the {} of its scenario", c.world);
  c.iterations = scenario.value("iters", c.iterations);
  c.accum = scenario.value("accum", c.accum);
  c.frozen = scenario.value("frozen", c.frozen);
  c.yaml = yaml_text(scenario.at("yaml").raw());
  c.expected = comparable(split(content.at("last_iteration")));
  content.check_all_read({"first_iteration"});  // the last one is compared
  return c;
}

std::shared_ptr<test::RecordedModule> build(const Case& c) {
  if (c.model == "toy") return std::make_shared<test::Toy>(c.layers, false);
  if (c.model == "toy_tied") return std::make_shared<test::Toy>(c.layers, true);
  if (c.model == "two_tower") return std::make_shared<test::TwoTower>();
  config_error("the module tree '{}' is not one this program has; use toy, toy_tied or two_tower", c.model);
}

// Why this version of the engine cannot run the case, or nothing.
std::optional<std::string> not_built(const Case& c) {
  const sharding::Fsdp2Config config = sharding::parse_fsdp2_config(c.yaml, c.name + ".yaml");
  try {
  } catch (const ConfigError& error) {
    return error.what();
  }
  return std::nullopt;
}

// --- Running it

// An `.up` or `.down` is recorded only where it is itself recomputed.
void record_forwards(nn::Module& model, const sharding::Fsdp2Config& config, int world_size) {
  const auto recomputed =
      sharding::resolve_fsdp2(model, config, world_size, sharding::GatherLayout::kBuffered).recomputed;
  for (auto& [path, module] : model.named_modules()) {
    auto* recorded = dynamic_cast<test::RecordedModule*>(module);
    if (recorded == nullptr) continue;
    const bool inner = path.ends_with(".up") || path.ends_with(".down");
    const bool itself = std::ranges::find(recomputed, path, &sharding::RecomputedModule::path) != recomputed.end();
    if (!inner || itself) recorded->record_as(path);
  }
}

void freeze(nn::Module& model, const std::vector<std::string>& prefixes) {
  for (auto& [path, parameter] : model.named_parameters()) {
    for (const std::string& prefix : prefixes) {
      if (path.starts_with(prefix)) parameter.set_requires_grad(false);
    }
  }
}

void mark(device::MarkKind kind) { device::Device::current().log().add_mark({.kind = kind}); }

// Numbers below `limit`; their values do not matter to the order of events.
Tensor some_ids(const Shape& shape, std::int64_t limit) {
  const Tensor ids = Tensor::host(shape, DType::kI32, "ids");
  for (std::int64_t i = 0; i < ids.numel(); ++i) ids.data<std::int32_t>()[i] = static_cast<std::int32_t>(7 * i % limit);
  return ids;
}

void train_micro_batch(nn::Module& model, const Case& c) {
  const Tensor ids = some_ids({2, 6}, test::kToyVocab);
  const Tensor output = c.model == "two_tower"
                            ? model(ids, Tensor::full({2, 3, test::kPatchDim}, DType::kF32, 0.5)).tensor()
                            : model(ids).tensor();
  const Tensor targets = some_ids({output.shape()[0], output.shape()[1]}, test::kToyVocab);
  const Tensor loss = ops::cross_entropy(ops::cast(output, DType::kF32), targets);
  mark(test::kBackwardMark);
  autograd::backward(loss);
}

Tokens run_rank(const Case& c, const Way& way, RankContext& context, comm::World& world) {
  device::DeviceOptions options;
  options.executor = way.executor;
  device::Device& device = device::Device::install(context, options);
  const std::shared_ptr<test::RecordedModule> model = build(c);
  const sharding::Fsdp2Config config = sharding::parse_fsdp2_config(c.yaml, c.name + ".yaml");
  record_forwards(*model, config, c.world);
  freeze(*model, c.frozen);
  models::fully_shard(*model, world, config, {.layout = way.layout});
  nn::AdamW optimizer(model->parameters(), {});
  device::Recorder recorder(device);
  for (int i = 0; i < c.iterations; ++i) {
    recorder.clear();
    if (config.pregather) sharding::pregather(*model);
    for (int a = 0; a < c.accum; ++a) {
      if (c.accum > 1) sharding::set_requires_gradient_sync(*model, a == c.accum - 1);
      train_micro_batch(*model, c);
    }
    mark(test::kOptimizerMark);
    optimizer.step();
    optimizer.zero_grad();
  }
  return test::schedule_tokens(recorder.recording());
}

// --- Comparing

// "the same N events", or where the two part.
std::pair<bool, std::string> compare(const Tokens& expected, const Tokens& actual) {
  const auto [e, a] = std::ranges::mismatch(expected, actual);
  if (e == expected.end() && a == actual.end()) return {true, fmt::format("the same {} events", expected.size())};
  const auto at = e - expected.begin();
  const auto show = [at](const Tokens& tokens) {
    const auto from = std::min<std::ptrdiff_t>(at, std::ssize(tokens));
    const auto to = std::min<std::ptrdiff_t>(at + 6, std::ssize(tokens));
    return from == to ? std::string("nothing more")
                      : fmt::format("{}", fmt::join(tokens.begin() + from, tokens.begin() + to, " "));
  };
  const auto before = std::max<std::ptrdiff_t>(0, at - 3);
  return {false,
          fmt::format("event {} of {}: after '{}' expected '{}', got '{}'", at + 1, expected.size(),
                      fmt::join(expected.begin() + before, expected.begin() + at, " "), show(expected), show(actual))};
}

// Rank 0's tokens of a case in both ways against the expected ones.
template <class RunRank>
void compare_ways(const std::string& name, int ranks, const Tokens& expected, test::ParityReport& report,
                  const RunRank& run_rank) {
  bool agrees = true;
  std::string detail;
  for (const Way& way : kWays) {
    Tokens tokens;
    launch::run_ranks(ranks, {std::chrono::minutes(1)}, [&](RankContext& context, comm::World& world) {
      Tokens own = run_rank(way, context, world);
      if (context.rank() == 0) tokens = std::move(own);
    });
    const auto [same, text] = compare(expected, comparable(tokens));
    agrees = agrees && same;
    detail += fmt::format("{}{}: {}", detail.empty() ? "" : "; ", way.name, text);
  }
  agrees ? report.passed(name, detail) : report.failed(name, detail);
}

void run_case(const Case& c, test::ParityReport& report) {
  if (const auto reason = not_built(c)) {
    report.skipped(c.name, *reason);
    return;
  }
  compare_ways(c.name, c.world, c.expected, report, [&](const Way& way, RankContext& context, comm::World& world) {
    return run_rank(c, way, context, world);
  });
}

void run_experts(const std::string& name, const test::ExpertScheduleCase& c, test::ParityReport& report) {
  compare_ways(name, c.world, comparable(c.expected), report,
               [&](const Way& way, RankContext& context, comm::World& world) {
                 device::DeviceOptions options;
                 options.executor = way.executor;
                 device::Device::install(context, options);
                 return test::expert_schedule(c, way.layout, world);
               });
}

int run(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  test::ParityReport report;
  for (const auto& file : files) {
    try {
      const test::CaseJson content = test::read_case(file);
      if (content.contains("base")) {
        run_experts(file.stem().string(), test::read_expert_schedule(folder, content), report);
      } else {
        run_case(read_case(file), report);
      }
    } catch (const std::exception& error) {
      report.failed(file.stem().string(), error.what());
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace loom::schedule_parity

int main_of_schedule_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "schedule_parity", loom::schedule_parity::run);
}
