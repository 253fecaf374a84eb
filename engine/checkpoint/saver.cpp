#include "engine/checkpoint/saver.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fmt/format.h>
#include <thread>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/save_parts.h"
#include "engine/checkpoint/save_plan.h"
#include "engine/comm/exchange.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/formats/dcp/dcp_file_writer.h"
#include "engine/formats/dcp/dcp_folder.h"

namespace loom::checkpoint {
namespace {

constexpr std::string_view kTag = "a checkpoint";

// Bytes that a save keeps of a tensor: the tensor's own, or a copy.
struct Content {
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;
};

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.raw()), static_cast<std::size_t>(tensor.nbytes())};
}

ManifestFile file_of(std::string name, const io::FileSum& sum) {
  return {std::move(name), static_cast<std::int64_t>(sum.size_bytes), sum.crc32c};
}

std::string joined(const std::vector<std::string>& lines) { return fmt::format("{}", fmt::join(lines, " ")); }

}  // namespace

// One save after another: the plan, the copies, the files, and on rank 0 the commit.
class Saver::Work {
 public:
  Work(const SaverOptions& options, int rank, int world) : options_(options), rank_(rank), world_(world) {
    if (rank == 0) store_.emplace(options.folder);
  }
  ~Work() { join(); }

  CheckpointStore& store() { return *store_; }
  bool has_plan_for(const State& state) const { return plan_ && plan_->fits(state); }
  void set_plan(SavePlan plan) { plan_ = std::move(plan); }

  // Takes the state; with async the files are written behind the call.
  void start(std::int64_t iteration, const State& state, std::filesystem::path directory) {
    iteration_ = iteration;
    directory_ = std::move(directory);
    error_.clear();
    ended_ = false;
    try {
      take(state);
      thread_ = std::thread([this] { run(); });
    } catch (const std::exception& error) {  // no memory for the copies: rank 0 need not wait for this rank's part
      write_failed_part(directory_, rank_, error.what());
      throw;
    }
    if (!options_.async) join();
  }
  bool ended() const { return ended_; }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  const std::string& error() const { return error_; }  // empty: the save is on disk. After join()
  std::int64_t iteration() const { return iteration_; }

 private:
  void take(const State& state) {
    contents_.clear();
    std::size_t total = 0;
    for (const std::size_t place : plan_->own())
      total += static_cast<std::size_t>(state.tensors[place].local.value.nbytes());
    if (options_.async && copies_.size() < total) copies_.resize(total);
    std::size_t at = 0;
    for (const std::size_t place : plan_->own()) {
      const Tensor& tensor = state.tensors[place].local.value;
      std::span<const std::byte> bytes = bytes_of(tensor);
      if (options_.async) {
        std::memcpy(copies_.data() + at, bytes.data(), bytes.size());
        bytes = std::span<const std::byte>(copies_).subspan(at, bytes.size());
        at += bytes.size();
      }
      contents_.push_back({tensor.dtype(), tensor.shape(), bytes});
    }
    if (rank_ == 0) values_ = state.values;
  }

  void run() {
    try {
      write_files();
    } catch (const std::exception& error) {
      error_ = error.what();
      std::error_code ignored;
      std::filesystem::remove(directory_ / io::dcp_file_name(rank_), ignored);  // room for the error's message
      write_failed_part(directory_, rank_, error.what());
    }
    if (rank_ == 0) commit();
    ended_ = true;
  }

  void write_files() {
    std::vector<ManifestFile> files;
    const bool writes = !contents_.empty() || !values_.empty();
    if (writes) {
      io::DcpFileWriter writer(directory_ / io::dcp_file_name(rank_));
      places_.clear();
      tensors_begin_ = 0;
      for (const StateValue& value : values_) {
        places_.push_back(writer.value(value.value));
        tensors_begin_ = places_.back().begin + places_.back().length;
      }
      for (const Content& content : contents_) {
        writer.tensor(content.dtype, content.shape, [&](const io::ByteSink& sink) { sink(content.bytes); });
      }
      files.push_back(file_of(io::dcp_file_name(rank_), writer.finish()));
    }
    write_part(directory_, rank_, files);
  }

  io::DcpMetadata metadata() const {
    io::DcpMetadata made = plan_->metadata(tensors_begin_);
    for (std::size_t i = 0; i < values_.size(); ++i) {
      made.items.push_back({values_[i].name.name, values_[i].name.path, false, DType::kF32, {}, {places_[i]}});
    }
    return made;
  }

