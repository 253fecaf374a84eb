#include "engine/cli/words/mcore_flags.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "engine/cli/words/flags.h"
#include "engine/cli/words/weight_flags.h"
#include "engine/core/parse_number.h"
#include "engine/job/foreign.h"

namespace loom::cli {
namespace {

using job::Key;
using job::Kind;
using job::only;
using job::refused;
using job::without_effect;

constexpr std::int64_t kMostNumber = 2'147'483'647;

constexpr const char* kImportExample =
    "Example:\n  shardloom convert hf-to-mcore --load-dir qwen3 --save-dir qwen3-mcore \\\n"
    "    --target-tensor-parallel-size 2 --target-pipeline-parallel-size 2\n";
constexpr const char* kExportExample =
    "Example:\n  shardloom convert mcore-to-hf --load-dir qwen3-mcore --save-dir qwen3-trained --hf-cfg-dir qwen3\n";

// --model-type-hf, and what model_type config.json then has.
struct Family {
  std::string_view name;
  std::string_view model_types;
};
constexpr std::array<Family, 4> kFamilies{{{"llama2", "llama|qwen2"},  // Qwen2.5 with --add-qkv-bias, in old scripts
                                           {"qwen25", "qwen2"},
                                           {"qwen3", "qwen3"},
                                           {"qwen3-moe", "qwen3_moe"}}};

// Of MindSpeed-LLM's converters, for both directions.
const Key kForeign[] = {
    without_effect("--use-mcore-models", Kind::kToggle),
    without_effect("--tokenizer-model", Kind::kText),
    without_effect("--vocab-file", Kind::kText),
    without_effect("--megatron-path", Kind::kText),
    without_effect("--ckpt-cfg-path", Kind::kText),
    without_effect("--spec", Kind::kTexts),
    without_effect("--loader", Kind::kText),
    without_effect("--saver", Kind::kText),
    without_effect("--max-queue-size", Kind::kText),
    without_effect("--save-layer-by-layer", Kind::kToggle),
    without_effect("--no-checking", Kind::kToggle),
    without_effect("--qk-layernorm", Kind::kToggle),
    refused("--add-dense-bias", Kind::kToggle, "is attention_bias in the config.json of the model here; remove it"),
    only("--model-type", "GPT", "only GPT is converted; write GPT").named(),
    only("--transformer-impl", "local", "the names are those of Megatron's local layers; write local").named(),
    only("--ckpt-format", "torch", "the files are those of torch.save; write torch").named(),
    only("--w-pack", "False|false", "is of models that are not converted; remove it").named(),
    only("--mtp-num-layers", "0", "layers that predict several tokens are not converted; write 0").named(),
    only("--first-k-dense-replace", "0",
         "is of models that are not converted; write 0: mlp_only_layers of config.json says which "
         "layers have no experts")
        .named(),
    refused("--true-vocab-size", Kind::kText, "is vocab_size in the config.json of the model here; remove it"),
    refused(
        "--moe-tp-extend-ep", Kind::kToggle,
        "is not built: experts are not spread over tensor ranks; remove it and write --expert-tensor-parallel-size 1"),
    refused("--mla-mm-split", Kind::kToggle,
            "is of multi-head latent attention, whose models are not converted; remove it"),
    refused("--pipeline-model-parallel-layout", Kind::kText, "is not built; write --num-layer-list N,N,..."),
    refused("--input-tp-rank", Kind::kText, "is not built: all ranks are converted; remove it"),
    refused("--input-pp-rank", Kind::kText, "is not built: all ranks are converted; remove it"),
    refused("--hidden-size", Kind::kText, "is hidden_size in the config.json of the model here; remove it"),
    refused("--mamba-state-dim", Kind::kText, "is of Mamba, which is not converted; remove it"),
    refused("--mamba-num-groups", Kind::kText, "is of Mamba, which is not converted; remove it"),
    refused("--mamba-head-dim", Kind::kText, "is of Mamba, which is not converted; remove it"),
    refused("--post-norm", Kind::kToggle, "is of models that are not converted; remove it"),
    refused("--orm", Kind::kToggle, "converts heads of reward models, which is not built; remove it"),
    refused("--qlora-nf4", Kind::kToggle, "makes 4-bit weights, which is not built; remove it"),
    refused("--save-to-legacy", Kind::kToggle, "writes the layout before Megatron-core, which is not built; remove it"),
    refused("--load-hf-from-config", Kind::kToggle,
            "makes up weights, which is not built; remove it, and give a folder with weights"),
    refused("--load-checkpoint-loosely", Kind::kToggle, "lets names be missing, which are errors here; remove it"),
    refused("--lora-load", Kind::kText,
            "names adapters, which are merged first; remove it, and run shardloom merge --base DIR "
            "--adapter DIR --save DIR"),
    refused("--lora-r", Kind::kText, "is that of the adapter's file; remove it, and run shardloom merge"),
    refused("--lora-alpha", Kind::kText, "is that of the adapter's file; remove it, and run shardloom merge"),
    refused("--lora-target-modules", Kind::kTexts,
            "are those of the adapter's file; remove it, and run shardloom merge"),
    refused("--save-lora-to-hf", Kind::kToggle,
            "converts adapters of Megatron's layout, which is not built; remove it"),
};

// Sizes of the checkpoint that mcore-to-hf reads from its files, and of the one that it does not write.
const Key kReadFromFiles[] = {
    without_effect("--num-layer-list", Kind::kText),
    without_effect("--num-layers-per-virtual-pipeline-stage", Kind::kText),
    without_effect("--schedules-method", Kind::kText),
    without_effect("--moe-grouped-gemm", Kind::kToggle),
    without_effect("--expert-tensor-parallel-size", Kind::kText),
    without_effect("--make-vocab-size-divisible-by", Kind::kText),
    only("--target-tensor-parallel-size", "1", "a Hugging Face folder has no ranks; write 1, or remove it").named(),
    only("--target-pipeline-parallel-size", "1", "a Hugging Face folder has no stages; write 1, or remove it").named(),
    only("--target-expert-parallel-size", "1", "a Hugging Face folder has no ranks; write 1, or remove it").named(),
};

const Key kOfTheOtherDirection[] = {
    refused("--hf-cfg-dir", Kind::kText, "is --load-dir here, the folder with config.json and tokenizer; remove it"),
};

std::vector<std::string> parts_of(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void take_numbers(const std::string& flag, const std::string& text, std::vector<std::int64_t>& numbers) {
  numbers.clear();
  for (const std::string& part : parts_of(text, ',')) {
    const auto number = parse_number<std::int64_t>(part);
    if (!number || *number < 0 || *number > kMostNumber) {
      config_error("{} is {}; use whole numbers with commas between them, such as 11,13", flag, shown_text(text));
    }
    numbers.push_back(*number);
  }
}

void take_family(const std::string& word, checkpoint::ModelChecks& checks) {
  const auto* const family = std::ranges::find(kFamilies, word, &Family::name);
  if (family == kFamilies.end()) {
    std::vector<std::string_view> names;
    for (const Family& known : kFamilies) names.push_back(known.name);
    config_error("--model-type-hf is {}, which is not converted; use {}", shown_text(word), fmt::join(names, ", "));
  }
  checks.type_flag = "--model-type-hf " + word;
  checks.model_types = parts_of(family->model_types, '|');
}

// --- words of convert_ckpt

bool is_flag(const std::string& word, std::string_view flag) {
  std::string name = word.substr(0, word.find('='));
  std::ranges::replace(name, '_', '-');
  return name == flag;
}

// The last value of a flag.
std::optional<std::string> value_of(const std::vector<std::string>& words, std::string_view flag) {
  std::optional<std::string> value;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!is_flag(words[i], flag)) continue;
    const std::size_t equals = words[i].find('=');
    if (equals == std::string::npos && i + 1 == words.size()) {
      config_error("{} needs a value, but nothing follows; see --help", flag);
    }
    value = equals == std::string::npos ? words[i + 1] : words[i].substr(equals + 1);
  }
  return value;
}

void remove(std::vector<std::string>& words, std::string_view flag) {
  for (std::size_t i = 0; i < words.size();) {
    if (!is_flag(words[i], flag)) {
      ++i;
      continue;
    }
    const std::size_t count = words[i].find('=') == std::string::npos && i + 1 < words.size() ? 2 : 1;
    const auto at = words.begin() + static_cast<std::ptrdiff_t>(i);
    words.erase(at, at + static_cast<std::ptrdiff_t>(count));
  }
}

bool is_mg(const std::string& flag, const std::string& value) {
  if (value != "hf" && value != "mg") {
    config_error("{} is {}; use hf (Hugging Face) or mg (Megatron)", flag, shown_text(value));
  }
  return value == "mg";
}

}  // namespace

