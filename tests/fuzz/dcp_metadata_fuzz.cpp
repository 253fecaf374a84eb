// .metadata of a checkpoint: what is read is written again and read again the same.
#include "engine/formats/dcp/dcp_metadata.h"
#include "tests/fuzz/fuzz.h"

namespace {

// Files are numbered in the order in which their places are read: pieces are compared by the names of their files.
bool same(const loom::io::DcpMetadata& a, const loom::io::DcpMetadata& b) {
  if (a.items.size() != b.items.size() || a.files.size() != b.files.size()) return false;
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    const loom::io::DcpItem& x = a.items[i];
    const loom::io::DcpItem& y = b.items[i];
    if (x.name != y.name || x.path != y.path || x.is_tensor != y.is_tensor || x.shape != y.shape) return false;
    if (x.dtype != y.dtype || x.pieces.size() != y.pieces.size()) return false;
    for (std::size_t p = 0; p < x.pieces.size(); ++p) {
      if (x.pieces[p].offset != y.pieces[p].offset || x.pieces[p].shape != y.pieces[p].shape) return false;
      if (x.pieces[p].begin != y.pieces[p].begin || x.pieces[p].length != y.pieces[p].length) return false;
      if (a.files[x.pieces[p].file] != b.files[y.pieces[p].file]) return false;
    }
  }
  return true;
}

}  // namespace

LOOM_FUZZ_TARGET(dcp_metadata) {
  using namespace loom;
  return fuzz::answered_or_refused([&] {
    const io::DcpMetadata metadata = io::read_dcp_metadata(std::as_bytes(std::span(data, size)), ".metadata");
    for (const io::DcpItem& item : metadata.items) {
      if (metadata.find(item.name) != &item) fuzz::found("an item that is not found by its name", item.name);
    }
    const std::string bytes = io::write_dcp_metadata(metadata);
    const io::DcpMetadata again = io::read_dcp_metadata(std::as_bytes(std::span(bytes.data(), bytes.size())), "again");
    if (!same(metadata, again)) fuzz::found("metadata that is written as other metadata", "");
  });
}
