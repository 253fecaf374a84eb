// Promise: processes of a job meet over TCP, and nobody else: strangers, garbage, silent and slow peers are refused in
//          bounded time and disturb nobody; a rank that is missing, started twice, of another version, world or secret
//          is named.
// World:   ranks as threads of this process, each with a transport of its own.
#include <poll.h>

#include <functional>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <thread>

#include "engine/comm/messages/message_world.h"
#include "engine/comm/tcp/greeting.h"
#include "engine/comm/tcp/store.h"
#include "engine/comm/tcp/tcp_transport.h"
#include "engine/core/error.h"

namespace loom::comm::tcp {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

Deadline in(int milliseconds) { return std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds); }
Deadline soon() { return in(30'000); }

class Store : public ::testing::Test {
 protected:
  Store() {
    Socket listening = listen_on(0, "127.0.0.1");
    address_ = {"127.0.0.1", port_of(listening)};
    server_ = std::make_unique<StoreServer>(std::move(listening));
  }
  // A connection that says `bytes`.
  Socket say(const std::string& bytes) {
    Socket socket = connect_to(address_, soon());
    send_all(socket, bytes.data(), bytes.size(), soon());
    return socket;
  }
  // Whether the server ends the connection in time.
  static bool is_closed(const Socket& socket, int milliseconds) {
    pollfd polled{socket->get(), POLLIN, 0};
    if (::poll(&polled, 1, milliseconds) <= 0) return false;
    char byte = 0;
    return ::recv(socket->get(), &byte, 1, 0) <= 0;
  }

  Address address_;
  std::unique_ptr<StoreServer> server_;
};

const std::string kValid("\0\xCE\xF7\x85\x3C", 5);
std::string number(std::uint64_t value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }

TEST_F(Store, KeepsWhatClientsSay) {
  StoreClient a(address_, soon()), b(address_, soon());
  a.set("key", "value");
  EXPECT_TRUE(b.wait({"key"}, soon()));
  EXPECT_EQ(b.get("key"), "value");
  EXPECT_EQ(a.add("count", 2), 2);
  EXPECT_EQ(b.add("count", -5), -3);
  EXPECT_TRUE(a.check("count"));
  EXPECT_FALSE(a.check("other"));
  EXPECT_EQ(server_->connections().open, 2);
}

TEST_F(Store, WakesAClientThatWaits) {
  StoreClient a(address_, soon());
  std::thread later([this] {
    StoreClient b(address_, soon());
    b.set("one", "1");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    b.set("two", "2");
  });
  EXPECT_TRUE(a.wait({"one", "two"}, soon()));
  EXPECT_EQ(a.get("two"), "2");
  later.join();
}

TEST_F(Store, EndsAWaitAtItsDeadline) {
  StoreClient a(address_, soon());
  EXPECT_FALSE(a.wait({"never"}, in(50)));
  a.set("after", "all");
  EXPECT_EQ(a.get("after"), "all");
}

TEST_F(Store, DisconnectsStrangersAndServesItsClients) {
  StoreClient client(address_, soon());
  client.set("key", "value");
  std::vector<Socket> strangers;
  for (const std::string& words :
       {std::string("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), std::string(4096, '\xff'), std::string("\x0d\0\0\0\0", 5),
        kValid + "\x01" + number(1u << 30),                                    // a key of 1 GiB
        kValid + "\x01" + number(3) + "key" + number(std::uint64_t{1} << 62),  // a value of 4 EiB
        kValid + "\x06" + number(std::uint64_t{1} << 60),                      // a wait for 2^60 keys
        kValid + "\x03" + number(6) + "absent", kValid + "\x04" + number(3) + "key" + number(1),  // "value" + 1
        kValid + "\x63"}) {
    strangers.push_back(say(words));
  }
  for (std::size_t i = 0; i < strangers.size(); ++i) EXPECT_TRUE(is_closed(strangers[i], 20'000)) << i;
  EXPECT_EQ(client.get("key"), "value");
}

TEST_F(Store, WaitsForASlowClientAndServesOthersMeanwhile) {
  Socket slow = say(kValid);
  const std::string request = std::string("\x01") + number(4) + "slow" + number(2) + "ok";
  StoreClient client(address_, soon());
  for (const char byte : request) {
    send_all(slow, &byte, 1, soon());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    client.add("count", 1);
  }
  EXPECT_TRUE(client.wait({"slow"}, soon()));
  EXPECT_EQ(client.get("slow"), "ok");
}

TEST_F(Store, DisconnectsAClientThatStopsWithinARequest) {
  const Socket socket = say(kValid + "\x01" + number(4) + "sl");
  EXPECT_TRUE(is_closed(socket, 20'000));
}

// --- greetings

struct Pair {
  Pair() {
    Socket listening = listen_on(0, "127.0.0.1");
    connecting = connect_to({"127.0.0.1", port_of(listening)}, soon());
    accepted = accept_from(listening, std::chrono::seconds(30));
  }
  Socket connecting, accepted;
};

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// What each side gets: the other's text, or the error.
std::pair<std::string, std::string> greet_both(const std::string& secret, const std::string& other_secret) {
  Pair pair;
  std::string listening;
  std::thread listener([&] {
    listening = error_of([&] {
      listening = greet(pair.accepted, Side::kListens, other_secret, "text of b", soon());
      raise<Error>("{}", listening);
    });
  });
  const std::string connecting =
      error_of([&] { raise<Error>("{}", greet(pair.connecting, Side::kConnects, secret, "text of a", soon())); });
  listener.join();
  return {connecting, listening};
}

TEST(Greeting, ShowsBothWhoTheOtherIs) {
  EXPECT_EQ(greet_both("secret", "secret"), (std::pair<std::string, std::string>("text of b", "text of a")));
  EXPECT_EQ(greet_both("", "").first, "text of b");
}

TEST(Greeting, RefusesAnotherSecretOnBothSides) {
  const auto [connecting, listening] = greet_both("secret", "other");
  const char* const kRefused =
      "127.0.0.1:[0-9]+ does not know this job's secret; give all processes the same SHARDLOOM_SECRET";
  EXPECT_THAT(connecting, MatchesRegex(kRefused));
  EXPECT_THAT(listening, MatchesRegex(kRefused));
}

TEST(Greeting, RefusesWhatIsNoGreeting) {
  const auto refusal = [](const std::string& words) {
    Pair pair;
    send_all(pair.connecting, words.data(), words.size(), soon());
    return error_of([&] { greet(pair.accepted, Side::kListens, "", "b", in(200)); });
  };
  EXPECT_THAT(refusal("GET / HTTP/1.1\r\n\r\n"), HasSubstr("does not speak Shardloom's protocol"));
  EXPECT_THAT(refusal(std::string("LOOM\x07\0\1\0", 8)), HasSubstr("speaks version 7 of Shardloom's protocol, this"));
  EXPECT_THAT(refusal(std::string("LOOM\x01\0\xff\xff", 8)), HasSubstr("greets with 65535 bytes, above the 4096"));
  EXPECT_THAT(refusal("LOO"), HasSubstr("sends no bytes in time"));
  EXPECT_THAT(refusal(""), HasSubstr("sends no bytes in time"));
}

TEST(Greeting, IsNoneIfItsOwnIsSentBack) {
  Pair pair;
  std::thread mirror([&] {
    std::string bytes(8 + 32 + 1, '\0');
    receive_all(pair.accepted, bytes.data(), bytes.size(), soon());
    send_all(pair.accepted, bytes.data(), bytes.size(), soon());
    std::string proof(32, '\0');
    receive_all(pair.accepted, proof.data(), proof.size(), soon());
    send_all(pair.accepted, proof.data(), proof.size(), soon());
  });
  EXPECT_THAT(error_of([&] { greet(pair.connecting, Side::kConnects, "secret", "a", soon()); }),
              HasSubstr("does not know this job's secret"));
  mirror.join();
}

TEST(Proof, IsHmacSha256) {  // RFC 4231, test case 2
  std::string hex;
  for (const char byte : proof_of("Jefe", "what do ya want for nothing?")) {
    hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  EXPECT_EQ(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Addresses, AreReadAsTorchrunWritesThem) {
  const auto read = [](const char* text) { return to_text(parse_address(text, "--rdzv-endpoint", 29400)); };
  EXPECT_EQ(read("host"), "host:29400");
  EXPECT_EQ(read("10.0.0.1:6000"), "10.0.0.1:6000");
  EXPECT_EQ(read("[fe80::1]:6000"), "[fe80::1]:6000");
  EXPECT_EQ(read("fe80::1"), "[fe80::1]:29400");
  for (const char* text : {"", ":6000", "host:0", "host:70000", "host:x", "[fe80::1"}) {
    EXPECT_THAT(error_of([&] { read(text); }), HasSubstr("expected HOST:PORT with a port of 1 to 65535")) << text;
  }
  EXPECT_TRUE(is_local("127.0.0.1"));
  EXPECT_TRUE(is_local("localhost"));
  EXPECT_FALSE(is_local("192.0.2.1"));
}

TEST(Connection, IsNeverToItself) {
  // Linux gives connections the even ports of its range in turn, in the end the one that is asked for.
  const auto port = static_cast<std::uint16_t>((port_of(listen_on(0, "127.0.0.1")) + 1) & ~1);
  for (int attempt = 0; attempt < 30'000; ++attempt) {
    ASSERT_THROW(connect_to({"127.0.0.1", port}, in(0)), CommError) << "attempt " << attempt;
  }
}

TEST(Interfaces, AreNamed) {
  EXPECT_EQ(host_of_interface("none,lo", "GLOO_SOCKET_IFNAME"), "127.0.0.1");
  EXPECT_THAT(
      error_of([] { host_of_interface("none", "GLOO_SOCKET_IFNAME"); }),
      AllOf(HasSubstr("GLOO_SOCKET_IFNAME is 'none', but this machine has no such interface"), HasSubstr("lo")));
}

// --- jobs

class Job : public ::testing::Test {
 protected:
  Job() { port_ = port_of(listen_on(0)); }

  TcpJob job(int rank, int size) const {
    return {.rank = rank,
            .size = size,
            .store = {"127.0.0.1", port_},
            .hosts_store = rank == 0,
            .id = "test",
            .secret = "secret",
            .version = "1.2"};
  }
  // What each of these says at the end: "done", or the error.
  static std::vector<std::string> run(const std::vector<TcpJob>& jobs, int timeout_ms,
                                      const std::function<void(ProcessGroup&)>& main = {}) {
    std::vector<std::string> said(jobs.size(), "done");
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      threads.emplace_back([&, i] {
        const std::string error = error_of([&] { run_one(jobs[i], timeout_ms, main); });
        if (error != "no error") said[i] = error;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return said;
  }

  std::uint16_t port_ = 0;

 private:
  static void run_one(const TcpJob& job, int timeout_ms, const std::function<void(ProcessGroup&)>& main) {
    TcpTransport transport(job, std::chrono::milliseconds(timeout_ms));
    messages::MessageWorld world(transport);
    if (main) main(*world.everyone());
    world.end();
  }
};

// The sum of ranks and 0.5 for each, in all elements of a large and of a small tensor.
void sum(ProcessGroup& group) {
  for (const std::size_t count : {std::size_t{300'000}, std::size_t{10}}) {
    std::vector<float> data(count, static_cast<float>(group.rank()) + 0.5f);
    group.all_reduce(kHostLane, data.data(), static_cast<std::int64_t>(count), DType::kF32, ReduceOp::sum(), "sum");
    const float expected = static_cast<float>(group.size() * group.size()) / 2;
    if (std::vector<float>(count, expected) != data) raise<Error>("another sum");
  }
}

TEST_F(Job, MeetsAndSums) {
  for (const bool memory : {false, true}) {
    std::vector<TcpJob> jobs{job(0, 3), job(1, 3), job(2, 3)};
    for (TcpJob& one : jobs) {
      one.reads_memory = memory;
      one.id += memory ? "memory" : "sockets";
    }
    EXPECT_THAT(run(jobs, 30'000, sum), Each("done")) << memory;
  }
}

TEST_F(Job, IsNotDisturbedByStrangers) {
  std::atomic<bool> over{false};
  std::thread strangers([&] {  // they try every port that this process listens on, as a scan does
    for (int round = 0; !over; ++round) {
      try {
        const Socket socket = connect_to({"127.0.0.1", port_}, in(20));
        const std::string words = round % 3 == 0 ? "LOOM garbage and more garbage" : std::string(100, '\x55');
        if (round % 3 != 2) send_all(socket, words.data(), words.size(), in(100));
      } catch (const Error&) {
      }
    }
  });
  EXPECT_THAT(run({job(0, 2), job(1, 2)}, 30'000, sum), Each("done"));
  over = true;
  strangers.join();
}

TEST_F(Job, NamesTheRanksThatAreMissing) {
  const auto said = run({job(0, 4), job(2, 4)}, 300);
  const char* const kMissing =
      "\\[rank [02]\\] 2 of 4 ranks have come to 127.0.0.1:[0-9]+; missing: 1,3; look at their output";
  EXPECT_THAT(said[0], MatchesRegex(kMissing));
  EXPECT_THAT(said[1], AnyOf(MatchesRegex(kMissing), HasSubstr("; look at the output of rank 0, or of the launcher")));
}

TEST_F(Job, WaitsForARankThatStartsLate) {
  std::vector<std::string> late;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    late = run({job(1, 2)}, 30'000, sum);
  });
  EXPECT_THAT(run({job(0, 2)}, 30'000, sum), Each("done"));
  later.join();
  EXPECT_THAT(late, Each("done"));
}

TEST_F(Job, RefusesARankThatIsStartedTwice) {
  std::vector<std::string> said = run({job(0, 2), job(1, 2), job(1, 2)}, 10'000, sum);
  EXPECT_EQ(said[0], "done");
  std::sort(said.begin() + 1, said.end());
  EXPECT_EQ(said[1],
            "[rank 1] another process is rank 1 of this run already; start each rank once, and every run with a "
            "MASTER_PORT of its own");
  EXPECT_EQ(said[2], "done");
}

TEST_F(Job, RefusesAnotherVersion) {
  TcpJob old = job(1, 2);
  old.version = "1.1";
  const auto said = run({job(0, 2), old}, 10'000);
  EXPECT_EQ(said[0],
            "[rank 0] rank 1 (127.0.0.1) runs Shardloom 1.1, this rank 1.2; install the same version on all hosts");
  // Rank 0 ends with its store: a rank that has not read the cards by then is sent to rank 0's output.
  EXPECT_THAT(said[1], AnyOf(HasSubstr("rank 0 (127.0.0.1) runs Shardloom 1.2, this rank 1.1"),
                             AllOf(HasSubstr("[rank 1] the store at"), HasSubstr("look at the output of rank 0"))));
}

TEST_F(Job, RefusesAWorldOfAnotherSize) {
  const auto said = run({job(0, 2), job(1, 3)}, 500);
  EXPECT_THAT(said[0],
              HasSubstr("[rank 0] rank 1 (127.0.0.1) says that it is rank 1 of 3, this rank is one of 2; start "
                        "all ranks with one WORLD_SIZE"));
}

TEST_F(Job, RefusesAnotherSecret) {
  TcpJob other = job(1, 2);
  other.secret = "guess";
  EXPECT_EQ(run({job(0, 2), other}, 10'000)[0],
            "[rank 0] rank 1 does not know this job's secret; give all processes the same SHARDLOOM_SECRET");
}

TEST_F(Job, NamesThePortThatIsInUse) {
  const Socket taken = listen_on(port_);
  EXPECT_EQ(run({job(0, 2)}, 500)[0],
            fmt::format("[rank 0] MASTER_PORT {} is in use on this machine; export another one on all hosts", port_));
}

TEST_F(Job, SaysThatNobodyIsAtTheMeetingPoint) {
  EXPECT_THAT(run({job(1, 2)}, 300)[0],
              MatchesRegex("\\[rank 1\\] MASTER_ADDR and MASTER_PORT: no connection to 127.0.0.1:[0-9]+ within 0 s: "
                           "Connection refused; check them, and that rank 0 runs"));
}

TEST_F(Job, NamesARankThatDoesNotCome) {
  const auto said = run({job(0, 2), job(1, 2)}, 700, [](ProcessGroup& group) {
    if (group.rank() == 1) return;
    sum(group);
  });
  EXPECT_THAT(said[0], HasSubstr("[rank 0] all_reduce 'sum' in group 'world' (ranks 0,1): rank"));
}

}  // namespace
}  // namespace loom::comm::tcp
