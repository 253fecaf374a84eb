// The families that go through the journeys (journey_test.cpp), one row each. A new family joins by its row.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/support/program.h"

namespace loom::test {

struct Family {
  std::string name;
  std::string program;  // path of the program that trains it
  Words command;        // its word for training, where it has one
  Words shape;          // a model with fresh weights
  Words weights;        // the words in the place of `shape` before a folder with weights
  Words data;           // data and sharding
  Words lora_targets;   // of --lora-target-modules
  // Whether its folder has a tokenizer: commands then take texts, and there are conversations to fine-tune it on.
  bool texts = true;
  // Files to write into the folder of the journey before it begins.
  std::map<std::string, std::string> files;
  // Of adapters beside a model against the same merged into it: bf16 rounds their sum.
  double merged_tolerance = 1e-5;
  // The steps that this family does not take, each with a part of the message that refuses it.
  std::map<std::string, std::string> refused;
};

inline void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

const std::vector<Family>& families();

}  // namespace loom::test
