#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include "engine/comm/tcp/store.h"
#include "engine/comm/tcp/store_wire.h"
#include "engine/core/wake_event.h"

namespace loom::comm::tcp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostConnections = 4096;
constexpr std::size_t kMostStored = std::size_t{64} << 20;
constexpr std::size_t kMostWaiting = std::size_t{4} << 20;  // bytes of a request, and of answers that a client leaves
constexpr std::size_t kMostKeys = 65536;                    // of one request
constexpr auto kWithinRequest = std::chrono::seconds(10);

struct Hostile {};     // the client says what no client of TCPStore says
struct Incomplete {};  // the rest of a request has not arrived

// Reads a request out of the bytes that have arrived.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  std::size_t consumed() const { return at_; }
  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text(std::size_t most) {
    const auto bytes = number<std::uint64_t>();
    if (bytes > most) throw Hostile{};
    return std::string(take(static_cast<std::size_t>(bytes)));
  }
  std::string key() { return text(kLongestKey); }
  std::string value() { return text(kLongestValue); }
  std::vector<std::string> keys() {
    const auto count = number<std::uint64_t>();
    if (count > kMostKeys) throw Hostile{};
    std::vector<std::string> all;
    for (std::uint64_t i = 0; i < count; ++i) all.push_back(key());
    return all;
  }

 private:
  std::string_view take(std::size_t count) {
    if (bytes_.size() - at_ < count) throw Incomplete{};
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }

  const std::string_view bytes_;
  std::size_t at_ = 0;
};

}  // namespace

class StoreServer::Loop {
 public:
  explicit Loop(Socket listening) : listening_(std::move(listening)) {
    thread_ = std::thread([this] { serve(); });
  }
  ~Loop() {
    stopping_ = true;
    wake_.wake();
    thread_.join();
  }

  void adopt(Socket connection) {
    {
      const std::lock_guard lock(mutex_);
      adopted_.push_back(std::move(connection));
    }
    wake_.wake();
  }
  Connections connections() const { return {open_.load(), ever_.load()}; }

 private:
  struct Client {
    explicit Client(Socket given) : socket(std::move(given)) {}

    Socket socket;
    std::string arrived{};
    std::string leaving{};
    std::set<std::string> awaited{};  // keys of a wait that are not there
    bool is_validated = false;
    bool gone = false;
    Clock::time_point since = Clock::now();  // of a request that is not whole
  };

  void serve() {
    pthread_setname_np(pthread_self(), "store");
    while (!stopping_) {
      wait_for_events();
      take_adopted();
      take_connections();
      for (Client& client : clients_) serve(client);
      std::erase_if(clients_, [](const Client& client) { return client.gone; });
      open_ = static_cast<int>(clients_.size());
    }
  }

  void wait_for_events() {
    std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
    if (listening_ != nullptr) polled.push_back({listening_->get(), POLLIN, 0});
    for (const Client& client : clients_) {
      const int events = client.leaving.empty() ? POLLIN : POLLIN | POLLOUT;
      polled.push_back({client.socket->get(), static_cast<short>(events), 0});
    }
    ::poll(polled.data(), polled.size(), 1000);
    wake_.clear();
  }

  void take_adopted() {
    std::vector<Socket> adopted;
    {
      const std::lock_guard lock(mutex_);
      adopted.swap(adopted_);
    }
    for (Socket& socket : adopted) add(std::move(socket));
  }

  void take_connections() {
    if (listening_ == nullptr) return;
    while (Socket socket = accept_from(listening_, std::chrono::milliseconds(0))) add(std::move(socket));
  }

  void add(Socket socket) {
    if (clients_.size() >= kMostConnections) return;  // closed by leaving it
    ::fcntl(socket->get(), F_SETFL, ::fcntl(socket->get(), F_GETFL) | O_NONBLOCK);
    clients_.emplace_back(std::move(socket));
    ++ever_;
  }

  void serve(Client& client) {
    try {
      read(client);
      answer(client);
      write(client);
    } catch (const Hostile&) {
      client.gone = true;
    }
  }

  void read(Client& client) {
    char bytes[65536];
    while (client.arrived.size() < kMostWaiting) {
      const ssize_t count = ::recv(client.socket->get(), bytes, sizeof bytes, 0);
      if (count > 0) {
        if (client.arrived.empty()) client.since = Clock::now();
        client.arrived.append(bytes, static_cast<std::size_t>(count));
        continue;
      }
      if (count < 0 && errno == EINTR) continue;
      if (count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) client.gone = true;
      return;
    }
  }

  void answer(Client& client) {
    std::size_t done = 0;
    try {
      while (done < client.arrived.size()) {
        Reader reader(std::string_view(client.arrived).substr(done));
        answer_one(client, reader);
        done += reader.consumed();
        client.since = Clock::now();
      }
    } catch (const Incomplete&) {
      if (client.arrived.size() >= kMostWaiting || Clock::now() - client.since > kWithinRequest) throw Hostile{};
    }
    client.arrived.erase(0, done);
  }

