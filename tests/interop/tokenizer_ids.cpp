// tokenizer_ids TOKENIZER TEXT OUT: what tokenizers_agree.py compares with Hugging Face's library.
//
// TEXT is cut into documents: whole lines, until one has at least 16 KiB. Each is encoded with the special tokens of
// the file and decoded.
// OUT.ids   int32: for each document the number of its ids, then the ids.
// OUT.text  the decoded documents, one behind the other.
// Prints    MB per second of processor time, of a second pass, with an encoder that has met nothing.
#include <ctime>
#include <fmt/format.h>
#include <fstream>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/mapped_file.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace loom {
namespace {

constexpr std::size_t kDocumentBytes = 16384;

std::vector<std::string_view> documents_of(std::string_view text) {
  std::vector<std::string_view> documents;
  while (!text.empty()) {
    std::size_t end = text.size() <= kDocumentBytes ? std::string_view::npos : text.find('\n', kDocumentBytes - 1);
    end = end == std::string_view::npos ? text.size() : end + 1;
    documents.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return documents;
}

void write_all(const data::Tokenizer& tokenizer, const std::vector<std::string_view>& documents,
               const std::string& out) {
  std::ofstream ids_file(out + ".ids", std::ios::binary);
  std::ofstream text_file(out + ".text", std::ios::binary);
  data::TokenEncoder encoder(tokenizer);
  for (const std::string_view document : documents) {
    std::vector<data::TokenId> ids;
    encoder.encode(document, ids);
    const auto count = static_cast<data::TokenId>(ids.size());
    ids_file.write(reinterpret_cast<const char*>(&count), sizeof count);
    ids_file.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * sizeof count));
    text_file << tokenizer.decode(ids);
  }
  ids_file.flush();
  text_file.flush();
  if (!ids_file || !text_file) throw Error(fmt::format("{}.ids, {}.text: cannot write", out, out));
}

double seconds_to_encode(const data::Tokenizer& tokenizer, const std::vector<std::string_view>& documents) {
  data::TokenEncoder encoder(tokenizer);
  std::vector<data::TokenId> ids;
  const std::clock_t begin = std::clock();
  for (const std::string_view document : documents) {
    ids.clear();
    encoder.encode(document, ids);
  }
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

void run(const std::string& tokenizer_path, const std::string& text_path, const std::string& out) {
  const auto tokenizer = data::Tokenizer::from_file(tokenizer_path);
  const io::MappedFile file(text_path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const auto documents = documents_of(text);
  write_all(tokenizer, documents, out);
  fmt::print("{:.3f}\n", static_cast<double>(text.size()) / 1e6 / seconds_to_encode(tokenizer, documents));
}

}  // namespace
}  // namespace loom

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: tokenizer_ids TOKENIZER TEXT OUT\n");
    return 2;
  }
  try {
    loom::run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return dynamic_cast<const loom::ConfigError*>(&error) ? 2 : 1;
  }
}
