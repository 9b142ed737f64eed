#!/usr/bin/env python3
"""Schemas of the public JSON-Schema-Test-Suite as guides: how many are taken whole, why the others are not, and whether any
document that a guide lets through is none by Python's jsonschema (then it fails). Documents are a tiny model's at temperature 1.

    git clone https://github.com/json-schema-org/JSON-Schema-Test-Suite
    pip install jsonschema
    scripts/check_json_schemas.py JSON-Schema-Test-Suite [DRAFT...]      default: draft2020-12 draft7; the server is $SLUICE
"""
import collections
import concurrent.futures
import json
import pathlib
import re
import sys
import urllib.error
import urllib.request

import jsonschema

from served import served

MODEL = str(pathlib.Path(__file__).parent.parent / "tests/fixtures/models/stories260k")
SEEDS = 8
VALIDATORS = {"draft2020-12": jsonschema.Draft202012Validator, "draft2019-09": jsonschema.Draft201909Validator,
              "draft7": jsonschema.Draft7Validator, "draft6": jsonschema.Draft6Validator, "draft4": jsonschema.Draft4Validator}


def ask(url, schema, seed):
    """(True, the text and why it ended), or (False, why the schema was refused)."""
    body = {"prompt": "Once", "max_tokens": 150, "temperature": 1.0, "seed": seed, "guided_json": json.dumps(schema)}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(),
                                                           {"Content-Type": "application/json"})) as answer:
            return True, json.load(answer)["choices"][0]
    except urllib.error.HTTPError as error:
        return False, json.load(error)["error"]["message"]


def check(url, folder, validator):
    taken, refused, documents, wrong = 0, collections.Counter(), 0, []
    for path in sorted(folder.glob("*.json")):
        for group in json.loads(path.read_text()):
            is_taken, answer = ask(url, group["schema"], 1)
            if not is_taken:
                refused[re.sub(r"at \S+: ", "", answer)[:100]] += 1
                continue
            taken += 1
            with concurrent.futures.ThreadPoolExecutor(SEEDS) as pool:
                answers = [answer, *(one for _, one in pool.map(lambda seed: ask(url, group["schema"], seed), range(2, SEEDS + 1)))]
            for one in answers:
                if one["finish_reason"] != "stop":
                    continue
                documents += 1
                try:
                    validator(group["schema"]).validate(json.loads(one["text"]))
                except (ValueError, jsonschema.ValidationError) as error:
                    wrong.append(f"{path.name}, {group['description']}: {one['text'][:100]}: {str(error)[:100]}")
    return taken, refused, documents, wrong


def main(suite, *drafts):
    failures = 0
    with served(MODEL, "-c", "512", "--max-num-seqs", "16") as url:
        for draft in drafts or ("draft2020-12", "draft7"):
            taken, refused, documents, wrong = check(url, pathlib.Path(suite) / "tests" / draft, VALIDATORS[draft])
            total = taken + sum(refused.values())
            print(f"{draft}: {taken} of {total} schemas taken whole ({taken / total:.0%}); {documents} documents, {len(wrong)} wrong")
            print("\n".join(f"  {count:4} {why}" for why, count in refused.most_common(20)))
            print("\n".join(f"  WRONG {one}" for one in wrong[:20]))
            failures += len(wrong)
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
