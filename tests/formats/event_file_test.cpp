// Promise: event files are byte for byte what TensorBoard reads; what is damaged, cut off or foreign is refused with
//          its place; a full disk leaves whole records.
// Reader:  of this file: a checksum of its own, by a table, and fields by their tag bytes.
#include "engine/formats/events/event_file.h"

#include <array>
#include <bit>
#include <cstring>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "engine/core/error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/files.h"

namespace loom::io {
namespace {

using test::fresh_folder;
using test::message_of;
using test::read_file;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// --- A reader that shares nothing with the engine

std::uint32_t table_crc32c(std::string_view bytes) {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ ((table[i] & 1) != 0 ? 0x82F63B78U : 0U);
  }
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) crc = table[(crc ^ static_cast<unsigned char>(byte)) & 0xFF] ^ crc >> 8;
  return ~crc;
}

std::uint32_t masked(std::uint32_t crc) { return (crc >> 15 | crc << 17) + 0xA282EAD8U; }

template <class Number>
Number at(std::string_view bytes, std::size_t offset) {
  Number number;
  std::memcpy(&number, bytes.substr(offset, sizeof number).data(), sizeof number);
  return number;
}

std::vector<std::string> events_of(std::string_view file) {
  std::vector<std::string> events;
  for (std::size_t offset = 0; offset < file.size();) {
    const auto length = at<std::uint64_t>(file, offset);
    EXPECT_EQ(at<std::uint32_t>(file, offset + 8), masked(table_crc32c(file.substr(offset, 8))));
    events.emplace_back(file.substr(offset + 12, length));
    EXPECT_EQ(at<std::uint32_t>(file, offset + 12 + length), masked(table_crc32c(events.back())));
    offset += 16 + length;
  }
  return events;
}

// "step tag value" of an Event of one scalar with a tag below 100 bytes and a step below 128.
std::string scalar_of(std::string_view event) {
  EXPECT_EQ(event[0], '\x09');   // wall_time
  EXPECT_EQ(event[9], '\x10');   // step
  EXPECT_EQ(event[11], '\x2A');  // summary
  EXPECT_EQ(event[13], '\x0A');  // value
  EXPECT_EQ(event[15], '\x0A');  // tag
  const auto length = static_cast<std::size_t>(event[16]);
  EXPECT_EQ(event[17 + length], '\x15');  // simple_value
  EXPECT_EQ(event.size(), 22 + length);
  return fmt::format("{} {} {} at {}", static_cast<int>(event[10]), event.substr(17, length),
                     at<float>(event, 18 + length), at<double>(event, 1));
}

// --- Writing

