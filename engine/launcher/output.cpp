#include "engine/launcher/output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/wake_event.h"
#include "engine/io/write_all.h"
#include "engine/launcher/failure_report.h"
#include "engine/launcher/lines.h"

namespace loom::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kDrain{2};
constexpr std::chrono::milliseconds kLastLines{500};

// False where the system refuses.
bool write_all(int descriptor, std::string_view bytes) {
  while (true) {
    const io::Written written = io::write_all(descriptor, std::as_bytes(std::span(bytes)));
    if (written.error != EAGAIN) return written.error == 0;
    bytes.remove_prefix(written.bytes);
    pollfd poll{descriptor, POLLOUT, 0};
    ::poll(&poll, 1, 1000);
  }
}

}  // namespace

class Output::Loop {
 public:
  Loop() : thread_([this] { run(); }) {}
  ~Loop() {
    end_ = true;
    abandon();
    thread_.join();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  std::unique_ptr<Descriptor> add(Stream stream, Id& id) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) raise<Error>("no pipe for a worker's output: {}", std::strerror(errno));
    auto opened = std::make_shared<Open>(std::move(stream), ends[0]);
    auto end = std::make_unique<Descriptor>(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    {
      const std::scoped_lock lock(mutex_);
      id = next_id_++;
      streams_[id] = std::move(opened);
      last_.emplace(id, kLastLinesBytes);
    }
    wake_.wake();
    return end;
  }

  std::string last_lines(Id id) {
    std::unique_lock lock(mutex_);
    over_.wait_for(lock, kLastLines, [&] { return !streams_.contains(id); });
    const auto last = last_.find(id);
    return last == last_.end() ? std::string{} : last->second.text();
  }

  void drain() {
    {
      std::unique_lock lock(mutex_);
      over_.wait_for(lock, kDrain, [this] { return streams_.empty(); });
      last_.clear();
    }
    abandon();
  }

  std::string problem() const {
    const std::scoped_lock lock(mutex_);
    return problem_;
  }

 private:
  struct Open {
    Open(Stream stream, int end) : to(std::move(stream)), pipe(end) {}
    const Stream to;
    const Descriptor pipe;
    Lines lines;                          // of the thread
    std::atomic<bool> abandoned = false;  // to be read once more, and no further
  };
  using Streams = std::map<Id, std::shared_ptr<Open>>;

  void abandon() {
    const std::scoped_lock lock(mutex_);
    for (const auto& [id, stream] : streams_) stream->abandoned = true;
    wake_.wake();
  }

  Streams streams() const {
    const std::scoped_lock lock(mutex_);
    return streams_;
  }

  // The console may block the thread, and nobody else: the mutex is free then.
  void run() {
    for (Streams open = streams(); !end_ || !open.empty(); open = streams()) {
      std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
      for (const auto& [id, stream] : open) polled.push_back({stream->pipe.get(), POLLIN, 0});
      ::poll(polled.data(), polled.size(), 1000);
      wake_.clear();
      for (const auto& [id, stream] : open) {
        const bool last_time = stream->abandoned;
        if (read(id, *stream) && !last_time) continue;
        if (stream->to.console >= 0) stream->lines.finish([&](std::string_view line) { show(stream->to, line); });
        const std::scoped_lock lock(mutex_);
        streams_.erase(id);
        over_.notify_all();
      }
    }
  }

  // What is there; at most a part, so that each stream has its turn. False at its end.
  bool read(Id id, Open& stream) {
    std::array<char, 65536> buffer{};
    const ssize_t got = ::read(stream.pipe.get(), buffer.data(), buffer.size());
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
    const std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
    const bool written = !stream.to.file || write_all(stream.to.file->get(), bytes);
    const int error = errno;
    {
      const std::scoped_lock lock(mutex_);
      if (const auto last = last_.find(id); last != last_.end()) last->second.add(bytes);
      if (!written && problem_.empty()) {
        problem_ = fmt::format("a log of a worker cannot be written: {}; it is incomplete", std::strerror(error));
      }
    }
    if (stream.to.console >= 0) stream.lines.add(bytes, [&](std::string_view line) { show(stream.to, line); });
    return true;
  }

  static void show(const Stream& to, std::string_view line) {
    write_all(to.console, to.prefix.empty() ? line : to.prefix + std::string(line));
  }

  const WakeEvent wake_;
  mutable std::mutex mutex_;
  std::condition_variable over_;
  Streams streams_;
  std::map<Id, LastLines> last_;
  Id next_id_ = 0;
  std::string problem_;
  std::atomic<bool> end_ = false;
  std::thread thread_;  // last: it uses the rest
};

Output::Output() : loop_(std::make_unique<Loop>()) {}
Output::~Output() = default;
std::unique_ptr<Descriptor> Output::add(Stream stream, Id& id) { return loop_->add(std::move(stream), id); }
std::string Output::last_lines(Id id) { return loop_->last_lines(id); }
void Output::drain() { loop_->drain(); }
std::string Output::problem() const { return loop_->problem(); }

}  // namespace loom::launcher
