# Promise: check_baselines accepts a run as good as the record, and refuses one that is worse, or lacks a line.
file(REMOVE_RECURSE "${FOLDER}")
file(MAKE_DIRECTORY "${FOLDER}")

function(write_run name triad over)
  file(WRITE "${FOLDER}/${name}.json" "{\"benchmarks\": [
    {\"run_name\": \"add/fp32/threads:1/iterations:7/manual_time\", \"run_type\": \"iteration\", \"of_triad\": ${triad}, \"GB_s\": 40},
    {\"run_name\": \"step/iterations:1\", \"run_type\": \"iteration\", \"fsdp_over_unsharded\": ${over}}]}")
endfunction()

function(expect name status text)
  execute_process(COMMAND "${PROGRAM}" "${FOLDER}/record.jsonl" "${FOLDER}/${name}.json" ${ARGN}
    RESULT_VARIABLE got OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT got EQUAL status OR NOT out MATCHES "${text}")
    message(FATAL_ERROR "${name}: exit status ${got} instead of ${status}, or no '${text}' in:\n${out}")
  endif()
endfunction()

write_run(first 1.5 1.0)
expect(first 2 "cannot be read; make it with --write")
expect(first 0 "2 ratios" --write)
file(READ "${FOLDER}/record.jsonl" record)
if(NOT record MATCHES "{\"benchmark\": \"add/fp32/threads:1\", \"ratio\": \"of_triad\", \"value\": 1.500}" OR record MATCHES "GB_s")
  message(FATAL_ERROR "the record is\n${record}")
endif()
write_run(same 1.36 1.09)
expect(same 0 "0 of 2 ratios")
write_run(slower 1.34 1.0)
expect(slower 1 "WORSE    add/fp32/threads:1")
expect(slower 0 "0 of 2 ratios" --allowed 0.2)
write_run(dearer 1.5 1.2)
expect(dearer 1 "WORSE    step")
file(WRITE "${FOLDER}/part.json" "{\"benchmarks\": [{\"run_name\": \"step/iterations:1\", \"fsdp_over_unsharded\": 1.0}]}")
expect(part 1 "MISSING  add/fp32/threads:1 of_triad")
expect(part 0 "ok" --only-run)
file(WRITE "${FOLDER}/failed.json" "{\"benchmarks\": [{\"run_name\": \"step\", \"error_occurred\": true, \"error_message\": \"losses differ\"}]}")
expect(failed 2 "step: losses differ")
