#include "engine/comm/mpi/mpi_transport.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <sys/prctl.h>
#include <utility>

namespace loom::comm::mpi {
namespace {

using messages::Direction;
using messages::Message;

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLargestMessage = std::size_t{1} << 30;  // MPI counts are ints
constexpr std::size_t kNoticeBytes = 4096;
constexpr auto kGrace = std::chrono::seconds(3);
constexpr int kBusyPolls = 100;
constexpr int kYieldingPolls = 200;
constexpr auto kLongestNap = std::chrono::microseconds(200);

// A failing rank tells the others: its text, cut to the room there is.
std::vector<char> to_notice(const std::string& reason) {
  std::vector<char> notice(kNoticeBytes, '\0');
  std::memcpy(notice.data(), reason.data(), std::min(reason.size(), kNoticeBytes - 1));
  return notice;
}

}  // namespace

class MpiBatch final : public messages::Batch {
 public:
  MpiBatch(int tag, std::vector<Message> messages) : tag_(tag), messages_(std::move(messages)) {}

  void post(MPI_Comm comm, Clock::time_point deadline) {
    deadline_ = deadline;
    for (const Message& message : messages_) {
      for (std::size_t begin = 0; begin < message.bytes; begin += kLargestMessage) {
        post_piece(comm, message, begin, std::min(kLargestMessage, message.bytes - begin));
      }
    }
    open_ = requests_.size();
    finished_.resize(open_);
  }

  // True when a message has ended since the last call.
  bool progress() {
    int count = 0;
    MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, finished_.data(), MPI_STATUSES_IGNORE);
    if (count == MPI_UNDEFINED || count == 0) return false;
    open_ -= static_cast<std::size_t>(count);
    return true;
  }

  bool complete() const { return open_ == 0; }
  bool is_late(Clock::time_point now) const { return now >= deadline_; }

  std::vector<int> missing() const {
    std::vector<int> peers;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] != MPI_REQUEST_NULL) peers.push_back(request_peers_[i]);
    }
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    return peers;
  }

  void abandon() {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      if (request_receives_[i]) MPI_Cancel(&requests_[i]);
      MPI_Request_free(&requests_[i]);
    }
    open_ = 0;
  }

 private:
  void post_piece(MPI_Comm comm, const Message& message, std::size_t begin, std::size_t bytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    std::byte* data = static_cast<std::byte*>(message.data) + begin;
    const bool receives = message.direction == Direction::kReceive;
    if (receives) {
      MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, message.peer, tag_, comm, &request);
    } else {
      MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, message.peer, tag_, comm, &request);
    }
    requests_.push_back(request);
    request_peers_.push_back(message.peer);
    request_receives_.push_back(receives);
  }

  const int tag_;
  const std::vector<Message> messages_;
  std::vector<MPI_Request> requests_;
  std::vector<int> request_peers_;
  std::vector<bool> request_receives_;
  std::vector<int> finished_;
  std::size_t open_ = 0;
  Clock::time_point deadline_;
};

MpiTransport::MpiTransport(std::chrono::milliseconds timeout) : Transport(timeout), thread_([this] { serve(); }) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return initialised_; });
}

MpiTransport::~MpiTransport() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<messages::Batch> MpiTransport::start(int tag, std::vector<Message> messages) {
  auto batch = std::make_shared<MpiBatch>(tag, std::move(messages));
  const std::lock_guard lock(mutex_);
  fresh_.push_back(batch);
  changed_.notify_all();
  return batch;
}

void MpiTransport::abort_job() {
  {
    const std::lock_guard lock(mutex_);
    aborting_ = true;
    changed_.notify_all();
  }
  thread_.join();  // MPI_Abort has ended the process before
}

void MpiTransport::serve() {
  pthread_setname_np(pthread_self(), "mpi");
  prctl(PR_SET_TIMERSLACK, 10'000);  // ns; naps are shorter than the default slack
  initialise();
  {
    const std::lock_guard lock(mutex_);
    initialised_ = true;
    changed_.notify_all();
  }
  serve_until_stopped();
  finalise();
}

void MpiTransport::initialise() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  find_nodes();
  MPI_Comm_dup(MPI_COMM_WORLD, &messages_);
  MPI_Comm_dup(MPI_COMM_WORLD, &notices_);
  void* bound = nullptr;
  int found = 0;
  MPI_Comm_get_attr(messages_, MPI_TAG_UB, static_cast<void*>(&bound), &found);
  largest_tag_ = found != 0 ? *static_cast<int*>(bound) : 32767;
  receive_notices();
}

