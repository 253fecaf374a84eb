#!/usr/bin/env bash
# processor_entries.sh CXX NM OUT OBJECT...: the object OUT with a jump for each function of the objects that
# processor_object.sh made, from the worst level to the best: to the object whose place loom_processor_level gives
# (engine/core/processor_level.cpp). Only registers that a call may change are used.
set -euo pipefail
cxx="$1" nm="$2" out="$3"
shift 3
levels=()
for object in "$@"; do
  cmp -s "$1.functions" "$object.functions" || { echo "$object: not the functions of $1" >&2; exit 1; }
  name=${object##*/} name=${name%.o}
  levels+=("$("$nm" --defined-only --extern-only "$object" | awk 'NR == 1 { sub(/.*[.]/, "", $3); print $3 }')")
done
{
  while read -r function; do
    cat <<ENTRY
        .text
        .p2align 4
        .globl $function
        .type $function, @function
$function:
        endbr64
        movslq loom_processor_level(%rip), %rax
        leaq .L$function(%rip), %r11
        jmp *(%r11,%rax,8)
        .size $function, .-$function
        .section .data.rel.ro,"aw",@progbits
        .p2align 3
.L$function:
ENTRY
    for level in "${levels[@]}"; do echo "        .quad $function.$level"; done
  done < "$1.functions"
  echo '        .section .note.GNU-stack,"",@progbits'
} > "$out.s"
"$cxx" -c "$out.s" -o "$out"
