// DCP_SHARDING_INFO in the header of a safetensors file that holds "w" [2, 2] and "c" [3].
#include <nlohmann/json.hpp>

#include "engine/formats/dcp/dcp_folder.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(dcp_sharding) {
  using namespace loom;
  const std::string info(fuzz::text_of(data, size));
  if (invalid_utf8(info)) return 0;
  std::string header = nlohmann::json({{"__metadata__", {{"DCP_SHARDING_INFO", info}}},
                                       {"w", {{"dtype", "U8"}, {"shape", {2, 2}}, {"data_offsets", {0, 4}}}},
                                       {"c", {{"dtype", "U8"}, {"shape", {3}}, {"data_offsets", {4, 7}}}}})
                           .dump();
  const std::uint64_t length = header.size();
  return fuzz::answered_or_refused([&] {
    fuzz::written("shard.safetensors",
                  std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(7, '\1'));
    const io::DcpFolder folder(fuzz::scratch_folder());
    for (const io::DcpItem& item : folder.metadata().items) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(item.shape.numel()));
      if (bytes.size() > 4) fuzz::found("a tensor larger than its file", item.name);
      folder.read_box(item, Offset(static_cast<std::size_t>(item.shape.ndim()), 0), item.shape, bytes);
    }
  });
}