std::vector<std::string> McoreFlags::respelled(std::vector<std::string> words) {
  if (words.empty()) return words;
  const std::string command = words.front().substr(0, words.front().find(".py"));
  const bool is_old = command == "convert_ckpt";
  if ((!is_old && command != "convert_ckpt_v2") || (words.front() != command && words.front() != command + ".py")) {
    return words;
  }
  const auto load = value_of(words, "--load-model-type");
  const auto save = value_of(words, "--save-model-type");
  if (!load && std::ranges::any_of(words, [](const std::string& w) { return w == "--help" || w == "-h"; })) {
    return {"convert", "--help"};
  }
  if (!load && is_old) config_error("convert_ckpt: --load-model-type is missing; write hf or mg");
  const bool from_mg = is_mg("--load-model-type", load.value_or("hf"));
  const bool to_mg = is_mg("--save-model-type", save.value_or("mg"));
  if (from_mg == to_mg) {
    config_error("{}: --load-model-type and --save-model-type are both {}; {}", command, to_mg ? "mg" : "hf",
                 to_mg ? "convert to hf first, and that to mg in the new sizes" : "write mg for one of them");
  }
  for (const char* flag : {"--load-model-type", "--save-model-type"}) remove(words, flag);
  words.erase(words.begin());
  const auto folder = value_of(words, "--save-dir");
  if (is_old && from_mg && folder) {
    remove(words, "--save-dir");
    words.insert(words.end(), {"--save-dir", *folder + "/mg2hf"});
    if (!value_of(words, "--hf-cfg-dir")) words.insert(words.end(), {"--hf-cfg-dir", *folder});
  }
  words.insert(words.begin(), {"convert", from_mg ? "mcore-to-hf" : "hf-to-mcore"});
  return words;
}

