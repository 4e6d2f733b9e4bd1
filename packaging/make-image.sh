#!/bin/bash
# Makes an image of the programs from the Debian packages, and tries it.
set -euo pipefail

usage() {
  cat <<USAGE
usage: ${0##*/} [--packages FOLDER] [--base IMAGE] [--suite bookworm] [--try] [-h]
  --packages  from packaging/make-packages.sh (default: build/packages/out)
  --base      the image to begin with (default: a root that mmdebstrap makes of --suite, so that no registry is needed)
  --try       then train with it: read-only, without capabilities, without network. Needs podman and runc
Makes modelet:VERSION and modelet:latest in buildah's store of this user. Needs buildah and the network.
USAGE
}

packages=build/packages/out base= suite=bookworm try=
cd "$(dirname "$0")/.."
while (($# > 0)); do
  case $1 in
    --packages) packages=${2:?--packages needs a folder}; shift 2 ;;
    --base) base=${2:?--base needs an image}; shift 2 ;;
    --suite) suite=${2:?--suite needs a name}; shift 2 ;;
    --try) try=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "${0##*/}: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
done
command -v buildah >/dev/null || { echo "${0##*/}: buildah is not installed" >&2; exit 1; }
compgen -G "$packages/modelet_*.deb" >/dev/null ||
  { echo "${0##*/}: no packages in $packages; packaging/make-packages.sh makes them" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ -z $base ]]; then
  base=localhost/modelet-base:$suite
  if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    mmdebstrap --quiet --variant=minbase --include=ca-certificates "$suite" "$work/root.tar"
    printf 'FROM scratch\nADD root.tar /\n' >"$work/Base"
    buildah bud --isolation chroot --quiet -t "$base" -f "$work/Base" "$work"
    rm "$work/root.tar"
  fi
fi
cp "$packages"/modelet_*.deb "$packages"/modelet-agent_*.deb "$packages"/modelet-scheduler_*.deb "$work"
version=$(dpkg-deb -f "$work"/modelet_*.deb Version)
image=localhost/modelet:${version%-*}
buildah bud --isolation chroot --build-arg "BASE=$base" -t "$image" -t localhost/modelet:latest -f packaging/Containerfile "$work"
[[ -n $try ]] || exit 0

volume=modelet-try-$$
trap 'rm -rf "$work"; podman volume rm --force "$volume" >/dev/null' EXIT
# podman would choose higher limits than some machines allow.
inside() {
  podman --runtime runc run --rm --read-only --cap-drop all --security-opt no-new-privileges --network none \
    --ulimit nofile=1024:4096 --ulimit nproc=1024:4096 --volume "$volume:/var/lib/modelet" "$image" "$@"
}
example=/usr/share/doc/modelet/experiments
inside modelet train $example/quickstart.toml --set train.epochs=1 --nodes 2 --out run
for program in modelet modelet-agent modelet-scheduler; do
  [[ $(inside $program --version) == "$program ${version%-*}" ]] || { echo "${0##*/}: $program is of another version" >&2; exit 1; }
done
if inside sh -c 'echo >/usr/bin/more' 2>/dev/null; then echo "${0##*/}: the image is not read-only" >&2; exit 1; fi
if inside sh -c 'test -e /etc/modelet/scheduler.key'; then echo "${0##*/}: the image has a key" >&2; exit 1; fi
echo "$image works: read-only, without capabilities and network"
