#include "engine/images/jpeg_decoder.h"

#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <fmt/format.h>
#include <new>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/images/jpeg_blocks.h"

namespace loom::images {
namespace {

constexpr int kMostScans = 500;
constexpr int kRowsAtOnce = 16;
// A block of 8 x 8 pixels takes at least one bit of a Huffman code.
constexpr std::int64_t kMostPixelsOfByte = 512;

// What libjpeg's callbacks need. An error leaves libjpeg by longjmp; no frame in between has a destructor.
struct Session : JpegClient {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_source_mgr source{};
  jpeg_progress_mgr progress{};
  std::jmp_buf failed{};
  bool truncated = false;
  bool too_many_scans = false;
  char message[JMSG_LENGTH_MAX] = {};
};

Session& session_of(j_common_ptr jpeg) { return static_cast<Session&>(*static_cast<JpegClient*>(jpeg->client_data)); }
Session& session_of(j_decompress_ptr jpeg) { return session_of(reinterpret_cast<j_common_ptr>(jpeg)); }

[[noreturn]] void leave(j_common_ptr jpeg) {
  Session& session = session_of(jpeg);
  session.errors.format_message(jpeg, session.message);
  std::longjmp(session.failed, 1);
}

// Warnings are of data that libjpeg can read in spite of them; Pillow does not show them either.
void ignore_message(j_common_ptr, int) {}
void ignore_output(j_common_ptr) {}

void no_source_work(j_decompress_ptr) {}

boolean at_end(j_decompress_ptr jpeg) {
  Session& session = session_of(jpeg);
  session.truncated = true;
  std::longjmp(session.failed, 1);
}

void skip_bytes(j_decompress_ptr jpeg, long count) {
  if (count <= 0) return;
  if (static_cast<std::size_t>(count) > jpeg->src->bytes_in_buffer) at_end(jpeg);
  jpeg->src->next_input_byte += count;
  jpeg->src->bytes_in_buffer -= static_cast<std::size_t>(count);
}

void watch_scans(j_common_ptr jpeg) {
  Session& session = session_of(jpeg);
  if (session.jpeg.input_scan_number <= kMostScans) return;
  session.too_many_scans = true;
  std::longjmp(session.failed, 1);
}

// One JPEG file in libjpeg's hands.
class JpegReader {
 public:
  explicit JpegReader(const PictureBytes& picture) : picture_(picture) {
    Session& s = session_;
    s.jpeg.err = jpeg_std_error(&s.errors);
    s.errors.error_exit = leave;
    s.errors.emit_message = ignore_message;
    s.errors.output_message = ignore_output;
    s.jpeg.client_data = static_cast<JpegClient*>(&s);
    s.source = {.next_input_byte = reinterpret_cast<const JOCTET*>(picture.bytes.data()),
                .bytes_in_buffer = picture.bytes.size(),
                .init_source = no_source_work,
                .fill_input_buffer = at_end,
                .skip_input_data = skip_bytes,
                .resync_to_restart = jpeg_resync_to_restart,
                .term_source = no_source_work};
    s.progress.progress_monitor = watch_scans;
    if (!run([&s] { jpeg_create_decompress(&s.jpeg); })) throw std::bad_alloc();
    s.blocks.serve(s.jpeg);
    s.jpeg.src = &s.source;
    s.jpeg.progress = &s.progress;
  }
  ~JpegReader() { jpeg_destroy_decompress(&session_.jpeg); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  // False: the bytes end first.
  bool read_header() {
    Session& s = session_;
    if (run([&s] { jpeg_read_header(&s.jpeg, TRUE); })) return true;
    if (!s.truncated) refuse();
    return false;
  }

  ImageSize size() const { return {session_.jpeg.image_width, session_.jpeg.image_height}; }
  bool is_arithmetic() const { return session_.jpeg.arith_code != FALSE; }
  int components() const { return session_.jpeg.num_components; }

  void start(J_COLOR_SPACE colors, int channels) {
    Session& s = session_;
    s.jpeg.out_color_space = colors;
    check(run([&s] { jpeg_start_decompress(&s.jpeg); }));
    require(s.jpeg.output_components == channels, "libjpeg has {} channels, not {}", s.jpeg.output_components,
            channels);
  }

  // Fills the next rows, at most `most`; returns their number, which is above 0.
  int read_rows(JSAMPROW* rows, int most) {
    Session& s = session_;
    const JDIMENSION before = s.jpeg.output_scanline;
    check(run([&s, rows, most] { jpeg_read_scanlines(&s.jpeg, rows, static_cast<JDIMENSION>(most)); }));
    require(s.jpeg.output_scanline > before, "libjpeg stops at row {} of {}", before, s.jpeg.output_height);
    return static_cast<int>(s.jpeg.output_scanline - before);
  }

  // After all rows: the file has an end.
  void finish() {
    Session& s = session_;
    check(run([&s] { jpeg_finish_decompress(&s.jpeg); }));
  }

 private:
  // False after an error of libjpeg. The step has no objects with destructors.
  template <class Step>
  bool run(const Step& step) {
    if (setjmp(session_.failed) != 0) return false;
    step();
    return true;
  }

  void check(bool done) const {
    if (!done) refuse();
  }

  [[noreturn]] void refuse() const {
    if (session_.truncated) {
      refuse_truncated(picture_, fmt::format("the JPEG picture goes on after its {} bytes", picture_.bytes.size()));
    }
    if (session_.errors.msg_code == JERR_OUT_OF_MEMORY) throw std::bad_alloc();
    if (session_.too_many_scans) {
      config_error("{}: a JPEG picture of more than {} scans; write it anew", escaped(picture_.name), kMostScans);
    }
    config_error("{}: not a valid JPEG picture ({}); fetch the file again, or write it anew", escaped(picture_.name),
                 shown_text(session_.message));
  }

  const PictureBytes& picture_;
  Session session_;
};

// a * b / 255, rounded.
int product(int a, int b) {
  const int scaled = a * b + 128;
  return ((scaled >> 8) + scaled) >> 8;
}

// Adobe's files store 255 - ink; Pillow takes all files for these.
void rgb_of_cmyk(const JSAMPLE* cmyk, std::uint8_t* rgb, std::int64_t pixels) {
  for (std::int64_t x = 0; x < pixels; ++x, cmyk += 4, rgb += 3) {
    const int white = cmyk[3];
    for (int c = 0; c < 3; ++c) rgb[c] = static_cast<std::uint8_t>(std::max(0, white - product(255 - cmyk[c], white)));
  }
}

// A file that cannot hold its blocks is refused before they get memory.
void check_content(const PictureBytes& picture, const JpegReader& reader) {
  const ImageSize size = reader.size();
  const std::int64_t least_bytes = size.width * size.height / kMostPixelsOfByte;
  if (reader.is_arithmetic() || least_bytes <= static_cast<std::int64_t>(picture.bytes.size())) return;
  refuse_truncated(picture, fmt::format("{} x {} pixels take at least {} bytes of JPEG, the file has {}", size.width,
                                        size.height, least_bytes, picture.bytes.size()));
}

void read_rgb(JpegReader& reader, Image& image) {
  reader.start(JCS_RGB, 3);
  for (std::int64_t y = 0; y < image.height;) {
    JSAMPROW rows[kRowsAtOnce];
    const auto most = static_cast<int>(std::min<std::int64_t>(kRowsAtOnce, image.height - y));
    for (int i = 0; i < most; ++i) rows[i] = image.row(y + i);
    y += reader.read_rows(rows, most);
  }
}

void read_cmyk(JpegReader& reader, Image& image) {
  reader.start(JCS_CMYK, 4);
  std::vector<JSAMPLE> cmyk(static_cast<std::size_t>(4 * image.width));
  for (std::int64_t y = 0; y < image.height; ++y) {
    JSAMPROW row = cmyk.data();
    reader.read_rows(&row, 1);
    rgb_of_cmyk(row, image.row(y), image.width);
  }
}

}  // namespace

std::optional<ImageSize> jpeg_size(const PictureBytes& picture) {
  JpegReader reader(picture);
  if (!reader.read_header()) return std::nullopt;
  return reader.size();
}

Image decode_jpeg(const PictureBytes& picture, const ImageLimits& limits) {
  JpegReader reader(picture);
  if (!reader.read_header()) {
    refuse_truncated(picture, fmt::format("the JPEG header goes on after its {} bytes", picture.bytes.size()));
  }
  check_size(picture, reader.size(), limits);
  if (reader.components() == 2 || reader.components() > 4) {
    config_error("{}: a JPEG picture of {} components; 1 (grey), 3 (colours) and 4 (CMYK) are read",
                 escaped(picture.name), reader.components());
  }
  check_content(picture, reader);
  Image image = blank_image(reader.size());
  reader.components() == 4 ? read_cmyk(reader, image) : read_rgb(reader, image);
  reader.finish();
  return image;
}

}  // namespace loom::images
