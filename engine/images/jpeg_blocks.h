// The coefficients of a progressive JPEG picture, in memory that a thread keeps for its next picture. Private to
// engine/images.
//
// Reason   libjpeg returns this memory to the system after each picture, and the system clears it page by page for the
//          next one: a quarter of the time of decoding.
// How      three methods of libjpeg's memory manager are replaced; its client_data is a JpegClient.
// Kept     at most 64 MiB a thread; a larger picture's memory is returned with the picture.
// Threads  one thread at a time.
// Errors   JERR_OUT_OF_MEMORY and JERR_BAD_VIRTUAL_ACCESS, through libjpeg's error_exit.
#pragma once

// jpeglib.h needs the other two before it.
// clang-format off
#include <cstddef>
#include <cstdio>
#include <jpeglib.h>
// clang-format on

#include <array>
#include <cstdlib>
#include <memory>

namespace loom::images {

class JpegBlocks {
 public:
  JpegBlocks();
  ~JpegBlocks();
  JpegBlocks(const JpegBlocks&) = delete;
  JpegBlocks& operator=(const JpegBlocks&) = delete;

  // After jpeg_create_decompress. Valid until jpeg_destroy_decompress, which comes before the destructor.
  void serve(jpeg_decompress_struct& jpeg);

  struct Memory {
    std::unique_ptr<std::byte, decltype(&std::free)> bytes{nullptr, std::free};
    std::size_t size = 0;
  };

 private:
  // A component's blocks; it lives in libjpeg's memory of the picture.
  struct Array {
    std::size_t row_bytes;
    JDIMENSION rows;
    JBLOCKROW* row;
  };

  static jvirt_barray_ptr request(j_common_ptr jpeg, int pool, boolean zeroed, JDIMENSION blocks_of_row,
                                  JDIMENSION rows, JDIMENSION most_rows_at_once);
  static void realize(j_common_ptr jpeg);
  static JBLOCKARRAY access(j_common_ptr jpeg, jvirt_barray_ptr array, JDIMENSION first_row, JDIMENSION rows,
                            boolean written);

  // False: there is no such memory.
  bool reserve(std::size_t size);

  Memory memory_;
  std::array<Array*, MAX_COMPONENTS> arrays_{};
  std::size_t count_ = 0;
};

// What client_data of libjpeg's object points to.
struct JpegClient {
  JpegBlocks blocks;
};

}  // namespace loom::images
