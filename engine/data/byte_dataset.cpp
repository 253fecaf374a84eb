#include "engine/data/byte_dataset.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "engine/core/shown_text.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSplitSeed = 1;
constexpr std::int32_t kSeparator = 0;

void refuse_unreadable(const fs::path& path, const std::error_code& error) {
  if (error) config_error("--data-path '{}': cannot read: {}", escaped(path.string()), error.message());
}

void add_file(const fs::path& path, std::vector<fs::path>& found) {
  std::error_code error;
  const auto size_bytes = fs::file_size(path, error);
  refuse_unreadable(path, error);
  if (size_bytes > 0) found.push_back(path);
}

void add_folder(const fs::path& folder, std::vector<fs::path>& found) {
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  refuse_unreadable(folder, error);
  while (entry != fs::recursive_directory_iterator()) {
    const fs::path path = entry->path();
    std::error_code dangling;  // a link to nothing is not a regular file
    if (entry->is_regular_file(dangling)) add_file(path, found);
    entry.increment(error);
    refuse_unreadable(path, error);
  }
}

std::vector<fs::path> find_files(const std::vector<fs::path>& paths) {
  std::vector<fs::path> found;
  for (const fs::path& path : paths) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    refuse_unreadable(path, error);
    if (fs::is_directory(status)) {
      add_folder(path, found);
    } else if (fs::is_regular_file(status)) {
      add_file(path, found);
    } else {
      config_error("--data-path '{}': neither a file nor a folder; give files, or folders with files",
                   escaped(path.string()));
    }
  }
  std::ranges::sort(found);
  std::set<fs::path> seen;
  std::erase_if(found, [&](const fs::path& path) {
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    refuse_unreadable(path, error);
    return !seen.insert(real).second;
  });
  return found;
}

std::string listed(const std::vector<fs::path>& paths) {
  std::vector<std::string> texts;
  for (const fs::path& path : paths) texts.push_back(fmt::format("'{}'", path.string()));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::int64_t size_of(const io::MappedFile& file) { return static_cast<std::int64_t>(file.bytes().size()); }

// Bytes of the files' stream, with a separator between files.
std::int64_t stream_size(const std::vector<io::MappedFile>& files) {
  std::int64_t total_bytes = std::max<std::int64_t>(0, static_cast<std::int64_t>(files.size()) - 1);
  for (const io::MappedFile& file : files) total_bytes += size_of(file);
  return total_bytes;
}

// Which files are held out (see Split in the header); at least one is not.
class HeldOutFiles {
 public:
  HeldOutFiles(const std::vector<std::int64_t>& sizes, double fraction, std::int64_t sample_bytes)
      : sizes_(sizes), held_(sizes.size(), false), left_(sizes.size()) {
    const auto total_bytes = static_cast<double>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}));
    const auto target_bytes = static_cast<std::int64_t>(fraction * total_bytes);
    const std::uint64_t key = stream_key(kSplitSeed, "held-out files");
    for (std::uint64_t place = 0; place < sizes.size(); ++place) {
      const std::size_t file = permute(key, place, sizes.size());
      if (held_bytes_ + sizes[file] <= target_bytes) hold(file);
    }
    if (held_bytes_ < sample_bytes) hold_smallest(sample_bytes);
  }

  const std::vector<bool>& held() const { return held_; }

 private:
  void hold(std::size_t file) {
    if (left_ == 1) return;
    --left_;
    held_[file] = true;
    held_bytes_ += sizes_[file];
  }

  // The smallest file of at least `enough_bytes`; the largest when none has that many.
  void hold_smallest(std::int64_t enough_bytes) {
    std::optional<std::size_t> best;
    for (std::size_t file = 0; file < sizes_.size(); ++file) {
      if (held_[file]) continue;
      if (!best || better(sizes_[file], sizes_[*best], enough_bytes)) best = file;
    }
    hold(*best);
  }

  static bool better(std::int64_t size, std::int64_t than, std::int64_t enough) {
    if (than < enough) return size > than;
    return size >= enough && size < than;
  }

  const std::vector<std::int64_t>& sizes_;
  std::vector<bool> held_;
  std::size_t left_;
  std::int64_t held_bytes_ = 0;
};

