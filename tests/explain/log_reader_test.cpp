// Promise: error texts are found wherever they stand in a log, with the rank that wrote them; other lines and hostile
//          ones give nothing, in memory that the log's size does not change.
// World:   texts as PyTorch, torch_npu and HCCL write them (tests/reference/graphs/errors.json has whole ones).
#include "engine/explain/log_reader.h"

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/explain/error_text.h"
#include "tests/support/files.h"

namespace loom::explain {
namespace {

using std::string;

const string kOutOfMemory =
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.10 GiB of "
    "which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.10 GiB memory in use. Of the allocated "
    "memory 70.00 GiB is allocated by PyTorch, and 7.00 GiB is reserved by PyTorch but unallocated.";

string timeout(const string& before, int rank, int seq) {
  return before + "[Rank " + std::to_string(rank) +
         "] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=" + std::to_string(seq) +
         ", OpType=_ALLGATHER_BASE, NumelIn=10, NumelOut=40, Timeout(ms)=600000) ran for 600010 milliseconds before "
         "timing out.";
}

ErrorReport only(const string& log) {
  const LogTexts texts = read_text(log);
  EXPECT_EQ(texts.reports.size(), 1u) << log;
  return texts.reports.empty() ? ErrorReport{} : texts.reports.front();
}

TEST(LogReader, FindsTheRankThatALauncherWroteBeforeTheText) {
  const auto rank = [](const string& before) { return only(before + kOutOfMemory).speaker; };
  EXPECT_EQ(rank("[rank3]: "), (Speaker{3, {}}));
  EXPECT_EQ(rank("[default5]:[rank13]: "), (Speaker{13, 5}));
  EXPECT_EQ(rank("2025-01-02 03:04:05,678 [trainer1]:"), (Speaker{{}, 1}));
  EXPECT_EQ(rank("11: "), (Speaker{11, {}}));
  EXPECT_EQ(rank("[1,7]<stderr>:"), (Speaker{7, {}}));
  EXPECT_EQ(rank("[2025-01-02 03:04:05] "), Speaker{});
}

TEST(LogReader, KeepsTheOrderOfInterleavedRanksAndATextOnce) {
  const string log = "step 1\nstep 2 |#   |\rstep 2 |##  |\r" + timeout("[rank1]:", 1, 7) +
                     "\r\n[rank0]: " + kOutOfMemory + "\n" + timeout("[rank1]:", 1, 7) + "\n" +
                     timeout("[rank2]:", 2, 7);
  const LogTexts texts = read_text(log);
  ASSERT_EQ(texts.reports.size(), 3u);
  EXPECT_EQ(texts.lines, 5);
  EXPECT_EQ(texts.reports[0].line, 2);
  EXPECT_EQ(kind_of(texts.reports[0]), "nccl_timeout");
  EXPECT_EQ(texts.reports[1].line, 3);
  EXPECT_EQ(kind_of(texts.reports[1]), "oom");
  EXPECT_EQ(texts.reports[2].speaker.rank, 2);
}

TEST(LogReader, TakesThePhaseFromTheTracebackOfTheSameRank) {
  const auto frame = [](int rank, const string& file, const string& function) {
    return "[rank" + std::to_string(rank) + "]:   File \"/venv/" + file + "\", line 7, in " + function + "\n[rank" +
           std::to_string(rank) + "]:     code()\n";
  };
  const string begin = "[rank1]: Traceback (most recent call last):\n", module = "torch/nn/modules/module.py",
               group = "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py";
  const auto traceback = [&](const string& frames) {
    return only("[rank1]: a traceback of before\n" + frame(1, "torch/optim/optimizer.py", "wrapper") + begin + frames +
                "[rank1]: " + kOutOfMemory)
        .traceback;
  };
  const string forward = frame(1, "train.py", "<module>") + frame(1, module, "_call_impl");
  EXPECT_EQ(traceback(forward), (Traceback{"forward", FsdpWork::kNone}));
  EXPECT_EQ(traceback(forward + frame(1, group, "unshard") + frame(1, group, "foreach_all_gather")),
            (Traceback{"forward", FsdpWork::kGather}));
  const string backward = frame(1, "torch/_tensor.py", "backward");
  EXPECT_EQ(traceback(backward + frame(1, group, "foreach_all_gather_copy_out")),
            (Traceback{"backward", FsdpWork::kCopyOut}));
  EXPECT_EQ(traceback(backward + frame(1, group, "foreach_reduce")), (Traceback{"backward", FsdpWork::kReduce}));
  EXPECT_EQ(traceback(backward + frame(1, "torch/utils/checkpoint.py", "unpack_hook") + frame(1, module, "_call_impl")),
            (Traceback{"recompute", FsdpWork::kNone}));
  EXPECT_EQ(traceback(frame(1, "torch/optim/adamw.py", "step")), (Traceback{"optimizer", FsdpWork::kNone}));
  EXPECT_EQ(traceback(frame(0, "torch/_tensor.py", "backward")), Traceback{});
}

TEST(LogReader, ReadsTheStateOfAWatchdogInAllItsForms) {
  const auto state = [](const string& text) { return std::get<NcclState>(only(text).what); };
  EXPECT_EQ(state("[PG 1 Rank 0] Timeout at NCCL work: 7753, last enqueued NCCL work: 7755, last completed NCCL work: "
                  "7752."),
            (NcclState{0, "1", 7753, 7755, 7752}));
  EXPECT_EQ(state("[PG ID 2 PG GUID 3(mesh_dp) Rank 4] failure detected by watchdog at work sequence id: 9 PG status: "
                  "last enqueued work: 11, last completed work: 8"),
            (NcclState{4, "3(mesh_dp)", 9, 11, 8}));
  EXPECT_EQ(state("[PG 0 (default_pg) Rank 3] Timeout at NCCL work: 5, last enqueued NCCL work: 6, last completed NCCL "
                  "work: 4."),
            (NcclState{3, "0(default_pg)", 5, 6, 4}));
}

TEST(LogReader, ReadsCodesOfTorchNpu) {
  const auto error = std::get<HcclError>(
      only("[ERROR] 2024-05-21-11:57:54 (PID:927000, Device:3, RankID:3) ERR02200 DIST call hccl api failed.").what);
  EXPECT_EQ(error.code, "ERR02200");
  EXPECT_EQ(error.pid, 927000);
  EXPECT_EQ(error.rank, 3);
  EXPECT_EQ(error.text, "DIST call hccl api failed.");
}

TEST(LogReader, ReadsOtherProcessesAndARequestWithoutANumber) {
  const string text =
      "HIP out of memory. Tried to allocate 0 bytes. GPU 1 has a total capacity of 8.00 GiB of which 0 bytes is free. "
      "Process 12 has 1.00 GiB memory in use. Process 13 has 512.00 MiB memory in use. Including non-PyTorch memory, this "
      "process has 6.50 GiB memory in use. Of the allocated memory 6.00 GiB is allocated by PyTorch, and 1.50 MiB is "
      "reserved by PyTorch but unallocated.";
  const auto memory = std::get<OutOfMemory>(only(text).what);
  ASSERT_EQ(memory.processes.size(), 2u);
  EXPECT_EQ(memory.processes[1], (ProcessMemory{13, {512 << 20, 5243}}));
  EXPECT_EQ(memory.in_use->bytes, 6979321856);
  EXPECT_EQ(memory.tried, (ByteFigure{0, 0}));
  const auto huge = std::get<OutOfMemory>(only("CUDA out of memory. Tried to allocate more than 1EB memory.").what);
  EXPECT_FALSE(huge.tried.has_value());
}

// 22.78 GiB is any size from 22.775 to 22.785 GiB.
TEST(LogReader, TakesHalfOfTheLastDigitAsTheErrorOfAFigure) {
  const auto memory = std::get<OutOfMemory>(only("CUDA out of memory. Tried to allocate 22.78 GiB.").what);
  EXPECT_EQ(memory.tried, (ByteFigure{24459838751, 5368710}));
}

TEST(LogReader, GivesNothingForOtherAndCutTexts) {
  for (const string text :
       {"", "out of memory", "CUDA out of memory. Tried to allocate ", "CUDA out of memory. Tried to allocate 9 PiB",
        "CUDA out of memory. Tried to allocate 99999999999999999999.00 GiB",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(OpType=A, Timeout(ms)=1)",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=A, Timeout(ms)=1) ran for 1",
        "last enqueued work: 1, last completed work: 0", "EI12: x", "ERR02200", "[rank99999999999999999999]:"}) {
    EXPECT_TRUE(read_text(text).reports.empty()) << text;
  }
  // Every beginning of a text is read or refused, and none is read wrongly.
  for (std::size_t size = 0; size <= kOutOfMemory.size(); ++size) {
    const LogTexts texts = read_text(kOutOfMemory.substr(0, size));
    if (texts.reports.empty()) continue;
    EXPECT_EQ(std::get<OutOfMemory>(texts.reports[0].what).platform, "CUDA");
  }
}

TEST(LogReader, ReadsALineOfAnyLengthInParts) {
  LogReader reader;
  const string chunk(std::size_t{1} << 20, '[');
  for (int i = 0; i < 16; ++i) reader.take(chunk);
  reader.take("\n" + kOutOfMemory + "\n");
  const LogTexts texts = reader.finish();
  ASSERT_EQ(texts.reports.size(), 1u);
  EXPECT_EQ(texts.reports[0].line, 2);
}

TEST(LogReader, CountsTheTextsBeyondThoseItKeeps) {
  LogReader reader;
  for (int seq = 0; seq < (1 << 16) + 10; ++seq) reader.take(timeout("", 0, seq) + "\n");
  const LogTexts texts = reader.finish();
  EXPECT_EQ(texts.reports.size(), std::size_t{1} << 16);
  EXPECT_EQ(texts.left_out, 10);
}

TEST(LogReader, NamesAFileThatItCannotRead) {
  EXPECT_EQ(test::message_of<ConfigError>([] { read_log("nowhere.log"); }),
            "nowhere.log: the log cannot be read: No such file or directory; give a readable file");
  const auto folder = test::fresh_folder();
  EXPECT_EQ(test::message_of<ConfigError>([&] { read_log(folder); }),
            folder.string() + ": the log cannot be read: Is a directory; give a readable file");
}

}  // namespace
}  // namespace loom::explain
