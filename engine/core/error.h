// Errors: where (file:line, rank, group), actual against allowed, next step.
//
// Four families: the user's input (ConfigError), the user's model or program (ModelError), the machine or network
// (DeviceError, CommError), our own bug (InvariantError). The text is for a reader at rank 37 with no debugger and is
// part of the contract: it is tested. A message made while a rank is current starts with "[rank R] ", except a
// ConfigError, which all ranks raise alike. A ModelError names the module whose forward was running. A ConfigError ends
// a program with status 2, the others with 1.
#pragma once

#include <fmt/core.h>
#include <stdexcept>
#include <string>

namespace loom {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The user's file or flag is wrong. Raised before anything is allocated.
class ConfigError : public Error {
 public:
  using Error::Error;
};

// The user's model or program makes an impossible request: shapes that an operator rejects, a key that a batch does
// not have, a second backward through one graph.
class ModelError : public Error {
 public:
  using Error::Error;
};

// The device cannot do what was requested.
class DeviceError : public Error {
 public:
  using Error::Error;
};

// The device has no room. The text holds the memory table by category.
class OutOfMemoryError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

// A collective failed: a peer threw, died or did not come in time.
class CommError : public Error {
 public:
  using Error::Error;
};

// A broken precondition inside the engine: our bug.
class InvariantError : public Error {
 public:
  using Error::Error;
};

// "[rank R] " while a rank is current on this thread, else "".
std::string rank_prefix();

// Shared by the templates below, so that a call instantiates only its list of arguments.
namespace detail {
[[noreturn]] void throw_config_error(fmt::string_view format, fmt::format_args args);
[[noreturn]] void throw_model_error(fmt::string_view format, fmt::format_args args);
[[noreturn]] void throw_internal_error(fmt::string_view format, fmt::format_args args);
std::string text_of_rank(fmt::string_view format, fmt::format_args args);
}  // namespace detail

template <class... Args>
[[noreturn]] void config_error(fmt::format_string<Args...> format, Args&&... args) {
  detail::throw_config_error(format, fmt::make_format_args(args...));
}

template <class E, class... Args>
[[noreturn]] void raise(fmt::format_string<Args...> format, Args&&... args) {
  throw E(detail::text_of_rank(format, fmt::make_format_args(args...)));
}

// rank_prefix(), then "in the forward of 'layers.1' (Block): " while a module of the user's runs on this rank.
std::string model_prefix();

template <class... Args>
[[noreturn]] void model_error(fmt::format_string<Args...> format, Args&&... args) {
  detail::throw_model_error(format, fmt::make_format_args(args...));
}

// A condition that the user's model must meet.
template <class... Args>
void check_model(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) model_error(format, std::forward<Args>(args)...);
}

// A condition that our own code must meet.
template <class... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) detail::throw_internal_error(format, fmt::make_format_args(args...));
}

}  // namespace loom
