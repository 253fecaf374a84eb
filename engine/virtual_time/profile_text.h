// A HardwareProfile as the text of a profile file: load_profile() reads the same figures back, digit by digit.
//
// Threads  safe from any number of threads.
#pragma once

#include <string>

#include "engine/virtual_time/profile.h"

namespace loom::virtual_time {

// The origin of the figures of each section, one line each.
struct ProfileSources {
  std::string profile;
  std::string memory;
  std::string matrix;
  std::string attention;
  std::string measured;
  std::string vector;
  std::string launch;
  std::string links;
  std::string host_link;
  std::string host;
};

// `comment`: the first lines of the file, each without its '#'; may be empty.
std::string profile_text(const HardwareProfile& profile, const ProfileSources& sources, const std::string& comment);

}  // namespace loom::virtual_time
