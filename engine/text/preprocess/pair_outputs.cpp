#include "engine/text/preprocess/pair_outputs.h"

#include <fmt/format.h>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/output_plan.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFlag = "--output-prefix";

void check_folder(const fs::path& output_prefix) {
  const fs::path folder = output_prefix.has_parent_path() ? output_prefix.parent_path() : fs::path(".");
  std::error_code none;
  if (fs::is_directory(folder, none)) return;
  config_error("{}: {} is {}; make the folder first, or give a prefix in another one", kFlag, escaped(folder.string()),
               fs::exists(folder, none) ? "no folder" : "not there");
}

void check_file(const fs::path& file) {
  std::error_code none;
  const fs::file_status status = fs::symlink_status(file, none);
  if (!fs::exists(status) || fs::is_regular_file(status)) return;
  config_error("{}: {} is {} and would be written over; remove it, or give another prefix", kFlag,
               escaped(file.string()), fs::is_symlink(status) ? "a link" : "no regular file");
}

void check(const std::vector<WrittenPair>& pairs, const NamedInputs& inputs) {
  io::OutputPlan plan;
  for (const auto& [flag, path] : inputs) plan.reads(flag, path);
  for (const WrittenPair& pair : pairs) {
    for (const fs::path& file : {io::bin_path(pair.prefix), io::idx_path(pair.prefix)}) {
      check_file(file);
      plan.writes_file(kFlag, file);
    }
  }
  plan.check();
  plan.prepare();
}

}  // namespace

PairOutputs::PairOutputs(const fs::path& output_prefix, const std::vector<Kind>& kinds, const NamedInputs& inputs) {
  check_folder(output_prefix);
  for (const Kind& kind : kinds) pairs_.push_back({fmt::format("{}_{}", output_prefix.string(), kind.name), 0, 0, 0});
  check(pairs_, inputs);
  for (const WrittenPair& pair : pairs_) locks_.push_back(io::OutputLock::of_file(kFlag, io::idx_path(pair.prefix)));
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    writers_.push_back(std::make_unique<io::IndexedWriter>(pairs_[i].prefix, kinds[i].dtype, kinds[i].modes));
  }
}

void PairOutputs::add_document(std::size_t pair, std::span<const std::int32_t> tokens) {
  writers_[pair]->add_sequence(tokens);
  writers_[pair]->end_document();
  count_tokens(pair, std::ssize(tokens));
}

void PairOutputs::add_empty_document() {
  for (const auto& writer : writers_) writer->end_document();
}

std::vector<WrittenPair> PairOutputs::commit() {
  for (std::size_t i = 0; i < size(); ++i) {
    pairs_[i].documents = writers_[i]->document_count();
    pairs_[i].sequences = writers_[i]->sequence_count();
  }
  io::IndexedWriter::commit_all(writers_);
  return pairs_;
}

}  // namespace loom::data