TEST(EventRecord, HasTheMaskedChecksumsOfTheFormat) {
  EXPECT_EQ(masked_crc32c(bytes_of("123456789")), 0xC78AB0E5U);
  const std::string record = event_record(std::string(24, 'x'));
  EXPECT_EQ(record.substr(0, 12), std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
  EXPECT_EQ(record.size(), 24u + 16u);
}

TEST(EventRecord, OfAScalarIsTheseBytes) {
  EXPECT_EQ(scalar_event(1.0, 300, "ab", 0.5F), std::string("\x09\0\0\0\0\0\0\xf0\x3f"
                                                            "\x10\xac\x02"
                                                            "\x2a\x0b"
                                                            "\x0a\x09"
                                                            "\x0a\x02"
                                                            "ab"
                                                            "\x15\0\0\0\x3f",
                                                            25));
}

TEST(EventFile, IsReadBackByAnotherReader) {
  const auto folder = fresh_folder() / "made" / "for_it";
  std::filesystem::path path;
  {
    EventFile file = EventFile::create(folder, 1'795'333'911.25);
    path = file.path();
    file.add(1.5, 1, "lm loss", 2.5F);
    file.add(2.5, 2, "lm loss", -0.125F);
    file.add(3.5, 16, "lm loss vs samples", 1e-3F);
    EXPECT_EQ(file.waiting(), 3);
    EXPECT_EQ(file.flush(), 0);
    EXPECT_EQ(file.waiting(), 0);
  }
  EXPECT_THAT(path.filename().string(), ::testing::StartsWith("events.out.tfevents.1795333911."));
  EXPECT_THAT(path.filename().string(), EndsWith(fmt::format(".{}.0", ::getpid())));
  const std::vector<std::string> events = events_of(read_file(path));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(at<double>(events[0], 1), 1'795'333'911.25);
  EXPECT_EQ(events[0].substr(9),
            "\x1a\x0d"
            "brain.Event:2");
  EXPECT_EQ(scalar_of(events[1]), "1 lm loss 2.5 at 1.5");
  EXPECT_EQ(scalar_of(events[2]), "2 lm loss -0.125 at 2.5");
  EXPECT_EQ(scalar_of(events[3]), "16 lm loss vs samples 0.001 at 3.5");
}

TEST(EventFile, IsANewOneBesideThoseOfEarlierRuns) {
  const auto folder = fresh_folder();
  const EventFile first = EventFile::create(folder, 7);
  const EventFile second = EventFile::create(folder, 7);
  EXPECT_THAT(first.path().filename().string(), ::testing::StartsWith("events.out.tfevents.0000000007."));
  EXPECT_THAT(second.path().string(), EndsWith(".1"));
}

TEST(EventFile, WritesWhatWaitsAtItsEnd) {
  const auto folder = fresh_folder();
  std::filesystem::path path;
  {
    EventFile file = EventFile::create(folder, 7);
    file.add(1, 1, "a", 1);
    path = EventFile(std::move(file)).path();
  }
  EXPECT_EQ(events_of(read_file(path)).size(), 2u);
}

TEST(EventFile, OfAFolderThatCannotBeIsRefused) {
  const auto file = write_file(fresh_folder() / "file", "x");
  EXPECT_EQ(message_of<ConfigError>([&] { EventFile::create(file / "tb", 1); }),
            (file / "tb").string() + ": cannot write scalars: Not a directory");
}

TEST(EventFile, OnAFullDiskKeepsWholeRecordsAndGoesOn) {
  EventFile file = EventFile::create(fresh_folder(), 1);
  file.add(1, 1, "kept", 1);
  ASSERT_EQ(file.flush(), 0);
  const std::string before = read_file(file.path());
  {
    const test::FileSizeLimit full(before.size() + 10);
    file.add(1, 2, "lost", 1);
    EXPECT_EQ(file.flush(), EFBIG);
  }
  EXPECT_EQ(read_file(file.path()), before);
  file.add(1, 3, "after", 1);
  EXPECT_EQ(file.flush(), 0);
  const auto events = events_of(read_file(file.path()));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(scalar_of(events[2]), "3 after 1 at 1");
}

// --- Reading

std::vector<std::string> scalars_in(const std::filesystem::path& path) {
  std::vector<std::string> found;
  read_scalars(path, [&](const Scalar& scalar) {
    found.push_back(fmt::format("{} {} {} at {}", scalar.step, scalar.tag, scalar.value, scalar.wall_time));
  });
  return found;
}

TEST(ReadScalars, GivesThemInTheOrderOfTheFile) {
  EventFile file = EventFile::create(fresh_folder(), 1);
  file.add(1.5, 3'000'000'000, "a", 0.5F);
  file.add(2.5, 0, "", -1.0F);
  ASSERT_EQ(file.flush(), 0);
  EXPECT_THAT(scalars_in(file.path()), ElementsAre("3000000000 a 0.5 at 1.5", "0  -1 at 2.5"));
}

TEST(ReadScalars, PassesOverValuesThatAreNoScalar) {
  // Value: a tag, and a tensor (field 8); an unknown field of each kind in the Event; one value more that is a scalar.
  const std::string tensor = std::string("\x0a\x01t\x42\x02\x08\x01", 7);
  const std::string scalar = std::string("\x0a\x01s\x15\0\0\x80\x3f", 8);
  const std::string summary = "\x0a\x07" + tensor + "\x0a\x08" + scalar;
  const std::string unknown = std::string("\x78\x05\x79\0\0\0\0\0\0\0\0\x7d\0\0\0\0\x7a\x01x", 19);
  const auto path = write_file(fresh_folder() / "tfevents",
                               event_record(unknown + "\x2a" + static_cast<char>(summary.size()) + summary));
  EXPECT_THAT(scalars_in(path), ElementsAre("0 s 1 at 0"));
  EXPECT_THAT(scalars_in(write_file(path, "")), IsEmpty());
}

class DamagedEventFile : public ::testing::Test {
 protected:
  std::string refusal(std::string_view bytes) const {
    const auto path = write_file(folder / "f.tfevents", bytes);
    const std::string text = message_of<ConfigError>([&] { scalars_in(path); });
    const std::string begin = path.string() + ": the record at byte ";
    EXPECT_THAT(text, ::testing::StartsWith(begin));
    EXPECT_THAT(text, EndsWith("; give a whole event file of TensorBoard"));
    return text.substr(begin.size(), text.rfind("; give") - begin.size());
  }
  const std::filesystem::path folder = fresh_folder();
  const std::string good = event_record(version_event(1)) + event_record(scalar_event(1, 1, "a", 1));
};

TEST_F(DamagedEventFile, IsRefusedWithItsPlace) {
  EXPECT_EQ(refusal(good.substr(0, 45)), "40 is cut off: 12 bytes are to follow byte 40, and 5 do");
  EXPECT_EQ(refusal(good.substr(0, good.size() - 1)), "40 is cut off: 4 bytes are to follow byte 75, and 3 do");
  std::string flipped = good;
  flipped[60] ^= 1;
  EXPECT_THAT(refusal(flipped), ::testing::StartsWith("40 is damaged: the checksum of its bytes is 0x"));
  flipped = good;
  flipped[3] ^= 1;
  EXPECT_THAT(refusal(flipped), ::testing::StartsWith("0 is damaged: the checksum of its length is 0x"));
  EXPECT_THAT(refusal("{\"step\": 1, \"loss\": 2}\n"),
              ::testing::StartsWith("0 is damaged: the checksum of its length"));
}

TEST_F(DamagedEventFile, ThatClaimsMoreThanThereIsAllocatesNothing) {
  std::string length(8, '\xff');
  const std::uint32_t crc = masked(table_crc32c(length));
  for (int i = 0; i < 4; ++i) length.push_back(static_cast<char>(crc >> (8 * i)));
  EXPECT_EQ(refusal(length), "0 is cut off: 18446744073709551615 bytes are to follow byte 12, and 0 do");
}

TEST_F(DamagedEventFile, WithWholeRecordsThatAreNoEventsIsRefused) {
  EXPECT_EQ(refusal(event_record("\x2a\x05"
                                 "ab")),
            "0 is not an Event: it has a field that is longer than its message");
  EXPECT_EQ(refusal(event_record("\x0b")), "0 is not an Event: it has a field of wire type 3");
  EXPECT_EQ(refusal(event_record(std::string("\x01\0", 2))), "0 is not an Event: it has field 0, which no message has");
  EXPECT_EQ(refusal(event_record("\x10" + std::string(11, '\x80'))),
            "0 is not an Event: it has a number of more than 10 bytes");
  EXPECT_EQ(refusal(event_record("\x2a\x04\x0a\x02\x0a\x7f")),
            "0 is not an Event: it has a field that is longer than its message");
}

TEST_F(DamagedEventFile, ThatIsNoFileIsRefused) {
  const auto fifo = folder / "fifo.tfevents";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(message_of<ConfigError>([&] { scalars_in(fifo); }), fifo.string() + ": not a regular file");
}

}  // namespace
}  // namespace loom::io
