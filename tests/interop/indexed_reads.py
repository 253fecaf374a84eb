"""Pairs .bin/.idx between us and megatron-core: python indexed_reads.py PREFIX...

needs: pip install megatron-core torch numpy

Each PREFIX is a pair that we wrote. megatron-core's IndexedDataset reads it, its IndexedDatasetBuilder writes it again, and the
two files have to be ours byte for byte; every sequence read by slices and by number has to be the same.
Exit status 1 and a line for each pair that differs.
"""
import filecmp
import os
import sys
import tempfile

import numpy
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder


def sequences_differ(pair):
    whole = numpy.concatenate(pair[0 : len(pair)]) if len(pair) else numpy.array([])
    begin = 0
    for i in range(len(pair)):
        end = begin + pair.sequence_lengths[i]
        if not numpy.array_equal(pair[i], whole[begin:end]):
            return i
        begin = end
    return None


def write_again(pair, prefix):
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=pair.index.dtype)
    for document in range(len(pair.document_indices) - 1):
        for i in range(pair.document_indices[document], pair.document_indices[document + 1]):
            builder.add_item(torch.from_numpy(pair[i].astype(numpy.int64)))
        builder.end_document()
    builder.finalize(prefix + ".idx")


def check(prefix):
    pair = IndexedDataset(prefix)
    if (i := sequences_differ(pair)) is not None:
        return f"sequence {i} differs by slice and by number"
    with tempfile.TemporaryDirectory() as folder:
        again = os.path.join(folder, "again")
        write_again(pair, again)
        for ending in (".bin", ".idx"):
            if not filecmp.cmp(prefix + ending, again + ending, shallow=False):
                return f"megatron-core writes another {ending}"
    documents = len(pair.document_indices) - 1
    print(f"{prefix}: {len(pair)} sequences, {documents} documents, {pair.index.dtype.__name__}: equal")
    return None


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    failed = {prefix: what for prefix in sys.argv[1:] if (what := check(prefix)) is not None}
    for prefix, what in failed.items():
        print(f"{prefix}: {what}")
    print(f"{len(failed)} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
