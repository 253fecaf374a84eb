#include "engine/cli/words/mm_files.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/cli/words/mm_tool.h"
#include "engine/config/document.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/job/key.h"
#include "engine/job/rules.h"
#include "models/hub/config_reader.h"
#include "models/mm_model/mm_model.h"

namespace loom::cli {
namespace {

// A key of a file that has a flag's meaning.
struct FileKey {
  std::string_view flag;
  std::string where;  // the file
  std::string path;
  job::Texts words;  // behind the flag; of a toggle "true" or "false"
  bool sets = false;
};

job::Value value_of(const job::Key& key, const FileKey& file) {
  if (key.kind == job::Kind::kToggle) return job::Value(file.words.front() == "true");
  try {
    return job::read_value(key, file.words);
  } catch (const ConfigError& error) {
    std::string message = error.what();
    if (message.starts_with(key.name())) message = message.substr(key.name().size());
    config_error("{}: {}{}", file.where, file.path, message);
  }
}

// Sets the flag's value where the flag is not given, and compares the two where it is.
void apply(const Command& app, const FileKey& file, job::Job& job) {
  if (!app.has(std::string(file.flag))) return;  // a plan writes no profile
  const job::Key& key = *job::find_key(file.flag);
  const job::Value value = value_of(key, file);
  if (!given(app, std::string(file.flag))) {
    if (file.sets) key.set(job, value);
    return;
  }
  const job::Value written = key.get(job);
  if (written == value) return;
  const std::string words = fmt::format("{}", fmt::join(job::words_of(key, written), " "));
  config_error("{}: {} is {}, and {} is {} on the command line; give both one value, or remove one of them", file.where,
               file.path, shown_text(fmt::format("{}", fmt::join(file.words, " "))), file.flag,
               words.empty() ? "given" : shown_text(words));
}

void settle_weights(const Command& app, const models::MmModel& model, job::Job& job) {
  if (!model.init_from_hf_path) return;
  apply(app, {"--init-from-hf-path", model.where, "init_from_hf_path", {model.init_from_hf_path->string()}, true}, job);
}

// The keys that --recompute-granularity full needs beside it.
void check_recompute(const models::MmModel& model, const models::LayerRecompute& layers) {
  const auto is_there = [&](std::string_view flag) {
    return std::ranges::any_of(model.flags, [&](const models::MmFlag& key) { return key.flag == flag; });
  };
  if (!is_there("--recompute-granularity") || layers.granularity != models::RecomputeGranularity::kFull) return;
  if (layers.method != models::RecomputeMethod::kNone && layers.num_layers > 0) return;
  config_error(
      "{}: text_decoder.recompute_granularity is full, and recompute_method or recompute_num_layers is not given; write "
      "uniform or block, and a number of layers",
      model.where);
}

void settle_recompute_keys(const models::MmModel& model, job::Job& job) {
  check_recompute(model, job.parallel.recompute_layers);
  for (const models::MmFlag& key : model.flags) {
    if (!key.sets || std::ranges::find(job::kMegatronRecomputeFlags, key.flag) == job::kMegatronRecomputeFlags.end()) {
      continue;
    }
    job.parallel.megatron_recompute_flags.push_back(fmt::format("{} of {}", key.path, model.where));
    job.written.told.push_back(fmt::format("{}: {}: {} {}", model.where, key.path, key.flag, key.value));
  }
}

void check_trains(const models::MmModel& model, const job::Job& job) {
  constexpr std::size_t kTowers = 3;
  if (model.frozen.size() < kTowers || job.model.lora.on() || job.schedule.skip_train) return;
  config_error(
      "{}: no tower is trained; write freeze: false for one of vision_encoder, vision_projector and text_decoder",
      model.where);
}

}  // namespace

void settle_mm_model(const Command& app, job::Job& job) {
  if (!job.model.mm_model || job.model.model_config) return;
  const models::MmModel model = models::read_mm_model(*job.model.mm_model);
  for (const models::MmFlag& key : model.flags) {
    apply(app, {key.flag, model.where, key.path, {key.value}, key.sets}, job);
  }
  settle_weights(app, model, job);
  settle_recompute_keys(model, job);
  check_trains(model, job);
  if (job.model.init_from_hf_path) {
    models::check_weights(model, models::ConfigReader::load(*job.model.init_from_hf_path));
  } else {
    job.model.made_config = models::config_json(model);
  }
  job.model.frozen_towers = model.frozen;
  job.written.told.insert(job.written.told.end(), model.notices.begin(), model.notices.end());
}

void settle_mm_tool(const Command& app, job::Job& job) {
  if (!job.profile.mm_tool) return;
  const MmTool tool = read_mm_tool(*job.profile.mm_tool);
  for (const MmToolValue& value : tool.values) {
    const FileKey file{value.flag, tool.where, value.path, value.words, true};
    if (tool.enabled) {
      apply(app, file, job);
    } else {
      value_of(*job::find_key(value.flag), file);
    }
  }
  job.profile.all_ranks = tool.enabled && tool.all_ranks;
  job.written.told.insert(job.written.told.end(), tool.notices.begin(), tool.notices.end());
}

}  // namespace loom::cli
