// Custom operator libraries: shared libraries whose operators (abi.h) the engine calls.
//
// Opened   once a process: a library stays mapped until the process ends, so that operators, and functions in them, are
//          valid as long as anything refers to them. Its constructors run when it is opened.
// Checked  before a call: the file is an ELF shared object of this machine; the symbol, the version of the interface,
//          and every operator's name, schema and functions.
// Errors   ConfigError naming the file, actual and allowed, and the next step.
// Threads  any; a library is constant.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/custom_op/abi.h"

namespace loom::custom {

class Library {
 public:
  static std::shared_ptr<const Library> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<const LoomOperator*>& operators() const { return operators_; }
  // Whether both are one library, opened by any of its paths.
  bool is_same(const Library& other) const { return handle_ == other.handle_; }

 private:
  Library(std::filesystem::path path, void* handle);

  const std::filesystem::path path_;
  void* const handle_;
  std::vector<const LoomOperator*> operators_;
};

// The libraries of a job, in the order they were given. No operator is in two of them.
using Libraries = std::vector<std::shared_ptr<const Library>>;

// Opens the libraries of --custom-op-library: "a.so,b.so" and "a.so b.so" alike. One that is given twice counts once.
Libraries open_libraries(const std::vector<std::string>& given);

// Adds a library, unless the same one is there; whether it did. ConfigError when an operator of it is in another one,
// naming both files.
bool add_library(Libraries& libraries, const std::shared_ptr<const Library>& library);

}  // namespace loom::custom
