#include "engine/dialects/lint.h"

#include <algorithm>
#include <fmt/core.h>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/job/key.h"
#include "sharding/config/fsdp2_config.h"

namespace loom::dialects {
namespace {

constexpr std::string_view kUnreadable = "unreadable";
constexpr std::string_view kRefused = "refused-key";
constexpr std::string_view kMissing = "missing-key";
constexpr std::string_view kUseless = "key-without-effect";
constexpr std::string_view kNotBuilt = "not-built";
constexpr std::string_view kSizes = "size-does-not-fit";
constexpr std::string_view kNoMatch = "pattern-matches-nothing";
constexpr std::string_view kPrefetch = "prefetch-without-effect";
constexpr std::string_view kDiffers = "differs-from-its-tool";
constexpr std::string_view kValue = "value-not-allowed";

// The modules of a model as patterns see them.
class View final : public sharding::ModuleTreeView {
 public:
  explicit View(const ModelTree& model) : model_(model) {}

  bool exists(std::string_view path) const override { return find(path) != nullptr; }
  std::optional<int> container_size(std::string_view path) const override {
    const TreeModule* module = find(path);
    if (module == nullptr || module->has_forward) return std::nullopt;
    return static_cast<int>(model_.children_of(path).size());
  }
  std::vector<std::string> paths_of_class(std::string_view name) const override { return model_.paths_of_class(name); }
  std::vector<std::string> known_classes() const override { return model_.classes(); }
  std::vector<std::string> known_paths() const override {
    std::vector<std::string> paths;
    for (const TreeModule& module : model_.modules()) paths.push_back(module.path);
    return paths;
  }

 private:
  const TreeModule* find(std::string_view path) const {
    const auto found = std::ranges::find(model_.modules(), path, &TreeModule::path);
    return found == model_.modules().end() ? nullptr : &*found;
  }

  const ModelTree& model_;
};

std::optional<ModelTree> model_of(const Translation& translation, const Context& context) {
  const std::optional<std::string> graph = context.flag ? context.flag("--model-graph") : std::nullopt;
  if (graph && context.models.load_graph) return context.models.load_graph(*graph);
  if (!context.models.load) return std::nullopt;
  std::optional<std::string> path = context.flag("--init-from-hf-path");
  if (!path) path = context.flag("--model-config");
  for (const Setting& setting : translation.flags) {
    const bool is_model = setting.name == "--init-from-hf-path" || setting.name == "--model-config";
    if (!path && is_model) path = setting.words.back();
  }
  return path ? context.models.load(model_file(*path)) : std::nullopt;
}

class Linter {
 public:
  Linter(std::string file, const Context& context) : file_(std::move(file)), context_(context) {}

  Linted run(const job::Texts& overrides) {
    Translation translation;
    if (!holds(kUnreadable, [&] { translation = translate(file_, overrides, context_); }))
      return {std::move(findings_)};
    model_ = model_of(translation, context_);
    of_keys(translation);
    of_values(translation);
    if (translation.config) of_sharding(translation, *translation.config);
    const bool plans = !has_error(findings_) && is_built(translation) && model_;
    return {std::move(findings_), plans ? std::optional(plan_of(translation)) : std::nullopt};
  }

 private:
  // A recording stands for any model.
  bool is_built(const Translation& translation) const {
    return translation.model_is_built || (context_.flag && context_.flag("--model-graph"));
  }

  void add(Level level, std::string_view rule, std::string_view text) {
    findings_.push_back(finding_of(file_, level, rule, text));
  }

  template <class Check>
  bool holds(std::string_view rule, const Check& check) {
    try {
      check();
      return true;
    } catch (const ConfigError& error) {
      add(Level::kError, rule, error.what());
      return false;
    }
  }

  void of_keys(const Translation& translation) {
    for (const std::string& line : translation.refused) add(Level::kError, kRefused, line);
    for (const std::string& key : translation.missing) add(Level::kWarning, kMissing, key);
    for (const std::string& key : translation.without_effect) add(Level::kNote, kUseless, key);
    for (const std::string& key : translation.listed) {
      add(Level::kNote, kNotBuilt, fmt::format("{}: of a class or data set that is not built", key));
    }
    for (const std::string& note : translation.notes) add(Level::kNote, kDiffers, note);
    if (is_built(translation)) return;
    add(Level::kWarning, kNotBuilt,
        fmt::format("the model is {}, which is not built", shown_text(translation.model_class)));
  }

  void of_values(const Translation& translation) {
    for (const Setting& setting : translation.flags) {
      const job::Key* key = job::find_key(setting.name);
      if (key == nullptr || key->outcome != job::Outcome::kBuilt || key->kind == job::Kind::kToggle) continue;
      holds(kValue, [&] { job::read_value(*key, setting.words); });
    }
  }

