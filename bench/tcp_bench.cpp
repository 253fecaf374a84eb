// Messages between two processes over TCP against blocking sockets, in turns: the bytes of a second, one way.
//
// Limit    a socket of each process with the system's buffers, send() and recv() of the whole message and one byte of
//          answer, which send_recv has too (its call). The same two processes, the same bytes.
// Ratio    median time of the limit / median time of send_recv; the aim for sockets is 0.85 at 16 MiB.
// Modes    sockets, as between hosts; memory, as between ranks of one machine.
//
//   tcp_bench [ROUNDS]

#include <unistd.h>

#include <cstring>
#include <fmt/format.h>
#include <string>
#include <sys/wait.h>
#include <vector>

#include "bench/turns.h"
#include "engine/comm/messages/message_world.h"
#include "engine/comm/tcp/socket.h"
#include "engine/comm/tcp/tcp_transport.h"
#include "engine/core/error.h"
#include "engine/core/parse_number.h"

namespace loom::bench {
namespace {

using comm::tcp::Socket;

constexpr std::size_t kSizes[] = {4u << 10, 64u << 10, std::size_t{1} << 20, std::size_t{16} << 20,
                                  std::size_t{64} << 20};
constexpr int kMessagesOfRound = 8;

std::vector<unsigned char> pattern(std::size_t bytes) {
  std::vector<unsigned char> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>(i * 31 + i / 257);
  return data;
}

comm::tcp::Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::minutes(1); }

// The limit.
void by_sockets(const Socket& socket, bool sends, std::vector<unsigned char>& data) {
  char answer = 1;
  if (sends) {
    comm::tcp::send_all(socket, data.data(), data.size(), soon());
    comm::tcp::receive_all(socket, &answer, 1, soon());
  } else {
    comm::tcp::receive_all(socket, data.data(), data.size(), soon());
    comm::tcp::send_all(socket, &answer, 1, soon());
  }
}

void by_group(comm::ProcessGroup& group, bool sends, std::vector<unsigned char>& data) {
  if (sends) {
    group.send(comm::kHostLane, 1, {data.data(), data.size()}, "message");
  } else {
    group.recv(comm::kHostLane, 0, {data.data(), data.size()}, "message");
  }
}

template <class Move>
void check(const Move& move, bool sends, std::size_t bytes, const char* what) {
  std::vector<unsigned char> data = sends ? pattern(bytes) : std::vector<unsigned char>(bytes);
  move(data);
  if (data != pattern(bytes)) raise<Error>("{} of {} bytes: other bytes arrived", what, bytes);
}

void measure(const char* mode, comm::ProcessGroup& group, const Socket& socket, bool sends, int rounds) {
  for (const std::size_t bytes : kSizes) {
    const auto limit = [&](std::vector<unsigned char>& data) { by_sockets(socket, sends, data); };
    const auto ours = [&](std::vector<unsigned char>& data) { by_group(group, sends, data); };
    check(limit, sends, bytes, "sockets");
    check(ours, sends, bytes, mode);
    std::vector<unsigned char> data = pattern(bytes);
    std::vector<double> limits, times;
    for (int round = 0; round < rounds; ++round) {
      limits.push_back(seconds([&] {
        for (int i = 0; i < kMessagesOfRound; ++i) limit(data);
      }));
      times.push_back(seconds([&] {
        for (int i = 0; i < kMessagesOfRound; ++i) ours(data);
      }));
    }
    if (!sends) continue;
    const double total = static_cast<double>(bytes) * kMessagesOfRound;
    fmt::print("{:8} {:6} KiB  sockets alone {:5.2f} GB/s  send_recv {:5.2f} GB/s  ratio {:.2f}\n", mode, bytes >> 10,
               total / median(limits) / 1e9, total / median(times) / 1e9, median(limits) / median(times));
  }
}

void run(int rank, const std::vector<std::uint16_t>& ports, std::uint16_t plain_port, Socket plain_listening,
         int rounds) {
  const Socket plain = rank == 0 ? comm::tcp::accept_from(plain_listening, std::chrono::minutes(1))
                                 : comm::tcp::connect_to({"127.0.0.1", plain_port}, soon());
  for (const bool memory : {false, true}) {
    comm::tcp::TcpTransport transport({.rank = rank,
                                       .size = 2,
                                       .store = {"127.0.0.1", ports[memory ? 1 : 0]},
                                       .hosts_store = rank == 0,
                                       .id = memory ? "memory" : "sockets",
                                       .reads_memory = memory},
                                      std::chrono::minutes(1));
    comm::messages::MessageWorld world(transport);
    measure(memory ? "memory" : "sockets", *world.everyone(), plain, rank == 0, rounds);
    world.end();
  }
}

}  // namespace
}  // namespace loom::bench

int main(int argc, char** argv) {
  using namespace loom;
  const int rounds = argc > 1 ? parse_number<int>(argv[1]).value_or(11) : 11;
  comm::tcp::Socket listening = comm::tcp::listen_on(0, "127.0.0.1");
  const std::uint16_t plain_port = comm::tcp::port_of(listening);
  std::vector<std::uint16_t> ports;
  {
    const comm::tcp::Socket one = comm::tcp::listen_on(0), two = comm::tcp::listen_on(0);
    ports = {comm::tcp::port_of(one), comm::tcp::port_of(two)};  // free again
  }
  const pid_t child = ::fork();
  if (child == 0) listening = nullptr;
  try {
    bench::run(child == 0 ? 1 : 0, ports, plain_port, std::move(listening), rounds);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  if (child == 0) return 0;
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
