// tokenizer.json, and texts on which it is used: the input is the file, then a zero byte, then a text. The text is also
// encoded many times over, within the time of an input: what a pattern or a normalizer costs must not grow with its
// square.
#include "engine/core/shown_text.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

namespace {

constexpr std::size_t kLongText = 20'000;
// Of a text of at most kLongText + 4096 bytes: 64 KiB + 32 for each byte, added tokens and all.
constexpr std::size_t kMostIds = (std::size_t{1} << 16U) + 33 * (kLongText + 4096);

}  // namespace

LOOM_FUZZ_TARGET(tokenizer) {
  using namespace loom;
  const std::string_view input = fuzz::text_of(data, size);
  const std::size_t end = std::min(input.find('\0'), input.size());
  const std::string_view text = input.substr(std::min(end + 1, input.size()));
  return fuzz::answered_or_refused([&] {
    const auto tokenizer = data::Tokenizer::parse(input.substr(0, end), "tokenizer.json");
    const auto ids = tokenizer.encode(text);
    for (const data::TokenId id : ids) {
      if (id < 0 || id >= tokenizer.id_limit()) fuzz::found("an id without a place", text);
    }
    std::string longer;
    while (longer.size() < kLongText && !text.empty()) longer += text;
    if (tokenizer.encode(longer).size() > kMostIds) fuzz::found("more ids than a bounded text has", text);
    const std::string decoded = tokenizer.decode(ids);
    if (invalid_utf8(decoded)) fuzz::found("decoded to what is no UTF-8", "");
    data::TokenStream stream(tokenizer);
    std::string streamed;
    for (const data::TokenId id : ids) streamed += stream.push(id);
    if (streamed + stream.finish() != decoded) fuzz::found("streamed is another text than decoded", text);
  });
}
