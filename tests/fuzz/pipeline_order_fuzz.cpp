// The CSV of a pipeline's order: read, written and read again; an order that can run is lowered to lists that can.
#include "engine/train/schedule/pipeline_check.h"
#include "engine/train/schedule/pipeline_csv.h"
#include "engine/train/schedule/pipeline_lowering.h"
#include "engine/train/schedule/pipeline_time.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(pipeline_order) {
  using namespace loom;
  return fuzz::answered_or_refused([&] {
    const train::PipelineLists order = train::parse_pipeline_csv(fuzz::text_of(data, size));
    const std::string written = train::to_pipeline_csv(order);
    if (train::parse_pipeline_csv(written) != order) fuzz::found("an order that is read otherwise", written);
    const train::PipelineSchedule schedule = train::pipeline_schedule_from_order(order, 2);
    train::PipelineLists lists;
    try {
      lists = train::lower_pipeline(schedule);
      train::pipeline_list_figures(schedule, lists);
    } catch (const ConfigError& error) {
      fuzz::found("an order whose lists cannot run", error.what());
    }
  });
}
