// Promise: a memory snapshot is written in the opcodes that PyTorch's viewer has and reads back the same; snapshots of
//          all protocols and of the older form are read; whatever else the bytes are, nothing of them runs, the answer
//          is an error with file and offset, and memory stays in proportion to the file.
// World:   tests/formats/data/memory_snapshot: one snapshot of two segments and twelve events, as Python pickles it
//          with protocols 0 to 5, and its segments in the older form.
#include "engine/formats/torch/memory_snapshot.h"

#include <gmock/gmock.h>
#include <map>
#include <tuple>

#include "tests/formats/archives.h"

namespace loom::io {
namespace {

using namespace std::string_literals;
using namespace loom::io::testing;
using ::testing::HasSubstr;
using ::testing::StartsWith;

MemorySnapshot read(std::string_view bytes) { return read_memory_snapshot(bytes_of(bytes), "s"); }

std::string refused(std::string_view bytes) {
  return message_of<FileDamage>([&] { read(bytes); });
}

// A snapshot whose segments are this opcode's value.
std::string with_segments(const std::string& opcodes) { return "\x80\x04}X\x08\0\0\0segments"s + opcodes + "s."; }

std::string shown_frame(const MemorySnapshot& snapshot, std::int32_t stack) {
  std::string text;
  for (const std::int32_t number : snapshot.stacks[static_cast<std::size_t>(stack)]) {
    const SnapshotFrame& frame = snapshot.frames[static_cast<std::size_t>(number)];
    text += fmt::format("{}:{}:{};", snapshot.texts[static_cast<std::size_t>(frame.filename)], frame.line,
                        snapshot.texts[static_cast<std::size_t>(frame.name)]);
  }
  return text;
}

void expect_small_snapshot(const MemorySnapshot& snapshot) {
  ASSERT_EQ(snapshot.segments.size(), 2);
  EXPECT_EQ(snapshot.segments[0].address, 139637976727552);
  EXPECT_TRUE(snapshot.segments[0].small);
  const SnapshotSegment& large = snapshot.segments[1];
  EXPECT_FALSE(large.small);
  EXPECT_EQ(large.total_size, 20971520);
  EXPECT_EQ(shown_frame(snapshot, large.stack), "engine:0:model.layers.0;");
  ASSERT_EQ(large.blocks.size(), 3);
  EXPECT_EQ(large.blocks[0].requested_size, 8388508);
  EXPECT_EQ(large.blocks[1].state, SnapshotState::kPendingFree);
  EXPECT_EQ(large.bytes_of(SnapshotState::kPendingFree), 2097152);
  ASSERT_EQ(snapshot.device_traces.size(), 1);
  const std::vector<SnapshotEvent>& trace = snapshot.device_traces[0];
  ASSERT_EQ(trace.size(), 12);
  EXPECT_EQ(trace[4].action, SnapshotAction::kAlloc);
  EXPECT_EQ(trace[4].time_us, 1700000000000050);
  EXPECT_EQ(shown_frame(snapshot, trace[4].stack), "engine:3:model.layers.0.mlp.down_proj;");
  EXPECT_EQ(trace[10].action, SnapshotAction::kOom);
  EXPECT_EQ(trace[10].address, 3145728);  // free bytes of the device
  EXPECT_EQ(snapshot.settings.max_split_size, -1);
  EXPECT_EQ(snapshot.settings.power2_divisions.size(), 16);
}

class Protocols : public ::testing::TestWithParam<int> {};

TEST_P(Protocols, AreRead) {
  expect_small_snapshot(read_memory_snapshot(golden(fmt::format("memory_snapshot/snap_p{}.pickle", GetParam()))));
}

TEST_P(Protocols, TruncatedFilesAreRefusedWithTheirOffset) {
  const std::string whole = read_file(golden(fmt::format("memory_snapshot/snap_p{}.pickle", GetParam())));
  for (std::size_t length = 0; length < whole.size(); length += 7) {
    ASSERT_THAT(refused(whole.substr(0, length)), StartsWith("s: offset ")) << length;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Protocols, ::testing::Range(0, 6));

TEST(OlderSnapshot, IsAListOfSegmentsWhoseBlocksHaveAHistory) {
  const MemorySnapshot snapshot = read_memory_snapshot(golden("memory_snapshot/older_list.pickle"));
  ASSERT_EQ(snapshot.segments.size(), 2);
  const SnapshotSegment& large = snapshot.segments[1];
  EXPECT_EQ(large.blocks[1].address, large.address + large.blocks[0].size);
  EXPECT_EQ(large.blocks[0].requested_size, 8388508);
  EXPECT_EQ(shown_frame(snapshot, large.blocks[0].stack), "engine:3:model.layers.0.mlp.down_proj;");
  EXPECT_TRUE(snapshot.device_traces.empty());
}

// --- written

MemorySnapshot of_many_events() {
  MemorySnapshot made = read_memory_snapshot(golden("memory_snapshot/snap_p4.pickle"));
  made.annotations = {{false, "forward", 0, 5}, {true, "forward", 0, 75}};
  std::vector<SnapshotEvent>& trace = made.device_traces[0];
  while (trace.size() < 2500) trace.push_back(trace[trace.size() % 9]);
  return made;
}

// The opcodes of a pickle as this writer makes it; EXPECTs that the viewer has them.
std::map<char, int> opcodes_of(std::string_view bytes) {
  std::map<char, int> found;
  const auto length_at = [&](std::size_t at, std::size_t count) {
    std::size_t length = 0;
    for (std::size_t i = count; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[at + i]);
    return length;
  };
  for (std::size_t at = 0; at < bytes.size();) {
    const char opcode = bytes[at++];
    ++found[opcode];
    switch (opcode) {
      case '\x80':
      case 'K':
      case 'q':
      case 'h':
        at += 1;
        break;
      case 'M':
        at += 2;
        break;
      case 'J':
      case 'r':
      case 'j':
        at += 4;
        break;
      case 'G':
        at += 8;
        break;
      case '\x8a':
      case '\x8c':
        at += 1 + length_at(at, 1);
        break;
      case '(':
      case '.':
      case '}':
      case ']':
      case 't':
      case 'e':
      case 'u':
      case 'N':
      case '\x88':
      case '\x89':
        break;
      default:
        ADD_FAILURE() << "opcode " << static_cast<int>(opcode) << " at " << at - 1;
        return found;
    }
  }
  return found;
}

TEST(WrittenSnapshot, HasTheViewersOpcodesAndSharesFrames) {
  const std::string bytes = write_memory_snapshot(of_many_events());
  const std::map<char, int> opcodes = opcodes_of(bytes);
  EXPECT_EQ(opcodes.at('.'), 1);
  // Two more batches of 1000 events: the viewer passes a batch as arguments of one call.
  EXPECT_EQ(opcodes.at('e') - opcodes.at(']'), 2);
  EXPECT_LT(bytes.size(), std::size_t{2500} * 64);
}

TEST(WrittenSnapshot, ReadsBackTheSame) {
  const MemorySnapshot written = of_many_events();
  const MemorySnapshot read_back = read(write_memory_snapshot(written));
  expect_small_snapshot([&] {
    MemorySnapshot first = read_back;
    first.device_traces[0].resize(12);
    return first;
  }());
  ASSERT_EQ(read_back.device_traces[0].size(), 2500);
  for (std::size_t i = 0; i < 2500; ++i) {
    const SnapshotEvent &a = written.device_traces[0][i], &b = read_back.device_traces[0][i];
    ASSERT_EQ(std::tie(a.action, a.address, a.size, a.stream, a.time_us),
              std::tie(b.action, b.address, b.size, b.stream, b.time_us));
    ASSERT_EQ(shown_frame(written, a.stack), shown_frame(read_back, b.stack));
  }
  EXPECT_EQ(write_memory_snapshot(read_back).size(),
            write_memory_snapshot(read(write_memory_snapshot(read_back))).size());
}

// --- hostile

TEST(HostileSnapshot, NoClassIsNamedAndNothingIsCalled) {
  const std::string rule =
      "but this file may hold dicts, lists, tuples, texts, numbers, booleans and None alone; nothing of it was run. Take "
      "the file from where it was made, and only from someone you trust";
  EXPECT_EQ(refused("cos\nsystem\n(S'id'\ntR."), "s: offset 0: opcode GLOBAL (0x63), " + rule);
  EXPECT_EQ(refused("\x80\x04\x8c\x02os\x8c\x06system\x93."s), "s: offset 14: opcode STACK_GLOBAL (0x93), " + rule);
  EXPECT_EQ(refused("(S"), "s: offset 1: opcode 0x53, which no file of this format has");
  EXPECT_EQ(refused("(ios\nsystem\n."), "s: offset 1: opcode INST (0x69), " + rule);
  EXPECT_EQ(refused("\x80\x02)R."s), "s: offset 3: opcode REDUCE (0x52), " + rule);
  for (const char* opcode : {"o", "\x81", "\x92", "b", "P", "Q", "\x82", "C", "B", "\x8e", "\x96", "\x97", "\x8f"}) {
    EXPECT_THAT(refused("\x80\x04"s + opcode), HasSubstr(rule)) << opcode;
  }
  EXPECT_THAT(refused(read_file(golden("evil.pt"))), StartsWith("s: offset 0: opcode PERSID"));
}

TEST(HostileSnapshot, ValuesThatContainThemselvesAreRefused) {
  EXPECT_EQ(refused("\x80\x04]\x94h\0a."s),
            "s: offset 2: a value that contains itself, which this format does not have");
  EXPECT_THAT(refused(with_segments("]\x94}\x94X\x06\0\0\0"
                                    "blocksh\0sa"s)),
              HasSubstr("contains itself"));
}

TEST(HostileSnapshot, DeepNestingIsRefused) {
  const std::string deep = "\x80\x04"s + std::string(100'000, ']') + std::string(99'999, 'a') + ".";
  EXPECT_THAT(refused(deep), HasSubstr("values nested deeper than 32, which this format does not have"));
}

TEST(HostileSnapshot, CountsBeyondTheFileAreRefusedBeforeMemoryIsTaken) {
  EXPECT_EQ(refused("\x80\x04X\xff\xff\xff\xffz"s),
            "s: offset 2: the pickle takes 4294967295 bytes here, but 1 are left; the file is cut short");
  EXPECT_EQ(refused("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fz"s),
            "s: offset 2: the pickle takes 9223372036854775807 bytes here, but 1 are left; the file is cut short");
  EXPECT_EQ(refused("\x80\x04Nr\xff\xff\xff\x7f."s),
            "s: offset 3: the pickle keeps value 2147483647, but only 0 before it");
  EXPECT_EQ(refused("Np99999999999999999999\n."),
            "s: offset 1: '99999999999999999999' is not a number that this format has");
}

// One dict of a block, thousands of times: two bytes each in the file, a record each in memory.
TEST(HostileSnapshot, ADictThatOccursTwiceIsRefused) {
  const std::string segment =
      "}(X\x07\0\0\0"
      "addressK\0X\x0a\0\0\0total_sizeK\x02X\x06\0\0\0"
      "blocks](}(X\x04\0\0\0sizeK\x01X\x05\0\0\0state"
      "X\x08\0\0\0inactiveu\x94h\0eu"s;
  EXPECT_THAT(refused(with_segments("](" + segment + "e")),
              HasSubstr("a dict that occurs twice, which a snapshot does not have"));
}

std::string segment_of(std::int64_t total, const std::string& blocks) {
  return with_segments(
      "](}(X\x07\0\0\0"
      "addressK\0X\x0a\0\0\0total_size\x8a\x08"s +
      little(static_cast<std::uint64_t>(total), 8) +
      "X\x06\0\0\0"
      "blocks]("s +
      blocks + "eue");
}
std::string block_of(std::int64_t size) {
  return "}(X\x04\0\0\0size\x8a\x08"s + little(static_cast<std::uint64_t>(size), 8) +
         "X\x05\0\0\0stateX\x08\0\0\0inactiveu"s;
}

TEST(HostileSnapshot, BlocksFillTheirSegment) {
  EXPECT_EQ(read(segment_of(5, block_of(2) + block_of(3))).segments[0].blocks.size(), 2);
  EXPECT_THAT(refused(segment_of(6, block_of(2) + block_of(3))),
              HasSubstr("the blocks of a segment of 6 bytes do not fill it to its end"));
  EXPECT_THAT(refused(segment_of(4, block_of(2) + block_of(3))), HasSubstr("do not fill it to its end"));
  EXPECT_THAT(refused(segment_of(6, block_of(-1))), HasSubstr("'size' is -1; from 0 to below 2^53 is read"));
  EXPECT_THAT(refused(segment_of(std::int64_t{1} << 53, block_of(1))),
              HasSubstr("'total_size' is 9007199254740992; from 0 to below 2^53 is read"));
}

TEST(HostileSnapshot, OtherFormsAreRefusedByName) {
  EXPECT_EQ(refused("\x80\x04K\x01."s), "s: offset 2: a snapshot is a dict with 'segments', or a list of segments");
  EXPECT_EQ(refused("\x80\x04}."s), "s: offset 2: no 'segments' in a dict of a snapshot that has one");
  EXPECT_THAT(refused(with_segments("K\x01")), HasSubstr("'segments' is not a list"));
  EXPECT_THAT(refused(with_segments("](K\x01"
                                    "e")),
              HasSubstr("a value that is not a dict, which a snapshot has here"));
  EXPECT_EQ(refused("\x80\x06N."s), "s: offset 0: a pickle of protocol 6; 0 to 5 are read");
}

TEST(Protocol0, TextsAreUnescaped) {
  const std::string file =
      "(lp0\n(dp1\nVaddress\nI0\nsVtotal_size\nL5L\nsVblocks\n(l(dVsize\nI5\nsVstate\nVactive_allocated\n"
      "sVframes\n(l(dVfilename\nVa\\u00e9\xe9\\U0001f600\nsVname\nVn\nsasasa.";
  const MemorySnapshot snapshot = read(file);
  EXPECT_EQ(shown_frame(snapshot, snapshot.segments.at(0).blocks.at(0).stack), "aéé😀:0:n;");
  EXPECT_THAT(refused("V\\u12\n."), HasSubstr("a text with a broken escape"));
}

}  // namespace
}  // namespace loom::io
