// preprocess_parity DIR: pairs .bin/.idx as MindSpeed-LLM's preprocess_data writes them, all of it exact.
//
// Every folder of DIR/cases is a case. Its arguments go through the parser of the command and are run in DIR, with OUT
// in them a temporary folder. Where the tool refused, this must refuse and leave nothing; else files, documents and
// sequences are those of case.json, the bytes those of the case's folder where it has them, and the numbers of dropped
// records those of the tool: too long, and roles out of order.
#include <fmt/ranges.h>
#include <set>

#include "engine/cli/words/arguments.h"
#include "engine/cli/words/preprocess_arguments.h"
#include "engine/core/error.h"
#include "engine/formats/indexed/indexed_dataset.h"
#include "engine/text/preprocess/preprocess.h"
#include "tests/support/case_json.h"
#include "tests/support/exact_files.h"
#include "tests/support/parity_report.h"

namespace loom::preprocess_parity {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::bytes_of;
using test::CaseJson;
using test::check;
using test::Differs;
using test::Scratch;

// The command line as the tool had it, OUT filled in.
data::PreprocessOptions options_of(const CaseJson& c, const fs::path& out) {
  std::vector<std::string> words{"shardloom", "preprocess"};
  for (const std::string& word : c.at("arguments").get<std::vector<std::string>>()) {
    words.push_back(word.starts_with("OUT/") ? (out / word.substr(4)).string() : word);
  }
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  const auto command = cli::parse_arguments(static_cast<int>(argv.size()), argv.data(), {.cores = 1});
  return std::any_cast<cli::PreprocessArguments>(std::get<cli::OptionalArguments>(command).values).options;
}

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.insert(entry.path().filename());
  return files;
}

void compare_sequence(const io::IndexedDataset& pair, const std::string& name, std::int64_t i, const json& right) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(pair.length(i)));
  pair.read(i, 0, tokens);
  const auto expected = right.get<std::vector<std::int32_t>>();
  const auto differ = std::ranges::mismatch(tokens, expected);
  check(tokens == expected, "{}: sequence {} has {} ids instead of {}; they differ at {}", name, i, tokens.size(),
        expected.size(), differ.in1 - tokens.begin());
}

void compare_ones(const io::IndexedDataset& pair, const std::string& name, std::int64_t i, const json& length) {
  check(length == pair.length(i), "{}: sequence {} has {} ids instead of {}", name, i, pair.length(i),
        length.get<std::int64_t>());
  compare_sequence(pair, name, i, json(std::vector<std::int32_t>(length.get<std::size_t>(), 1)));
}

std::int64_t compare_pair(const fs::path& prefix, const std::string& name, const CaseJson& right) {
  const io::IndexedDataset pair(prefix);
  check(pair.dtype() == io::IndexedDtype::kI32, "{}: it is {}", name, io::name_of(pair.dtype()));
  std::vector<std::int64_t> documents;
  for (std::int64_t i = 0; i <= pair.document_count(); ++i) documents.push_back(pair.document_begin(i));
  check(right.at("documents") == json(documents), "{}: its document index is {}", name, fmt::join(documents, " "));
  const bool ones = right.contains("all_ones");
  const CaseJson sequences = right.at(ones ? "all_ones" : "sequences");
  check(std::cmp_equal(sequences.size(), pair.sequence_count()), "{}: {} sequences instead of {}", name,
        pair.sequence_count(), sequences.size());
  for (std::int64_t i = 0; i < pair.sequence_count(); ++i) {
    (ones ? compare_ones : compare_sequence)(pair, name, i, sequences.at(static_cast<std::size_t>(i)).raw());
  }
  return pair.token_count();
}

std::int64_t dropped(const data::PreprocessSummary& summary, data::DropReason reason) {
  const auto drop = std::ranges::find(summary.dropped, reason, &data::DropCount::reason);
  return drop == summary.dropped.end() ? 0 : drop->records;
}

// Where samples are packed, the tool counts what it drops otherwise.
void compare_drops(const CaseJson& c, const data::PreprocessOptions& options, const data::PreprocessSummary& summary) {
  if (options.pack) return;
  const std::int64_t too_long = dropped(summary, data::DropReason::kTooLong);
  check(c.at("skipped_for_length") == too_long, "{} samples are too long", too_long);
  const std::int64_t out_of_order = dropped(summary, data::DropReason::kTurnOrder);
  check(c.at("warned_records") == out_of_order, "{} records have roles out of order", out_of_order);
}

std::string compare_refusal(const CaseJson& c, const fs::path& out) {
  try {
    data::run_preprocess(options_of(c, out));
  } catch (const ConfigError& error) {
    check(files_in(out).empty(), "refused, but {} is left", fmt::join(files_in(out), " "));
    return fmt::format("refused: {}", error.what());
  }
  throw Differs("it is not refused");
}

std::string run_case(const fs::path& folder) {
  const CaseJson c = test::read_case(folder / "case.json");
  const Scratch scratch("preprocess_parity");
  const fs::path& out = scratch.path();
  // Words for people, and a fact about the reference.
  test::Commentary commentary{"error", "first_decoded", "cut_differs_in_integers"};
  if (!(c.at("exit") == "success")) {
    std::string detail = compare_refusal(c, out);
    check(c.at("files").empty() && c.at("content").empty(), "the tool refused, and left files");
    commentary.insert(commentary.end(), {"skipped_for_length", "warned_records"});
    c.check_all_read(std::move(commentary));
    return detail;
  }
  const data::PreprocessOptions options = options_of(c, out);
  const data::PreprocessSummary summary = data::run_preprocess(options);
  const auto files = c.at("files").get<std::set<std::string>>();
  check(files_in(out) == files, "the files are {}", fmt::join(files_in(out), " "));
  check(c.at("content").size() * 2 == files.size(), "{} pairs are described", c.at("content").size());
  std::int64_t tokens = 0;
  for (const auto& [name, right] : c.at("content").items()) tokens += compare_pair(out / name, name, right);
  for (const std::string& file : files) {
    if (fs::exists(folder / file)) check(bytes_of(out / file) == bytes_of(folder / file), "{}: its bytes", file);
  }
  compare_drops(c, options, summary);
  if (options.pack) commentary.insert(commentary.end(), {"skipped_for_length", "warned_records"});
  c.check_all_read(std::move(commentary));
  return fmt::format("{} files, {} ids", files.size(), tokens);
}

int run(const fs::path& folder) {
  fs::current_path(folder);
  test::ParityReport report;
  for (const fs::path& each : test::case_folders("cases", "case.json")) {
    try {
      report.passed(each.filename().string(), run_case(each));
    } catch (const std::exception& error) {
      report.failed(each.filename().string(), error.what());
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace loom::preprocess_parity

int main_of_preprocess_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "preprocess_parity", loom::preprocess_parity::run);
}
