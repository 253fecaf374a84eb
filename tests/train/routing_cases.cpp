#include "tests/train/routing_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>

#include "engine/core/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops/general.h"
#include "engine/tensor/ops/moe.h"
#include "engine/tensor/ops/routing.h"
#include "tests/support/case_json.h"
#include "tests/support/one_rank.h"

namespace loom::test {
namespace {

using Doubles = std::vector<double>;
using Indices = std::vector<std::int64_t>;

// The worst difference of a case, and the first disagreement; exact ones have a tolerance of 0.
class Found {
 public:
  void add(const std::string& what, double actual, double expected, double allowed) {
    const double off = std::abs(actual - expected);
    if (!(off <= worst_)) worst_ = off;
    if (!(off <= allowed))
      add_error(fmt::format("{} is {}, and {} was expected within {}", what, actual, expected, allowed));
  }
  void add(const std::string& what, const Doubles& actual, const Doubles& expected, double allowed) {
    if (actual.size() != expected.size()) {
      return add_error(fmt::format("{} has {} numbers of {}", what, actual.size(), expected.size()));
    }
    for (std::size_t i = 0; i < actual.size(); ++i) add(fmt::format("{} {}", what, i), actual[i], expected[i], allowed);
  }
  void add_error(std::string text) {
    if (error_.empty()) error_ = std::move(text);
  }
  const std::string& error() const { return error_; }
  double worst() const { return worst_; }

 private:
  std::string error_;
  double worst_ = 0;
};

// A case, with the dtype that it is run in.
struct RoutingCase {
  const CaseJson& file;
  const CaseJson& c;
  const io::SafetensorsFile& tensors;
  DType dtype;

  Doubles values(const std::string& name) const {
    const io::StoredTensor& stored = tensors.at(name);
    Doubles result;
    for (std::size_t at = 0; at < stored.bytes.size(); at += 4) {
      if (stored.dtype == DType::kF32) {
        float value = 0;
        std::memcpy(&value, stored.bytes.data() + at, sizeof(value));
        result.push_back(static_cast<double>(value));
      } else {
        std::int32_t value = 0;
        std::memcpy(&value, stored.bytes.data() + at, sizeof(value));
        result.push_back(value);
      }
    }
    return result;
  }
  Tensor tensor(const std::string& name) const { return Tensor::from(values(name), tensors.at(name).shape, dtype); }
  Tensor logits(const std::string& name) const { return tensor(name).set_requires_grad(true); }

