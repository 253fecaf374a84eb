// Data of models with pictures; the first byte says which: d a data.json, m rows of MLLM demo format, s rows of
// ShareGPT's kind, l LLaVA's instruction file. Rows that are read are encoded, their pictures a.png, b.png and frames.
#include <algorithm>
#include <memory>

#include "engine/config/document.h"
#include "engine/multimodal/conversation_encoder.h"
#include "engine/multimodal/data_config.h"
#include "engine/multimodal/llava_converter.h"
#include "engine/multimodal/mllm_file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/tokenizer_files.h"

namespace {

using namespace loom;
using namespace loom::multimodal;

constexpr data::TokenId kImagePad = 265;
constexpr data::TokenId kVideoPad = 266;
constexpr data::TokenId kInternvlPad = 269;
constexpr Grid kImage{1, 2, 4};  // two tokens
constexpr Grid kVideo{1, 2, 2};  // one token

const std::filesystem::path& picture_folder() {
  static const auto folder = [] {
    std::filesystem::create_directories(fuzz::scratch_folder() / "frames");
    std::filesystem::create_directories(fuzz::scratch_folder() / "train2017");
    for (const char* name : {"a.png", "b.png", "frames/1.png", "train2017/a.png"}) fuzz::written(name, "x");
    return fuzz::scratch_folder();
  }();
  return folder;
}

void read_config(std::string_view text) {
  const config::Value document = config::parse_json(std::string(text), "data.json");
  const DataConfig config = read_data_config(document, {.micro_batch_size = 2, .seq_length = 64});
  for (const std::string& notice : config.notices) fuzz::check_message(notice);
  if (config.text.cutoff_len < 1 || config.text.val_rate < 0 || config.text.val_rate >= 1) {
    fuzz::found("a range that no key has", config.where);
  }
  if (config.type == DatasetType::kMultimodal && config.internvl.files.empty()) fuzz::found("no files", config.where);
}

class Encoders {
 public:
  Encoders() {
    for (const char* name : {"qwen2vl", "qwen3_vl", "internvl2_5"}) {
      encoders_.emplace_back(EncoderOptions{.template_name = name, .cutoff_len = 200}, tokenizer_, ids_);
    }
  }

  void encode(const Conversation& sample) {
    const std::vector<Grid> images(sample.images.size(), kImage);
    const std::vector<Grid> videos(sample.videos.size(), kVideo);
    for (const ConversationEncoder& encoder : encoders_) {
      fuzz::answered_or_refused([&] {
        encoder.check(sample);
        const auto encoded = encoder.encode(sample, {images, videos}, text_encoder_);
        if (encoded) check(*encoded, images.size(), videos.size(), sample.place());
      });
    }
  }

 private:
  static void check(const EncodedSample& encoded, std::size_t images, std::size_t videos, const std::string& place) {
    if (encoded.ids.size() != encoded.labels.size()) fuzz::found("ids without labels", place);
    if (encoded.ids.size() > 200) fuzz::found("more ids than cutoff_len", place);
    const auto pads = [&](data::TokenId id) { return static_cast<std::size_t>(std::ranges::count(encoded.ids, id)); };
    if (pads(kImagePad) + pads(kInternvlPad) != 2 * images || pads(kVideoPad) != videos) {
      fuzz::found("another number of pads than the pictures have", place);
    }
  }

  const data::Tokenizer tokenizer_ = test::tokenizer_of(test::picture_tokenizer_json());
  const data::SpecialIds ids_{};
  data::TokenEncoder text_encoder_{tokenizer_};
  std::vector<ConversationEncoder> encoders_;
};

void read_rows(std::string_view text, const DatasetAttr& attr) {
  static Encoders encoders;
  const auto path = fuzz::written("rows.json", text);
  const Conversations read = read_conversations(
      {.files = {path}, .picture_folder = picture_folder(), .max_samples = 16, .attr = attr, .adds_image = true});
  for (const std::string& line : read.drops.lines()) fuzz::check_message(line);
  if (std::cmp_greater(read.samples.size(), read.rows)) fuzz::found("more samples than rows", path.string());
  for (const Conversation& sample : read.samples) encoders.encode(sample);
}

void convert_rows(std::string_view text) {
  const LlavaConversion options{.coco_path = picture_folder(),
                                .llava_json_path = fuzz::written("llava.json", text),
                                .output_json_path = picture_folder() / "mllm.json"};
  std::filesystem::remove(options.output_json_path);
  const LlavaSummary summary = convert_llava(options);
  if (summary.without_image > summary.written) fuzz::found("more samples than were written", "");
  const Conversations read = read_conversations(
      {.files = {options.output_json_path}, .picture_folder = picture_folder(), .attr = mllm_demo_attr()});
  if (read.rows != summary.written) fuzz::found("other rows than were written", "");
}

}  // namespace

LOOM_FUZZ_TARGET(multimodal_data) {
  const std::string_view input = fuzz::text_of(data, size);
  if (input.empty()) return 0;
  const std::string_view rest = input.substr(1);
  return fuzz::answered_or_refused([&] {
    if (input.front() == 'd') read_config(rest);
    if (input.front() == 'm') read_rows(rest, mllm_demo_attr());
    if (input.front() == 's') read_rows(rest, {.images = "images", .videos = "videos"});
    if (input.front() == 'l') convert_rows(rest);
  });
}
