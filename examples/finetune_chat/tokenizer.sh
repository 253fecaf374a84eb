#!/usr/bin/env bash
# tokenizer.sh DIR: a tokenizer as Hugging Face folders have it, with a token a byte: GPT-2's byte-level alphabet without
# merges, three special tokens and the ChatML template of Qwen.
set -euo pipefail
dir=$1
mkdir -p "$dir"

awk 'function entry(symbol, id) { printf "%s\n    \"\\u%04x\": %d", (id ? "," : ""), symbol, id }
function special(id, text) {
  return sprintf("{\"id\": %d, \"content\": \"%s\", \"special\": true, \"normalized\": false,\n    \"single_word\": false, \"lstrip\": false, \"rstrip\": false}", id, text)
}
BEGIN {
  print "{\n  \"version\": \"1.0\",\n  \"added_tokens\": ["
  printf "    %s,\n    %s,\n    %s],\n", special(256, "<|endoftext|>"), special(257, "<|im_start|>"), special(258, "<|im_end|>")
  print "  \"normalizer\": null,"
  print "  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, \"use_regex\": false},"
  print "  \"post_processor\": null,"
  print "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, \"use_regex\": false},"
  printf "  \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {"
  # Printable bytes stand for themselves, the others for the characters from 256 on.
  other = 256
  for (byte = 0; byte < 256; ++byte) {
    printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174
    symbol = printable ? byte : other++
    if (symbol == 34 || symbol == 92) printf "%s\n    \"\\%c\": %d", (byte ? "," : ""), symbol, byte
    else entry(symbol, byte)
  }
  print "}}\n}"
}' > "$dir/tokenizer.json"

cat > "$dir/tokenizer_config.json" <<'END'
{
  "tokenizer_class": "Qwen2Tokenizer",
  "eos_token": "<|im_end|>",
  "pad_token": "<|endoftext|>",
  "model_max_length": 256,
  "chat_template": "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
}
END
