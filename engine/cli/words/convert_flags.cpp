#include "engine/cli/words/convert_flags.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <fmt/format.h>

#include "engine/cli/words/flags.h"
#include "engine/cli/words/weight_flags.h"
#include "engine/config/document.h"
#include "engine/config/section.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"

namespace loom::cli {
namespace {

// Converters of mm-convert that are built.
constexpr const char* kDcpConverter = "GenericDCPConverter";
constexpr std::array<const char*, 3> kConverters{kDcpConverter, "Qwen2VLConverter", "Qwen2_5_VLConverter"};

constexpr const char* kHfToDcpExample = "Example:\n  shardloom convert hf-to-dcp --hf-dir qwen2 --dcp-dir qwen2-dcp\n";
constexpr const char* kDcpToHfExample =
    "Example:\n  shardloom convert dcp-to-hf --load-dir run/iter_0001000 --save-dir qwen2-trained \\\n"
    "    --model-assets-dir qwen2 --dtype bf16\n";
constexpr const char* kDcpToDcpExample =
    "Example:\n  shardloom convert dcp-to-dcp --load-dir run --save-dir run-of-8 --world-size 8\n";

std::string with(std::string text, char from, char to) {
  std::ranges::replace(text, from, to);
  return text;
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// Names of an app's flags without dashes in front: "hf-dir".
std::vector<std::string> flag_names(const Command& app) {
  std::vector<std::string> names;
  for (const SeenFlag& flag : app.flags()) names.insert(names.end(), flag.long_names.begin(), flag.long_names.end());
  return names;
}

using Tie = std::pair<std::string, std::string>;

// "TARGET=SOURCE", or a mapping as YAML, JSON and Python write it: {"TARGET": "SOURCE"}.
void add_tie(const std::string& word, std::vector<Tie>& ties) {
  if (word.starts_with('{')) {
    const config::Value mapping = config::parse_yaml("ties: " + word, "--tie-weight-mapping").items().front();
    for (const config::Value& member : mapping.items()) {
      if (!member.is_scalar()) config_error("--tie-weight-mapping: '{}' is not the name of a tensor", member.shown());
      ties.emplace_back(member.key(), member.scalar());
    }
    return;
  }
  const std::size_t middle = word.find('=');
  if (middle == std::string::npos || middle == 0 || middle + 1 == word.size()) {
    config_error("--tie-weight-mapping is {}; use TARGET=SOURCE, two names of one tensor", shown_text(word));
  }
  ties.emplace_back(word.substr(0, middle), word.substr(middle + 1));
}

// --- words from elsewhere

// A value of a file as the words behind its flag.
void add_words(const Command& app, const std::string& name, const config::Value& value,
               std::vector<std::string>& words) {
  if (value.is_null()) return;
  const std::string flag = "--" + with(name, '_', '-');
  words.push_back(flag);
  if (value.is_list() && app.most_values(flag) == 1) return words.push_back(value.json());
  if (value.is_scalar()) words.push_back(value.scalar());
  for (const config::Value& item : value.items()) {
    if (!item.is_scalar()) item.refuse("a text");
    words.push_back(value.is_mapping() ? item.key() + "=" + item.scalar() : item.scalar());
  }
}

// Members of a mapping; the flags of those of an inner mapping "cfg" are "--cfg.NAME".
void add_members(const Command& app, const config::Value& mapping, const std::string& prefix,
                 std::vector<std::string>& words) {
  std::vector<std::string> known;
  for (const std::string& name : flag_names(app)) {
    const std::string spelled = with(name, '-', '_');
    if (spelled.starts_with(prefix)) known.push_back(spelled.substr(prefix.size()));
  }
  for (const config::Value& member : mapping.items()) {
    const std::string name = with(member.key(), '-', '_');
    const bool is_inner = member.is_mapping() && std::ranges::any_of(known, [&](const std::string& flag) {
                            return flag.starts_with(name + ".");
                          });
    if (is_inner) {
      add_members(app, member, prefix + name + ".", words);
      continue;
    }
    if (std::ranges::find(known, name) == known.end()) {
      const std::vector<std::string_view> views(known.begin(), known.end());
      config::refuse_key(member, views);
    }
    add_words(app, prefix + name, member, words);
  }
}

std::vector<std::string> words_of_file(const Command& app, const std::string& path, const std::string& command) {
  const std::string text = config::read_text(path, "a YAML file of flags (--config)");
  config::Value document = config::parse_yaml(text, path);
  std::vector<std::string> levels(kConverters.begin(), kConverters.end());
  levels.push_back(with(command, '-', '_'));
  for (const std::string& level : levels) {
    const config::Value* below = document.find(level);
    if (below == nullptr) continue;
    const config::Value inner = *below;
    document = inner;
    if (!document.is_mapping()) document.refuse("a mapping of flags");
  }
  std::vector<std::string> words;
  add_members(app, document, "", words);
  return words;
}

bool reads_environment() {
  const char* value = std::getenv("JSONARGPARSE_DEFAULT_ENV");
  if (value == nullptr) return false;
  const std::string text = upper(value);
  return text == "TRUE" || text == "1" || text == "YES";
}

// "cfg.mm-dir" as in the name of a variable: CFG__MM_DIR.
std::string variable_name(const std::string& flag_name) {
  std::string name;
  for (const char c : flag_name) name += c == '.' ? "__" : std::string(1, c == '-' ? '_' : c);
  return upper(name);
}

std::vector<std::string> words_of_environment(const Command& app, const std::string& command,
                                              const std::string& converter) {
  const std::string prefix = upper(fmt::format("MM_CONVERT_{}__{}__", converter, with(command, '-', '_')));
  const std::vector<std::string> flags = flag_names(app);
  std::vector<std::string> known;
  for (const std::string& name : flags) known.push_back(variable_name(name));
  std::vector<std::string> words;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    if (!variable.starts_with(prefix)) continue;
    const std::size_t equals = variable.find('=');
    const std::string name = variable.substr(prefix.size(), equals - prefix.size());
    const auto found = std::ranges::find(known, name);
    if (found == known.end()) {
      const auto nearest = nearest_spelling(name, known);
      config_error("environment: {}{} is no flag of {}{}", prefix, shown_text(name), command,
                   nearest ? fmt::format("; did you mean {}{}?", prefix, *nearest) : "");
    }
    const std::string flag = "--" + flags[static_cast<std::size_t>(found - known.begin())];
    const std::string value = variable.substr(equals + 1);
    words.push_back(flag);
    if (!value.starts_with('[') || app.most_values(flag) == 1) {
      words.push_back(value);
      continue;
    }
    const config::Value list = config::parse_yaml("list: " + value, prefix + name).items().front();
    for (const config::Value& item : list.items()) words.push_back(item.scalar());
  }
  return words;
}

// Takes "--config FILE" and "--config=FILE" out of the words; empty where there is none.
std::string take_config(std::vector<std::string>& words) {
  std::string path;
  for (std::size_t i = 0; i < words.size();) {
    const bool joined = words[i].starts_with("--config=");
    if (!joined && words[i] != "--config") {
      ++i;
      continue;
    }
    if (!joined && i + 1 == words.size())
      config_error("--config needs a value, but nothing follows; give --config FILE");
    path = joined ? words[i].substr(std::string("--config=").size()) : words[i + 1];
    const auto begin = words.begin() + static_cast<std::ptrdiff_t>(i);
    words.erase(begin, begin + (joined ? 1 : 2));
  }
  return path;
}

// "mm-convert GenericDCPConverter hf_to_dcp ..." as "convert hf-to-dcp ...". Returns the converter, if there is one.
std::string respell(std::vector<std::string>& words) {
  words.front() = "convert";
  if (words.size() < 2 || words[1].starts_with('-')) return {};
  const std::string converter = words[1];
  words.erase(words.begin() + 1);
  if (converter == kDcpConverter) return converter;
  const auto model_type = MmFlags::model_type(converter);
  if (!model_type) {
    config_error(
        "mm-convert: '{}' is not built: {} are. Language models in Megatron's layout: shardloom convert hf-to-mcore "
        "and mcore-to-hf",
        shown_text(converter), fmt::join(kConverters, ", "));
  }
  if (words.size() < 2 || words[1].starts_with('-')) return converter;
  MmFlags::check_command(converter, words[1]);
  words.insert(words.begin() + 2, {"--model-type", *model_type});
  return converter;
}

}  // namespace

std::vector<const Command*> ConvertFlags::apps() const {
  std::vector<const Command*> apps{&hf_to_dcp_, &dcp_to_hf_, &dcp_to_dcp_};
  for (const Command* app : mcore_.apps()) apps.push_back(app);
  for (const Command* app : mm_.apps()) apps.push_back(app);
  return apps;
}

const Command& ConvertFlags::named(const std::string& command) const {
  std::vector<std::string> names;
  for (const Command* app : apps()) {
    if (app->name() == with(command, '_', '-')) return *app;
    names.push_back(app->name());
  }
  const auto nearest = nearest_spelling(with(command, '_', '-'), names);
  config_error("'{}' is no conversion; {}", shown_text(command),
               nearest ? fmt::format("did you mean convert {}?", *nearest)
                       : fmt::format("use convert {}", fmt::join(names, ", ")));
}

std::vector<std::string> ConvertFlags::written_out(std::vector<std::string> words) const {
  words = McoreFlags::respelled(std::move(words));
  if (words.empty() || (words.front() != "convert" && words.front() != "mm-convert")) return words;
  const bool is_mm = words.front() == "mm-convert";
  const std::string file = take_config(words);
  const std::string converter = is_mm ? respell(words) : "";
  if (words.size() < 2) {
    config_error(
        "convert: no conversion is given; use convert hf-to-dcp, dcp-to-hf, dcp-to-dcp, hf-to-mcore, mcore-to-hf, "
        "hf-to-mm or mm-to-hf");
  }
  if (words[1].starts_with('-')) return words;
  const Command& app = named(words[1]);
  words[1] = app.name();
  std::vector<std::string> given{words[0], words[1]};
  const auto append = [&given](const std::vector<std::string>& more) {
    given.insert(given.end(), more.begin(), more.end());
  };
  if (is_mm && reads_environment()) append(words_of_environment(app, words[1], converter));
  if (!file.empty()) append(words_of_file(app, file, words[1]));
  given.insert(given.end(), words.begin() + 2, words.end());
  return given;
}

void ConvertFlags::add_weights(Command& app, checkpoint::WeightOptions& options, Given& given) {
  Flags flags(app);
  flags.group("Names");
  flags.text("--dcp-prefix,--prefix", "TEXT", options.names.dcp_prefix,
             "Stands in front of every name in the checkpoint, behind 'model.'");
  flags.text("--hf-prefix", "TEXT", options.names.hf_prefix,
             "Where a Hugging Face name begins with it, --dcp-prefix stands in its place; other names stay");
  flags.texts("--tie-weight-mapping", "TARGET=SOURCE", given.ties,
              "Hugging Face names of one tensor; also as a mapping {TARGET: SOURCE}");
  flags.texts(
      "--fused-linear-names", "NAME", options.fused_linear_names,
      "Weights of experts [E, in, out] that are [E * in, out] in the checkpoint, by the last parts of their names");
  flags.group("Values");
  add_dtype(flags, "--dtype", options.dtype);
  flags.group("Files");
  add_config_flag(flags);
  for (const std::string name : {"--trust-remote-code", "--num-workers", "--sharded"}) {
    flags.noted(name, name == "--sharded" ? 0 : 1,
                [&given, name](const std::string&) { given.without_effect.push_back(name); });
  }
}

ConvertFlags::ConvertFlags(Command& convert)
    : convert_(convert),
      hf_to_dcp_(convert.add_command("hf-to-dcp", "A Hugging Face folder as a checkpoint.")),
      dcp_to_hf_(convert.add_command("dcp-to-hf", "The model of a checkpoint as a Hugging Face folder.")),
      dcp_to_dcp_(convert.add_command("dcp-to-dcp", "A checkpoint cut for another number of ranks.")),
      mcore_(convert),
      mm_(convert) {
  hf_to_dcp_.set_footer(kHfToDcpExample);
  dcp_to_hf_.set_footer(kDcpToHfExample);
  dcp_to_dcp_.set_footer(kDcpToDcpExample);
  Flags to_dcp(hf_to_dcp_);
  to_dcp.group("Folders");
  to_dcp.text("--hf-dir,--load-dir", "DIR", import_.hf_dir, "Hugging Face folder with safetensors files");
  to_dcp.text("--dcp-dir,--save-dir", "DIR", import_.dcp_dir, "Gets release/ and latest_checkpointed_iteration.txt");
  add_weights(hf_to_dcp_, import_, import_given_);
  Flags to_hf(dcp_to_hf_);
  to_hf.group("Folders");
  to_hf.text("--load-dir,--dcp-dir", "DIR", export_.load_dir, "A checkpoint, or a folder of checkpoints");
  to_hf.text("--save-dir,--hf-dir", "DIR", export_.save_dir, "New or empty folder", "LOAD_DIR/hf_ckpt");
  to_hf.text("--model-assets-dir,--model-configs", "DIR", export_.model_assets_dir,
             "Folder of the model: config.json and tokenizer, which are carried over; its index says names and files");
  to_hf.text("--shard-size", "BYTES", export_given_.shard_size, "Bytes of a file at most: 5000000000, 5GB",
             "the files of the index, or 5GB");
  add_weights(dcp_to_hf_, export_, export_given_);
  Flags to_dcp_again(dcp_to_dcp_);
  to_dcp_again.group("Folders");
  to_dcp_again.text("--load-dir", "DIR", reshard_.load_dir, "A checkpoint, or a folder of checkpoints");
  to_dcp_again.text("--save-dir", "DIR", reshard_.save_dir, "Folder that gets the checkpoint under its name");
  to_dcp_again.group("Shards");
  to_dcp_again.whole("--world-size", reshard_.world_size, 1, "Files; tensors are cut along dim 0 as FSDP2 cuts them");
  to_dcp_again.toggle("--no-optim", reshard_.no_optim, "Leave the optimizer's state out");
  add_config_flag(to_dcp_again);
}

ConvertArguments ConvertFlags::settled() const {
  if (mcore_.parsed()) return mcore_.settled();
  if (mm_.parsed()) return mm_.settled();
  const auto with_ties = [](auto options, const Given& given) {
    for (const std::string& word : given.ties) add_tie(word, options.ties);
    return options;
  };
  if (hf_to_dcp_.parsed()) {
    need(import_.hf_dir, "hf-to-dcp", "--hf-dir", "the folder with the safetensors files");
    need(import_.dcp_dir, "hf-to-dcp", "--dcp-dir", "a folder for the checkpoint");
    return {with_ties(import_, import_given_), import_given_.without_effect};
  }
  if (dcp_to_dcp_.parsed()) {
    need(reshard_.load_dir, "dcp-to-dcp", "--load-dir", "the folder of a checkpoint");
    need(reshard_.save_dir, "dcp-to-dcp", "--save-dir", "a folder for the checkpoint");
    return {reshard_, {}};
  }
  need(export_.load_dir, "dcp-to-hf", "--load-dir", "the folder of a checkpoint");
  need(export_.model_assets_dir, "dcp-to-hf", "--model-assets-dir", "the folder with config.json and the tokenizer");
  checkpoint::DcpToHf options = with_ties(export_, export_given_);
  if (options.save_dir.empty()) options.save_dir = options.load_dir / "hf_ckpt";
  if (!export_given_.shard_size.empty()) options.shard_bytes = parse_size(export_given_.shard_size);
  return {options, export_given_.without_effect};
}

void add_merge(Command& app, MergeArguments& values) {
  Flags flags(app);
  flags.group("What");
  flags.text("--base", "DIR", values.merge.base,
             "The model that the adapters were trained on: config.json, safetensors");
  flags.text("--adapter,--lora-load", "DIR", values.merge.adapter,
             "The adapters: adapter_config.json, adapter_model.safetensors; their rank and scale are the file's");
  flags.group("Output");
  flags.text("--save", "DIR", values.merge.save, "A new folder for the model with the adapters added to its weights");
}

void check(const MergeArguments& values) {
  const auto need = [](const std::filesystem::path& path, std::string_view flag, std::string_view what) {
    if (path.empty()) config_error("merge: {} is missing; give {} DIR, {}", flag, flag, what);
  };
  need(values.merge.base, "--base", "the model's folder");
  need(values.merge.adapter, "--adapter", "the adapters' folder");
  need(values.merge.save, "--save", "a new folder");
}

void add_inspect(Command& app, InspectArguments& values) {
  Flags flags(app);
  flags.group("What");
  flags.texts("PATH", "PATH", values.paths,
              "A checkpoint, a folder of checkpoints, a Hugging Face folder or a safetensors file; two with --diff");
  flags.toggle("--diff", values.diff, "Compare two, tensor by tensor; exit status 1 where they differ");
  flags.text("--filter", "TEXT", values.filter, "Only names with this in them; with * and ? a pattern of whole names");
  flags.group("Output");
  flags.toggle("--boxes", values.boxes, "A line for each box of a tensor");
  flags.text("--json", "FILE", values.json, "Write it as JSON; - = to standard output, without the text");
}

void check(const InspectArguments& values) {
  const std::size_t wanted = values.diff ? 2 : 1;
  if (values.paths.size() == wanted) return;
  if (values.diff)
    config_error("inspect --diff compares two paths, but {} given; use inspect --diff A B",
                 values.paths.size() == 1 ? "1 is" : fmt::format("{} are", values.paths.size()));
  if (values.paths.empty()) config_error("inspect: no path is given; use inspect PATH");
  config_error("inspect shows one path, but {} are given; add --diff to compare two", values.paths.size());
}

}  // namespace loom::cli
