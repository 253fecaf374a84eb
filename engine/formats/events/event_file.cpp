#include "engine/formats/events/event_file.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/host_name.h"
#include "engine/formats/events/protobuf.h"
#include "engine/io/checksum.h"
#include "engine/io/mapped_file.h"
#include "engine/io/output_target.h"
#include "engine/io/write_all.h"

namespace loom::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEventVersion = "brain.Event:2";
constexpr std::size_t kHeaderBytes = 12;
constexpr std::size_t kFooterBytes = 4;

enum EventField : int { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5 };
enum SummaryField : int { kValue = 1 };
enum ValueField : int { kTag = 1, kSimpleValue = 2 };

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

template <class Number>
void append(std::string& text, Number number) {
  for (std::size_t i = 0; i < sizeof number; ++i) text.push_back(static_cast<char>(number >> (8 * i)));
}

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; const char byte : bytes) {
    value |= std::uint64_t{static_cast<unsigned char>(byte)} << (8 * i++);
  }
  return value;
}

// A name that is part of a file's name.
std::string host_name() {
  std::string host = loom::host_name();
  std::ranges::replace(host, '/', '_');
  return host;
}

[[noreturn]] void cannot_open(const fs::path& path, const std::string& reason) {
  config_error("{}: cannot write scalars: {}", path.string(), reason);
}

int write_whole(int fd, std::string_view bytes) { return write_all(fd, std::as_bytes(std::span(bytes))).error; }

// The parts of an Event, as far as they are scalars.
class EventReader {
 public:
  explicit EventReader(const std::function<void(const Scalar&)>& visit) : visit_(visit) {}

  void read(std::string_view event) {
    Scalar scalar;
    std::optional<std::string_view> summary;
    for (MessageReader field(event); field.next();) {
      if (field.is(kWallTime, WireType::kFixed64)) scalar.wall_time = field.as_double();
      if (field.is(kStep, WireType::kVarint)) scalar.step = static_cast<std::int64_t>(field.number());
      if (field.is(kSummary, WireType::kBytes)) summary = field.bytes();
    }
    if (!summary) return;
    for (MessageReader value(*summary); value.next();) {
      if (value.is(kValue, WireType::kBytes)) read_value(value.bytes(), scalar);
    }
  }

 private:
  void read_value(std::string_view message, Scalar scalar) const {
    bool has_value = false;
    for (MessageReader field(message); field.next();) {
      if (field.is(kTag, WireType::kBytes)) scalar.tag = field.bytes();
      if (!field.is(kSimpleValue, WireType::kFixed32)) continue;
      scalar.value = field.as_float();
      has_value = true;
    }
    if (has_value) visit_(scalar);
  }

  const std::function<void(const Scalar&)>& visit_;
};

// The records of a file, checked.
class RecordReader {
 public:
  RecordReader(const fs::path& file, std::string_view bytes) : file_(file), bytes_(bytes) {}

  // The next record's Event; none at the end.
  std::optional<std::string_view> next() {
    if (at_ == bytes_.size()) return std::nullopt;
    begin_ = at_;
    const std::string_view header = take(kHeaderBytes);
    check(header.substr(0, 8), header.substr(8), "its length");
    const std::string_view event = take(little_endian(header.substr(0, 8)));
    check(event, take(kFooterBytes), "its bytes");
    return event;
  }

  [[noreturn]] void refuse(std::string_view what) const {
    config_error("{}: the record at byte {} {}; give a whole event file of TensorBoard", file_.string(), begin_, what);
  }

 private:
  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) {
      refuse(fmt::format("is cut off: {} bytes are to follow byte {}, and {} do", count, at_, bytes_.size() - at_));
    }
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }

  void check(std::string_view bytes, std::string_view stored, std::string_view what) const {
    const std::uint32_t actual = masked_crc32c(bytes_of(bytes));
    const std::uint64_t expected = little_endian(stored);
    if (actual == expected) return;
    refuse(fmt::format("is damaged: the checksum of {} is {:#010x}, and {:#010x} is stored", what, actual, expected));
  }

  const fs::path& file_;
  const std::string_view bytes_;
  std::size_t at_ = 0;
  std::size_t begin_ = 0;  // of the present record
};

}  // namespace

std::uint32_t masked_crc32c(std::span<const std::byte> bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xA282EAD8U;
}

std::string event_record(std::string_view event) {
  std::string record;
  append(record, std::uint64_t{event.size()});
  append(record, masked_crc32c(bytes_of(record)));
  record.append(event);
  append(record, masked_crc32c(bytes_of(event)));
  return record;
}

std::string version_event(double wall_time) {
  MessageWriter event;
  event.add_double(kWallTime, wall_time);
  event.add_bytes(kFileVersion, kEventVersion);
  return event.text();
}

std::string scalar_event(double wall_time, std::int64_t step, std::string_view tag, float value) {
  MessageWriter scalar;
  scalar.add_bytes(kTag, tag);
  scalar.add_float(kSimpleValue, value);
  MessageWriter summary;
  summary.add_bytes(kValue, scalar.text());
  MessageWriter event;
  event.add_double(kWallTime, wall_time);
  event.add_varint(kStep, static_cast<std::uint64_t>(step));
  event.add_bytes(kSummary, summary.text());
  return event.text();
}

EventFile EventFile::create(const fs::path& folder, double wall_time) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) cannot_open(folder, error.message());
  const std::string stem =
      fmt::format("events.out.tfevents.{:010}.{}.{}", static_cast<std::int64_t>(wall_time), host_name(), ::getpid());
  for (std::int64_t sequence = 0;; ++sequence) {
    fs::path path = folder / fmt::format("{}.{}", stem, sequence);
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd < 0) cannot_open(path, reason_of(errno));
    EventFile file(std::move(path), fd);
    file.records_ = event_record(version_event(wall_time));
    if (const int failed = file.flush(); failed != 0) cannot_open(file.path_, reason_of(failed));
    return file;
  }
}

EventFile::EventFile(EventFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      records_(std::exchange(other.records_, {})),
      waiting_(std::exchange(other.waiting_, 0)) {}

EventFile::~EventFile() {
  if (fd_ < 0) return;
  flush();
  ::close(fd_);
}

void EventFile::add(double wall_time, std::int64_t step, std::string_view tag, float value) {
  records_ += event_record(scalar_event(wall_time, step, tag, value));
  ++waiting_;
}

int EventFile::flush() {
  if (records_.empty()) return 0;
  const off_t end = ::lseek(fd_, 0, SEEK_END);
  const int failed = end < 0 ? errno : write_whole(fd_, records_);
  const bool cut = failed == 0 || end < 0 || ::ftruncate(fd_, end) == 0;
  records_.clear();
  waiting_ = 0;
  return cut || failed != 0 ? failed : errno;
}

void read_scalars(const fs::path& file, const std::function<void(const Scalar&)>& visit) {
  const MappedFile mapped(file);
  RecordReader records(file, {reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()});
  EventReader events(visit);
  while (const auto event = records.next()) {
    try {
      events.read(*event);
    } catch (const WireError& error) {
      records.refuse(fmt::format("is not an Event: it has {}", error.what()));
    }
  }
}

bool is_event_file(const fs::path& file) { return file.filename().string().find("tfevents") != std::string::npos; }

}  // namespace loom::io
