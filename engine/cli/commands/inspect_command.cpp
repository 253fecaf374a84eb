#include "engine/cli/commands/inspect_command.h"

#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/cli/exit_status.h"
#include "engine/convert/inspect/compare_checkpoints.h"
#include "engine/convert/inspect/inspection.h"
#include "engine/core/error.h"
#include "engine/io/atomic_file.h"
#include "engine/io/output_plan.h"

namespace loom::cli {
namespace {

void open_output(const InspectArguments& arguments) {
  io::OutputPlan plan;
  for (const auto& path : arguments.paths) plan.reads("PATH", path);
  if (arguments.json && *arguments.json != "-") plan.writes_file("--json", *arguments.json);
  plan.check();
  plan.prepare();
}

template <class Result>
void show(const InspectArguments& arguments, const Result& result, const std::string& text, std::ostream& out) {
  if (arguments.json == "-") {
    out << to_json(result).dump(1) << "\n";
    return;
  }
  out << text;
  if (arguments.json) io::write_text(*arguments.json, to_json(result).dump(1) + "\n");
}

// Damage in one of the two is no difference, nor the user's mistake.
checkpoint::CheckpointDifference difference_of(const InspectArguments& arguments) {
  for (int looks = 1;; ++looks) {
    const auto place_a = checkpoint::place_of(arguments.paths[0]);
    const auto place_b = checkpoint::place_of(arguments.paths[1]);
    try {
      checkpoint::OpenedCheckpoint a(place_a);
      checkpoint::OpenedCheckpoint b(place_b);
      return checkpoint::compare(a, b, arguments.filter);
    } catch (const Error& damage) {
      const bool moved = checkpoint::place_of(arguments.paths[0]).path != place_a.path ||
                         checkpoint::place_of(arguments.paths[1]).path != place_b.path;
      if (!moved || looks == checkpoint::kMostLooks) throw Error(damage.what());
    }
  }
}

}  // namespace

int run_inspect(const InspectArguments& arguments, std::ostream& out) {
  open_output(arguments);
  if (arguments.diff) {
    const checkpoint::CheckpointDifference difference = difference_of(arguments);
    show(arguments, difference, checkpoint::to_text(difference), out);
    return difference.empty() ? 0 : kExitFailed;
  }
  const checkpoint::Inspection inspection = checkpoint::inspect(arguments.paths.front(), arguments.filter);
  show(arguments, inspection, checkpoint::to_text(inspection, arguments.boxes), out);
  return inspection.damaged() ? kExitFailed : 0;
}

}  // namespace loom::cli