  // Rank 0, when every rank has written its part.
  void commit() {
    const CheckpointId id{iteration_};
    try {
      Manifest manifest{id, gather_parts(directory_, world_, options_.patience)};
      const io::FileSum sum = io::write_dcp_metadata_file(directory_, metadata());
      manifest.files.push_back(file_of(std::string(io::kDcpMetadataFile), sum));
      io::DcpFolder(directory_).check_headers();
      store_->commit(manifest);
    } catch (const std::exception& error) {
      error_ = error.what();
      return warn_of([&] { store_->abandon(id); });
    }
    if (options_.keep_last) warn_of([&] { store_->remove_old(*options_.keep_last); });
  }
  // A failure here costs room on the disk, and no checkpoint.
  template <class Clean>
  static void warn_of(const Clean& clean) {
    try {
      clean();
    } catch (const std::exception& error) {
      log_warning("{}", error.what());
    }
  }

  const SaverOptions& options_;
  const int rank_;
  const int world_;
  std::optional<CheckpointStore> store_;  // rank 0
  std::optional<SavePlan> plan_;

  // State of the save in flight: written by the host thread before the thread starts and after it has ended.
  std::int64_t iteration_ = 0;
  std::filesystem::path directory_;
  std::vector<Content> contents_;
  std::vector<StateValue> values_;
  std::vector<std::byte> copies_;
  // Written by the thread.
  std::vector<io::DcpPiece> places_;  // of the values
  std::uint64_t tensors_begin_ = 0;
  std::string error_;
  std::atomic<bool> ended_ = true;
  std::thread thread_;
};

Saver::Saver(SaverOptions options, std::shared_ptr<comm::ProcessGroup> everyone, Say say)
    : options_(std::move(options)),
      everyone_(std::move(everyone)),
      say_(std::move(say)),
      work_(new Work(options_, everyone_->rank(), everyone_->size())) {}

Saver::~Saver() = default;

// Every rank sends the others the outcome of the previous save, and rank 0 the directory of the next one.
std::filesystem::path Saver::begin(std::int64_t iteration) {
  std::string directory;
  std::string problem;
  if (everyone_->rank() == 0) {
    try {
      directory = work_->store().begin(CheckpointId{iteration}).filename().string();
    } catch (const std::exception& error) {
      problem = escaped(error.what());
    }
  }
  const auto lines = comm::exchange_lines(*everyone_, directory.empty() ? problem : directory + "\n", kTag);
  const std::vector<std::string>& first = lines.front();
  const bool begun = !first.empty() && first.front().starts_with(".iter_");
  if (begun) return options_.folder / first.front();
  failed(joined(first));
  return {};
}

void Saver::failed(const std::string& text) {
  if (options_.stop_on_error) {
    raise<Error>(
        "the checkpoint cannot be written: {}; the former one is whole. Make room and start again with --load, or go "
        "on without with --on-save-error continue",
        text);
  }
  if (everyone_->rank() == 0) {
    log_warning("the checkpoint cannot be written: {}; the former one is whole, and training goes on", text);
  }
}

void Saver::save(std::int64_t iteration, const State& state) {
  finish();
  double others = work_->has_plan_for(state) ? 0 : 1;
  everyone_->all_reduce(comm::kHostLane, &others, 1, DType::kF64, comm::ReduceOp::sum(), kTag);
  if (others > 0) work_->set_plan(SavePlan::make(state, *everyone_));
  say_(fmt::format("saving checkpoint at iteration {:7d} to {} in torch_dcp format", iteration,
                   escaped(options_.folder.string())));
  const std::filesystem::path directory = begin(iteration);
  if (directory.empty()) return;
  work_->start(iteration, state, directory);
  in_flight_ = true;
  if (!options_.async) finish();
}

void Saver::finish() {
  if (!std::exchange(in_flight_, false)) return;
  work_->join();
  const auto lines = comm::exchange_lines(*everyone_, escaped(work_->error()), kTag);
  const auto bad = std::ranges::find_if(lines, [](const auto& said) { return !said.empty(); });
  if (bad != lines.end()) return failed(joined(*bad));
  last_saved_ = work_->iteration();
  say_(fmt::format("  successfully saved checkpoint from iteration {:7d} to {} [ t 1/{}, p 1/{} ]", *last_saved_,
                   escaped(options_.folder.string()), options_.tensor_ranks, options_.pipeline_ranks));
}

void Saver::poll() {
  if (!in_flight_ || !work_->ended()) return;
  work_->join();
  if (!work_->error().empty() && options_.stop_on_error) failed(work_->error());
}

}  // namespace loom::checkpoint
