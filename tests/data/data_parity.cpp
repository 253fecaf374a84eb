// data_parity DIR: Megatron's .bin/.idx pairs and the samples of its GPT data sets, all of them exact.
//
// indexed/NAME.json   the pair NAME is read and compared with it; written again from it (or merged from the pairs that
//                     `merged_from` names), the two files have the same bytes.
// gpt/CASE/           the data sets of case.json are opened by the ways of the program, twice: the indices are built,
//                     then read from their cache. Ranges, tokens, epochs, indices, blends and the listed samples are
//                     those of case.json and expected.safetensors.
#include <set>

#include "engine/core/error.h"
#include "engine/data/gpt_data.h"
#include "engine/formats/indexed/indexed_writer.h"
#include "engine/formats/safetensors/safetensors.h"
#include "tests/support/case_json.h"
#include "tests/support/exact_files.h"
#include "tests/support/parity_report.h"

namespace loom::data_parity {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::bytes_of;
using test::CaseJson;
using test::check;
using test::Differs;
using test::read_case;
using test::Scratch;

// --- indexed/

std::vector<std::int32_t> sequence(const io::IndexedDataset& pair, std::int64_t i) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(pair.length(i)));
  pair.read(i, 0, tokens);
  return tokens;
}

void compare_reading(const io::IndexedDataset& pair, const CaseJson& right) {
  check(right.at("dtype") == io::name_of(pair.dtype()), "dtype {}", io::name_of(pair.dtype()));
  check(right.at("sequences") == pair.sequence_count(), "{} sequences", pair.sequence_count());
  check(right.at("documents") == pair.document_count(), "{} documents", pair.document_count());
  check(!right.contains("tokens") || right.at("tokens") == pair.token_count(), "{} tokens", pair.token_count());
  for (std::int64_t i = 0; i <= pair.document_count(); ++i) {
    check(right.at("document_index").at(static_cast<std::size_t>(i)) == pair.document_begin(i),
          "entry {} of the document index", i);
  }
  for (std::int64_t i = 0; i < pair.sequence_count(); ++i) {
    check(right.at("lengths").at(static_cast<std::size_t>(i)) == pair.length(i), "the length of sequence {}", i);
    if (!right.contains("tokens_by_sequence")) continue;
    check(right.at("tokens_by_sequence").at(static_cast<std::size_t>(i)) == json(sequence(pair, i)),
          "the tokens of sequence {}", i);
  }
}

void write_sequences(const CaseJson& right, io::IndexedWriter& writer) {
  const auto ends = right.at("document_index").get<std::vector<std::int64_t>>();
  for (std::size_t d = 1; d < ends.size(); ++d) {
    for (std::int64_t i = ends[d - 1]; i < ends[d]; ++i) {
      writer.add_sequence(
          right.at("tokens_by_sequence").at(static_cast<std::size_t>(i)).get<std::vector<std::int32_t>>());
    }
    writer.end_document();
  }
}

void compare_writing(const fs::path& prefix, const io::IndexedDataset& pair, const CaseJson& right) {
  const Scratch scratch("data_parity");
  const fs::path again = scratch.path() / "again";
  io::IndexedWriter writer(again, pair.dtype());
  if (right.contains("merged_from")) {
    for (const std::string& name : right.at("merged_from").get<std::vector<std::string>>())
      writer.add_all(io::IndexedDataset(prefix.parent_path() / name));
  } else {
    write_sequences(right, writer);
  }
  writer.commit();
  check(bytes_of(io::idx_path(again)) == bytes_of(io::idx_path(prefix)), "the bytes of the .idx that was written");
  check(bytes_of(io::bin_path(again)) == bytes_of(io::bin_path(prefix)), "the bytes of the .bin that was written");
}

std::string run_pair(const fs::path& described) {
  const CaseJson right = read_case(described);
  const fs::path prefix = fs::path(described).replace_extension();
  const io::IndexedDataset pair(prefix);
  compare_reading(pair, right);
  compare_writing(prefix, pair, right);
  right.check_all_read({"vocab", "eod"});  // what the ids were drawn from
  return fmt::format("{} sequences, {} tokens of {}", pair.sequence_count(), pair.token_count(),
                     io::name_of(pair.dtype()));
}

// --- gpt/

