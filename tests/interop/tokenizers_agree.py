"""Compares ids, decoded texts and speed (MB per second of processor time) with Hugging Face's library, on one core.

python tokenizers_agree.py PROGRAM TEXT TOKENIZER...        needs: pip install tokenizers numpy

PROGRAM is build/release/tests/interop/tokenizer_ids, TEXT a file of UTF-8, TOKENIZER a tokenizer.json or its folder.
Ends with 1 when a document differs.
"""

import os
import subprocess
import sys
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import tokenizers

DOCUMENT_BYTES = 16384


def documents_of(data: bytes) -> list[str]:
    documents, begin = [], 0
    while begin < len(data):
        end = len(data)
        if len(data) - begin > DOCUMENT_BYTES:
            found = data.find(b"\n", begin + DOCUMENT_BYTES - 1)
            end = len(data) if found < 0 else found + 1
        documents.append(data[begin:end].decode())
        begin = end
    return documents


def ids_of(file: str) -> list[np.ndarray]:
    numbers = np.fromfile(file, dtype=np.int32)
    lists, at = [], 0
    while at < len(numbers):
        lists.append(numbers[at + 1 : at + 1 + numbers[at]])
        at += 1 + int(numbers[at])
    return lists


def compare(program: str, text: str, path: str, documents: list[str], size: int) -> bool:
    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    theirs = tokenizers.Tokenizer.from_file(file)
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "ours")
        speed = float(subprocess.run([program, file, text, out], check=True, capture_output=True, text=True).stdout)
        ours = ids_of(out + ".ids")
        with open(out + ".text", "rb") as stream:
            our_text = stream.read()
    begin = time.process_time()
    encoded = [theirs.encode(document).ids for document in documents]
    seconds = time.process_time() - begin
    begin = time.process_time()
    for document in documents:
        theirs.encode_batch_fast([document])
    fast_seconds = time.process_time() - begin
    differ = [i for i, ids in enumerate(encoded) if not np.array_equal(ours[i], ids)]
    their_text = "".join(theirs.decode(ids, skip_special_tokens=False) for ids in encoded).encode()
    print(
        f"{path}: {len(documents)} documents, {sum(map(len, encoded))} ids, {len(differ)} documents differ, "
        f"decoded {'equal' if their_text == our_text else 'DIFFERENT'}; MB/s: ours {speed:.2f}, "
        f"encode {size / 1e6 / seconds:.2f}, encode_batch_fast {size / 1e6 / fast_seconds:.2f}"
    )
    for i in differ[:3]:
        at = next((k for k, (a, b) in enumerate(zip(ours[i], encoded[i])) if a != b), min(len(ours[i]), len(encoded[i])))
        print(f"  document {i}, id {at}: ours {ours[i][at:at + 8]}, theirs {encoded[i][at:at + 8]}")
    return not differ and their_text == our_text and len(ours) == len(encoded)


def main() -> int:
    if len(sys.argv) < 4:
        print(__doc__, file=sys.stderr)
        return 2
    program, text, *paths = sys.argv[1:]
    with open(text, "rb") as stream:
        data = stream.read()
    documents = documents_of(data)
    print(f"tokenizers {tokenizers.__version__}, {len(data)} bytes")
    return 0 if all([compare(program, text, path, documents, len(data)) for path in paths]) else 1


if __name__ == "__main__":
    sys.exit(main())
