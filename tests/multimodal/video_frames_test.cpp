// Promise: a video gives the frames that MindSpeed-MM chooses, and a folder its pictures by name; files of videos are
//          refused.
// World:   numbers, and empty files.
#include "engine/multimodal/video_frames.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::multimodal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(VideoFrames, AreChosenEvenly) {
  EXPECT_THAT(chosen_frames(100, {}, {.maxlen = 8}), ElementsAre(0, 14, 28, 42, 56, 70, 84, 99));
  EXPECT_THAT(chosen_frames(30, {}, {.maxlen = 4}), ElementsAre(0, 9, 19, 29));
  EXPECT_THAT(chosen_frames(3, {}, {.maxlen = 8}), ElementsAre(0, 1, 2));
  EXPECT_THAT(chosen_frames(5, {}, {.maxlen = 1}), ElementsAre(0));
}

TEST(VideoFrames, FollowTheDuration) {
  EXPECT_THAT(chosen_frames(100, 2.4, {.fps = 2, .maxlen = 8}), ElementsAre(0, 33, 66, 99));
  EXPECT_THAT(chosen_frames(100, 0.1, {.fps = 2, .maxlen = 8}), ElementsAre(0));
  EXPECT_EQ(chosen_frames(100, 1e300, {.fps = 2, .maxlen = 8}).size(), 8U);
  EXPECT_EQ(second_per_grid({.fps = 4}), 0.5);
}

TEST(VideoFrames, OfAFolderAreItsPicturesByName) {
  const auto folder = test::fresh_folder();
  for (const char* name : {"b.JPG", "a.png", "notes.txt", "c.ppm"}) test::write_file(folder / name, "");
  EXPECT_THAT(frames_of_folder(folder), ElementsAre(folder / "a.png", folder / "b.JPG", folder / "c.ppm"));
}

TEST(VideoFrames, OfOtherPathsAreRefused) {
  const auto folder = test::fresh_folder();
  test::write_file(folder / "v.mp4", "x");
  EXPECT_THAT(test::message_of<ConfigError>([&] { frames_of_folder(folder / "v.mp4"); }),
              HasSubstr("v.mp4 is a file; a decoder of videos is not built: give a folder with its frames"));
  EXPECT_THAT(test::message_of<ConfigError>([&] { frames_of_folder(folder / "none"); }),
              HasSubstr("none: no folder of frames"));
  EXPECT_THAT(test::message_of<ConfigError>([&] { frames_of_folder(folder); }), HasSubstr("has no picture"));
}

}  // namespace
}  // namespace loom::multimodal
