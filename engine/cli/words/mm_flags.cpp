#include "engine/cli/words/mm_flags.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <utility>

#include "engine/cli/words/weight_flags.h"
#include "engine/config/document.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/job/foreign.h"

namespace loom::cli {
namespace {

using job::Key;
using job::Kind;
using job::only;
using job::refused;
using job::without_effect;

constexpr std::int64_t kMostLayers = 1'000'000;

constexpr const char* kToMmExample =
    "Example:\n  shardloom convert hf-to-mm --hf-dir Qwen2-VL-7B --mm-dir qwen2-vl-mm \\\n"
    "    --llm-pp-layers [[1,10,10,7]] --vit-pp-layers [[32,0,0,0]] --tp-size 2\n";
constexpr const char* kToHfExample =
    "Example:\n  shardloom convert mm-to-hf --mm-dir qwen2-vl-mm --save-dir qwen2-vl-trained \\\n"
    "    --hf-dir Qwen2-VL-7B --llm-pp-layers [[28]] --vit-pp-layers [[32]]\n";

struct Converter {
  std::string_view name;
  std::string_view model_type;
};
constexpr std::array<Converter, 2> kQwenConverters{
    {{"Qwen2VLConverter", "qwen2_vl"}, {"Qwen2_5_VLConverter", "qwen2_5_vl"}}};

// Of MindSpeed-MM's converters, for both directions.
const Key kForeignMm[] = {
    without_effect("--cfg.trust-remote-code", Kind::kText),
    only("--cfg.parallel-config.ep-size", "1", "these models have no experts; write 1").named(),
    only("--cfg.parallel-config.vit-tp-size", "0", "the tower is cut as the text is; write 0, or remove it").named(),
    only("--cfg.parallel-config.audio-tp-size", "0", "these models hear nothing; write 0, or remove it").named(),
    refused("--cfg.parallel-config.audio-pp-layers", Kind::kText, "is of models that hear; remove it"),
    refused("--cfg.llm-hf-config.hf-dir", Kind::kText,
            "takes the text from another folder, which is not built; put it into the folder of --hf-dir"),
    only("--cfg.save-vit-only", "false|False", "the whole model is converted; write false, or remove it").named(),
    refused("--cfg.common-model-config.num-key-value-heads", Kind::kText, "is that of config.json here; remove it"),
    refused("--cfg.common-model-config.llm-num-layers", Kind::kText, "is that of config.json here; remove it"),
    refused("--cfg.common-model-config.vit-num-layers", Kind::kText, "is that of config.json here; remove it"),
    refused("--cfg.common-model-config.tie-word-embeddings", Kind::kText, "is that of config.json here; remove it"),
    refused("--cfg.common-model-config.llm-hf-dir", Kind::kText,
            "takes the text from another folder, which is not built; put it into the folder of --hf-dir"),
};

[[noreturn]] void refuse_lists(const std::string& flag, const std::string& text) {
  config_error("{} is {}; use lists of whole numbers, the layers of each stage: [[1,10,10,7]]", flag, shown_text(text));
}

std::vector<std::int64_t> stages_of(const std::string& flag, const std::string& text, const config::Value& list) {
  std::vector<std::int64_t> stages;
  for (const config::Value& item : list.items()) {
    const auto layers = item.is_scalar() ? item.whole() : std::nullopt;
    if (!layers || *layers < 0 || *layers > kMostLayers) refuse_lists(flag, text);
    stages.push_back(*layers);
  }
  return stages;
}

checkpoint::LayerLists lists_of(const std::string& flag, const std::string& text) {
  if (!text.starts_with('[')) refuse_lists(flag, text);
  const config::Value value = config::parse_yaml("lists: " + text, flag).items().front();
  if (!value.is_list() || value.items().empty()) refuse_lists(flag, text);
  checkpoint::LayerLists lists;
  if (!value.items().front().is_list()) return {stages_of(flag, text, value)};
  for (const config::Value& list : value.items()) {
    if (!list.is_list()) refuse_lists(flag, text);
    lists.push_back(stages_of(flag, text, list));
  }
  return lists;
}

void need_lists(const checkpoint::MmLayout& layout, const char* command) {
  const auto need_list = [command](const checkpoint::LayerLists& lists, const char* flag, const char* what) {
    if (!lists.empty()) return;
    config_error("convert {}: {} is missing; give the layers of the {} in each stage: [[1,10,10,7]]", command, flag,
                 what);
  };
  need_list(layout.text_layers, "--llm-pp-layers", "text");
  need_list(layout.vision_layers, "--vit-pp-layers", "tower");
}

}  // namespace

std::optional<std::string> MmFlags::model_type(std::string_view converter) {
  const auto* const found = std::ranges::find(kQwenConverters, converter, &Converter::name);
  return found == kQwenConverters.end() ? std::nullopt : std::optional<std::string>(found->model_type);
}

void MmFlags::check_command(const std::string& converter, const std::string& command) {
  std::string name = command;
  std::ranges::replace(name, '_', '-');
  if (name == "hf-to-mm" || name == "mm-to-hf") return;
  if (name == "resplit") {
    config_error("mm-convert {} resplit is not built; run mm_to_hf, and then hf_to_mm with the new sizes", converter);
  }
  config_error("mm-convert {}: '{}' is no conversion of it; use hf_to_mm or mm_to_hf", converter, shown_text(command));
}

MmFlags::MmFlags(Command& convert)
    : to_mm_(convert.add_command("hf-to-mm", "A Qwen-VL's Hugging Face folder as a checkpoint of MindSpeed-MM.")),
      to_hf_(convert.add_command("mm-to-hf", "A checkpoint of MindSpeed-MM as a Hugging Face folder.")) {
  to_mm_.set_footer(kToMmExample);
  to_hf_.set_footer(kToHfExample);
  for (Command* app : {&to_mm_, &to_hf_}) Flags(*app).without_effect(kForeignMm, refused_, without_effect_);
  Flags import(to_mm_);
  import.group("Folders");
  import.text("--hf-dir,--load-dir,--cfg.hf-config.hf-dir", "DIR", import_.hf_dir,
              "Hugging Face folder: config.json and safetensors files");
  import.text("--mm-dir,--save-dir,--cfg.mm-dir", "DIR", import_.mm_dir,
              "Gets release/ and latest_checkpointed_iteration.txt");
  add_config_flag(import);
  add_layout(import, import_.layout);
  add_values(import, import_.model_type, import_.dtype);
  Flags out(to_hf_);
  out.group("Folders");
  out.text("--mm-dir,--load-dir,--cfg.mm-dir", "DIR", export_.mm_dir, "A checkpoint, or a folder of checkpoints");
  out.text("--save-dir,--save-hf-dir,--cfg.save-hf-dir", "DIR", export_.save_dir, "New or empty folder");
  out.text("--hf-dir,--model-assets-dir,--cfg.hf-config.hf-dir", "DIR", export_.hf_dir,
           "The model's folder: config.json and tokenizer; its index or weights say which names there are");
  out.text("--shard-size", "BYTES", shard_size_, "Bytes of a file of weights at most, such as 5GB",
           "the files of the index, else 5GB");
  add_config_flag(out);
  add_layout(out, export_.layout);
  add_values(out, export_.model_type, export_.dtype);
}

void MmFlags::add_layout(Flags& flags, checkpoint::MmLayout& layout) {
  flags.group("Sizes");
  flags.taken("--llm-pp-layers,--cfg.parallel-config.llm-pp-layers", "LISTS",
              "Layers of the text in each stage, a list for each virtual stage: [[1,10,10,7]]",
              [&layout](const std::string& text) { layout.text_layers = lists_of("--llm-pp-layers", text); });
  flags.taken("--vit-pp-layers,--cfg.parallel-config.vit-pp-layers", "LISTS",
              "Layers of the tower in each stage: [[32,0,0,0]]",
              [&layout](const std::string& text) { layout.vision_layers = lists_of("--vit-pp-layers", text); });
  flags.whole("--tp-size,--cfg.parallel-config.tp-size", layout.tensor_size, 1,
              "Tensor ranks; divides the heads of both towers, the rows of their MLPs and the vocabulary");
}

void MmFlags::add_values(Flags& flags, std::optional<std::string>& model_type, std::optional<DType>& dtype) {
  flags.group("Values");
  add_dtype(flags, "--dtype", dtype);
  flags.group("Held against config.json");
  flags.optional_choice("--model-type", model_type, {"qwen2_vl", "qwen2_5_vl"}, "The model's model_type");
}

ConvertArguments MmFlags::settled() const {
  if (to_hf_.parsed()) {
    checkpoint::MmToHf options = export_;
    need(options.mm_dir, "mm-to-hf", "--mm-dir", "the folder of a checkpoint");
    need(options.save_dir, "mm-to-hf", "--save-dir", "a new folder for the model");
    need(options.hf_dir, "mm-to-hf", "--hf-dir", "the folder with config.json and the tokenizer");
    need_lists(options.layout, "mm-to-hf");
    if (!shard_size_.empty()) options.shard_bytes = parse_size(shard_size_);
    return {options, without_effect_};
  }
  need(import_.hf_dir, "hf-to-mm", "--hf-dir", "the folder with config.json and the safetensors files");
  need(import_.mm_dir, "hf-to-mm", "--mm-dir", "a folder for the checkpoint");
  need_lists(import_.layout, "hf-to-mm");
  return {import_, without_effect_};
}

}  // namespace loom::cli
