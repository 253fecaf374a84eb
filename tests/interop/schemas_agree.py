"""Checks the JSON Schemas of `shardloom config --schema` with the jsonschema package: each is a valid schema, takes the
files of its dialect, and refuses them with one key misspelt.

python schemas_agree.py PROGRAM CONFIG...        needs: pip install jsonschema pyyaml

Every CONFIG, of any dialect, is written in all dialects (`config --to`); what comes out has to be valid.
"""

import json
import subprocess
import sys

import yaml
from jsonschema import Draft7Validator

DIALECTS = ["flat", "native", "gpt_args", "llm", "accelerate", "transformers", "deepspeed"]


def run(*words: str) -> tuple[int, str]:
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stdout


def read(text: str):
    # YAML reads JSON too; the tools' files have numbers such as 1e-5, which YAML 1.1 takes for texts, and so do schemas.
    return yaml.safe_load(text)


def misspelt(value, path=()):
    """The value with one of its keys misspelt, for each key of a mapping in turn."""
    if not isinstance(value, dict):
        return
    for key in value:
        yield ".".join((*path, key)), {(k + "x" if k == key else k): v for k, v in value.items()}
        for name, inner in misspelt(value[key], (*path, key)):
            yield name, {**value, key: inner}


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    program, configs = sys.argv[1], sys.argv[2:]
    wrong = checked = taken = keys = 0
    for dialect in DIALECTS:
        status, text = run(program, "config", "--schema", dialect)
        schema = json.loads(text)
        Draft7Validator.check_schema(schema)
        validator = Draft7Validator(schema)
        for config in configs:
            status, text = run(program, "config", config, "--to", dialect)
            if status != 0:
                continue
            lines = [line for line in text.splitlines() if not line.startswith("#")]
            value = read("\n".join(lines))
            if not isinstance(value, dict):
                continue
            checked += 1
            for error in validator.iter_errors(value):
                print(f"{dialect}: {config}: {'.'.join(map(str, error.path))}: {error.message}")
                wrong += 1
            for name, other in misspelt(value):
                keys += 1
                if validator.is_valid(other):
                    taken += 1
                    print(f"{dialect}: {config}: misspelt {name} is taken")
    print(f"{len(DIALECTS)} schemas, {checked} files: {wrong} errors; {taken} of {keys} misspelt keys taken")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