McoreFlags::McoreFlags(Command& convert)
    : to_mcore_(convert.add_command("hf-to-mcore", "A Hugging Face folder as a checkpoint of Megatron-core.")),
      to_hf_(convert.add_command("mcore-to-hf", "A checkpoint of Megatron-core as a Hugging Face folder.")) {
  to_mcore_.set_footer(kImportExample);
  to_hf_.set_footer(kExportExample);
  for (Command* app : {&to_mcore_, &to_hf_}) {
    Flags(*app).without_effect(kForeign, refused_, without_effect_);
  }
  Flags(to_mcore_).without_effect(kOfTheOtherDirection, refused_, without_effect_);
  Flags(to_hf_).without_effect(kReadFromFiles, refused_, without_effect_);
  add_import();
  add_export();
}

void McoreFlags::add_import() {
  Flags flags(to_mcore_);
  flags.group("Folders");
  flags.text("--load-dir,--hf-dir", "DIR", import_.load_dir, "Hugging Face folder: config.json and safetensors files");
  flags.text("--save-dir", "DIR", import_.save_dir, "Gets iter_0000001/ and latest_checkpointed_iteration.txt");
  add_config_flag(flags);
  flags.group("Sizes");
  flags.whole("--target-tensor-parallel-size", import_.tensor_size, 1, "Tensor ranks; divides the key-value heads");
  flags.whole("--target-pipeline-parallel-size", import_.pipeline.stages, 1, "Stages of the pipeline");
  flags.whole("--target-expert-parallel-size", import_.expert_size, 1, "Ranks that share the experts of a layer");
  flags.whole("--expert-tensor-parallel-size", import_.expert_tensor_size, 1,
              "1: experts are whole on each tensor rank", "that of --target-tensor-parallel-size");
  flags.taken("--num-layer-list", "N,N,...", "Layers of each stage, where they are not as many each",
              [this](const std::string& text) { take_numbers("--num-layer-list", text, import_.pipeline.layer_list); });
  flags.optional_whole("--num-layers-per-virtual-pipeline-stage", import_.pipeline.layers_per_chunk, 1,
                       "Layers of each virtual stage");
  flags.taken("--noop-layers", "N,N,...", "Numbers, counted from 0 with them, that hold no layer",
              [this](const std::string& text) { take_numbers("--noop-layers", text, import_.pipeline.noop_layers); });
  flags.optional_choice("--schedules-method", schedule_, {"dualpipev"},
                        "Each stage holds a slice from the front and one from the back");
  flags.toggle("--moe-grouped-gemm", import_.grouped_experts, "Experts of a rank as two tensors, weight1 and weight2");
  flags.whole("--make-vocab-size-divisible-by", import_.vocab_divisible_by, 1,
              "Rows are added to the vocabulary up to a multiple of this times the tensor ranks");
  flags.optional_whole("--pad-vocab-size-to", import_.pad_vocab_to, 1, "Rows that the vocabulary has then");
  flags.group("Values");
  add_dtype(flags, "--dtype,--params-dtype", import_.dtype);
  add_checks(flags, import_.checks);
}

