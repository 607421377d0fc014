#!/usr/bin/env python3
"""Fails where an example for many servers names a metric or an option that there is not, or cannot
be read: examples/kubernetes, examples/grafana.json, and docs/fleet.md.

    scripts/check_examples.py PITH MODEL [FOLDER]

Metrics are those that a server prints. YAML is read where Python has PyYAML, and validated against
Kubernetes' own schemas where it has kubernetes-validate. FOLDER has CustomResourceDefinitions in
YAML, those of each kind that is no kind of Kubernetes. They must validate, too: Python then needs
jsonschema.
"""
import glob
import importlib.util
import json
import os
import re
import subprocess
import sys
import urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
NAME = re.compile(r"\b(?:pith_[a-z_]+[a-z]|(?:vllm|llamacpp):[a-z_0-9]+)\b")
KUBERNETES = ("Deployment", "Service")  # kinds that Kubernetes itself has


def printed(pith, model):
    """Names of the metrics of a server, those of a histogram's lines included."""
    server = subprocess.Popen([pith, "serve", "-m", model, "-t", "1", "--port", "0"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = re.search("http://[^ \n]+", server.stdout.readline()).group()
        with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        server.terminate()
        server.wait(60)
    return {re.split("[{ ]", line)[0] for line in text.splitlines() if line[:1] != "#"}


def closed(schema):
    """The schema, as the API server's strict validation reads it: other fields are wrong."""
    if isinstance(schema, list):
        return [closed(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    made = {k: closed(v) for k, v in schema.items()}
    if isinstance(made.get("properties"), dict) and "additionalProperties" not in made \
            and not made.get("x-kubernetes-preserve-unknown-fields") and "type" in made:
        made["additionalProperties"] = False
    if made.pop("x-kubernetes-int-or-string", False):
        made["type"] = ["integer", "string"]
    return made


def read_definitions(folder):
    """Schemas by version and kind."""
    import yaml
    schemas = {}
    for path in glob.glob(os.path.join(folder, "*.yaml")):
        with open(path, encoding="utf-8") as f:
            spec = yaml.safe_load(f)["spec"]
        for version in spec["versions"]:
            schema = closed(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            schemas[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return schemas


def read_yaml(path, schemas, wrong):
    if importlib.util.find_spec("yaml") is None:
        return
    import yaml
    with open(path, encoding="utf-8") as f:
        documents = list(yaml.safe_load_all(f))
    for d in documents:
        if "picker" in path:
            yaml.safe_load(d["router"]["epp"]["pluginsCustomConfig"]["pith.yaml"])
        elif not {"apiVersion", "kind", "metadata", "spec"} <= d.keys():
            wrong.append(f"{path}: has no apiVersion, kind, metadata or spec")
        elif schemas and d["kind"] not in KUBERNETES:
            import jsonschema
            name = d["apiVersion"], d["kind"]
            errors = ["there is no such definition"] if name not in schemas else \
                jsonschema.Draft202012Validator(schemas[name]).iter_errors(d)
            wrong.extend(f"{path}: {' '.join(name)}: {getattr(e, 'message', e)}" for e in errors)
        elif d["kind"] in KUBERNETES and importlib.util.find_spec("kubernetes_validate"):
            import kubernetes_validate
            kubernetes_validate.validate(d, kubernetes_validate.latest_version(), strict=True)


def main():
    pith, model = sys.argv[1:3]
    schemas = read_definitions(sys.argv[3]) if len(sys.argv) > 3 else {}
    names = printed(pith, model)
    options = set(re.findall(r"--[a-z-]+[a-z]", subprocess.run(
        [pith, "serve", "--help"], capture_output=True, text=True, check=True).stdout))
    wrong, n_name = [], 0
    paths = sorted(glob.glob(os.path.join(ROOT, "examples", "kubernetes", "*.yaml")))
    paths += [os.path.join(ROOT, *p) for p in (("examples", "grafana.json"), ("docs", "fleet.md"))]
    for path in paths:
        with open(path, encoding="utf-8") as f:
            text = f.read()
        for name in sorted(set(NAME.findall(text))):
            n_name += 1
            if name not in names and name + "_count" not in names:
                wrong.append(f"{path}: no server prints {name}")
        if path.endswith(".json"):
            json.loads(text)
        elif path.endswith(".yaml"):
            read_yaml(path, schemas, wrong)
            for option in re.findall(r"^ +- (--[a-z-]+[a-z])", text, re.M):
                if option not in options:
                    wrong.append(f"{path}: pith serve has no option {option}")
    if n_name < 20:
        wrong.append(f"only {n_name} names of metrics were found")
    print("\n".join(wrong) or f"{n_name} names of metrics in {len(paths)} files")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
