#include "engine/cli/words/convert_flags.h"
#include "engine/cli/words/optional_words.h"

namespace loom::cli {
namespace {

constexpr const char* kConvertExample =
    "Flags of a conversion: shardloom convert hf-to-dcp --help, and so for the others\n"
    "Also as: shardloom mm-convert GenericDCPConverter hf_to_dcp --hf_dir DIR --dcp_dir DIR\n"
    "         shardloom mm-convert Qwen2VLConverter hf_to_mm --cfg.hf_config.hf_dir DIR --cfg.mm_dir DIR ...\n"
    "         shardloom convert_ckpt_v2 --load-model-type hf --save-model-type mg --load-dir DIR --save-dir DIR\n";
constexpr const char* kMergeExample = "Example:\n  shardloom merge --base qwen2 --adapter tuned --save qwen2-tuned\n";
constexpr const char* kInspectExample =
    "Example:\n  shardloom inspect run\n  shardloom inspect --diff run/iter_0000100 hf_folder\n"
    "Exit status: 0 whole, or equal with --diff; 1 something is damaged, or different;\n"
    "  2 the command line is wrong\n";

class ConvertWords final : public OptionalWords {
 public:
  explicit ConvertWords(Command& app)
      : convert_(app.add_command("convert", "Convert weights between Hugging Face folders and checkpoints.")),
        inspect_(app.add_command("inspect", "Show what a checkpoint holds and whether it is whole.")),
        merge_(app.add_command("merge", "Add adapters to the weights of the model they were trained on.")) {
    convert_.set_footer(kConvertExample);
    inspect_.set_footer(kInspectExample);
    merge_.set_footer(kMergeExample);
    add_inspect(inspect_, inspect_values_);
    add_merge(merge_, merge_values_);
  }

  std::vector<std::string> written_out(std::vector<std::string> words) const override {
    return conversions_.written_out(std::move(words));
  }
  Apps apps() const override {
    Apps apps{&inspect_, &merge_};
    for (const Command* app : conversions_.apps()) apps.push_back(app);
    return apps;
  }

  std::optional<OptionalArguments> settled(const Command& chosen, const launch::Start&) override {
    if (&chosen == &convert_) return OptionalArguments{settled_conversion(), kMemoryAdvice};
    if (&chosen != &inspect_ && &chosen != &merge_) return std::nullopt;
    refuse_extras(chosen, {});
    if (&chosen == &inspect_) {
      check(inspect_values_);
      return OptionalArguments{inspect_values_, kMemoryAdvice};
    }
    check(merge_values_);
    return OptionalArguments{merge_values_, kMemoryAdvice};
  }

 private:
  ConvertArguments settled_conversion() const {
    for (const Command* app : conversions_.apps()) {
      refuse_extras(*app, app->parsed() ? conversions_.refused() : std::vector<std::string>{});
    }
    refuse_extras(convert_, {});
    return conversions_.settled();
  }

  Command& convert_;
  Command& inspect_;
  Command& merge_;
  ConvertFlags conversions_{convert_};
  InspectArguments inspect_values_;
  MergeArguments merge_values_;
};

}  // namespace

std::unique_ptr<OptionalWords> convert_words(Command& app) { return std::make_unique<ConvertWords>(app); }

}  // namespace loom::cli
