// Save parts: how the ranks of a save tell rank 0 what they wrote, without a collective, so that a thread in the
// background can do it while the ranks train.
//
// Part      rank R writes its files into the directory of CheckpointStore::begin(), flushes them to disk, reads them
//           back, and then puts .part_R.json beside them: their names, sizes and checksums, or the text of the error.
//           It appears whole or not at all. After its part a rank writes nothing more there.
// Rank 0    waits until every rank has said its part, so that nobody writes any more when it commits or abandons.
// Full      where even the part cannot be written, an empty .part_R.failed says that much.
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

// Flushes the files, reads them back, and says that they are all. A rank that wrote none says so too.
void write_part(const std::filesystem::path& directory, int rank, std::span<const ManifestFile> files);

// Says that this rank's save failed; the text is kept to 4 KiB. Never throws.
void write_failed_part(const std::filesystem::path& directory, int rank, std::string_view text) noexcept;

// The files of all ranks, sorted by name, for CheckpointStore::commit(); removes the parts. Looks every `poll` until
// `patience` is over. Error when a rank failed (the lowest one's text), when ranks are missing (their numbers), when
// two ranks name one file, and when a part is none.
std::vector<ManifestFile> gather_parts(const std::filesystem::path& directory, int world,
                                       std::chrono::milliseconds patience,
                                       std::chrono::milliseconds poll = std::chrono::milliseconds(20));

}  // namespace loom::checkpoint
