"""Writes parquet files with pyarrow, for our reader: python make_parquet.py DIR [ROWS]

DIR/NAME.parquet        a file
DIR/NAME.jsonl          its rows as pyarrow reads them; rows.jsonl those of all files without one that we do not refuse
Without ROWS the small files of tests/formats/data/parquet; with ROWS tables of so many random rows, in every codec, page
version, page size and encoding.
"""
import json
import os
import random
import sys
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
TEXTS = ["", "a", "déjà vu", "昇腾处理器", "two\nlines", "a quote \" and \\", "\U0001f600", "the same", "the same", "the same too"]


def write(folder, name, table, rows=None, **options):
    options = {"write_statistics": False, "store_schema": False} | options
    path = os.path.join(folder, name)
    pq.write_table(table, path + ".parquet", **options)
    if rows is None:
        return
    with open(os.path.join(folder, rows + ".jsonl"), "w") as file:
        for row in pq.read_table(path + ".parquet").to_pylist():
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def values():
    return pa.table({
        "text": pa.array(["a", None, "é", ""]),
        "large": pa.array(["x" * 300, "y", None, "z"], pa.large_string()),
        "bool": pa.array([True, False, None, True]),
        "int8": pa.array([-128, 127, None, 0], pa.int8()),
        "int16": pa.array([-32768, None, 32767, 0], pa.int16()),
        "int32": pa.array([-2**31, 2**31 - 1, None, 0], pa.int32()),
        "int64": pa.array([-2**63, 2**63 - 1, None, 0], pa.int64()),
        "uint8": pa.array([0, 255, None, 1], pa.uint8()),
        "uint16": pa.array([0, 65535, None, 1], pa.uint16()),
        "uint32": pa.array([0, 2**32 - 1, None, 1], pa.uint32()),
        "uint64": pa.array([0, 2**64 - 1, None, 1], pa.uint64()),
        "float": pa.array([0.1, -1e30, None, 0.0], pa.float32()),
        "double": pa.array([0.1, -1e300, None, 0.0], pa.float64()),
        "null": pa.array([None] * 4, pa.null()),
        "coded": pa.array(["b", "a", "b", None]).dictionary_encode(),
    })


def required():
    schema = pa.schema([pa.field("text", pa.string(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
    return pa.table({"text": ["a", "b"], "n": [1, 2]}, schema=schema)


def nested():
    return pa.table({
        "messages": pa.array([
            [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}],
            None, [], [None], [{"role": None, "content": "x"}, None, {"role": "system", "content": ""}]], MESSAGES),
        "pairs": pa.array([[["a", "b"], []], [], None, [None, [None, "c"]], [["d"]]], pa.list_(pa.list_(pa.string()))),
        "columns": pa.array([{"from": ["u", "a"], "n": [1, 2]}, None, {"from": None, "n": []}, {"from": [], "n": None},
                             {"from": ["x"], "n": [None]}],
                            pa.struct([("from", pa.list_(pa.string())), ("n", pa.list_(pa.int32()))])),
        "deep": pa.array([{"a": {"b": {"c": 1}}}, {"a": None}, {"a": {"b": None}}, None, {"a": {"b": {"c": None}}}],
                         pa.struct([("a", pa.struct([("b", pa.struct([("c", pa.int64())]))]))])),
    })


def random_value(rng):
    return None if rng.random() < 0.15 else rng.choice(TEXTS) * rng.randint(1, 3)


def some(rows, seed):
    rng = random.Random(seed)
    maybe = lambda make: None if rng.random() < 0.15 else make()
    message = lambda: maybe(lambda: {"role": rng.choice(["user", "assistant"]), "content": random_value(rng)})
    return pa.table({
        "text": pa.array([random_value(rng) for _ in range(rows)]),
        "n": pa.array([maybe(lambda: rng.randint(-2**40, 2**40)) for _ in range(rows)], pa.int64()),
        "small": pa.array([maybe(lambda: rng.randint(-3, 3)) for _ in range(rows)], pa.int32()),
        "x": pa.array([maybe(rng.random) for _ in range(rows)], pa.float64()),
        "yes": pa.array([maybe(lambda: rng.random() < 0.5) for _ in range(rows)]),
        "messages": pa.array([maybe(lambda: [message() for _ in range(rng.randint(0, 4))]) for _ in range(rows)], MESSAGES),
    })


DELTA = {"text": "DELTA_BYTE_ARRAY", "n": "DELTA_BINARY_PACKED", "small": "DELTA_BINARY_PACKED", "yes": "RLE",
         "messages.list.element.role": "DELTA_LENGTH_BYTE_ARRAY",
         "messages.list.element.content": "DELTA_BYTE_ARRAY"}
SPLIT = {"n": "BYTE_STREAM_SPLIT", "small": "BYTE_STREAM_SPLIT", "x": "BYTE_STREAM_SPLIT"}
PLAIN = {"use_dictionary": False}


def small_files(folder):
    write(folder, "values", values(), "values")
    write(folder, "required", required(), "required")
    write(folder, "nested", nested(), "nested")
    write(folder, "no_rows", values().slice(0, 0), "no_rows")
    table = some(40, 1)
    for codec in ["none", "snappy", "gzip", "zstd", "lz4"]:
        write(folder, codec, table, "rows", compression=codec)
    write(folder, "plain", table, **PLAIN)
    write(folder, "v2", table, data_page_version="2.0")
    write(folder, "v2_plain", table, data_page_version="2.0", compression="none", **PLAIN)
    write(folder, "delta", table, column_encoding=DELTA, **PLAIN)
    write(folder, "split", table, column_encoding=SPLIT, **PLAIN)
    write(folder, "pages", table, data_page_size=64, write_batch_size=5, data_page_version="2.0")
    write(folder, "groups", table, row_group_size=7)
    write(folder, "checked", table, write_page_checksum=True)
    for name, column in {
        "binary": pa.array([b"\xff"]),
        "decimal": pa.array([Decimal("1.50")]),
        "timestamp": pa.array([0], pa.timestamp("us")),
        "date": pa.array([0], pa.date32()),
        "fixed": pa.array([b"ab"], pa.binary(2)),
        "half": pa.array([1.5], pa.float16()),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
    }.items():
        write(folder, "refused_" + name, pa.table({"text": ["a"], "odd": column}))
    write(folder, "refused_int96", pa.table({"odd": pa.array([0], pa.timestamp("ns"))}),
          use_deprecated_int96_timestamps=True)
    write(folder, "refused_brotli", pa.table({"odd": ["a"]}), compression="brotli")


def large_files(folder, rows):
    table = some(rows, 2)
    for codec in ["none", "snappy", "gzip", "zstd", "lz4"]:
        for version in ["1.0", "2.0"]:
            for page in [256, 1 << 20]:
                for name, encoding in {"coded": {}, "plain": PLAIN, "delta": PLAIN | {"column_encoding": DELTA},
                                       "split": PLAIN | {"column_encoding": SPLIT}}.items():
                    write(folder, f"{codec}_{version[0]}_{page}_{name}", table, "rows", compression=codec, data_page_version=version,
                          data_page_size=page, row_group_size=rows // 3 + 1, write_page_checksum=page == 256, **encoding)


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    if len(sys.argv) > 2:
        large_files(sys.argv[1], int(sys.argv[2]))
    else:
        small_files(sys.argv[1])
