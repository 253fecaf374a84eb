// Promise: preprocessor_config.json of the known families becomes options; what would change pixels and has no option
//          is refused by name.
// World:   texts in the layouts of published folders.
#include "engine/images/processor_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::images {
namespace {

using test::fresh_folder;
using test::message_of;
using test::write_file;
using ::testing::ElementsAre;

ImageProcessor parsed(const std::string& text) { return parse_image_processor(text, "p.json"); }
std::string refusal(const std::string& text) {
  return message_of<ConfigError>([&] { parsed(text); });
}
// A key of a Qwen file.
std::string qwen_refusal(const std::string& key) {
  return refusal(R"({"image_processor_type": "Qwen2VLImageProcessor", )" + key + "}");
}

constexpr const char* kQwen2 = R"({
  "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
  "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
  "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor"})";

constexpr const char* kQwen3 = R"({
  "size": {"longest_edge": 16777216, "shortest_edge": 65536}, "patch_size": 16, "temporal_patch_size": 2,
  "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
  "processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast"})";

TEST(ProcessorConfig, OfQwen2HasItsLimits) {
  const ImageProcessor processor = parsed(kQwen2);
  ASSERT_NE(processor.patches(), nullptr);
  EXPECT_EQ(processor.tiles(), nullptr);
  EXPECT_EQ(processor.type, "Qwen2VLImageProcessor");
  EXPECT_EQ(processor.patches()->min_pixels, 3136);
  EXPECT_EQ(processor.patches()->max_pixels, 12845056);
  EXPECT_EQ(processor.patches()->patch_size, 14);
  EXPECT_EQ(processor.patches()->mean, kClipMean);
  EXPECT_EQ(processor.std, kClipStd);
  EXPECT_EQ(processor.patches()->filter, Filter::kBicubic);
}

TEST(ProcessorConfig, OfQwen3HasItsEdges) {
  const PatchOptions options = *parsed(kQwen3).patches();
  EXPECT_EQ(options.min_pixels, 65536);
  EXPECT_EQ(options.max_pixels, 16777216);
  EXPECT_EQ(options.patch_size, 16);
  EXPECT_THAT(options.mean, ElementsAre(0.5F, 0.5F, 0.5F));
  EXPECT_THAT(options.std, ElementsAre(0.5F, 0.5F, 0.5F));
}

TEST(ProcessorConfig, PrefersTheOlderNamesOfTheLimits) {
  const PatchOptions options = *parsed(R"({"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 100352,
    "max_pixels": null, "size": {"shortest_edge": 1, "longest_edge": 200704}})")
                                    .patches();
  EXPECT_EQ(options.min_pixels, 100352);
  EXPECT_EQ(options.max_pixels, 200704);
}

// As transformers 5 writes it: every step in words, and null where a step is left out.
TEST(ProcessorConfig, OfTransformers5IsInTheProcessorsFile) {
  const auto folder = fresh_folder();
  write_file(folder / "processor_config.json", R"({"image_processor": {"data_format": "channels_first",
    "do_convert_rgb": true, "do_normalize": true, "do_rescale": true, "do_resize": true, "do_center_crop": null,
    "crop_size": null, "do_pad": null, "rescale_factor": 0.00392156862745098, "resample": 3, "merge_size": 2,
    "patch_size": 14, "image_processor_type": "Qwen2VLImageProcessorPil", "image_mean": [0.5, 0.5, 0.5],
    "size": {"longest_edge": 1003520, "shortest_edge": 3136}},
    "processor_class": "Qwen2VLProcessor", "video_processor": {"do_resize": true}})");
  EXPECT_EQ(read_image_processor(folder).patches()->max_pixels, 1003520);
  EXPECT_EQ(read_image_processor(folder).type, "Qwen2VLImageProcessorPil");
  write_file(folder / "preprocessor_config.json", kQwen3);
  EXPECT_EQ(read_image_processor(folder).patches()->patch_size, 16);
  EXPECT_EQ(read_image_processor(folder / "preprocessor_config.json").patches()->patch_size, 16);
}

TEST(ProcessorConfig, OfInternVlHasTiles) {
  const ImageProcessor processor = parsed(R"({"image_processor_type": "GotOcr2ImageProcessorFast",
    "processor_class": "InternVLProcessor", "crop_to_patches": false, "min_patches": 1, "max_patches": 12,
    "size": {"height": 448, "width": 448}, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
    "resample": 3, "do_resize": true})");
  ASSERT_NE(processor.tiles(), nullptr);
  EXPECT_EQ(processor.patches(), nullptr);
  EXPECT_EQ(processor.tiles()->image_size, 448);
  EXPECT_EQ(processor.tiles()->max_tiles, 12);  // InternVLProcessor cuts tiles whatever the file has
  EXPECT_EQ(processor.mean, kImageNetMean);
}

TEST(ProcessorConfig, OfGotOcr2CutsTilesIfItSaysSo) {
  const std::string begin = R"({"image_processor_type": "GotOcr2ImageProcessor", "max_patches": 6)";
  EXPECT_EQ(parsed(begin + "}").tiles()->max_tiles, 1);
  EXPECT_EQ(parsed(begin + R"(, "crop_to_patches": true})").tiles()->max_tiles, 6);
}

