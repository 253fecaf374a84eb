#include "engine/custom_op/library.h"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <set>
#include <span>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/mapped_file.h"

namespace loom::custom {
namespace {

constexpr std::size_t kMostOperators = 4096;
constexpr std::size_t kMostNameBytes = 64;
constexpr std::uint32_t kEveryDType = (1U << (LOOM_BOOL + 1)) - 1;

std::string shown(const std::filesystem::path& path) { return escaped(path.string()); }

// What the loader would refuse with words of its own, and what it would take from another place.
void check_elf(const std::filesystem::path& path) {
  const io::MappedFile file(path);
  Elf64_Ehdr header{};
  const std::span<const std::byte> bytes = file.bytes();
  const bool is_elf = bytes.size() >= sizeof header && std::memcmp(bytes.data(), ELFMAG, SELFMAG) == 0;
  if (is_elf) std::memcpy(&header, bytes.data(), sizeof header);
  if (!is_elf || header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_DYN) {
    config_error(
        "{}: the file is no shared object ({} bytes), allowed are ELF shared objects of 64 bits; build it with "
        "g++ -shared -fPIC (docs/custom-operators.md)",
        shown(path), bytes.size());
  }
}

void* opened(const std::filesystem::path& path) {
  void* handle = dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle != nullptr) return handle;
  const char* reason = dlerror();
  config_error("{}: the library cannot be loaded: {}; build it on this machine, with all that it links", shown(path),
               shown_text(reason == nullptr ? "no reason given" : reason));
}

const LoomOperatorTable* asked_table(const std::filesystem::path& path, void* symbol) {
  try {
    return reinterpret_cast<const LoomOperatorTable* (*)()>(symbol)();
  } catch (...) {
    config_error("{}: {}() threw an exception; return a constant table", shown(path), LOOM_CUSTOM_OPS_SYMBOL);
  }
}

const LoomOperatorTable& table_of(const std::filesystem::path& path, void* handle) {
  void* symbol = dlsym(handle, LOOM_CUSTOM_OPS_SYMBOL);
  if (symbol == nullptr) {
    config_error(
        "{}: the library has no symbol '{}', which a library of custom operators defines; define it as "
        "engine/custom_op/abi.h declares it, with C linkage",
        shown(path), LOOM_CUSTOM_OPS_SYMBOL);
  }
  const LoomOperatorTable* table = asked_table(path, symbol);
  if (table == nullptr) config_error("{}: {}() returned no table; return one", shown(path), LOOM_CUSTOM_OPS_SYMBOL);
  if (table->abi != LOOM_CUSTOM_OP_ABI) {
    config_error("{}: the library has version {} of the interface, allowed is {}; build it with abi.h of this release",
                 shown(path), table->abi, LOOM_CUSTOM_OP_ABI);
  }
  if (table->operator_bytes != sizeof(LoomOperator)) {
    config_error("{}: an operator has {} bytes in the library, allowed are {}; build it with abi.h of this release",
                 shown(path), table->operator_bytes, sizeof(LoomOperator));
  }
  if (table->count == 0 || table->count > kMostOperators || table->operators == nullptr || table->reserved != 0) {
    config_error("{}: a table of {} operators{}, allowed are 1 to {}; count them with sizeof, and leave reserved 0",
                 shown(path), table->count, table->operators == nullptr ? " without an array" : "", kMostOperators);
  }
  return *table;
}

// A name that messages and pages show as it is.
std::string checked_name(const std::filesystem::path& path, std::size_t index, const char* name) {
  if (name == nullptr) config_error("{}: operator {} has no name; give it one", shown(path), index);
  const std::string text(name, strnlen(name, kMostNameBytes + 1));
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  };
  if (text.empty() || text.size() > kMostNameBytes || !std::ranges::all_of(text, is_allowed)) {
    config_error("{}: operator {} is named '{}', allowed are 1 to {} of a-z, 0-9, _ and .; rename it", shown(path),
                 index, shown_text(text), kMostNameBytes);
  }
  return text;
}

void check_count(const std::filesystem::path& path, std::string_view name, std::string_view what, int count,
                 int least) {
  if (count >= least && count <= LOOM_MOST_TENSORS) return;
  config_error("{}: operator '{}' has {} {}, allowed are {} to {}; change its row", shown(path), name, count, what,
               least, LOOM_MOST_TENSORS);
}

