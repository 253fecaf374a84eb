// Event files: scalars as TensorBoard reads them, and back.
//
// Name     events.out.tfevents.<unix seconds>.<host>.<process>.<sequence>: a new file each time, beside the files of
//          earlier runs, which TensorBoard shows as one.
// Record   length (8 bytes), masked CRC-32C of the length (4), an Event (protobuf), masked CRC-32C of it (4); all
//          little endian. The first Event holds the version "brain.Event:2".
// Event    wall_time (field 1, double, seconds since 1970), step (2, int64), summary (5) with one value (1): tag (1),
//          simple_value (2, float).
// Read     values without a simple_value (histograms, images, text, tensors) are skipped.
// Threads  one thread at a time.
// Errors   create: ConfigError with the path. read_scalars: ConfigError with the file and the byte at which a record
//          begins that is cut off, damaged or not an Event; nothing is allocated by a size that a file claims.
// Source   TensorFlow, core/util/event.proto, core/framework/summary.proto, core/lib/io/record_writer.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace loom::io {

// The masked form in which a record stores a checksum.
std::uint32_t masked_crc32c(std::span<const std::byte> bytes);

// A record around an Event.
std::string event_record(std::string_view event);
// The Event that begins a file.
std::string version_event(double wall_time);
std::string scalar_event(double wall_time, std::int64_t step, std::string_view tag, float value);

class EventFile {
 public:
  // Makes the folder and a file in it that was not there, with the first record.
  static EventFile create(const std::filesystem::path& folder, double wall_time);
  // Writes what waits, as far as it can be written.
  ~EventFile();
  EventFile(EventFile&& other) noexcept;
  EventFile& operator=(EventFile&&) = delete;
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Waits for flush().
  void add(double wall_time, std::int64_t step, std::string_view tag, float value);
  std::int64_t waiting() const { return waiting_; }  // scalars
  // Writes what waits. 0, or the system's error number: what waited is gone then, and no half record stays.
  int flush();

  const std::filesystem::path& path() const { return path_; }

 private:
  EventFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::filesystem::path path_;
  int fd_ = -1;
  std::string records_;
  std::int64_t waiting_ = 0;
};

struct Scalar {
  double wall_time = 0.0;
  std::int64_t step = 0;
  std::string_view tag;  // until the call returns
  float value = 0.0F;
};
// In the order of the file.
void read_scalars(const std::filesystem::path& file, const std::function<void(const Scalar&)>& visit);

// Whether a file of that name is an event file, as TensorBoard decides it: "tfevents" is in the name.
bool is_event_file(const std::filesystem::path& file);

}  // namespace loom::io
