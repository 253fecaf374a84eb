#include "engine/text/preprocess/preprocess_rules.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::data {
namespace {

constexpr std::string_view kFactory = "LlamaFactoryInstructionHandler";
constexpr std::array<std::string_view, 4> kWithoutTemplates{
    "GeneralPretrainHandler", "AlpacaPretrainHandler", "SharegptPretrainHandler", "AlpacaStyleProcessRewardHandler"};

void need(bool given, std::string_view flag, std::string_view what) {
  if (!given) config_error("preprocess: {} is missing; give {}", flag, what);
}

void check_packing(const PreprocessOptions& o) {
  if (o.neat_pack && !o.pack) config_error("--neat-pack goes with --pack alone; add --pack");
  if (!o.pack) return;
  if (o.handler_name.ends_with("PretrainHandler")) {
    config_error("--pack does not go with --handler-name {}: its documents are not packed; remove --pack",
                 shown_text(o.handler_name));
  }
  if (o.handler_name.ends_with("PairwiseHandler")) {
    config_error(
        "--pack does not go with --handler-name {}: the answers of a pair have lengths of their own; remove "
        "--pack",
        shown_text(o.handler_name));
  }
  if (!o.seq_length) config_error("--pack needs --seq-length, the length of the packed lines; add --seq-length N");
}

void check_handler(const PreprocessOptions& o) {
  if (o.prompt_type && std::ranges::find(kWithoutTemplates, o.handler_name) != kWithoutTemplates.end()) {
    config_error("--prompt-type does not go with --handler-name {}, which has no templates; remove --prompt-type",
                 o.handler_name);
  }
  if (o.handler_name == kFactory) {
    need(!o.dataset_dir.empty(), "--dataset-dir", "the folder with dataset_info.json");
    return;
  }
  const char* only_factory = !o.dataset_dir.empty()                   ? "--dataset-dir"
                             : o.mix_strategy != MixStrategy::kConcat ? "--mix-strategy"
                                                                      : nullptr;
  if (only_factory != nullptr) {
    config_error("{} goes with --handler-name {} alone, but it is {}; remove {}", only_factory, kFactory,
                 shown_text(o.handler_name), only_factory);
  }
}

}  // namespace

void check_options(const PreprocessOptions& o) {
  const bool merges = !o.merge_group_keys.empty();
  need(!o.input.empty(), "--input", merges ? "the folder with the pairs" : "a file or a folder of records");
  need(!o.output_prefix.empty(), "--output-prefix", "the path that the names of all outputs begin with");
  if (!o.output_prefix.has_filename()) {
    config_error("--output-prefix is {}, a folder; end it with the name that all outputs begin with",
                 shown_text(o.output_prefix.string()));
  }
  if (merges) return;
  check_packing(o);
  check_handler(o);
  need(!o.tokenizer_name_or_path.empty(), "--tokenizer-name-or-path", "the folder with tokenizer.json");
}

}  // namespace loom::data
