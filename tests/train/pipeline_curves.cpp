#include "tests/train/pipeline_curves.h"

#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "engine/core/error.h"
#include "engine/launch/run_ranks.h"
#include "engine/train/trainer.h"
#include "tests/support/case_json.h"
#include "tests/support/schedule_tokens.h"
#include "tests/train/staged_run.h"

namespace loom::test {
namespace {

constexpr double kLoss = 5e-5, kGradNorm = 2e-4, kStep1GradNorm = 1e-3, kFinalWeightNorm = 1e-4;

struct PipedCase {
  StagedRun run;
  std::vector<std::pair<std::int64_t, std::int64_t>> stages;  // the layers of each, half-open
};

struct Results {
  StagedResults run;
  std::map<std::string, std::vector<float>> weights;
  std::vector<std::string> tokens;  // of the second step, by rank of the pipeline, on the first data rank
};

PipedCase read_piped(const CaseJson& file) {
  PipedCase c;
  const CaseJson scenario = file.at("scenario");
  c.run.schedule = scenario.at("schedule").get<std::string>();
  c.run.degrees.pp = scenario.at("pp");
  c.run.degrees.dp_shard = scenario.value("dp_shard", 1);
  c.run.stages_per_rank = scenario.value("stages_per_rank", std::int64_t{1});
  c.run.micro_batches = scenario.at("micro_batches");
  c.run.reshards = scenario.value("reshard_after_forward", true);
  c.run.layers = scenario.value("layers", std::vector<std::int64_t>{});
  for (const CaseJson& range : file.at("stage_layers").elements()) c.stages.emplace_back(range.at(0), range.at(1));
  return c;
}

// Where a module is: the stage of its layer, or the end of the model.
std::size_t stage_of(const PipedCase& c, const std::string& path) {
  if (path == "model.embed_tokens") return 0;
  const std::string layers = "model.layers.";
  if (!path.starts_with(layers)) return c.stages.size() - 1;
  const std::int64_t layer = std::stoll(path.substr(layers.size()));
  for (std::size_t stage = 0; stage < c.stages.size(); ++stage) {
    if (c.stages[stage].first <= layer && layer < c.stages[stage].second) return stage;
  }
  throw std::runtime_error(fmt::format("'{}' is on no stage", path));
}

// The marks of a step in the words of the reference: "0F0 AG:0.embed_tokens ...".
std::string stage_tokens(const device::Recording& recording, const PipedCase& c) {
  std::vector<std::string> tokens;
  for (const std::string& token : schedule_tokens(recording)) {
    const std::size_t colon = token.find(':');
    if (colon == std::string::npos) continue;
    const std::string kind = token.substr(0, colon), subject = token.substr(colon + 1);
    if (kind == "P") {
      tokens.push_back(subject);
      continue;
    }
    const std::size_t bracket = subject.find('[');
    const std::string path = subject.substr(0, bracket);
    const std::string count = bracket == std::string::npos ? "" : subject.substr(bracket);
    const std::string below = path.starts_with("model.") ? path.substr(6) : path;
    tokens.push_back(fmt::format("{}:{}.{}{}", kind, stage_of(c, path), below, count));
  }
  return fmt::format("{}", fmt::join(tokens, " "));
}

// With the base's optimizer.
Results train_piped(PipedCase& c, const std::filesystem::path& base, std::int64_t steps) {
  const CaseJson optimizer = read_case(base / "curve.json").at("optimizer");
  c.run.folder = base;
  c.run.steps = steps;
  c.run.adamw = {.lr = optimizer.at("lr"),
                 .beta1 = optimizer.at("betas").at(0),
                 .beta2 = optimizer.at("betas").at(1),
                 .eps = optimizer.at("eps"),
                 .weight_decay = optimizer.at("weight_decay")};
  c.run.clip_grad = optimizer.at("clip_grad");
  const int dp_shard = c.run.degrees.dp_shard;
  Results results;
  results.tokens.resize(static_cast<std::size_t>(c.run.degrees.pp));
  std::mutex mutex;
  results.run = train_staged(
      c.run,
      [](int ranks, const launch::RankMain& main) { launch::run_ranks(ranks, {std::chrono::seconds(60)}, main); },
      [&](train::Trainer& trainer, int rank, const device::Recording& second) {
        const std::lock_guard lock(mutex);
        for (const auto& [path, slot] : trainer.sharded_module().named_slots()) {
          results.weights[fmt::format("{} on {}", path, rank % dp_shard)] = slot->value.to_vector<float>();
        }
        if (rank % dp_shard == 0) results.tokens[static_cast<std::size_t>(rank / dp_shard)] = stage_tokens(second, c);
      });
  return results;
}

double relative(double actual, double expected) { return std::abs(actual - expected) / std::abs(expected); }

// The first parameter that is off, or nothing.
std::string off(const std::map<std::string, double>& actual, const CaseJson& expected, double tolerance,
                std::string_view what) {
  std::set<std::string> wanted;
  for (const auto& [path, value] : expected.items()) {
    wanted.insert(path);
    const auto found = actual.find(path);
    if (found == actual.end()) return fmt::format("; {} of '{}' is missing", what, path);
    const double norm = value;
    if (relative(found->second, norm) > tolerance) {
      return fmt::format("; {} of '{}' is {}, expected {}", what, path, found->second, norm);
    }
  }
  return actual.size() == wanted.size() ? ""
                                        : fmt::format("; {} parameters, expected {}", actual.size(), wanted.size());
}

// Cases whose weights have one hash in the reference have the same bits here.
using WeightsOfHash = std::map<std::string, std::map<std::string, std::vector<float>>>;

void run_curve(const std::filesystem::path& path, WeightsOfHash& weights_of, ParityReport& report) {
  const CaseJson file = read_case(path);
  PipedCase c = read_piped(file);
  const auto base = base_folder(path, std::filesystem::path(file.at("base").get<std::string>()));
  const CaseJson curve = file.at("curve");
  check_steps(curve);
  const Results results = train_piped(c, base, static_cast<std::int64_t>(curve.size()));
  double loss = 0, grad_norm = 0;
  for (std::size_t step = 0; step < curve.size(); ++step) {
    loss = std::max(loss, std::abs(results.run.loss[step] - curve.at(step).at("loss").get<double>()));
    grad_norm =
        std::max(grad_norm, relative(results.run.grad_norm[step], curve.at(step).at("grad_norm").get<double>()));
  }
  std::string wrong = off(results.run.step1_grad_norm, file.at("step1_grad_norm_by_param"), kStep1GradNorm, "gradient");
  wrong += off(results.run.final_weight_norm, file.at("final_weight_norm_by_param"), kFinalWeightNorm, "weight");
  const auto [same, is_new] = weights_of.emplace(file.at("final_weights_sha256"), results.weights);
  if (!is_new && same->second != results.weights) wrong += "; its weights are not those of the cases with its hash";
  if (loss > kLoss || !(grad_norm <= kGradNorm)) wrong += "; the curve is left";
  file.check_all_read({"made_by"});
  const std::string text =
      fmt::format("loss {:.1e}, gradient norm {:.1e} off over {} steps{}", loss, grad_norm, curve.size(), wrong);
  wrong.empty() ? report.passed("curves/" + path.stem().string(), text)
                : report.failed("curves/" + path.stem().string(), text);
}

// Gathers of one UNSHARD, the waits for them before the first action, and (RE, RS) behind one REDUCE_GRAD are sets.
std::vector<std::string> with_sets(const std::string& line) {
  std::vector<std::string> tokens;
  std::multiset<std::string> set;
  const auto flush = [&] {
    tokens.insert(tokens.end(), set.begin(), set.end());
    set.clear();
  };
  bool reduces = false, computes = false;
  std::istringstream words(line);
  for (std::string token, pair; words >> token;) {
    const bool is_action = token.find(':') == std::string::npos;
    if (is_action) {
      flush();
      reduces = token.ends_with("REDUCE_GRAD");
      computes = !reduces;
      tokens.push_back(token);
    } else if (reduces && token.starts_with("RE:")) {
      pair = token;
    } else if (reduces && token.starts_with("RS:")) {
      set.insert(pair + " " + token);
    } else if (!computes && (token.starts_with("AG:") || token.starts_with("W:"))) {
      if (!set.empty() && set.begin()->front() != token.front()) flush();
      set.insert(token);
    } else {
      flush();
      tokens.push_back(token);
    }
  }
  flush();
  return tokens;
}

void run_stage_case(const std::filesystem::path& path, ParityReport& report) {
  const CaseJson file = read_case(path);
  PipedCase c = read_piped(file);
  const std::filesystem::path curve = path.parent_path().parent_path() / "curves" / path.filename();
  const auto base = base_folder(curve, std::filesystem::path(read_case(curve).at("base").get<std::string>()));
  const Results results = train_piped(c, base, 2);
  const auto expected = file.at("ranks").get<std::vector<std::string>>();
  file.check_all_read({"made_by"});
  const std::string name = "stages/" + path.stem().string();
  std::size_t count = 0;
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    const auto wanted = with_sets(expected[rank]), found = with_sets(results.tokens.at(rank));
    count += wanted.size();
    const auto [ours, theirs] = std::mismatch(found.begin(), found.end(), wanted.begin(), wanted.end());
    if (ours == found.end() && theirs == wanted.end()) continue;
    return report.failed(name, fmt::format("rank {}, token {}: {}, expected {}; found {}", rank, ours - found.begin(),
                                           ours == found.end() ? "the end" : *ours,
                                           theirs == wanted.end() ? "the end" : *theirs, fmt::join(found, " ")));
  }
  report.passed(name, fmt::format("{} tokens", count));
}

template <class Run>
void run_files(const std::filesystem::path& folder, std::string_view family, ParityReport& report, const Run& run) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const std::filesystem::path& file : files) {
    try {
      run(file);
    } catch (const std::exception& error) {
      report.failed(fmt::format("{}/{}", family, file.stem().string()), error.what());
    }
  }
}

}  // namespace

void run_pipeline_curves(const std::filesystem::path& folder, ParityReport& report) {
  WeightsOfHash weights;
  run_files(folder, "curves", report, [&](const auto& file) { run_curve(file, weights, report); });
}

void run_pipeline_stages(const std::filesystem::path& folder, ParityReport& report) {
  run_files(folder, "stages", report, [&](const auto& file) { run_stage_case(file, report); });
}

}  // namespace loom::test