  double tolerance(const char* key) const { return file.at("tolerance").at(key); }
  // Of choices and maps, which have to be equal.
  double equal(const char* key) const {
    if (!(file.at("tolerance").at(key) == "equal")) config_error("the tolerance of {} is not \"equal\"", key);
    return 0;
  }
  void check_experts(const Tensor& logits) const {
    const std::int64_t experts = c.at("experts");
    if (logits.shape()[1] != experts)
      config_error("experts is {}, and the logits {}", experts, to_string(logits.shape()));
    check_tokens(logits);
  }
  void check_tokens(const Tensor& logits) const {
    if (file.contains("tokens") && !(file.at("tokens") == logits.shape()[0])) {
      config_error("tokens is {}, and the logits {}", file.at("tokens").dump(), to_string(logits.shape()));
    }
  }
};

// A token's choices by expert, ascending, with their weights in that order.
std::pair<Doubles, Doubles> by_expert(const ops::Routing& routing) {
  const Indices experts = routing.experts.to_vector<std::int64_t>();
  const Doubles weights = routing.weights.to_vector<double>();
  const auto k = static_cast<std::size_t>(routing.experts.shape()[1]);
  std::vector<std::size_t> order(experts.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(
      order, [&](std::size_t a, std::size_t b) { return std::pair(a / k, experts[a]) < std::pair(b / k, experts[b]); });
  std::pair<Doubles, Doubles> sorted;
  for (const std::size_t slot : order) {
    sorted.first.push_back(static_cast<double>(experts[slot]));
    sorted.second.push_back(weights[slot]);
  }
  return sorted;
}

void compare_routing(const RoutingCase& r, const ops::RouterOptions& options, bool with_bias, Found& found) {
  const std::string prefix = r.c.at("tensors");
  const Tensor logits = r.tensor(prefix + "logits");
  if (r.c.contains("experts")) r.check_experts(logits);
  const auto [experts, weights] =
      by_expert(ops::route(logits, options, with_bias ? r.tensor(prefix + "bias") : Tensor{}));
  found.add("expert", experts, r.values(prefix + "experts"), r.equal("experts"));
  found.add("weight", weights, r.values(prefix + "weights"), r.tolerance("weights"));
}

void compare_loss(const RoutingCase& r, const Tensor& loss, const std::map<std::string, Tensor>& gradients_of,
                  Found& found) {
  autograd::backward(loss);
  found.add("loss", loss.item(), r.c.at("loss"), r.tolerance("loss"));
  for (const auto& [name, logits] : gradients_of) {
    found.add(name, logits.grad().to_vector<double>(), r.values(name), r.tolerance("gradient"));
  }
}

// --- transformers

void softmax_topk(const RoutingCase& r, Found& found) {
  compare_routing(r, {.k = r.c.at("top_k"), .renormalize = r.c.at("normalise")}, false, found);
}

void sigmoid_groups(const RoutingCase& r, Found& found) {
  if (!(r.c.at("order") == "experts ascending per token")) config_error("the order {}", r.c.at("order").dump());
  compare_routing(r,
                  {.k = r.c.at("top_k"),
                   .score = ops::RouterScore::kSigmoid,
                   .renormalize = r.c.at("normalise"),
                   .scale = r.c.at("scaling"),
                   .groups = r.c.at("groups"),
                   .best_groups = r.c.at("best_groups"),
                   .best_in_group = 2},
                  true, found);
}

// Over the tokens of all layers together.
void load_balancing(const RoutingCase& r, Found& found) {
  ops::BalanceOptions options;
  double tokens = 0;
  const bool mask = r.c.at("mask");
  if (mask) {
    const Doubles given = r.values("aux.attention_mask");
    const std::vector<std::int32_t> counted(given.begin(), given.end());
    options.counted = Tensor::from(counted, {static_cast<std::int64_t>(counted.size())});
    tokens = std::accumulate(given.begin(), given.end(), 0.0);
  }
  const std::int64_t layers = r.c.at("layers"), k = r.c.at("top_k"), experts = r.c.at("experts");
  std::string gradient = r.c.at("gradients");
  gradient.resize(gradient.find("<layer>"));
  Tensor sums, counts;
  std::map<std::string, Tensor> leaves;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const Tensor logits = r.logits(fmt::format("aux.logits.{}", layer));
    r.check_experts(logits);
    leaves[fmt::format("{}{}", gradient, layer)] = logits;
    if (!mask) tokens = static_cast<double>(logits.shape()[0]);
    const ops::Routing routing = ops::route(logits, {.k = k});
    const Tensor p = ops::probability_sums(routing.scores, options);
    const Tensor n = ops::count_choices(routing.experts, experts, r.dtype, options);
    sums = sums.defined() ? ops::add(sums, p) : p;
    counts = counts.defined() ? ops::add(counts, n) : n;
  }
  tokens *= static_cast<double>(layers);
  compare_loss(r, ops::balance_loss(sums, counts, static_cast<double>(experts) / (tokens * tokens)), leaves, found);
}

void z_loss(const RoutingCase& r, Found& found) {
  const Tensor logits = r.logits(r.c.at("logits"));
  const double coefficient = r.c.at(r.c.contains("coef") ? "coef" : "coefficient");
  r.check_tokens(logits);
  compare_loss(r, ops::router_z_loss(logits, coefficient), {{r.c.at("gradient"), logits}}, found);
}

// --- Megatron

void topk(const RoutingCase& r, Found& found) {
  const auto or_one = [&](const char* key) { return r.c.at(key).is_null() ? 1 : r.c.at(key).get<std::int64_t>(); };
  ops::RouterOptions options{.k = r.c.at("top_k"),
                             .scale = r.c.at("scaling").is_null() ? 1 : r.c.at("scaling").get<double>(),
                             .groups = or_one("groups"),
                             .best_groups = or_one("best_groups"),
                             .best_in_group = or_one("best_in_group")};
  const bool pre_softmax = r.c.at("pre_softmax");
  if (r.c.at("score_function") == "sigmoid") {
    options.score = ops::RouterScore::kSigmoid;
    options.renormalize = options.k > 1;
  } else if (r.c.at("score_function") == "softmax") {
    options.score = pre_softmax ? ops::RouterScore::kSoftmax : ops::RouterScore::kSoftmaxOfChosen;
  } else {
    config_error("the score function {} is not known", r.c.at("score_function").dump());
  }
  compare_routing(r, options, r.c.at("bias"), found);
}

// The row that stands at position s of sequence b is s * B + b there: rows in order of sequence, and back.
Tensor in_order_of_sequence(const Tensor& rows, std::int64_t sequences, bool back) {
  const Doubles values = rows.to_vector<double>();
  const std::int64_t length = rows.shape()[0] / sequences, width = rows.shape()[1];
  Doubles sorted(values.size());
  for (std::int64_t b = 0; b < sequences; ++b) {
    for (std::int64_t s = 0; s < length; ++s) {
      std::int64_t from = s * sequences + b, to = b * length + s;
      if (back) std::swap(from, to);
      std::copy_n(values.begin() + from * width, width, sorted.begin() + to * width);
    }
  }
  return Tensor::from(sorted, rows.shape(), rows.dtype());
}

// aux_loss, seq_aux_loss and global_aux_loss.
void balance(const RoutingCase& r, Found& found) {
  const std::int64_t k = r.c.at("top_k"), experts = r.c.at("experts");
  const bool sigmoid = r.c.at("score_function") == "sigmoid";
  if (!sigmoid && !(r.c.at("score_function") == "softmax")) config_error("the score function is not known");
  ops::BalanceOptions options{.sequences = r.c.value("batch", std::int64_t{1})};
  Tensor logits = r.tensor(r.c.at("logits"));
  r.check_experts(logits);
  if (options.sequences > 1) {
    if (!(r.c.at("rows") == "position * batch + sequence")) config_error("the rows {}", r.c.at("rows").dump());
    logits = in_order_of_sequence(logits, options.sequences, false);
  }
  logits.set_requires_grad(true);
  const auto score = sigmoid ? ops::RouterScore::kSigmoid : ops::RouterScore::kSoftmax;
  Tensor counts = ops::count_choices(ops::route(logits, {.k = k, .score = score}).experts, experts, r.dtype, options);
  const Tensor sums = ops::probability_sums(ops::balance_probabilities(logits, score), options);
  double tokens = static_cast<double>(logits.shape()[0] / options.sequences);
  if (r.c.contains("other_counts")) {
    const Doubles others = r.values(r.c.at("other_counts"));
    counts = ops::add(counts, Tensor::from(others, counts.shape(), r.dtype));
    tokens += r.c.at("other_tokens").get<double>();
  }
  const double factor = r.c.at("coefficient").get<double>() * static_cast<double>(experts) /
                        (static_cast<double>(k) * tokens * tokens * static_cast<double>(options.sequences));
  const Tensor loss = ops::balance_loss(sums, counts, factor);
  autograd::backward(loss);
  Tensor gradient = logits.grad();
  if (options.sequences > 1) gradient = in_order_of_sequence(gradient, options.sequences, true);
  found.add("loss", loss.item(), r.c.at("loss"), r.tolerance("loss"));
  found.add("gradient", gradient.to_vector<double>(), r.values(r.c.at("gradient")), r.tolerance("gradient"));
}

void bias_update(const RoutingCase& r, Found& found) {
  const std::string prefix = r.c.at("tensors");
  const Tensor bias = r.tensor(prefix + "before");
  ops::update_expert_bias(bias, r.tensor(prefix + "counts"), r.c.at("rate"));
  found.add("bias", bias.to_vector<double>(), r.values(prefix + "after"), r.tolerance("bias"));
}

// The routing that is left as a map and as probabilities [T, E].
struct Kept {
  Doubles map, probs;
  Indices per_expert;
  std::int64_t dropped = 0;

