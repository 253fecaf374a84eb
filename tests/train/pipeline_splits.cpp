#include "tests/train/pipeline_splits.h"

#include <functional>
#include <map>
#include <optional>

#include "engine/core/error.h"
#include "sharding/pipeline/split.h"
#include "tests/support/case_json.h"

namespace loom::test {
namespace {

using sharding::StageLayout;
using Stages = std::vector<StageLayout>;
using Numbers = std::vector<std::int64_t>;

// Top-level keys that say how the file was made.
const Commentary kSplitCommentary = {"made_by"};

std::optional<std::int64_t> number_in(const CaseJson& flags, const std::string& key) {
  if (!flags.contains(key)) return std::nullopt;
  return flags.at(key).get<std::int64_t>();
}

Stages megatron(const CaseJson& c) {
  const CaseJson flags = c.at("flags");
  return sharding::split_megatron(
      {.layers = c.at("layers"),
       .ranks = c.at("ranks"),
       .chunks = c.at("chunks").get<std::int64_t>(),
       .num_layers_per_virtual_pipeline_stage = number_in(flags, "num_layers_per_virtual_pipeline_stage"),
       .num_layers_in_first_pipeline_stage = number_in(flags, "num_layers_in_first_pipeline_stage"),
       .num_layers_in_last_pipeline_stage = number_in(flags, "num_layers_in_last_pipeline_stage"),
       .account_for_embedding_in_pipeline_split = flags.value("account_for_embedding_in_pipeline_split", false),
       .account_for_loss_in_pipeline_split = flags.value("account_for_loss_in_pipeline_split", false)});
}

// One chunk is what Megatron has where none is requested: it finds them from the string.
Stages megatron_layout(const CaseJson& c) {
  const std::int64_t chunks = c.at("chunks");
  return sharding::split_megatron_layout(
      {.layers = c.at("layers"),
       .ranks = c.at("ranks"),
       .chunks = chunks == 1 ? std::nullopt : std::optional(chunks),
       .mtp_layers = c.value("mtp_layers", std::int64_t{0}),
       .pipeline_model_parallel_layout = c.at("flags").at("pipeline_model_parallel_layout")});
}

Stages mindspeed_lists(const CaseJson& c) {
  const CaseJson flags = c.at("flags");
  const auto text = [&](const std::string& key) { return flags.value(key, std::string()); };
  const std::int64_t layers = c.at("layers");
  const Stages stages = sharding::split_mindspeed(
      {.layers = layers,
       .ranks = c.at("ranks"),
       .chunks = c.at("chunks").get<std::int64_t>(),
       .num_layer_list = text("num_layer_list"),
       .num_layers_per_virtual_pipeline_stage = number_in(flags, "num_layers_per_virtual_pipeline_stage"),
       .noop_layers = text("noop_layers"),
       .schedules_method = text("schedules_method")});
  std::int64_t noops = layers;
  for (const StageLayout& stage : stages) noops -= std::ssize(stage.layers);
  if (c.contains("noop") && !(c.at("noop") == noops)) {
    throw std::runtime_error(fmt::format("{} places have no layer, and {} were expected", noops, c.at("noop").dump()));
  }
  return stages;
}

Stages mindspeed_unaligned(const CaseJson& c) {
  return sharding::split_mindspeed_unaligned(
      {.layers = c.at("layers"),
       .ranks = c.at("ranks"),
       .chunks = c.at("chunks"),
       .pipeline_num_transformer_layers = c.at("flags").at("pipeline_num_transformer_layers")});
}

Stages torchtitan(const CaseJson& c) {
  return sharding::split_torchtitan({.layers = c.at("layers"),
                                     .ranks = c.at("ranks"),
                                     .chunks = c.at("chunks"),
                                     .first_stage_less_layers = c.at("flags").at("first_stage_less_layers"),
                                     .last_stage_less_layers = c.at("flags").at("last_stage_less_layers")});
}

using Rule = std::function<Stages(const CaseJson&)>;
const std::map<std::string, Rule> kRules = {{"megatron", megatron},
                                            {"megatron_layout", megatron_layout},
                                            {"mindspeed_lists", mindspeed_lists},
                                            {"mindspeed_unaligned", mindspeed_unaligned},
                                            {"torchtitan", torchtitan}};

// The first difference; empty: none. Keys that the rule does not place are absent.
std::string difference(const StageLayout& stage, const CaseJson& expected) {
  const auto differs = [&](const std::string& key, const auto& actual) {
    if (!expected.contains(key) || expected.at(key) == actual) return std::string();
    return fmt::format("{} of stage {} is {}, and {} was expected", key, stage.stage, nlohmann::json(actual).dump(),
                       expected.at(key).dump());
  };
  if (!expected.contains("layers")) return fmt::format("the file has no layers of stage {}", stage.stage);
  for (const std::string& text :
       {differs("stage", stage.stage), differs("rank", stage.rank), differs("chunk", stage.chunk),
        differs("layers", stage.layers), differs("embedding", stage.embedding), differs("loss", stage.loss),
        differs("mtp", stage.mtp)}) {
    if (!text.empty()) return text;
  }
  return "";
}

std::string difference(const Stages& stages, const CaseJson& c) {
  const CaseJson expected = c.at("stages");
  const std::int64_t wanted = c.at("ranks").get<std::int64_t>() * c.at("chunks").get<std::int64_t>();
  if (std::cmp_not_equal(stages.size(), expected.size()) || std::ssize(stages) != wanted) {
    return fmt::format("{} stages, and {} on ranks times chunks {} were expected", stages.size(), expected.size(),
                       wanted);
  }
  std::string found;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (const std::string text = difference(stages[i], expected.at(i)); found.empty()) found = text;
  }
  return found;
}

void run_case(const Rule& rule, const CaseJson& c, const std::string& name, ParityReport& report) {
  const bool is_refused = c.contains("refused");
  try {
    const Stages stages = rule(c);
    if (is_refused) {
      return report.failed(name, fmt::format("the original refuses it: {}", c.at("refused").get<std::string>()));
    }
    if (const std::string text = difference(stages, c); !text.empty()) return report.failed(name, text);
    if (const std::string unread = c.unread(); !unread.empty()) return report.failed(name, unread);
    report.passed(name, fmt::format("{} stages", stages.size()));
  } catch (const ConfigError& error) {
    if (!is_refused) return report.failed(name, error.what());
    c.at("refused").get<std::string>();
    if (const std::string unread = c.unread(); !unread.empty()) return report.failed(name, unread);
    report.passed(name, fmt::format("refused: {}", error.what()));
  } catch (const std::exception& error) {
    report.failed(name, error.what());
  }
}

void run_file(const std::filesystem::path& path, ParityReport& report) {
  const std::string stem = path.stem().string();
  const auto rule = kRules.find(stem);
  if (rule == kRules.end()) return report.failed(stem, "this program has no rule of that name");
  const CaseJson file = read_case(path);
  for (std::size_t i = 0; i < file.at("cases").size(); ++i) {
    const CaseJson c = file.at("cases").at(i);
    const std::string name = fmt::format("{} {}: {} layers, {} ranks, {} chunks, {}", stem, i, c.at("layers").dump(),
                                         c.at("ranks").dump(), c.at("chunks").dump(), c.at("flags").dump());
    run_case(rule->second, c, name, report);
  }
  Commentary apart = kSplitCommentary;
  apart.push_back("cases");  // each case tells what it left out
  if (const std::string unread = file.unread(apart); !unread.empty()) report.failed(stem, unread);
}

}  // namespace

void run_splits(const std::filesystem::path& folder, ParityReport& report) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const std::filesystem::path& file : files) {
    try {
      run_file(file, report);
    } catch (const std::exception& error) {
      report.failed(file.filename().string(), error.what());
    }
  }
}

}  // namespace loom::test
