// Promise: the texts of the launchers' flags mean what torchrun's mean, and a refusal says what is allowed.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/launcher/lines.h"
#include "engine/launcher/message.h"
#include "engine/launcher/option_grammar.h"
#include "tests/support/files.h"

namespace loom::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Call>
std::string refusal(const Call& call) {
  return test::message_of<ConfigError>(call);
}

TEST(LauncherGrammar, NodesAreANumberOrARange) {
  EXPECT_EQ(parse_nodes("2:4"), (NodeRange{2, 4}));
  EXPECT_EQ(parse_nodes("3"), (NodeRange{3, 3}));
  EXPECT_EQ(refusal([] { parse_nodes("4:2"); }), "--nnodes is 4:2, where MIN is above MAX; use 2:4");
  for (const char* text : {"0", "", "2:", ":2", "1:2:3", "two", "-1", "99999999999"}) {
    EXPECT_THAT(refusal([&] { parse_nodes(text); }), HasSubstr("use a number of nodes of at least 1, or MIN:MAX"));
  }
}

TEST(LauncherGrammar, StreamsAreOfAllWorkersOrOfEach) {
  const StreamChoice all = parse_streams("--tee", "3");
  EXPECT_TRUE(all.has_out(7) && all.has_err(7));
  const StreamChoice some = parse_streams("--tee", "1:3,0:2");
  EXPECT_TRUE(some.has_out(1) && some.has_err(1) && some.has_err(0));
  EXPECT_FALSE(some.has_out(0) || some.has_out(2) || some.has_err(2));
  EXPECT_FALSE(parse_streams("--tee", "0").any());
  for (const char* text : {"4", "-1", "1:4", "0:", ":3", "0:1,", "a"}) {
    EXPECT_THAT(refusal([&] { parse_streams("--tee", text); }), HasSubstr("use 0 (none), 1 (stdout)"));
  }
}

TEST(LauncherGrammar, WorkersMayBeCountedFromTheMachine) {
  EXPECT_EQ(parse_workers("4", 8, 2), 4);
  EXPECT_EQ(parse_workers("auto", 8, 2), 2);
  EXPECT_EQ(parse_workers("auto", 8, 0), 8);
  EXPECT_EQ(parse_workers("cpu", 8, 2), 8);
  EXPECT_THAT(refusal([] { parse_workers("gpu", 8, 0); }),
              HasSubstr("no NVIDIA device; use a number, cpu (8) or auto"));
  EXPECT_THAT(refusal([] { parse_workers("0", 8, 0); }), HasSubstr("use a number from 1 to 4096"));
}

TEST(LauncherGrammar, RendezvousSettingsAreSeconds) {
  Times times;
  parse_rendezvous_settings("timeout=90,last_call_timeout=1.5,read_timeout=8,close_timeout=3", times);
  EXPECT_EQ(times.join, Milliseconds(90'000));
  EXPECT_EQ(times.last_call, Milliseconds(1'500));
  EXPECT_EQ(times.read, Milliseconds(8'000));
  EXPECT_EQ(times.heartbeat, Milliseconds(2'000));
  EXPECT_EQ(parse_rendezvous_settings("is_host=0", times).is_host, false);
  EXPECT_THAT(refusal([&] { parse_rendezvous_settings("timeout", times); }), HasSubstr("use KEY=VALUE,KEY=VALUE"));
  EXPECT_THAT(refusal([&] { parse_rendezvous_settings("timeout=-1", times); }), HasSubstr("use seconds above 0"));
  EXPECT_THAT(refusal([&] { parse_rendezvous_settings("time=1", times); }), HasSubstr("unknown key time"));
}

TEST(LauncherGrammar, LinesAreCutAtTheirLimit) {
  std::vector<std::size_t> sizes;
  Lines lines;
  const auto note = [&](std::string_view line) { sizes.push_back(line.size()); };
  lines.add("one\ntw", note);
  lines.add("o\n" + std::string(kLongestLine + 10, 'x'), note);
  lines.finish(note);
  EXPECT_THAT(sizes, ElementsAre(4U, 4U, kLongestLine + 1, 11U));
  LastLines last(8);
  last.add("first\nsecond\nthi");
  last.add("rd\n");
  EXPECT_EQ(last.text(), "third\n");
}

TEST(LauncherGrammar, MessagesComeBackAsTheyWere) {
  const auto again = decode(encode(Join{.version = "1.0", .host = "h\n\xff", .workers = 3, .node_rank = -1}));
  const auto& join = std::get<Join>(again);
  EXPECT_EQ(join.version, "1.0");
  EXPECT_EQ(join.workers, 3);
  EXPECT_EQ(join.node_rank, -1);
  EXPECT_TRUE(std::holds_alternative<Heartbeat>(decode(encode(Heartbeat{}))));
  const std::string large =
      encode(Failure{.host = std::string(100'000, '\x01'), .last_lines = std::string(100'000, '"')});
  EXPECT_LE(large.size(), kLongestMessage);
  for (const char* text :
       {"", "[]", "{}", R"({"type":"jump"})", R"({"type":"stop"})", R"({"type":7})",
        R"({"type":"stop","signal":99999999999,"reason":""})", R"({"type":"stop","signal":1.5,"reason":""})"}) {
    EXPECT_THROW(decode(text), CommError) << text;
  }
}

}  // namespace
}  // namespace loom::launcher