  Kept(const ops::Routing& routing, std::int64_t experts) : per_expert(static_cast<std::size_t>(experts)) {
    const Indices chosen = routing.experts.to_vector<std::int64_t>();
    const Doubles weights = routing.weights.to_vector<double>();
    const auto k = static_cast<std::size_t>(routing.experts.shape()[1]);
    map.resize(chosen.size() / k * per_expert.size());
    probs.resize(map.size());
    for (std::size_t slot = 0; slot < chosen.size(); ++slot) {
      if (chosen[slot] < 0) {
        ++dropped;
        continue;
      }
      const auto expert = static_cast<std::size_t>(chosen[slot]);
      const std::size_t at = slot / k * per_expert.size() + expert;
      map[at] = 1;
      probs[at] = weights[slot];
      ++per_expert[expert];
    }
  }
};

// Whether an expert dropped a choice of the same weight as one that it kept: which of them torch.topk keeps is not
// defined.
bool is_tied(const Kept& routed, const Kept& kept, std::size_t expert) {
  double smallest = INFINITY, largest = -INFINITY;
  for (std::size_t i = expert; i < routed.map.size(); i += routed.per_expert.size()) {
    if (routed.map[i] == 0) continue;
    if (kept.map[i] == 1) smallest = std::min(smallest, routed.probs[i]);
    if (kept.map[i] == 0) largest = std::max(largest, routed.probs[i]);
  }
  return smallest == largest;
}

// Where an expert's choices are tied their number alone is compared. With padding an expert's rows are its capacity,
// and what they hold beyond its tokens is not compared.
void compare_map(const RoutingCase& r, const Kept& kept, const ops::Routing& all, bool padded, Found& found) {
  const std::string prefix = r.c.at("tensors");
  const Doubles map = r.values(prefix + "map"), probs = r.values(prefix + "probs");
  const std::size_t experts = kept.per_expert.size();
  const Kept routed(all, static_cast<std::int64_t>(experts));
  if (map.size() != kept.map.size()) return found.add_error("the map has another size");
  for (std::size_t i = 0; i < map.size(); ++i) {
    if ((padded && routed.map[i] == 0) || is_tied(routed, kept, i % experts)) continue;
    found.add(fmt::format("map {}", i), kept.map[i], map[i], r.equal("map"));
    found.add(fmt::format("probability {}", i), kept.probs[i], probs[i], r.tolerance("weights"));
  }
}

void capacity(const RoutingCase& r, Found& found) {
  const std::string prefix = r.c.at("tensors");
  const Tensor logits = r.tensor(prefix + "logits");
  r.check_tokens(logits);
  const std::int64_t k = r.c.at("top_k"), tokens = logits.shape()[0], experts = logits.shape()[1];
  const bool by_probability = r.c.at("policy") == "probs";
  if (!by_probability && !(r.c.at("policy") == "position")) config_error("the policy {}", r.c.at("policy").dump());
  const std::int64_t limit = ops::expert_capacity(tokens, k, experts, r.c.at("factor"));
  found.add("capacity", static_cast<double>(limit), r.c.at("capacity"), 0);
  const ops::Routing all = ops::route(logits, {.k = k, .score = ops::RouterScore::kSoftmaxOfChosen});
  const ops::Routing left = ops::drop_beyond_capacity(
      all, limit, by_probability ? ops::DropPolicy::kProbability : ops::DropPolicy::kPosition);
  const bool padded = r.c.at("pad_to_capacity");
  const ops::ExpertRows rows = ops::sort_by_expert(left.experts, experts, {limit, padded});
  const Indices offsets = rows.offsets.to_vector<std::int64_t>();
  const Kept kept(left, experts);
  for (std::size_t e = 0; e < kept.per_expert.size(); ++e) {
    found.add(fmt::format("kept by expert {}", e), static_cast<double>(kept.per_expert[e]),
              r.c.at("kept_per_expert").at(e), 0);
    found.add(fmt::format("rows of expert {}", e), static_cast<double>(offsets[e + 1] - offsets[e]),
              static_cast<double>(padded ? limit : kept.per_expert[e]), 0);
  }
  found.add("dropped", static_cast<double>(kept.dropped), r.c.at("dropped"), 0);
  if (by_probability) compare_map(r, kept, all, padded, found);
}

using RunCase = void (*)(const RoutingCase&, Found&);
constexpr std::pair<std::string_view, RunCase> kKinds[] = {{"softmax_topk", softmax_topk},
                                                           {"sigmoid_groups", sigmoid_groups},
                                                           {"load_balancing", load_balancing},
                                                           {"z_loss", z_loss},
                                                           {"topk", topk},
                                                           {"aux_loss", balance},
                                                           {"seq_aux_loss", balance},
                                                           {"global_aux_loss", balance},
                                                           {"bias_update", bias_update},
                                                           {"capacity", capacity}};

Found run_kind(const CaseJson& file, const CaseJson& c, const io::SafetensorsFile& tensors) {
  const std::string kind = c.at("kind");
  const auto* row = std::ranges::find(kKinds, kind, &std::pair<std::string_view, RunCase>::first);
  if (row == std::end(kKinds)) config_error("the kind {} is not known", kind);
  Found found;
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    const OneRank rank;
    row->second({file, c, tensors, dtype}, found);
  }
  return found;
}

std::string name_of(const std::string& folder, const CaseJson& c, std::size_t index) {
  return fmt::format("{}/{} {}", folder, index, c.at("kind").get<std::string>());
}

}  // namespace

void run_routing_cases(const std::filesystem::path& folder, ParityReport& report) {
  const CaseJson file = read_case(folder / "case.json");
  const io::SafetensorsFile tensors(folder / "tensors.safetensors");
  const CaseJson cases = file.at("cases");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const CaseJson c = cases.at(i);
    const std::string name = name_of(folder.filename().string(), c, i);
    try {
      const Found found = run_kind(file, c, tensors);
      const std::string unread = c.unread();
      const std::string& error = found.error().empty() ? unread : found.error();
      error.empty() ? report.passed(name, fmt::format("worst difference {:.1e}", found.worst()))
                    : report.failed(name, error);
    } catch (const std::exception& error) {
      report.failed(name, error.what());
    }
  }
  if (const std::string unread = file.unread({"cases"}); !unread.empty()) {
    report.failed(folder.filename().string(), unread);
  }
}

}  // namespace loom::test
