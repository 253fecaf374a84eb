// OutputPlan: the files that a run will read and write, checked against one another before anything is computed.
//
// Use      name every input and output with its flag; check() refuses what would destroy something, prepare() makes the
//          folders and proves that each output can be written.
// Same     files are the same by device and inode, whatever their names, or by the path without links where one is not
//          there yet. Devices, FIFOs and open files of the process never conflict.
// Threads  one thread at a time. prepare() belongs to the process that will write.
// Errors   ConfigError with flags, path and a path to give instead.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace loom::io {

class OutputPlan {
 public:
  // A file, or a folder with everything in it. A path that does not exist is ignored.
  void reads(std::string flag, std::filesystem::path path);
  void writes_file(std::string flag, std::filesystem::path path);
  // `names`: the files in it that are known to be written.
  void writes_folder(std::string flag, std::filesystem::path folder, const std::vector<std::string>& names = {});

  // Refuses an output that is an input or another output, and a folder that is both read and written.
  void check() const;
  // Makes the folders of all outputs and writes a byte to a temporary file in each. FIFOs are not opened: their readers
  // would see the end.
  void prepare() const;

 private:
  struct Named {
    std::string flag;
    std::filesystem::path path;
  };

  void check_files() const;
  void check_folders() const;
  void check_inputs() const;

  std::vector<Named> inputs_;
  std::vector<Named> files_;
  std::vector<Named> folders_;
};

}  // namespace loom::io
