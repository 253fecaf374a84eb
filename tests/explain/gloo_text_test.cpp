// Promise: what gloo, its checks (TORCH_DISTRIBUTED_DEBUG=DETAIL) and the host's allocator report is read as PyTorch
//          prints it, and a rank that runs another collective than most is named; what a text does not say stays empty.
// World:   lines of PyTorch 2.11 from runs with a fault (tests/interop/explain_faults_test.py).
#include <gmock/gmock.h>

#include "engine/explain/error_text.h"
#include "engine/explain/hang.h"

namespace loom::explain {
namespace {

using std::string;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const string kTensor =
    "TensorOptions(dtype=float (default), device=cpu, layout=Strided (default), requires_grad=false (default), "
    "pinned_memory=false (default), memory_format=(nullopt))";

string print_of(int seq, const string& op, const string& shape) {
  return "CollectiveFingerPrint(SequenceNumber=" + std::to_string(seq) + ", OpType=" + op + ", TensorShape=[" + shape +
         "], TensorDtypes=Float, TensorDeviceTypes=" + kTensor + ")";
}

// "Rank 1 runs a gather of 1376 elements, rank 0 one of 2668", as a rank writes it.
string mismatch(int rank, const string& own, int other_rank, const string& other) {
  return "[default" + std::to_string(rank) + "]:[rank" + std::to_string(rank) +
         "]: RuntimeError: Detected mismatch between collectives on ranks. Rank " + std::to_string(rank) +
         " is running collective: " + own + ", but Rank " + std::to_string(other_rank) +
         " is running collective: " + other +
         ".Collectives differ in the following aspects: \t Tensor Tensor shapes: " + "1376vs 2668";
}

template <class Text>
Text only(const string& log) {
  const LogTexts texts = read_text(log);
  EXPECT_EQ(texts.reports.size(), 1u) << log;
  const Text* const text = texts.reports.empty() ? nullptr : std::get_if<Text>(&texts.reports.front().what);
  EXPECT_NE(text, nullptr) << log;
  return text == nullptr ? Text{} : *text;
}

TEST(GlooText, NamesBothRanksOfAMismatch) {
  const auto text = only<CollectiveMismatch>(
      mismatch(1, print_of(89, "_ALLGATHER_BASE", "1376"), 0, print_of(89, "_ALLGATHER_BASE", "2668")));
  EXPECT_EQ(text.rank, 1);
  EXPECT_EQ(text.own, (FingerPrint{89, "_ALLGATHER_BASE", 1376}));
  EXPECT_EQ(text.other_rank, 0);
  EXPECT_EQ(text.other, (FingerPrint{89, "_ALLGATHER_BASE", 2668}));
}

// PyTorch's text where the two collectives have different numbers of tensors.
TEST(GlooText, LeavesOutAnOtherPrintThatPyTorchMisread) {
  const auto text = only<CollectiveMismatch>(mismatch(0, print_of(66, "_ALLGATHER_BASE", "443616"), 3,
                                                      "CollectiveFingerPrint(SequenceNumber=0OpType=ALLTOALL)"));
  EXPECT_EQ(text.own.seq, 66);
  EXPECT_EQ(text.other_rank, 3);
  EXPECT_FALSE(text.other);
}

TEST(GlooText, CountsTheElementsOfOneTensorAlone) {
  const auto numel = [](const string& shape) {
    const string print = print_of(1, "ALLREDUCE", shape);
    return only<CollectiveMismatch>(mismatch(0, print, 1, print)).own.numel;
  };
  EXPECT_EQ(numel("2, 3, 5"), 30);
  EXPECT_FALSE(numel("2, 3 4"));
  EXPECT_FALSE(numel(""));
  EXPECT_FALSE(numel("4611686018427387904, 4611686018427387904"));
}

TEST(GlooText, ReadsTheBarrierBeforeACollective) {
  EXPECT_EQ(
      only<BarrierFailure>("[default0]:[rank0]:[E1127 04:21:17.000387982 ProcessGroupGloo.cpp:67] [Rank 0]: Ranks "
                           "1, 3 failed to pass monitoredBarrier in 8000 ms"),
      (BarrierFailure{0, {1, 3}, 8000, {}}));
  EXPECT_EQ(only<BarrierFailure>("[rank2]: RuntimeError: Rank 2 successfully reached monitoredBarrier, but received "
                                 "errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty "
                                 "rank."),
            (BarrierFailure{2, {}, 0, {}}));
  EXPECT_EQ(
      only<BarrierFailure>("[rank1]: RuntimeError: ProcessGroupWrapper: Monitored Barrier encountered error running "
                           "collective: " +
                           print_of(88, "_ALLGATHER_BASE", "2668") + ". Error: "),
      (BarrierFailure{{}, {}, 0, FingerPrint{88, "_ALLGATHER_BASE", 2668}}));
}

TEST(GlooText, TellsATimeoutFromAClosedConnection) {
  const string before = "[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/";
  const auto timeout =
      only<GlooError>(before + "unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete");
  EXPECT_TRUE(timeout.timed_out);
  EXPECT_EQ(timeout.timeout_ms, 8000);
  EXPECT_FALSE(only<GlooError>(before + "pair.cc:547] Connection closed by peer [127.0.0.1]:36255").timed_out);
  EXPECT_FALSE(
      only<GlooError>(before + "pair.cc:538] Read error [127.0.0.1]:14539: Connection reset by peer").timed_out);
}

TEST(GlooText, ReadsTheHostsOutOfMemoryExactly) {
  const auto text = only<OutOfMemory>(
      "[rank2]: RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. "
      "DefaultCPUAllocator: can't allocate memory: you tried to allocate 792336 bytes. "
      "Error code 12 (Cannot allocate memory)");
  EXPECT_EQ(text.platform, "CPU");
  EXPECT_EQ(text.tried, (ByteFigure{792336, 0}));
  EXPECT_FALSE(text.total || text.allocated);
}

TEST(GlooText, GivesNothingForCutTexts) {
  const string whole = mismatch(1, print_of(89, "_ALLGATHER_BASE", "1376"), 0, print_of(89, "_ALLGATHER_BASE", "2668"));
  const std::size_t needed = whole.find("but Rank 0 is running collective: ") + 34;
  for (std::size_t size = 0; size < needed; ++size) {
    EXPECT_TRUE(read_text(whole.substr(0, size)).reports.empty()) << size;
  }
  for (const string text : {"monitoredBarrier", "[Rank 0]: Ranks failed to pass monitoredBarrier in 8000 ms",
                            "[Rank 0]: Ranks 1 failed to pass", "Rank x successfully reached monitoredBarrier",
                            "[gloo/transport/tcp/pair.cc:538] Read error", "/gloo/transport/tcp/pair.cc:1] hello",
                            "DefaultCPUAllocator: can't allocate memory: you tried to allocate many bytes"}) {
    EXPECT_TRUE(read_text(text).reports.empty()) << text;
  }
}

TEST(GlooHang, NamesTheRankThatRunsAnotherCollectiveThanMost) {
  const string gather = print_of(66, "_ALLGATHER_BASE", "443616"),
               reduction = print_of(66, "_REDUCE_SCATTER_BASE", "1774464");
  const string noise = "CollectiveFingerPrint(SequenceNumber=0OpType=ALLTOALL)";
  const auto hangs = hangs_of(read_text(mismatch(0, gather, 2, noise) + "\n" + mismatch(1, gather, 2, noise) + "\n" +
                                        mismatch(2, reduction, 0, noise)));
  ASSERT_EQ(hangs.size(), 1u);
  EXPECT_EQ(hangs[0].waited, 66);
  EXPECT_EQ(hangs[0].first_seq, 0);
  ASSERT_EQ(hangs[0].others.size(), 1u);
  EXPECT_EQ(hangs[0].others[0].rank, 2);
}

TEST(GlooHang, NamesTheRanksThatABarrierMissed) {
  const auto hangs =
      hangs_of(read_text("[rank0]: RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 8000 ms"));
  ASSERT_EQ(hangs.size(), 1u);
  EXPECT_THAT(hangs[0].behind, ElementsAre(1, 3));
  EXPECT_EQ(hangs[0].waited, -1);
  EXPECT_FALSE(hangs[0].collective);
  EXPECT_THAT(hangs[0].silent, IsEmpty());
}

}  // namespace
}  // namespace loom::explain