TEST(ProcessorConfig, OfInternVlsOwnCodeHasTheSizeOfATile) {
  const ImageProcessor processor = parsed(R"({"crop_size": 448, "do_center_crop": true, "do_normalize": true,
    "do_resize": true, "feature_extractor_type": "CLIPFeatureExtractor", "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225], "resample": 3, "size": 448})");
  EXPECT_EQ(processor.tiles()->image_size, 448);
  EXPECT_EQ(processor.tiles()->max_tiles, 12);
  EXPECT_EQ(refusal(R"({"image_processor_type": "CLIPImageProcessor", "do_center_crop": true, "size": 448,
    "crop_size": 336})"),
            "p.json: crop_size is 336; tiles are not cropped; use size, which is 448");
}

TEST(ProcessorConfig, HasTheFilterOfPillowsNumber) {
  const auto filter = [](int number) {
    return parsed(R"({"image_processor_type": "Qwen2VLImageProcessor", "resample": )" + std::to_string(number) + "}")
        .patches()
        ->filter;
  };
  EXPECT_EQ(filter(0), Filter::kNearest);
  EXPECT_EQ(filter(2), Filter::kBilinear);
  EXPECT_EQ(filter(3), Filter::kBicubic);
  EXPECT_EQ(qwen_refusal(R"("resample": 1)"), "p.json: resample is 1; use 0 (nearest), 2 (bilinear) or 3 (bicubic)");
}

TEST(ProcessorConfig, WithoutNormalisingHasBytesOver255) {
  const ImageProcessor processor =
      parsed(R"({"image_processor_type": "Qwen2VLImageProcessor", "do_normalize": false})");
  EXPECT_THAT(processor.mean, ElementsAre(0, 0, 0));
  EXPECT_THAT(processor.patches()->std, ElementsAre(1, 1, 1));
}

TEST(ProcessorConfig, RefusesWhatWouldChangePixels) {
  EXPECT_EQ(qwen_refusal(R"("do_resize": false)"), "p.json: do_resize is false; pictures are always resized; use true");
  EXPECT_EQ(qwen_refusal(R"("do_rescale": false)"),
            "p.json: do_rescale is false; bytes are always divided by 255; use true");
  EXPECT_EQ(qwen_refusal(R"("rescale_factor": 1.0)"),
            "p.json: rescale_factor is 1.0; bytes are always divided by 255; use 0.00392156862745098");
  EXPECT_EQ(qwen_refusal(R"("do_convert_rgb": false)"),
            "p.json: do_convert_rgb is false; pictures are always RGB; use true");
  EXPECT_EQ(qwen_refusal(R"("do_pad": true)"), "p.json: do_pad is true; pictures are never padded; use false");
  EXPECT_EQ(qwen_refusal(R"("do_center_crop": true)"),
            "p.json: do_center_crop is true; this processor does not crop; use false");
  EXPECT_EQ(qwen_refusal(R"("max_pixel": 5)"), "p.json: unknown key 'max_pixel'; did you mean 'max_pixels'?");
  EXPECT_EQ(qwen_refusal(R"("sharpen": true)"), "p.json: unknown key 'sharpen'");
  EXPECT_EQ(qwen_refusal(R"("size": {"height": 5})"), "p.json: unknown key 'size.height'");
}

TEST(ProcessorConfig, RefusesOtherTypes) {
  EXPECT_EQ(
      refusal(R"({"image_processor_type": "SiglipImageProcessor"})"),
      "p.json: image_processor_type is \"SiglipImageProcessor\"; use Qwen2VLImageProcessor, GotOcr2ImageProcessor "
      "or CLIPImageProcessor");
  EXPECT_EQ(refusal("{}"),
            "p.json: image_processor_type is missing; use Qwen2VLImageProcessor, GotOcr2ImageProcessor or "
            "CLIPImageProcessor");
}

TEST(ProcessorConfig, RefusesValuesThatAreNone) {
  EXPECT_EQ(qwen_refusal(R"("image_mean": [0.5, 0.5])"),
            "p.json: image_mean is [0.5,0.5]; use a list of three numbers");
  EXPECT_EQ(qwen_refusal(R"("image_std": [1, 0, 1])"), "p.json: image_std is [1,0,1]; all three must be above 0");
  EXPECT_EQ(qwen_refusal(R"("min_pixels": 4000000)"),
            "p.json: min_pixels is 4000000; the least must be at most the most pixels, 1003520");
  EXPECT_EQ(qwen_refusal(R"("max_pixels": 1000)"),
            "p.json: max_pixels is 1000; it must be at least the least pixels, 3136");
  EXPECT_EQ(qwen_refusal(R"("max_pixels": 178956971)"), "p.json: max_pixels is 178956971; use 0 to 178956970 pixels");
  EXPECT_EQ(qwen_refusal(R"("patch_size": 0)"), "p.json: patch_size is 0; it must be at least 1");
  EXPECT_EQ(refusal(R"({"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 448, "width": 224}})"),
            "p.json: size is {\"height\":448,\"width\":224}; tiles are squares; use equal sides");
}

TEST(ProcessorConfig, NamesTheFolderWithoutAFile) {
  const auto folder = fresh_folder();
  EXPECT_EQ(message_of<ConfigError>([&] { read_image_processor(folder); }),
            folder.string() +
                ": no preprocessor_config.json and no processor_config.json; give the folder of a model that reads "
                "pictures");
}

}  // namespace
}  // namespace loom::images