// A file's cut between training and held-out data (see Split in the header).
class Cut {
 public:
  Cut(std::span<const std::byte> bytes, double fraction) : bytes_(bytes) {
    const auto held = static_cast<std::int64_t>(fraction * static_cast<double>(bytes.size()));
    target_ = static_cast<std::int64_t>(bytes.size()) - held;
    reach_ = held / 2;
  }

  std::int64_t at() const {
    for (const auto ends : {&Cut::ends_document, &Cut::ends_line}) {
      for (std::int64_t away = 0; away < reach_; ++away) {
        if ((this->*ends)(target_ + away)) return target_ + away;
        if ((this->*ends)(target_ - away)) return target_ - away;
      }
    }
    return target_;
  }

 private:
  bool is_newline(std::int64_t at) const {
    return at >= 0 && at < static_cast<std::int64_t>(bytes_.size()) &&
           bytes_[static_cast<std::size_t>(at)] == std::byte{'\n'};
  }
  bool ends_line(std::int64_t at) const { return is_newline(at - 1); }
  // Behind the last of several ends of lines.
  bool ends_document(std::int64_t at) const { return is_newline(at - 1) && is_newline(at - 2) && !is_newline(at); }

  std::span<const std::byte> bytes_;
  std::int64_t target_ = 0;
  std::int64_t reach_ = 0;
};

constexpr std::string_view kHeldOutAdvice =
    "longer files, a shorter --seq-length, or --held-out-fraction 0 for no evaluation";
constexpr std::string_view kTrainAdvice = "more data or a shorter --seq-length";

void check_part(std::string_view split, const fs::path& file, std::int64_t bytes, int seq_length,
                std::string_view advice) {
  if (bytes > seq_length) return;
  config_error("{} data: {} bytes of '{}', but one sample of --seq-length {} takes {}; give {}", split, bytes,
               file.string(), seq_length, seq_length + 1, advice);
}

std::vector<io::MappedFile> mapped(const fs::path& path) {
  std::vector<io::MappedFile> files;
  files.emplace_back(path);
  return files;
}

// Training and held-out data from one file, which is mapped for each.
ByteData split_file(const fs::path& path, const ByteDataOptions& options) {
  std::vector<io::MappedFile> train = mapped(path);
  const std::int64_t size_bytes = size_of(train.front());
  const std::int64_t cut = Cut(train.front().bytes(), options.held_out_fraction).at();
  check_part("held-out", path, size_bytes - cut, options.seq_length, kHeldOutAdvice);
  check_part("training", path, cut, options.seq_length, kTrainAdvice);
  ByteData data{ByteDataset(std::move(train), {0, cut}, options.seq_length, stream_key(options.seed, "training data")),
                {}};
  data.held_out.emplace(mapped(path), StreamRange{cut, size_bytes}, options.seq_length,
                        stream_key(kSplitSeed, "held-out data"));
  return data;
}

void check_one_sample(std::string_view split, const std::vector<io::MappedFile>& files, int seq_length,
                      std::string_view advice) {
  if (stream_size(files) > seq_length) return;
  config_error("{} data: {} bytes in {} file(s), but one sample of --seq-length {} takes {}; give {}", split,
               stream_size(files), files.size(), seq_length, seq_length + 1, advice);
}

}  // namespace

ByteDataset::ByteDataset(std::vector<io::MappedFile> files, int seq_length, std::uint64_t seed)
    : ByteDataset(std::move(files), StreamRange{0, -1}, seq_length, seed) {}

ByteDataset::ByteDataset(std::vector<io::MappedFile> files, StreamRange range, int seq_length, std::uint64_t seed)
    : files_(std::move(files)),
      begin_(range.begin),
      seq_length_(seq_length),
      seed_(seed),
      stream_bytes_((range.end < 0 ? stream_size(files_) : range.end) - range.begin) {
  require(seq_length >= 1, "seq_length is {}, allowed are 1 and more", seq_length);
  require(stream_bytes_ > seq_length, "{} bytes for samples of {}", stream_bytes_, seq_length + 1);
  sample_count_ = (stream_bytes_ - 1) / seq_length;
  std::int64_t begin = 0;
  for (const io::MappedFile& file : files_) {
    file_begin_.push_back(begin);
    begin += size_of(file) + 1;
  }
}

