#include "engine/launcher/worker_group.h"

#include <unistd.h>

#include <algorithm>
#include <fmt/format.h>
#include <fstream>

#include "engine/launcher/failure_report.h"
#include "engine/launcher/lines.h"
#include "engine/launcher/worker_environment.h"

namespace loom::launcher {
namespace {

// One worker may have the console itself; the lines of several go through the agent, which keeps them whole.
bool has_console_itself(const Options& options) {
  return options.workers == 1 && options.shown_workers.empty() && !options.redirects.any() && !options.tee.any();
}

bool is_shown(const Options& options, int local_rank) {
  const auto& shown = options.shown_workers;
  return shown.empty() || std::ranges::find(shown, local_rank) != shown.end();
}

std::string end_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const auto bytes = static_cast<std::streamoff>(file.tellg());
  file.seekg(std::max<std::streamoff>(0, bytes - static_cast<std::streamoff>(2 * kLastLinesBytes)));
  LastLines last(kLastLinesBytes);
  last.add(std::string{std::istreambuf_iterator<char>(file), {}});
  return last.text();
}

}  // namespace

WorkerGroup::WorkerGroup(const GroupContext& context, const Assigned& assigned)
    : assigned_(assigned), host_(host_name(context.options)), output_(context.output) {
  for (int local_rank = 0; local_rank < context.options.workers; ++local_rank) start(context, local_rank);
}

void WorkerGroup::start(const GroupContext& context, int local_rank) {
  Entry entry;
  Outlets outlets;
  const std::filesystem::path error_file = open_outlets(context, local_rank, entry, outlets);
  WorkerStart start{
      .program = context.options.program,
      .environment = worker_environment(context.options, assigned_, local_rank, context.meeting, error_file)};
  if (!context.cores.empty()) start.cores = context.cores[static_cast<std::size_t>(local_rank)];
  const auto descriptor_of = [](const auto& pipe, const auto& file) {
    return pipe ? pipe->get() : file ? file->get() : -1;
  };
  start.out = descriptor_of(outlets.out_pipe, outlets.out_file);
  start.err = descriptor_of(outlets.err_pipe, outlets.err_file);
  entry.worker = std::make_unique<Worker>(start);
  entries_.push_back(std::move(entry));
}

std::filesystem::path WorkerGroup::open_outlets(const GroupContext& context, int local_rank, Entry& entry,
                                                Outlets& outlets) {
  if (context.options.tool == Tool::kMsrun) {
    open_msrun(context, local_rank, entry, outlets);
    return {};
  }
  const std::filesystem::path folder = context.logs.folder_of(assigned_, local_rank);
  if (!has_console_itself(context.options)) open_torchrun(context, local_rank, folder, entry, outlets);
  return folder / "error.json";
}

// Each stream: to its file alone, to its file and the console, or to the console.
void WorkerGroup::open_torchrun(const GroupContext& context, int local_rank, const std::filesystem::path& folder,
                                Entry& entry, Outlets& outlets) {
  const Options& options = context.options;
  const auto open = [&](bool tee, bool redirect, const char* name, int console, std::unique_ptr<Descriptor>& pipe,
                        std::shared_ptr<Descriptor>& file) -> std::optional<Output::Id> {
    const auto log = tee || redirect ? open_log(folder / name, /*append=*/true) : nullptr;
    if (redirect && !tee) {
      file = log;
      return std::nullopt;
    }
    Output::Stream stream{.console = is_shown(options, local_rank) ? console : -1, .file = log};
    if (tee) stream.prefix = fmt::format("[{}{}]:", options.role, local_rank);
    Output::Id id = 0;
    pipe = context.output.add(std::move(stream), id);
    return id;
  };
  open(options.tee.has_out(local_rank), options.redirects.has_out(local_rank), "stdout.log", STDOUT_FILENO,
       outlets.out_pipe, outlets.out_file);
  entry.err = open(options.tee.has_err(local_rank), options.redirects.has_err(local_rank), "stderr.log", STDERR_FILENO,
                   outlets.err_pipe, outlets.err_file);
  if (!entry.err) entry.err_file = folder / "stderr.log";
}

// Both streams to one file, and to the console for the workers that --tail_worker_log names.
void WorkerGroup::open_msrun(const GroupContext& context, int local_rank, Entry& entry, Outlets& outlets) {
  entry.err_file = context.logs.worker_log(assigned_, local_rank);
  outlets.out_file = outlets.err_file = open_log(entry.err_file, /*append=*/assigned_.attempt > 0);
  if (context.options.tee.otherwise == Streams::kNone) return;
  const int rank = assigned_.first_rank + local_rank;
  if (!is_shown(context.options, rank)) return;
  const std::string prefix = fmt::format("[worker_{}]:", rank);
  Output::Id id = 0;
  outlets.out_pipe = context.output.add({STDOUT_FILENO, prefix, outlets.out_file}, id);
  outlets.err_pipe = context.output.add({STDERR_FILENO, prefix, outlets.out_file}, id);
  entry.err = id;
}

std::vector<Failure> WorkerGroup::look() {
  std::vector<Failure> failures;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.seen || !entry.worker->look()) continue;
    const WorkerEnd& end = *entry.worker->look();
    entry.seen = true;
    entry.well = end.well();
    if (entry.well) continue;
    const int local_rank = static_cast<int>(i);
    failures.push_back({.attempt = assigned_.attempt,
                        .rank = assigned_.first_rank + local_rank,
                        .local_rank = local_rank,
                        .exit_code = end.exit_code,
                        .signal = end.signal,
                        .unix_ms = end.unix_ms,
                        .host = host_,
                        .last_lines = last_lines(entry)});
  }
  return failures;
}

std::string WorkerGroup::last_lines(const Entry& entry) const {
  if (!entry.err) return entry.err_file.empty() ? std::string{} : end_of_file(entry.err_file);
  return output_.last_lines(*entry.err);
}

bool WorkerGroup::running() const {
  return std::ranges::any_of(entries_, [](const Entry& entry) { return entry.worker->running(); });
}

bool WorkerGroup::succeeded() const {
  return std::ranges::all_of(entries_, [](const Entry& entry) { return entry.well; });
}

void WorkerGroup::send(int signal) const {
  for (const Entry& entry : entries_) entry.worker->send(signal);
}

}  // namespace loom::launcher
