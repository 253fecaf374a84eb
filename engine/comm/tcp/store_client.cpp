#include "engine/comm/tcp/store.h"
#include "engine/comm/tcp/store_wire.h"
#include "engine/core/error.h"

namespace loom::comm::tcp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kAnswer = std::chrono::seconds(60);  // of a server that has nothing to wait for

class Request {
 public:
  explicit Request(Query query) : bytes_(1, static_cast<char>(query)) {}

  template <class T>
  Request& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Request& text(std::string_view text) {
    number(static_cast<std::uint64_t>(text.size()));
    bytes_ += text;
    return *this;
  }
  void send(const Socket& socket) const { send_all(socket, bytes_.data(), bytes_.size(), Clock::now() + kAnswer); }

 private:
  std::string bytes_;
};

template <class T>
T answer(const Socket& socket, Deadline deadline) {
  T value{};
  receive_all(socket, &value, sizeof value, deadline);
  return value;
}
template <class T>
T answer(const Socket& socket) {
  return answer<T>(socket, Clock::now() + kAnswer);
}

}  // namespace

StoreClient::StoreClient(const Address& server, Deadline deadline)
    : server_(server), socket_(connect_to(server, deadline)) {
  Request(Query::kValidate).number(kValidationMagic).send(socket_);
}

StoreClient::~StoreClient() = default;

std::string StoreClient::local_host() const { return local_host_of(socket_); }

void StoreClient::set(std::string_view key, std::string_view value) {
  Request(Query::kSet).text(key).text(value).send(socket_);
}

std::int64_t StoreClient::add(std::string_view key, std::int64_t by) {
  Request(Query::kAdd).text(key).number(by).send(socket_);
  return answer<std::int64_t>(socket_);
}

bool StoreClient::wait(const std::vector<std::string>& keys, Deadline deadline) {
  Request request(Query::kWait);
  request.number(static_cast<std::uint64_t>(keys.size()));
  for (const std::string& key : keys) request.text(key);
  request.send(socket_);
  if (is_readable(socket_, deadline)) return answer<Wait>(socket_) == Wait::kStopWaiting;
  Request(Query::kCancelWait).send(socket_);
  if (answer<Wait>(socket_) == Wait::kWaitCanceled) return false;
  answer<Wait>(socket_);  // the keys came at the last moment, before the cancellation
  return true;
}

bool StoreClient::check(std::string_view key) {
  Request(Query::kCheck).number(std::uint64_t{1}).text(key).send(socket_);
  return answer<Check>(socket_) == Check::kReady;
}

std::string StoreClient::get(std::string_view key) {
  Request(Query::kGet).text(key).send(socket_);
  const auto bytes = answer<std::uint64_t>(socket_);
  if (bytes > kLongestValue) {
    raise<CommError>("the store at {} answers with {} bytes, above the {} of a value; it is no store of this job",
                     to_text(server_), bytes, kLongestValue);
  }
  std::string value(static_cast<std::size_t>(bytes), '\0');
  receive_all(socket_, value.data(), value.size(), Clock::now() + kAnswer);
  return value;
}

}  // namespace loom::comm::tcp
