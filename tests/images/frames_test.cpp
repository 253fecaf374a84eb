// Promise: the frames of a video are those that MindSpeed-MM samples.
// World:   counts by hand.
#include "engine/images/frames.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::images {
namespace {

using test::message_of;
using ::testing::ElementsAre;

TEST(FrameIndices, AreEvenlySpacedAndRoundedDown) {
  EXPECT_THAT(evenly_spaced(100, 8), ElementsAre(0, 14, 28, 42, 56, 70, 84, 99));
  EXPECT_THAT(evenly_spaced(30, 4), ElementsAre(0, 9, 19, 29));
  EXPECT_THAT(evenly_spaced(7, 1), ElementsAre(0));
  EXPECT_THAT(evenly_spaced(2, 4), ElementsAre(0, 0, 0, 1));
}

TEST(FrameIndices, AreAsManyAsDurationFramesAndLimitAllow) {
  EXPECT_THAT(frame_indices(100, 4.2, {}), ElementsAre(0, 14, 28, 42, 56, 70, 84, 99));  // 8.4
  EXPECT_THAT(frame_indices(100, 60, {.max_frames = 4}), ElementsAre(0, 33, 66, 99));
  EXPECT_THAT(frame_indices(3, 60, {}), ElementsAre(0, 1, 2));
  EXPECT_THAT(frame_indices(100, 0.1, {}), ElementsAre(0));
  EXPECT_THAT(frame_indices(1000, 1e300, {.max_frames = 2}), ElementsAre(0, 999));
}

TEST(FrameIndices, OfAnUnknownLengthAreTheFirstOnes) {
  EXPECT_THAT(frame_indices(0, 0, {.max_frames = 5}), ElementsAre(0, 1, 2, 3, 4));
}

TEST(FrameIndices, RefuseWhatIsNoVideo) {
  EXPECT_EQ(message_of<ConfigError>([] { frame_indices(-1, 2, {}); }),
            "a video of -1 frames and 2 seconds; both must be 0 (unknown) or more");
  EXPECT_EQ(message_of<ConfigError>([] { frame_indices(1, 2, {.fps = 0}); }),
            "videos: video_fps is 0 and video_maxlen 128; use a video_fps above 0 and a video_maxlen of 1 to 1000000");
  EXPECT_THROW(frame_indices(1, std::numeric_limits<double>::quiet_NaN(), {}), ConfigError);
}

TEST(SampleFps, IsThatOfTheChoice) {
  EXPECT_EQ(sample_fps(8, 4, {}), 2);
  EXPECT_EQ(sample_fps(4, 16, {}), 0.25);
  EXPECT_EQ(sample_fps(4, 0, {.fps = 3}), 3);
}

}  // namespace
}  // namespace loom::images
