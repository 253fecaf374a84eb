// dcp_equal DIR: reads every checkpoint NAME/ of DIR that make_dcp.py wrote and compares it with NAME.items.safetensors
// and NAME.values.txt: each tensor whole, and as what 1 to 4 ranks would read of it, cut on its first and its last dim.
// Exit status 1 and a line for each item that differs.
//
// dcp_equal DIR COPIES: writes each of them again into COPIES/NAME, for dcp_reads.py; the pieces as they were, in as
// many files.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/formats/dcp/dcp_file_writer.h"
#include "engine/formats/dcp/dcp_folder.h"
#include "engine/formats/safetensors/safetensors.h"

namespace {

using namespace loom;
namespace fs = std::filesystem;

// A part of a dim as FSDP2 cuts it: torch.chunk.
struct Cut {
  std::int64_t begin;
  std::int64_t size;
};

Cut cut(std::int64_t size, int parts, int part) {
  const std::int64_t each = (size + parts - 1) / parts;
  const std::int64_t begin = std::min(size, each * part);
  return {begin, std::min(size, begin + each) - begin};
}

bool same_box(const io::DcpFolder& folder, const io::DcpItem& item, const io::StoredTensor& expected,
              const Offset& offset, const Shape& shape) {
  const auto bytes = static_cast<std::size_t>(shape.numel() * element_bytes(item.dtype));
  std::vector<std::byte> read(bytes);
  std::vector<std::byte> wanted(bytes);
  folder.read_box(item, offset, shape, read);
  expected.read_box(offset, shape, wanted);
  return read == wanted;
}

bool same_tensor(const io::DcpFolder& folder, const io::DcpItem& item, const io::StoredTensor& expected) {
  if (item.dtype != expected.dtype || item.shape != expected.shape) return false;
  const int dims = item.shape.ndim();
  if (dims == 0) return same_box(folder, item, expected, {}, item.shape);
  for (const int dim : {0, dims - 1}) {
    for (int world = 1; world <= 4; ++world) {
      for (int rank = 0; rank < world; ++rank) {
        const Cut part = cut(item.shape[dim], world, rank);
        Offset offset(static_cast<std::size_t>(dims), 0);
        Shape shape = item.shape;
        offset[static_cast<std::size_t>(dim)] = part.begin;
        shape[dim] = part.size;
        if (!same_box(folder, item, expected, offset, shape)) return false;
      }
    }
  }
  return true;
}

std::map<std::string, std::string> read_values(const fs::path& path) {
  std::map<std::string, std::string> values;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t tab = line.find('\t');
    values[line.substr(0, tab)] = line.substr(tab + 1);
  }
  return values;
}

int differing(const fs::path& path) {
  const io::DcpFolder folder(path);
  const io::SafetensorsFile tensors(path.string() + ".items.safetensors");
  const auto values = read_values(path.string() + ".values.txt");
  int bad = 0;
  const auto report = [&](const std::string& name, const std::string& what) {
    fmt::print("{}: {}: {}\n", path.string(), name, what);
    ++bad;
  };
  std::size_t pieces = 0;
  for (const io::DcpItem& item : folder.metadata().items) {
    pieces += item.pieces.size();
    if (item.is_tensor) {
      const io::StoredTensor* expected = tensors.find(item.name);
      if (expected == nullptr || !same_tensor(folder, item, *expected)) report(item.name, "differs");
      continue;
    }
    const auto found = values.find(item.name);
    const std::string read = folder.value(item).repr(100'000);
    if (found == values.end() || found->second != read) {
      report(item.name, found == values.end() ? "not written" : fmt::format("{} instead of {}", read, found->second));
    }
  }
  const std::size_t wanted = tensors.tensors().size() + values.size();
  if (folder.metadata().items.size() != wanted) {
    report(".metadata", fmt::format("{} items instead of {}", folder.metadata().items.size(), wanted));
  }
  fmt::print("{}: {} items in {} pieces, {} differ\n", path.string(), wanted, pieces, bad);
  return bad;
}

void write_again(const fs::path& from, const fs::path& to) {
  const io::DcpFolder folder(from);
  fs::create_directories(to);
  io::DcpMetadata metadata = folder.metadata();
  std::vector<std::unique_ptr<io::DcpFileWriter>> writers;
  for (std::size_t file = 0; file < metadata.files.size(); ++file) {
    metadata.files[file] = io::dcp_file_name(static_cast<int>(file));
    writers.push_back(std::make_unique<io::DcpFileWriter>(to / metadata.files[file]));
  }
  for (io::DcpItem& item : metadata.items) {
    for (io::DcpPiece& piece : item.pieces) {
      io::DcpPiece written;
      if (item.is_tensor) {
        std::vector<std::byte> bytes(static_cast<std::size_t>(piece.shape.numel() * element_bytes(item.dtype)));
        folder.read_box(item, piece.offset, piece.shape, bytes);
        written = writers[piece.file]->tensor(item.dtype, piece.shape, [&](const io::ByteSink& sink) { sink(bytes); });
      } else {
        written = writers[piece.file]->value(folder.value(item));
      }
      piece.begin = written.begin;
      piece.length = written.length;
    }
  }
  for (const auto& writer : writers) writer->finish();
  io::write_dcp_metadata_file(to, metadata);
}

int run(const fs::path& root, const fs::path& copies) {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.is_directory() && fs::exists(entry.path().string() + ".items.safetensors"))
      folders.push_back(entry.path());
  }
  std::ranges::sort(folders);
  if (folders.empty()) {
    fmt::print(stderr, "{}: no checkpoint of make_dcp.py\n", root.string());
    return 2;
  }
  int bad = 0;
  for (const fs::path& folder : folders) {
    bad += differing(folder);
    if (!copies.empty()) write_again(folder, copies / folder.filename());
  }
  return bad == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    fmt::print(stderr, "dcp_equal DIR [COPIES]\n");
    return 2;
  }
  try {
    return run(argv[1], argc == 3 ? argv[2] : "");
  } catch (const loom::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
