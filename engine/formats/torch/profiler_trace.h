// ProfilerTrace: what a trace of torch.profiler (export_chrome_trace) says of one process: kernels and copies of its
// devices, the annotations of its host, where its backward nodes began.
//
// Read      JSON, may be compressed with gzip, event by event: what is not named here is passed over.
// Units     microseconds of the trace's clock.
// Memory    of reading: the text, and what is kept.
// Limits    4 GiB of text.
// Errors    ConfigError that begins with the file's name: no JSON, no traceEvents, no kernel in it.
// Threads   any.
// Source    traces of PyTorch 2.11.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace loom::io {

// Work of a device: a kernel, a copy or a fill.
struct TraceWork {
  std::string name;
  bool is_copy = false;  // a copy or a fill
  std::int64_t device = 0;
  std::int64_t stream = 0;
  double start = 0;
  double end = 0;
  double launched = -1;  // by the host; -1: the trace does not say
};

struct TraceAnnotation {
  std::string name;
  double start = 0;
  double end = 0;
};

struct ProfilerTrace {
  std::vector<TraceWork> work;               // by start
  std::vector<TraceAnnotation> annotations;  // of the host, by start
  std::vector<double> backward_nodes;        // when each began on the host, ascending
};

ProfilerTrace read_profiler_trace(const std::filesystem::path& path);

}  // namespace loom::io
