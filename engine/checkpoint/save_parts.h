// Save parts: how the ranks of a save report their files to rank 0 without a collective, so that a background
// thread can do it while the ranks train.
//
// Part      rank R writes its files into the directory of CheckpointStore::begin(), flushes them to disk, reads them
//           back, and then puts .part_R.json beside them: their names, sizes and checksums, or the text of the error.
//           It appears whole or not at all. After its part a rank writes nothing more there.
// Rank 0    waits for the parts of all ranks, so that no rank still writes when it commits or abandons.
// Full      if not even the part can be written, an empty .part_R.failed reports the failure.
// Threads   each rank's part by one thread; gather_parts by one thread of one process.
// Errors    Error with rank and text.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "engine/checkpoint/manifest.h"

namespace loom::checkpoint {

// Flushes the files, reads them back, and reports them as complete. A rank without files reports too.
void write_part(const std::filesystem::path& directory, int rank, std::span<const ManifestFile> files);

// Reports that this rank's save failed; the text is cut to 4 KiB. Never throws.
void write_failed_part(const std::filesystem::path& directory, int rank, std::string_view text) noexcept;

// The files of all ranks, sorted by name, for CheckpointStore::commit(); removes the parts. Polls every `poll` until
// `patience` is over. Error if a rank failed (the lowest one's text), if ranks are missing (their numbers), if
// two ranks name one file, or if a part is invalid.
std::vector<ManifestFile> gather_parts(const std::filesystem::path& directory, int world,
                                       std::chrono::milliseconds patience,
                                       std::chrono::milliseconds poll = std::chrono::milliseconds(20));

}  // namespace loom::checkpoint
