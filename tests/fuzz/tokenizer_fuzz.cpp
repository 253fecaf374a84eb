// tokenizer.json, and texts on which it is used: the input is the file, then a zero byte, then a text.
#include "engine/core/shown_text.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
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
    const std::string decoded = tokenizer.decode(ids);
    if (invalid_utf8(decoded)) fuzz::found("decoded to what is no UTF-8", "");
    data::TokenStream stream(tokenizer);
    std::string streamed;
    for (const data::TokenId id : ids) streamed += stream.push(id);
    if (streamed + stream.finish() != decoded) fuzz::found("streamed is another text than decoded", text);
  });
}