  void answer_one(Client& client, Reader& reader) {
    const auto query = reader.number<Query>();
    if (!client.is_validated && query != Query::kValidate) throw Hostile{};
    switch (query) {
      case Query::kValidate:
        if (reader.number<std::uint32_t>() != kValidationMagic) throw Hostile{};
        client.is_validated = true;
        return;
      case Query::kPing:
        return say(client, reader.number<std::uint32_t>());
      case Query::kSet: {
        const std::string key = reader.key();
        return put(key, reader.value());
      }
      case Query::kCompareSet: {
        const std::string key = reader.key(), expected = reader.value();
        return say_text(client, compare_and_put(key, expected, reader.value()));
      }
      case Query::kGet:
        return say_text(client, at(reader.key()));
      case Query::kAdd: {
        const std::string key = reader.key();
        return say(client, add(key, reader.number<std::int64_t>()));
      }
      case Query::kCheck:
        return say(client, missing(reader.keys()).empty() ? Check::kReady : Check::kNotReady);
      case Query::kWait:
        client.awaited = missing(reader.keys());
        if (client.awaited.empty()) say(client, Wait::kStopWaiting);
        return;
      case Query::kCancelWait:
        client.awaited.clear();
        return say(client, Wait::kWaitCanceled);
      case Query::kGetNumKeys:
        return say(client, static_cast<std::int64_t>(values_.size()));
      case Query::kDeleteKey:
        return say(client, remove(reader.key()));
      case Query::kAppend: {
        const std::string key = reader.key(), more = reader.value();
        const auto found = values_.find(key);
        return put(key, found == values_.end() ? more : found->second + more);
      }
      case Query::kMultiGet:
        for (const std::string& key : reader.keys()) say_text(client, at(key));
        return;
      case Query::kMultiSet:
        return put_several(reader);
    }
    throw Hostile{};
  }

  // Nothing is put before the request is whole.
  void put_several(Reader& reader) {
    const auto count = reader.number<std::uint64_t>();
    if (count > kMostKeys) throw Hostile{};
    std::vector<std::pair<std::string, std::string>> pairs;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::string key = reader.key();
      pairs.emplace_back(std::move(key), reader.value());
    }
    for (const auto& [key, value] : pairs) put(key, value);
  }

  const std::string& at(const std::string& key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) throw Hostile{};  // clients wait for a key before they get it
    return found->second;
  }

  void put(const std::string& key, const std::string& value) {
    if (value.size() > kLongestValue) throw Hostile{};
    const auto found = values_.find(key);
    const std::size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
    if (stored_ - before + key.size() + value.size() > kMostStored) throw Hostile{};
    stored_ += key.size() + value.size() - before;
    values_[key] = value;
    for (Client& client : clients_) {
      if (client.awaited.erase(key) > 0 && client.awaited.empty()) say(client, Wait::kStopWaiting);
    }
  }

  std::string compare_and_put(const std::string& key, const std::string& expected, const std::string& desired) {
    const auto found = values_.find(key);
    if (found == values_.end() ? !expected.empty() : found->second != expected) {
      return found == values_.end() ? expected : found->second;
    }
    put(key, desired);
    return desired;
  }

  std::int64_t add(const std::string& key, std::int64_t by) {
    std::int64_t sum = 0;
    if (const auto found = values_.find(key); found != values_.end()) {
      const std::string& text = found->second;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum);
      if (error != std::errc{} || end != text.data() + text.size()) throw Hostile{};
    }
    if (__builtin_add_overflow(sum, by, &sum)) throw Hostile{};
    put(key, std::to_string(sum));
    return sum;
  }

  std::int64_t remove(const std::string& key) {
    const auto found = values_.find(key);
    if (found == values_.end()) return 0;
    stored_ -= key.size() + found->second.size();
    values_.erase(found);
    return 1;
  }

  std::set<std::string> missing(const std::vector<std::string>& keys) const {
    std::set<std::string> absent;
    for (const std::string& key : keys) {
      if (!values_.contains(key)) absent.insert(key);
    }
    return absent;
  }

  template <class T>
  void say(Client& client, T number) {
    client.leaving.append(reinterpret_cast<const char*>(&number), sizeof number);
    if (client.leaving.size() > kMostWaiting) client.gone = true;
  }
  void say_text(Client& client, const std::string& text) {
    say(client, static_cast<std::uint64_t>(text.size()));
    client.leaving += text;
  }

  void write(Client& client) {
    while (!client.leaving.empty() && !client.gone) {
      const ssize_t count = ::send(client.socket->get(), client.leaving.data(), client.leaving.size(), MSG_NOSIGNAL);
      if (count > 0) {
        client.leaving.erase(0, static_cast<std::size_t>(count));
      } else if (errno != EINTR) {
        client.gone |= errno != EAGAIN && errno != EWOULDBLOCK;
        return;
      }
    }
  }

  // The thread's own.
  const Socket listening_;
  std::list<Client> clients_;
  std::map<std::string, std::string> values_;
  std::size_t stored_ = 0;

  const WakeEvent wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> open_{0}, ever_{0};
  std::mutex mutex_;
  std::vector<Socket> adopted_;  // guarded by mutex_
  std::thread thread_;
};

StoreServer::StoreServer(Socket listening) : loop_(std::make_unique<Loop>(std::move(listening))) {}
StoreServer::~StoreServer() = default;
void StoreServer::adopt(Socket connection) { loop_->adopt(std::move(connection)); }
StoreServer::Connections StoreServer::connections() const { return loop_->connections(); }

}  // namespace loom::comm::tcp
