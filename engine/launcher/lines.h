// Lines: cuts a stream of bytes into lines, for a console that several streams share.
//
// Bounds   a line of more than kLongestLine bytes is cut there; no more than that is kept.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace loom::launcher {

inline constexpr std::size_t kLongestLine = 65536;

class Lines {
 public:
  // Gets each line with its end.
  using Take = std::function<void(std::string_view line)>;

  void add(std::string_view bytes, const Take& take);
  // The rest, with an end of line.
  void finish(const Take& take);

 private:
  std::string begun_;
};

// The last bytes of a stream, from the beginning of a line where there is one.
class LastLines {
 public:
  explicit LastLines(std::size_t bytes) : bytes_(bytes) {}
  void add(std::string_view bytes);
  std::string text() const;

 private:
  const std::size_t bytes_;
  std::string kept_;
  bool cut_ = false;
};

}  // namespace loom::launcher
