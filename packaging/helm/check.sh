#!/bin/sh
# Checks the chart: helm lint, helm template, and the manifests against the schemas of Kubernetes. Needs helm, and
# kubernetes-validate (PyPI); says which one is missing and ends with 77. No pod is started.
set -eu
chart=$(dirname "$0")/modelet
helm=${HELM:-helm}
for tool in "$helm" kubernetes-validate; do
  command -v "$tool" > /dev/null || { echo "$tool is missing: nothing was checked"; exit 77; }
done
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$helm" lint --strict "$chart"
"$helm" template test "$chart" > "$out/defaults.yaml"
"$helm" template test "$chart" --set agents.replicas=40 --set agents.storageClass=fast --set agents.nodeSelector.pool=spare > "$out/forty.yaml"
kubernetes-validate --strict "$out/defaults.yaml" "$out/forty.yaml"
# What must be refused.
if "$helm" template test "$chart" --set agents.replicas=-1 > /dev/null 2>&1; then echo "a negative number of agents was taken"; exit 1; fi
if "$helm" template test "$chart" --set agent.replicas=1 > /dev/null 2>&1; then echo "an unknown value was taken"; exit 1; fi
echo "the chart is well"
