// ByteDataset: training and held-out samples from the bytes of files; a token is a byte, 0 to 255.
//
// Files    every non-empty regular file of the paths given, folders searched to any depth; links to folders are not
//          followed, links to files are read. Sorted by path; a file reached twice counts once.
// Split    by file, on bytes: files are visited in an order fixed by their place in the sorted list and held out where
//          they still fit into held_out_fraction of all bytes. If that holds out less than one sample, the smallest
//          file that is long enough is held out too. Seed and number of ranks do not matter. A single file is cut: its
//          last held_out_fraction is held out, from the nearest end of a document (an empty line), else of a line, that
//          moves the cut by less than half of that share; else from that byte on.
// Samples  the files of a split make one stream, in path order with a byte 0 between files. Sample i is the stream's
//          bytes [i * seq_length, i * seq_length + seq_length + 1): inputs and, one further, targets. The rest at the
//          end is not used.
// Order    a function of seed and index alone: index / sample_count() is the epoch, whose samples are shuffled
//          (loom::permute). The number of samples consumed is therefore the whole state of the reader.
// Memory   files are mapped, not copied: one mapping a file (Linux allows a process about 65000). Samples are read from
//          the files themselves, each time only if the file has not changed since it was opened.
// Threads  const after construction: the rank threads of a process may share one.
// Errors   ConfigError: a path that cannot be read, no data, data too small for one sample of each split. Error from
//          fill(): a file was shortened, changed, replaced or removed since (io::FileReader).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "engine/io/mapped_file.h"

namespace loom::data {

struct ByteDataOptions {
  std::vector<std::filesystem::path> paths;  // files and folders
  int seq_length = 0;                        // tokens of a sequence, at least 1
  double held_out_fraction = 0.0;            // share of the bytes, [0, 1); 0: no held-out data
  std::uint64_t seed = 0;                    // of the order of training samples
};

// Bytes [begin, end) of the files' stream.
struct StreamRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

class ByteDataset {
 public:
  // At least one file; together at least seq_length + 1 bytes, separators included.
  ByteDataset(std::vector<io::MappedFile> files, int seq_length, std::uint64_t seed);
  // Reads a part of the files' stream, of at least seq_length + 1 bytes.
  ByteDataset(std::vector<io::MappedFile> files, StreamRange range, int seq_length, std::uint64_t seed);

  // Samples of an epoch, at least 1.
  std::int64_t sample_count() const { return sample_count_; }
  // Bytes of the stream, separators included.
  std::int64_t stream_bytes() const { return stream_bytes_; }
  const std::vector<io::MappedFile>& files() const { return files_; }

  // Writes the sample that comes `global_sample_index`-th (from 0, over all epochs) to `tokens`, seq_length + 1 of
  // them.
  void fill(std::int64_t global_sample_index, std::span<std::int32_t> tokens) const;

 private:
  void copy_stream(std::int64_t begin, std::span<std::int32_t> tokens) const;

  std::vector<io::MappedFile> files_;
  std::vector<std::int64_t> file_begin_;  // of each file in the stream
  std::int64_t begin_ = 0;                // of the range, in the stream
  int seq_length_ = 0;
  std::uint64_t seed_ = 0;
  std::int64_t stream_bytes_ = 0;
  std::int64_t sample_count_ = 0;
};

// The files that a data set of these paths has, in its order (Files, above).
std::vector<std::filesystem::path> data_files(const std::vector<std::filesystem::path>& paths);

struct ByteData {
  ByteDataset train;
  // Its order does not depend on the seed, so that runs compare on the same batches. None when the fraction is 0.
  std::optional<ByteDataset> held_out;
};

ByteData open_byte_data(const ByteDataOptions& options);

// The global sample indices of one micro-batch of a rank. A step consumes samples [first_sample, first_sample +
// global_batch), and the next one begins where it ended; of these rows, rank r of `world` takes
// [r * global_batch / world, (r + 1) * global_batch / world), `micro_batch` at a time.
//
// Before   global_batch is a multiple of world * micro_batch, and accum_index < global_batch / (world * micro_batch).
std::vector<std::int64_t> rank_rows(std::int64_t first_sample, std::int64_t global_batch, int rank, int world,
                                    std::int64_t micro_batch, std::int64_t accum_index);

}  // namespace loom::data