data::GptDataOptions options_of(const CaseJson& c, const fs::path& folder, const fs::path& cache) {
  data::GptDataOptions options;
  options.blend.emplace();
  for (const std::string& prefix : c.at("data").get<std::vector<std::string>>())
    options.blend->prefixes.push_back(folder / prefix);
  if (!c.at("weights").is_null()) options.blend->weights = c.at("weights").get<std::vector<double>>();
  options.split = c.at("split").get<std::string>();
  for (std::size_t i = 0; i < options.samples.size(); ++i) {
    if (!c.at("sizes").at(i).is_null()) options.samples[i] = c.at("sizes").at(i).get<std::int64_t>();
  }
  data::GptSampleOptions& sample = options.sample;
  sample.seq_length = c.at("seq_length");
  sample.seed = c.at("seed");
  sample.eod = c.at("eod");
  sample.pad = c.at("pad");
  const CaseJson given = c.at("options");
  sample.reset_position_ids = given.value("reset_position_ids", sample.reset_position_ids);
  sample.reset_attention_mask = given.value("reset_attention_mask", sample.reset_attention_mask);
  sample.eod_mask_loss = given.value("eod_mask_loss", sample.eod_mask_loss);
  sample.drop_last_partial_validation =
      given.value("drop_last_partial_validation_sequence", sample.drop_last_partial_validation);
  options.cache_path = cache;
  return options;
}

// The tensors of expected.safetensors, and which of them were compared.
class Expected {
 public:
  explicit Expected(const fs::path& path) : file_(path) {
    for (const io::StoredTensor& tensor : file_.tensors()) left_.insert(tensor.name);
  }

  template <class T>
  void compare(const std::string& name, DType dtype, std::span<const T> is) {
    const io::StoredTensor& right = file_.at(name);
    left_.erase(name);
    check(right.dtype == dtype, "{} is {} in expected.safetensors", name, loom::name(right.dtype));
    check(right.bytes.size() == is.size_bytes(), "{} has {} values instead of {}", name, is.size(),
          right.bytes.size() / sizeof(T));
    for (std::size_t i = 0; i < is.size(); ++i) {
      T value;
      std::memcpy(&value, right.bytes.data() + i * sizeof(T), sizeof(T));
      check(is[i] == value, "{}[{}] is {} instead of {}", name, i, is[i], value);
    }
  }

  void all_compared() const {
    check(left_.empty(), "{} is in expected.safetensors and was not compared", left_.empty() ? "" : *left_.begin());
  }

 private:
  io::SafetensorsFile file_;
  std::set<std::string> left_;
};

void compare_set(const data::GptDataset& set, const std::string& prefix, const CaseJson& right, std::int32_t pad,
                 Expected& expected) {
  check(right.at("samples") == set.sample_count(), "{}: {} samples", prefix, set.sample_count());
  check(right.at("sequences") == json({set.range().begin, set.range().end}), "{}: sequences [{}, {})", prefix,
        set.range().begin, set.range().end);
  check(right.at("tokens_per_epoch") == set.plan().tokens_per_epoch, "{}: {} tokens an epoch", prefix,
        set.plan().tokens_per_epoch);
  check(right.at("epochs") == set.plan().epochs, "{}: {} epochs", prefix, set.plan().epochs);
  check(right.at("pad_in_use") == pad, "{}: pad {}", prefix, pad);
  expected.compare(prefix + ".document_index", DType::kI32, set.document_index());
  expected.compare(prefix + ".sample_index", DType::kI64, set.sample_index());
  expected.compare(prefix + ".shuffle_index", DType::kI64, set.shuffle_index());
}

void compare_samples(const data::BlendedDataset& part, const std::string& name, const CaseJson& listed,
                     std::int64_t seq_length, Expected& expected) {
  std::vector<std::int32_t> tokens, labels, positions, attend_from;
  std::vector<float> loss_mask;
  const auto length = static_cast<std::size_t>(seq_length);
  const std::size_t all = listed.size() * length;
  for (auto* values : {&tokens, &labels, &positions, &attend_from}) values->resize(all);
  loss_mask.resize(all);
  for (std::size_t i = 0; i < listed.size(); ++i) {
    const auto row = [&](auto& values) { return std::span(values).subspan(i * length, length); };
    part.fill(listed.at(i), {row(tokens), row(labels), row(loss_mask), row(positions), row(attend_from)});
  }
  const auto compare = [&](const char* what, DType dtype, auto values) {
    expected.compare(fmt::format("{}.samples.{}", name, what), dtype, values);
  };
  compare("tokens", DType::kI32, std::span<const std::int32_t>(tokens));
  compare("labels", DType::kI32, std::span<const std::int32_t>(labels));
  compare("position_ids", DType::kI32, std::span<const std::int32_t>(positions));
  compare("attend_from", DType::kI32, std::span<const std::int32_t>(attend_from));
  compare("loss_mask", DType::kF32, std::span<const float>(loss_mask));
}

