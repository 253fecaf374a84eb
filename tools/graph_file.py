"""The file of one recording, or of several recordings of one program at several shapes: docs/model-graphs.md."""

import gzip
import json
import os
import tempfile

from graph_forms import NotScalable, place
from graph_models import error

FORMAT, VERSION = "shardloom-graph", 1
# Fields of an event that are lists of tensors, and fields that are one.
TENSOR_LISTS = {"enter": (3,), "exit": (2,), "op": (2, 3)}
TENSORS = {"save": (2,), "loss": (1,), "grad": (2,)}


class Tables:
    """Tensors, operators and integers of one file. `fit` is None for one recording."""

    def __init__(self, recordings, points, fit):
        self.recordings, self.points, self.fit = recordings, points, fit
        self.tensors, self.tensor_ids = [], {}
        self.ops, self.op_ids = [], {}

    def tensor(self, descriptions, where):
        """Equal descriptions at every shape are one tensor; equal at some shapes only are two."""
        number = self.tensor_ids.get(descriptions)
        if number is None:
            number = self.tensor_ids[descriptions] = len(self.tensors)
            self.tensors.append(self.value(descriptions, where))
        return number

    def op(self, name):
        number = self.op_ids.get(name)
        if number is None:
            number = self.op_ids[name] = len(self.ops)
            self.ops.append(name)
        return number

    def value(self, values, where):
        """One value of the file for the values of all recordings."""
        first = values[0]
        if isinstance(first, (list, tuple)):
            if any(len(value) != len(first) for value in values):
                self.differ(values, where)
            return [self.value(column, where) for column in zip(*values)]
        if isinstance(first, dict):
            if any(list(value) != list(first) for value in values):
                self.differ(values, where)
            return {name: self.value(tuple(value[name] for value in values), where) for name in first}
        if all(value == first and type(value) is type(first) for value in values):
            return first
        if self.fit is None or any(type(value) is not int for value in values):
            self.differ(values, where)
        try:
            return self.fit.form(tuple(values))
        except NotScalable as error:
            raise NotScalable(f"{where}: {error}") from None

    def differ(self, values, where):
        other = next(i for i, value in enumerate(values) if value != values[0])
        raise NotScalable(
            f"{where} is {short(values[0])} at {place(self.points[0])} and {short(values[other])} at "
            f"{place(self.points[other])}"
        )

    def event(self, events, where):
        first = events[0]
        if any(event[0] != first[0] or len(event) != len(first) for event in events):
            self.differ(events, where)
        kind, fields = first[0], []
        for field, values in enumerate(zip(*events)):
            if field in TENSOR_LISTS.get(kind, ()):
                if any(len(value) != len(values[0]) for value in values):
                    self.differ(events, where)
                fields.append([self.tensor(column, where) for column in zip(*values)])
            elif field in TENSORS.get(kind, ()):
                fields.append(self.tensor(values, where))
            elif kind == "op" and field == 1:
                if any(value != values[0] for value in values):
                    self.differ(values, where)
                fields.append(self.op(values[0]))
            else:
                fields.append(self.value(values, where))
        return fields

    def events(self):
        columns = [recording.events for recording in self.recordings]
        for index, events in enumerate(zip(*columns)):
            yield self.event(events, f"event {index}")
        if any(len(column) != len(columns[0]) for column in columns):
            self.differ([f"{len(column)} events long" for column in columns], "the recording")


def short(value):
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def program(recordings, points, fit):
    """The keys of the file that hold the program. Throws NotScalable."""
    tables = Tables(recordings, points, fit)
    first = recordings[0]
    for recording in recordings[1:]:
        if recording.modules != first.modules or recording.tied != first.tied:
            raise NotScalable("the modules depend on the shapes")
    parameters = [
        [name, tables.tensor(column, f"parameter {name}"), trained]
        for name, column, trained in (
            (rows[0][0], tuple(row[1] for row in rows), rows[0][2])
            for rows in zip(*(recording.parameters for recording in recordings))
        )
    ]
    buffers = [
        [rows[0][0], tables.tensor(tuple(row[1] for row in rows), f"buffer {rows[0][0]}")]
        for rows in zip(*(recording.buffers for recording in recordings))
    ]
    inputs = {}
    for name, value in first.inputs.items():
        values = tuple(recording.inputs[name] for recording in recordings)
        inputs[name] = (
            tables.value(values, f"input {name}")
            if isinstance(value, dict)
            else tables.tensor(values, f"input {name}")
        )
    inputs_meta = tables.value(tuple(recording.inputs_meta for recording in recordings), "an input's shape")
    events = list(tables.events())
    storages = tables.value(tuple(recording.storages for recording in recordings), "a storage")
    return {
        "modules": first.modules,
        "owners": {str(tensor): module for tensor, module in first.owners.items()},
        "inputs": inputs,
        "inputs_meta": inputs_meta,
        "parameters": parameters,
        "tied": first.tied,
        "aliases": first.aliases,
        "buffers": buffers,
        "ops": tables.ops,
        "storages": storages,
        "tensors": tables.tensors,
        "events": events,
    }


def symbols(points, least):
    """What B, S and P were in the recordings. `min` is the least value that the file holds: 2, or what `least` says."""
    found = {}
    for letter in points[0]:
        values = sorted({point[letter] for point in points})
        fixed = len(values) == 1
        found[letter] = {
            "values": values,
            "fixed": fixed,
            "min": values[0] if fixed else least.get(letter, min(2, values[0])),
        }
    return found


def probe(path):
    """Before the recording: can the file be written?"""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise error("--out", f"{path} cannot be written", "name a file in a folder that exists and may be written")


def write(path, graph):
    """Beside the file first, so that what is there stays whole. The same graph gives the same bytes."""
    text = json.dumps(graph, separators=(",", ":"), ensure_ascii=False).encode()
    folder = os.path.dirname(os.path.abspath(path))
    handle, beside = tempfile.mkstemp(dir=folder, prefix=os.path.basename(path) + ".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(gzip.compress(text, 9, mtime=0) if path.endswith(".gz") else text)
        os.chmod(beside, 0o644)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
