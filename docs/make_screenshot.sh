#!/usr/bin/env bash
# Makes the picture of the README: the report page of a plan, as headless Chromium shows it.
#   bash docs/make_screenshot.sh [PROGRAM [PICTURE]]     build/run/shardloom, docs/images/plan-report.png
set -euo pipefail
cd "$(dirname "$0")/.."
program="${1:-build/run/shardloom}"
picture="${2:-docs/images/plan-report.png}"
limit=200000  # bytes

if [ ! -x "$program" ]; then
  echo "$0: $program is not built; build it (bash examples/quickstart.sh) or give the path of the program" >&2
  exit 1
fi
if ! browser=$(command -v chromium || command -v google-chrome); then
  echo "$0: there is no chromium; install it (bash cmake/install_packages.sh test)" >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$program" plan --model-config llama3_8b --use-torch-fsdp2 --fsdp2-config-path full_shard \
  --world-size 64 --device h200 --seq-length 8192 --micro-batch-size 3 --report "$work/page.html" > "$work/plan.txt"

# The part of the page from this heading on.
cat > "$work/part.html" <<'END'
<!doctype html>
<body style="margin: 0; overflow: hidden">
<iframe id="page" src="page.html" style="border: 0; width: 1100px; height: 905px"></iframe>
<script>
page.onload = () => setTimeout(() => {
  const headings = [...page.contentDocument.querySelectorAll("h2")];
  const first = headings.find((heading) => heading.textContent === "Memory over the step");
  page.contentWindow.scrollTo(0, first.getBoundingClientRect().top - 12);
}, 1000);
</script>
END
options=(--headless=new --disable-gpu --hide-scrollbars --allow-file-access-from-files --window-size=1100,905
         --user-data-dir="$work/browser" --virtual-time-budget=10000)
[ "$(id -u)" -ne 0 ] || options+=(--no-sandbox)
if ! "$browser" "${options[@]}" --screenshot="$work/page.png" "file://$work/part.html" 2> "$work/browser.txt"; then
  cat "$work/browser.txt" >&2
  exit 1
fi

bytes=$(stat -c %s "$work/page.png")
if [ "$bytes" -gt "$limit" ]; then
  echo "$0: the picture has $bytes bytes, the limit is $limit; choose a smaller window" >&2
  exit 1
fi
mkdir -p "$(dirname "$picture")"
mv "$work/page.png" "$picture"
echo "wrote $picture, $bytes bytes"