  void of_sharding(const Translation& translation, const sharding::Fsdp2Config& config) {
    if (context_.world_given || translation.world) {
      const int world = context_.world_given ? context_.world : *translation.world;
      holds(kSizes, [&] {
        for (const std::string& line : sharding::validate_against_world(config, world).warnings)
          add(Level::kWarning, kSizes, line);
      });
    }
    of_prefetch(config);
    of_patterns(config);
  }

  void of_prefetch(const sharding::Fsdp2Config& config) {
    const auto warn = [&](std::string_view key, std::string_view why) {
      add(Level::kWarning, kPrefetch,
          fmt::format("{}: {} prefetches nothing: {}", config.key_mark(key).text(), key, why));
    };
    for (const auto& [key, count] :
         {std::pair<std::string_view, int>("num_to_forward_prefetch", config.num_to_forward_prefetch),
          {"num_to_backward_prefetch", config.num_to_backward_prefetch}}) {
      if (count > 0 && config.sub_modules_to_wrap.empty()) warn(key, "the root is the only group");
    }
    if (config.num_to_backward_prefetch > 0 && config.reshard_after_forward.text() == "false") {
      warn("num_to_backward_prefetch", "with reshard_after_forward: false nothing is gathered in backward");
    }
  }

  void of_patterns(const sharding::Fsdp2Config& config) {
    if (!model_) return;
    const View view(*model_);
    const std::vector<sharding::ModulePattern> wrapped = sharding::patterns_of(config.sub_modules_to_wrap);
    for (const auto* patterns : {&wrapped, &config.ignored_modules, &config.recompute_modules,
                                 &config.activation_offload_modules, &config.chunk_mbs_modules, &config.freeze}) {
      for (const sharding::ModulePattern& pattern : *patterns) {
        holds(kNoMatch, [&] {
          for (const std::string& line : sharding::expand(pattern, view).warnings) add(Level::kWarning, kNoMatch, line);
        });
      }
    }
  }

  PlanOfFile plan_of(const Translation& translation) const {
    PlanOfFile plan;
    if (translation.config) plan.world = std::max(1, translation.config->sharding_size);
    if (translation.world) plan.world = *translation.world;
    if (context_.world_given) plan.world = context_.world;
    plan.has_length = std::ranges::find(translation.flags, "--seq-length", &Setting::name) != translation.flags.end();
    return plan;
  }

  const std::string file_;
  const Context& context_;
  std::optional<ModelTree> model_;
  std::vector<Finding> findings_;
};

}  // namespace

std::string_view word_of(Level level) {
  switch (level) {
    case Level::kError:
      return "error";
    case Level::kWarning:
      return "warning";
    case Level::kNote:
      return "note";
  }
  return {};
}

const std::vector<Rule>& lint_rules() {
  static const std::vector<Rule> rules = {
      {kUnreadable, "The file is read: YAML or JSON of one dialect"},
      {kRefused, "A key is known, in its section, and asks for what is built"},
      {kMissing, "Keys that the file's tool needs are there"},
      {kUseless, "A key has an effect here"},
      {kNotBuilt, "What the file asks for is built"},
      {kDiffers, "A job means here what it means in the file's tool"},
      {kValue, "A value is in the range of its key"},
      {kSizes, "Sizes divide the number of ranks"},
      {kPrefetch, "Prefetch has something to gather"},
      {kNoMatch, "A pattern selects modules of the model"},
      {kJobRefused, "The job can be planned: its keys go together, and its groups and ties fit the model"},
      {kPlanWarns, "The plan has no warning"},
      {kDoesNotFit, "The planned step fits in the memory of --device"},
  };
  return rules;
}

Finding finding_of(const std::string& file, Level level, std::string_view rule, std::string_view text) {
  Finding finding{file, 0, 0, level, rule, std::string(text)};
  const std::string prefix = escaped(file) + ":";
  if (!text.starts_with(prefix)) return finding;
  const std::string_view rest = text.substr(prefix.size());
  const std::size_t colon = rest.find(':'), end = rest.find(": ");
  const auto line = parse_number<int>(rest.substr(0, std::min(colon, rest.size())));
  if (line && end != std::string_view::npos) {
    finding.line = *line;
    finding.column = colon < end ? parse_number<int>(rest.substr(colon + 1, end - colon - 1)).value_or(0) : 0;
    finding.text = rest.substr(end + 2);
  } else if (rest.starts_with(' ')) {
    finding.text = rest.substr(1);
  }
  return finding;
}

bool has_error(const std::vector<Finding>& findings) {
  return std::ranges::find(findings, Level::kError, &Finding::level) != findings.end();
}

Linted lint(const std::filesystem::path& file, const job::Texts& overrides, const Context& context) {
  return Linter(file.string(), context).run(overrides);
}

}  // namespace loom::dialects