void ByteDataset::fill(std::int64_t global_sample_index, std::span<std::int32_t> tokens) const {
  require(global_sample_index >= 0, "sample {} requested", global_sample_index);
  require(tokens.size() == static_cast<std::size_t>(seq_length_) + 1, "room for {} tokens, a sample has {}",
          tokens.size(), seq_length_ + 1);
  const std::int64_t epoch = global_sample_index / sample_count_;
  const auto place = static_cast<std::uint64_t>(global_sample_index % sample_count_);
  const std::uint64_t key = stream_key(seed_, fmt::format("samples of epoch {}", epoch));
  const auto sample = static_cast<std::int64_t>(permute(key, place, static_cast<std::uint64_t>(sample_count_)));
  copy_stream(begin_ + sample * seq_length_, tokens);
}

void ByteDataset::copy_stream(std::int64_t begin, std::span<std::int32_t> tokens) const {
  auto file = static_cast<std::size_t>(std::ranges::upper_bound(file_begin_, begin) - file_begin_.begin()) - 1;
  auto offset = static_cast<std::size_t>(begin - file_begin_[file]);
  std::vector<std::byte> bytes;
  while (true) {
    bytes.resize(std::min(tokens.size(), files_[file].bytes().size() - offset));
    io::FileReader(files_[file]).read(offset, bytes);
    const std::size_t count = bytes.size();
    std::ranges::transform(bytes, tokens.begin(), [](std::byte b) { return std::to_integer<std::int32_t>(b); });
    tokens = tokens.subspan(count);
    if (tokens.empty()) return;
    tokens[0] = kSeparator;
    tokens = tokens.subspan(1);
    ++file;
    offset = 0;
    if (tokens.empty()) return;
  }
}

std::vector<fs::path> data_files(const std::vector<fs::path>& paths) { return find_files(paths); }

ByteData open_byte_data(const ByteDataOptions& options) {
  require(0.0 <= options.held_out_fraction && options.held_out_fraction < 1.0, "held_out_fraction is {}",
          options.held_out_fraction);
  const std::vector<fs::path> paths = find_files(options.paths);
  if (paths.empty()) {
    config_error("--data-path {}: no file that holds anything; give files, or folders with files",
                 listed(options.paths));
  }
  const bool split = options.held_out_fraction > 0.0;
  if (split && paths.size() == 1) return split_file(paths.front(), options);
  std::vector<io::MappedFile> files(paths.begin(), paths.end());
  std::vector<io::MappedFile> train;
  std::vector<io::MappedFile> held_out;
  if (split) {
    std::vector<std::int64_t> sizes;
    for (const io::MappedFile& file : files) sizes.push_back(size_of(file));
    const HeldOutFiles parts(sizes, options.held_out_fraction, options.seq_length + 1);
    for (std::size_t i = 0; i < files.size(); ++i) {
      (parts.held()[i] ? held_out : train).push_back(std::move(files[i]));
    }
    check_one_sample("held-out", held_out, options.seq_length, kHeldOutAdvice);
  } else {
    train = std::move(files);
  }
  check_one_sample("training", train, options.seq_length, kTrainAdvice);
  ByteData data{ByteDataset(std::move(train), options.seq_length, stream_key(options.seed, "training data")), {}};
  if (split) data.held_out.emplace(std::move(held_out), options.seq_length, stream_key(kSplitSeed, "held-out data"));
  return data;
}

std::vector<std::int64_t> rank_rows(std::int64_t first_sample, std::int64_t global_batch, int rank, int world,
                                    std::int64_t micro_batch, std::int64_t accum_index) {
  require(world >= 1 && 0 <= rank && rank < world, "rank {} of {}", rank, world);
  require(micro_batch >= 1 && global_batch >= 1 && global_batch % (world * micro_batch) == 0,
          "global batch {} is not a multiple of {} ranks times micro-batch {}", global_batch, world, micro_batch);
  const std::int64_t rank_batch = global_batch / world;
  require(0 <= accum_index && accum_index < rank_batch / micro_batch, "micro-batch {} of {}", accum_index,
          rank_batch / micro_batch);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(micro_batch));
  std::iota(rows.begin(), rows.end(), first_sample + rank * rank_batch + accum_index * micro_batch);
  return rows;
}

}  // namespace loom::data
