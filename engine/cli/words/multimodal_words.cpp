#include "engine/cli/words/flags.h"
#include "engine/cli/words/optional_words.h"
#include "engine/multimodal/llava_converter.h"

namespace loom::cli {
namespace {

constexpr const char* kExample =
    "Example:\n  shardloom llava_instruct_2_mllm_demo_format --coco_path data/COCO2017 \\\n"
    "    --llava_json_path data/llava_instruct_150k.json --output_json_path data/mllm.json\n";

class MultimodalWords final : public OptionalWords {
 public:
  explicit MultimodalWords(Command& app)
      : llava_(
            app.add_command("llava_instruct_2_mllm_demo_format", "Write LLaVA's instructions in MLLM demo format.")) {
    llava_.set_footer(kExample);
    Flags flags(llava_, &refused_);
    flags.group("Files");
    flags.text("--coco-path", "DIR", values_.coco_path, "Folder with train2017, which has the pictures",
               values_.coco_path.string());
    flags.text("--llava-json-path", "FILE", values_.llava_json_path, "LLaVA's list of instructions",
               values_.llava_json_path.string());
    flags.text("--output-json-path", "FILE", values_.output_json_path, "File to write; it must not exist",
               values_.output_json_path.string());
  }

  Apps apps() const override { return {&llava_}; }

  std::optional<OptionalArguments> settled(const Command& chosen, const launch::Start&) override {
    if (&chosen != &llava_) return std::nullopt;
    refuse_extras(llava_, refused_);
    return OptionalArguments{values_, "split the input into smaller files"};
  }

 private:
  Command& llava_;
  multimodal::LlavaConversion values_;
  std::vector<std::string> refused_;
};

}  // namespace

std::unique_ptr<OptionalWords> multimodal_words(Command& app) { return std::make_unique<MultimodalWords>(app); }

}  // namespace loom::cli