void McoreFlags::add_export() {
  Flags flags(to_hf_);
  flags.group("Folders");
  flags.text("--load-dir", "DIR", export_.load_dir, "A checkpoint with mp_rank_NN, or a folder of checkpoints");
  flags.text("--save-dir", "DIR", export_.save_dir, "New or empty folder");
  flags.text("--hf-cfg-dir,--model-assets-dir", "DIR", export_.hf_cfg_dir,
             "The model's folder: config.json and tokenizer; its index or weights say which names there are");
  flags.text("--shard-size", "BYTES", shard_size_, "Bytes of a file of weights at most, such as 5GB",
             "the files of the index, else 5GB");
  add_config_flag(flags);
  flags.group("Values");
  add_dtype(flags, "--dtype,--params-dtype", export_.dtype);
  add_checks(flags, export_.checks);
  std::vector<std::int64_t>& noops = import_.pipeline.noop_layers;
  flags.noted("--noop-layers", 1, [this, &noops](const std::string& text) {
    take_numbers("--noop-layers", text, noops);
    without_effect_.push_back("--noop-layers " + text);
  });
}

void McoreFlags::add_checks(Flags& flags, checkpoint::ModelChecks& checks) {
  flags.group("Held against config.json");
  flags.taken("--model-type-hf", "{llama2,qwen25,qwen3,qwen3-moe}", "The family of the model",
              [&checks](const std::string& word) { take_family(word, checks); });
  flags.optional_whole("--num-layers", checks.layers, 1, "Layers, with or without those of --noop-layers");
  flags.toggle("--add-qkv-bias", checks.qkv_bias, "Queries, keys and values have biases");
}

ConvertArguments McoreFlags::settled() const {
  if (to_hf_.parsed()) {
    checkpoint::McoreToHf options = export_;
    need(options.load_dir, "mcore-to-hf", "--load-dir", "the folder of a checkpoint");
    need(options.save_dir, "mcore-to-hf", "--save-dir", "a new folder for the model");
    need(options.hf_cfg_dir, "mcore-to-hf", "--hf-cfg-dir", "the folder with config.json and the tokenizer");
    if (!shard_size_.empty()) options.shard_bytes = parse_size(shard_size_);
    options.checks.noop_layers = static_cast<std::int64_t>(import_.pipeline.noop_layers.size());
    return {options, without_effect_};
  }
  checkpoint::HfToMcore options = import_;
  need(options.load_dir, "hf-to-mcore", "--load-dir", "the folder with config.json and the safetensors files");
  need(options.save_dir, "hf-to-mcore", "--save-dir", "a folder for the checkpoint");
  if (options.expert_tensor_size > 1 && options.expert_tensor_size != options.tensor_size) {
    config_error("--expert-tensor-parallel-size is {}; use 1, or that of --target-tensor-parallel-size, {}",
                 options.expert_tensor_size, options.tensor_size);
  }
  options.pipeline.dualpipev = schedule_.has_value();
  options.checks.noop_layers = static_cast<std::int64_t>(options.pipeline.noop_layers.size());
  return {options, without_effect_};
}

}  // namespace loom::cli
