#include "engine/images/jpeg_blocks.h"

#include <jerror.h>

#include <cstdint>
#include <cstring>
#include <utility>

namespace loom::images {
namespace {

constexpr std::size_t kMostKeptBytes = std::size_t{64} << 20;
constexpr std::size_t kAlignment = 64;

thread_local JpegBlocks::Memory kept;

JpegBlocks& blocks_of(j_common_ptr jpeg) { return static_cast<JpegClient*>(jpeg->client_data)->blocks; }

// Of libjpeg, freed with the picture.
template <class T>
T* picture_memory(j_common_ptr jpeg, std::size_t count) {
  return static_cast<T*>(jpeg->mem->alloc_small(jpeg, JPOOL_IMAGE, count * sizeof(T)));
}

}  // namespace

JpegBlocks::JpegBlocks() : memory_(std::exchange(kept, {})) {}

JpegBlocks::~JpegBlocks() {
  if (memory_.size <= kMostKeptBytes && memory_.size > kept.size) kept = std::move(memory_);
}

void JpegBlocks::serve(jpeg_decompress_struct& jpeg) {
  jpeg.mem->request_virt_barray = request;
  jpeg.mem->realize_virt_arrays = realize;
  jpeg.mem->access_virt_barray = access;
}

// libjpeg's methods: an error leaves them by longjmp, so they have no objects with destructors.

jvirt_barray_ptr JpegBlocks::request(j_common_ptr jpeg, int, boolean, JDIMENSION blocks_of_row, JDIMENSION rows,
                                     JDIMENSION) {
  JpegBlocks& blocks = blocks_of(jpeg);
  if (blocks.count_ == blocks.arrays_.size()) ERREXIT1(jpeg, JERR_OUT_OF_MEMORY, 0);
  auto* const array = picture_memory<Array>(jpeg, 1);
  *array = {.row_bytes = std::size_t{blocks_of_row} * sizeof(JBLOCK),
            .rows = rows,
            .row = picture_memory<JBLOCKROW>(jpeg, rows)};
  blocks.arrays_[blocks.count_++] = array;
  return reinterpret_cast<jvirt_barray_ptr>(array);
}

void JpegBlocks::realize(j_common_ptr jpeg) {
  JpegBlocks& blocks = blocks_of(jpeg);
  std::size_t size = 0;
  for (std::size_t i = 0; i < blocks.count_; ++i) size += blocks.arrays_[i]->row_bytes * blocks.arrays_[i]->rows;
  if (size == 0) return;
  if (!blocks.reserve(size)) ERREXIT1(jpeg, JERR_OUT_OF_MEMORY, 0);
  std::byte* next = blocks.memory_.bytes.get();
  std::memset(next, 0, size);  // blocks that no scan has are grey
  for (std::size_t i = 0; i < blocks.count_; ++i) {
    const Array& array = *blocks.arrays_[i];
    for (JDIMENSION row = 0; row < array.rows; ++row, next += array.row_bytes) {
      array.row[row] = reinterpret_cast<JBLOCKROW>(next);
    }
  }
}

JBLOCKARRAY JpegBlocks::access(j_common_ptr jpeg, jvirt_barray_ptr pointer, JDIMENSION first_row, JDIMENSION rows,
                               boolean) {
  const auto& array = *reinterpret_cast<const Array*>(pointer);
  if (std::uint64_t{first_row} + rows > array.rows) ERREXIT(jpeg, JERR_BAD_VIRTUAL_ACCESS);
  return array.row + first_row;
}

bool JpegBlocks::reserve(std::size_t size) {
  if (size <= memory_.size) return true;
  memory_ = {};
  const std::size_t whole = (size + kAlignment - 1) / kAlignment * kAlignment;
  memory_.bytes.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, whole)));
  if (memory_.bytes == nullptr) return false;
  memory_.size = whole;
  return true;
}

}  // namespace loom::images