// A node is named by the lowest world rank on it.
void MpiTransport::find_nodes() {
  int world_size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  nodes_.resize(static_cast<std::size_t>(world_size));
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node);
  int lowest = rank_;
  MPI_Bcast(&lowest, 1, MPI_INT, 0, node);
  MPI_Comm_free(&node);
  MPI_Allgather(&lowest, 1, MPI_INT, nodes_.data(), 1, MPI_INT, MPI_COMM_WORLD);
}

void MpiTransport::finalise() {
  if (!finalises_) return;
  MPI_Cancel(&notice_);
  MPI_Wait(&notice_, MPI_STATUS_IGNORE);
  MPI_Comm_free(&messages_);
  MPI_Comm_free(&notices_);
  MPI_Finalize();
}

void MpiTransport::serve_until_stopped() {
  int idle_polls = 0;
  while (true) {
    const Batches fresh = take_new(idle_polls);
    for (const std::shared_ptr<MpiBatch>& batch : fresh) post(batch);
    const bool progressed = poll_batches();
    poll_notice();
    spread_failure();
    idle_polls = progressed || !fresh.empty() ? 0 : idle_polls + 1;
    const std::lock_guard lock(mutex_);
    if (aborting_) break;
    if (stopping_ && active_.empty() && fresh_.empty()) return;
  }
  end_after_grace();
}

MpiTransport::Batches MpiTransport::take_new(int idle_polls) {
  if (idle_polls > kBusyPolls && idle_polls <= kYieldingPolls) sched_yield();
  std::unique_lock lock(mutex_);
  const auto called = [&] { return !fresh_.empty() || stopping_ || aborting_ || (failure_ && !failure_spread_); };
  if (active_.empty()) {
    changed_.wait(lock, called);
  } else if (idle_polls > kYieldingPolls) {
    const auto nap = std::chrono::microseconds(10 + (idle_polls - kYieldingPolls));
    changed_.wait_for(lock, std::min<std::chrono::microseconds>(nap, kLongestNap), called);
  }
  return std::exchange(fresh_, {});
}

void MpiTransport::post(const std::shared_ptr<MpiBatch>& batch) {
  if (failure_spread_) return end(*batch, {});
  batch->post(messages_, Clock::now() + timeout());
  active_.push_back(batch);
}

bool MpiTransport::poll_batches() {
  const auto now = Clock::now();
  bool progressed = false;
  Batches open;
  for (const std::shared_ptr<MpiBatch>& batch : active_) {
    progressed |= batch->progress();
    if (batch->complete()) {
      end(*batch, {.done = true, .missing = {}});
      progressed = true;
    } else if (batch->is_late(now)) {
      std::vector<int> missing = batch->missing();
      batch->abandon();
      end(*batch, {.done = false, .missing = std::move(missing)});
    } else {
      open.push_back(batch);
    }
  }
  active_.swap(open);
  return progressed;
}

void MpiTransport::receive_notices() {
  notice_text_.resize(kNoticeBytes);
  MPI_Irecv(notice_text_.data(), static_cast<int>(kNoticeBytes), MPI_CHAR, MPI_ANY_SOURCE, 0, notices_, &notice_);
}

void MpiTransport::poll_notice() {
  int arrived = 0;
  MPI_Status status;
  MPI_Test(&notice_, &arrived, &status);
  if (arrived == 0) return;
  const std::string reason = notice_text_.data();
  receive_notices();
  note_failure({status.MPI_SOURCE, reason});
}

void MpiTransport::spread_failure() {
  const std::optional<Failure> failure = known_failure();
  if (!failure || failure_spread_) return;
  failure_spread_ = true;
  if (failure->rank == rank_) {
    own_notice_ = to_notice(failure->reason);
    for (int peer = 0; peer < size(); ++peer) {
      MPI_Request sent = MPI_REQUEST_NULL;
      if (peer != rank_)
        MPI_Isend(own_notice_.data(), static_cast<int>(kNoticeBytes), MPI_CHAR, peer, 0, notices_, &sent);
      if (sent != MPI_REQUEST_NULL) MPI_Request_free(&sent);
    }
  }
  for (const std::shared_ptr<MpiBatch>& batch : active_) {
    batch->abandon();
    end(*batch, {});
  }
  active_.clear();
}

// Every rank that knows of the failure comes to this barrier; one that is busy elsewhere is not waited for longer than
// the grace.
void MpiTransport::end_after_grace() {
  spread_failure();
  MPI_Request all_know = MPI_REQUEST_NULL;
  MPI_Ibarrier(notices_, &all_know);
  const auto latest = Clock::now() + kGrace;
  int known = 0;
  while (known == 0 && Clock::now() < latest) {
    MPI_Test(&all_know, &known, MPI_STATUS_IGNORE);
    if (known == 0) std::this_thread::sleep_for(kLongestNap);
  }
  MPI_Abort(MPI_COMM_WORLD, 1);
}

}  // namespace loom::comm::mpi
