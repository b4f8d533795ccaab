"""What a rendered Kubernetes file may hold: the schema that the MPI Operator publishes, read as Kubernetes reads it.

`mpijob_schema.json` names its source. Pods and volume claims follow the parts of it that Kubernetes has for them.
"""

import json
import re
from pathlib import Path

MPIJOB = json.loads(Path(__file__).with_name("mpijob_schema.json").read_text())["schema"]
REPLICA = MPIJOB["properties"]["spec"]["properties"]["mpiReplicaSpecs"]["additionalProperties"]
POD = REPLICA["properties"]["template"]["properties"]["spec"]
VOLUME = POD["properties"]["volumes"]["items"]
CLAIM = VOLUME["properties"]["ephemeral"]["properties"]["volumeClaimTemplate"]["properties"]["spec"]
SPECS = {
    ("kubeflow.org/v2beta1", "MPIJob"): MPIJOB["properties"]["spec"],
    ("v1", "Pod"): POD,
    ("v1", "PersistentVolumeClaim"): CLAIM,
}
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
BITS = {"int32": 31, "int64": 63}


def problems(table):
    """Return what Kubernetes would refuse in a file, of one line each."""
    spec = SPECS[table["apiVersion"], table["kind"]]
    unknown = [name for name in table if name not in ("apiVersion", "kind", "metadata", "spec")]
    return [f"unknown field {name}" for name in unknown] + list(_problems(table["spec"], spec, "spec"))


def _problems(value, schema, place):
    if schema.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, str | int) and not isinstance(value, bool)
    else:
        fits = isinstance(value, TYPES[schema["type"]]) and (isinstance(value, bool) <= (schema["type"] == "boolean"))
    if not fits:
        yield f"{place}: not of type {schema.get('type', 'int or string')}"
    elif isinstance(value, dict):
        yield from (f"{place}: {name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, part in value.items():
            known = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if known is None:
                yield f"{place}: unknown field {name}"
            else:
                yield from _problems(part, known, f"{place}.{name}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _problems(part, schema["items"], f"{place}[{number}]")
        keys = schema.get("x-kubernetes-list-map-keys", ())
        seen = [tuple(part.get(key) for key in keys) for part in value if keys and isinstance(part, dict)]
        if len(seen) != len(set(seen)):
            yield f"{place}: two of one {', '.join(keys)}"
    else:
        if value not in schema.get("enum", [value]):
            yield f"{place}: none of {schema['enum']}"
        if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
            yield f"{place}: does not match {schema['pattern']}"
        if isinstance(value, int) and schema.get("format") in BITS and abs(value) >> BITS[schema["format"]]:
            yield f"{place}: no {schema['format']}"