void compare_blend(const data::BlendedDataset& part, const std::string& name, const CaseJson& right, std::int32_t pad,
                   Expected& expected) {
  const CaseJson sources = right.at("sources");
  check(sources.size() == part.sets().size(), "{}: {} sets", name, part.sets().size());
  check(right.at("weights") == json(part.weights()), "{}: its weights", name);
  check(right.at("samples") == part.sample_count(), "{}: {} samples", name, part.sample_count());
  for (std::size_t k = 0; k < sources.size(); ++k) {
    compare_set(part.sets()[k], fmt::format("{}.{}", name, k), sources.at(k), pad, expected);
  }
  const std::vector<std::int32_t> wide(part.dataset_index().begin(), part.dataset_index().end());
  expected.compare(name + ".dataset_index", DType::kI32, std::span<const std::int32_t>(wide));
  expected.compare(name + ".dataset_sample_index", DType::kI64, part.dataset_sample_index());
}

std::string compare_case(const CaseJson& c, const data::GptDataOptions& options, Expected& expected) {
  const data::GptData data = data::open_gpt_data(options);
  const std::int32_t pad = data::pad_in_use(options.sample);
  std::string detail;
  for (const data::DataSplit split : data::kDataSplits) {
    const std::string name(data::name_of(split));
    const CaseJson right = c.at("splits").at(name);
    const auto& part = data[data::place_of(split)];
    check(part.has_value() == !right.is_null(), "the part {} is {}", name, part ? "there" : "absent");
    if (!part) continue;
    if (right.contains("sources")) {
      compare_blend(*part, name, right, pad, expected);
    } else {
      check(part->sets().size() == 1 && part->dataset_index().empty(), "{}: {} sets", name, part->sets().size());
      compare_set(part->sets().front(), name, right, pad, expected);
    }
    const CaseJson listed = right.at("listed");
    if (!listed.empty()) compare_samples(*part, name, listed, options.sample.seq_length, expected);
    detail += fmt::format("{}{} {} samples", detail.empty() ? "" : ", ", name, part->sample_count());
  }
  expected.all_compared();
  return detail;
}

std::string run_case(const fs::path& folder) {
  const CaseJson c = read_case(folder / "case.json");
  const Scratch scratch("data_parity");
  const data::GptDataOptions options = options_of(c, folder.parent_path().parent_path(), scratch.path());
  Expected built(folder / "expected.safetensors");
  compare_case(c, options, built);
  Expected cached(folder / "expected.safetensors");
  std::string detail = compare_case(c, options, cached);
  c.check_all_read({"exact", "requested"});  // of a set: the samples say what came of it
  return detail;
}

// --- both

template <class Run>
void run_one(const std::string& name, test::ParityReport& report, Run&& run) {
  try {
    report.passed(name, run());
  } catch (const std::exception& error) {
    report.failed(name, error.what());
  }
}

std::vector<fs::path> described_pairs(const fs::path& folder) {
  std::vector<fs::path> found;
  if (!fs::exists(folder)) return found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

int run(const fs::path& folder) {
  fs::directory_iterator is_there(folder);
  test::ParityReport report;
  for (const fs::path& path : described_pairs(folder / "indexed")) {
    run_one("indexed/" + path.stem().string(), report, [&] { return run_pair(path); });
  }
  const bool has_cases = fs::exists(folder / "gpt");
  for (const fs::path& path : has_cases ? test::case_folders(folder / "gpt", "case.json") : std::vector<fs::path>()) {
    run_one("gpt/" + path.filename().string(), report, [&] { return run_case(path); });
  }
  return report.finish();
}

}  // namespace
}  // namespace loom::data_parity

int main_of_data_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "data_parity", loom::data_parity::run);
}
