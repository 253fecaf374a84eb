// Promise: a trace of torch.profiler gives its kernels with the times at which the host launched them, its annotations
//          and the beginnings of backward nodes; a file that is none is refused with its place.
#include "engine/formats/torch/profiler_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ProfilerTraceFile : public ::testing::Test {
 protected:
  ProfilerTrace read(const std::string& text) const {
    test::write_file(path_, text);
    return read_profiler_trace(path_);
  }
  std::string refusal(const std::string& text) const {
    try {
      read(text);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "it was read";
  }
  const std::filesystem::path path_ = test::fresh_folder() / "trace.json";
};

TEST_F(ProfilerTraceFile, HasWorkWithItsLaunch) {
  const ProfilerTrace trace = read(R"x({"schemaVersion": 1, "traceEvents": [
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "ts": 30, "dur": 1.5, "args": {"device": 0, "stream": 18}},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20.25, "dur": 4,
     "args": {"device": 0, "stream": 7, "correlation": 5, "grid": [1, 2, {"device": 9}]}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 11, "dur": 2, "args": {"correlation": 5}},
    {"ph": "X", "cat": "user_annotation", "name": "FSDP::pre_forward (a.b)", "ts": 10, "dur": 5},
    {"ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: MmBackward0", "ts": 12, "dur": 5},
    {"ph": "M", "name": "process_name", "args": {"name": "python3"}}], "distributedInfo": {"rank": 0}})x");
  ASSERT_EQ(trace.work.size(), 2u);
  EXPECT_EQ(trace.work[0].name, "gemm");
  EXPECT_EQ(trace.work[0].device, 0);
  EXPECT_EQ(trace.work[0].stream, 7);
  EXPECT_EQ(trace.work[0].launched, 11);
  EXPECT_EQ(trace.work[0].end, 24.25);
  EXPECT_TRUE(trace.work[1].is_copy);
  EXPECT_EQ(trace.work[1].launched, -1);
  ASSERT_EQ(trace.annotations.size(), 1u);
  EXPECT_EQ(trace.annotations[0].name, "FSDP::pre_forward (a.b)");
  EXPECT_THAT(trace.backward_nodes, ElementsAre(12));
}

TEST_F(ProfilerTraceFile, IsRefusedWithItsPlace) {
  EXPECT_THAT(refusal(R"({"traceEvents": [)"), HasSubstr("trace.json: not valid JSON at byte 18"));
  EXPECT_THAT(refusal(R"({"events": []})"), HasSubstr("is no trace: it has no list traceEvents"));
  EXPECT_THAT(refusal("[]"), HasSubstr("is no trace"));
  EXPECT_THAT(refusal(R"({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1}]})"),
              HasSubstr("has no kernel of a device among its events; profile with activities=[ProfilerActivity.CPU"));
  EXPECT_THAT(refusal(std::string(1000, '[')), HasSubstr("not valid JSON at byte"));
}

}  // namespace
}  // namespace loom::io