void check_saved(const std::filesystem::path& path, std::string_view name, std::string_view what, std::int32_t saved,
                 int count) {
  if (saved >= 0 && saved < (std::int32_t{1} << count)) return;
  config_error("{}: operator '{}' saves {} {:#x}, allowed are bits of {} {}; change its row", shown(path), name, what,
               static_cast<std::uint32_t>(saved), count, what);
}

void check_functions(const std::filesystem::path& path, const LoomOperator& op) {
  const std::pair<bool, std::string_view> needed[] = {
      {op.shape != nullptr, "shape"}, {op.cost != nullptr, "cost"}, {op.forward != nullptr, "forward"}};
  for (const auto& [is_given, function] : needed) {
    if (!is_given) config_error("{}: operator '{}' has no function '{}'; give one", shown(path), op.name, function);
  }
  if ((op.backward == nullptr) != (op.grad_cost == nullptr)) {
    config_error("{}: operator '{}' has {} without {}, allowed are both or none; give the other, or leave both out",
                 shown(path), op.name, op.backward == nullptr ? "grad_cost" : "backward",
                 op.backward == nullptr ? "backward" : "grad_cost");
  }
}

void check_operator(const std::filesystem::path& path, const LoomOperator& op) {
  check_count(path, op.name, "inputs", op.inputs, 1);
  check_count(path, op.name, "outputs", op.outputs, 1);
  check_count(path, op.name, "attributes", op.attributes, 0);
  check_saved(path, op.name, "inputs", op.saves_inputs, op.inputs);
  check_saved(path, op.name, "outputs", op.saves_outputs, op.outputs);
  for (int i = 0; i < op.inputs; ++i) {
    const std::uint32_t dtypes = op.input_dtypes == nullptr ? 0 : op.input_dtypes[i];
    if (dtypes == 0 || (dtypes & ~kEveryDType) != 0) {
      config_error(
          "{}: operator '{}' takes dtypes {:#x} as input {}, allowed are bits of {:#x}, at least one; use "
          "LOOM_DTYPE_BIT",
          shown(path), op.name, dtypes, i, kEveryDType);
    }
  }
  check_functions(path, op);
}

// "a,b" as "a" and "b".
std::vector<std::string> parts_of(const std::vector<std::string>& given) {
  std::vector<std::string> parts;
  for (const std::string& text : given) {
    for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
      end = text.find(',', begin);
      parts.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
      if (parts.back().empty()) {
        config_error("--custom-op-library is {}, with an empty path in it; use a.so,b.so", shown_text(text));
      }
    }
  }
  return parts;
}

void check_names(const Library& library, const Libraries& others) {
  for (const auto& other : others) {
    for (const LoomOperator* op : library.operators()) {
      const auto has_name = [&](const LoomOperator* its) { return std::string_view(its->name) == op->name; };
      if (std::ranges::none_of(other->operators(), has_name)) continue;
      config_error("{}: operator '{}' is in {} too, allowed is one of a name; rename it, or load one of the libraries",
                   shown(library.path()), op->name, shown(other->path()));
    }
  }
}

}  // namespace

Library::Library(std::filesystem::path path, void* handle) : path_(std::move(path)), handle_(handle) {
  const LoomOperatorTable& table = table_of(path_, handle);
  std::set<std::string> names;
  for (std::size_t i = 0; i < table.count; ++i) {
    const LoomOperator& op = table.operators[i];
    const auto [name, is_new] = names.insert(checked_name(path_, i, op.name));
    if (!is_new)
      config_error("{}: operator '{}' is twice in the library, allowed is once; rename one", shown(path_), *name);
    check_operator(path_, op);
    operators_.push_back(&op);
  }
}

std::shared_ptr<const Library> Library::open(const std::filesystem::path& path) {
  check_elf(path);
  return std::shared_ptr<const Library>(new Library(path, opened(path)));
}

bool add_library(Libraries& libraries, const std::shared_ptr<const Library>& library) {
  if (std::ranges::any_of(libraries, [&](const auto& other) { return other->is_same(*library); })) return false;
  check_names(*library, libraries);
  libraries.push_back(library);
  return true;
}

Libraries open_libraries(const std::vector<std::string>& given) {
  Libraries libraries;
  for (const std::string& path : parts_of(given)) {
    add_library(libraries, Library::open(path));
  }
  return libraries;
}

}  // namespace loom::custom
