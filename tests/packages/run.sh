#!/bin/bash
# The packages as their users meet them: clean Debian roots, a real systemd in each, a network between them. Takes about
# ten minutes, and is therefore not a part of tests/run.sh. Ends with 0 only if everything that it says was as it should be.
set -euo pipefail

usage() {
  cat <<USAGE
usage: tests/packages/run.sh [--packages FOLDER] [--suite bookworm] [--work FOLDER] [--before FOLDER] [--only PART]... [-h]
  --packages  the Debian packages to try (default: build/packages/out, from packaging/make-packages.sh)
  --suite     Debian's release of the clean roots, that for which the packages were made (default: bookworm)
  --work      for roots and logs (default: build/packages-test). The clean root is made once
  --before    bin of the version before, for 'neighbours': unpack its archive
  --only      a part of the test (default: install, nothing, pool)
Needs root, the network, and mmdebstrap, systemd-nspawn (package systemd-container; \$NSPAWN names another), iproute2.
install: quickstart, upgrade from the version before, remove, purge
archive: its programs in a root that has nothing else, of any suite
neighbours: agents and a scheduler of this version and of the one before, in both directions
nothing: from clean machines to a trained model, with the commands of docs/install.md; prints them and what they say
pool:    a scheduler and three agents boot; train, stop, kill -9, a reboot, an upgrade of all packages while a run trains;
         a back-up of the scheduler, and its move to another machine
slurm:   'modelet launch slurm' on a Slurm of two nodes: agents register, leave when a job of more weight takes a node, come
         back with the queue, and go with scancel
ssh:     'modelet launch ssh' on two machines and one that is dead, with the archive: up, status, a machine fails, upgrade, down
USAGE
}

packages= suite=bookworm work= before= parts=()
while (($# > 0)); do
  case $1 in
    --packages) packages=$(realpath "${2:?}"); shift 2 ;;
    --suite) suite=${2:?}; shift 2 ;;
    --work) work=$(realpath -m "${2:?}"); shift 2 ;;
    --before) before=$(realpath "${2:?}"); shift 2 ;;
    --only) parts+=("${2:?}"); shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "tests/packages/run.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
done
cd "$(dirname "$0")/../.."
packages=${packages:-$PWD/build/packages/out} work=${work:-$PWD/build/packages-test}
((${#parts[@]} > 0)) || parts=(install nothing pool)
nspawn=${NSPAWN:-systemd-nspawn}

fail() {
  echo "FAILED: $1" >&2
  exit 1
}
begin() { echo "== $((SECONDS / 60)):$(printf %02d $((SECONDS % 60))) $*"; }
((EUID == 0)) || fail "root is needed, for containers and their network"
for tool in mmdebstrap "$nspawn" ip dpkg-deb; do command -v "$tool" >/dev/null || fail "$tool is missing"; done
mkdir -p "$work"

# ---- The packages, and the same ones with a lower number

new=$work/new old=$work/old number=
copy_packages() {
  compgen -G "$packages/modelet_*.deb" >/dev/null || fail "$packages has no packages: packaging/make-packages.sh makes them"
  rm -rf "$new" "$old"
  mkdir -p "$new" "$old"
  cp "$packages"/*.deb "$new"
  number=$(dpkg-deb -f "$new"/modelet_*.deb Version)
  lower=0.0.9-${number#*-}
  for package in "$new"/modelet{,-agent,-scheduler}_*.deb; do
    dpkg-deb -R "$package" "$work/unpacked"
    sed -i "s/^Version: .*/Version: $lower/; s/(= $number)/(= $lower)/g" "$work/unpacked/DEBIAN/control"
    dpkg-deb -Zgzip -b "$work/unpacked" "$old" >/dev/null
    rm -rf "$work/unpacked"
  done
}

# ---- Roots and machines

clean=$work/$suite.tar
if [[ ! -f $clean ]]; then
  begin "a clean root of $suite"
  mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus,iproute2,ca-certificates "$suite" "$work/part-$suite.tar" &&
    mv "$work/part-$suite.tar" "$clean"
fi
run=$(mktemp -d "$work/run-XXXXXX")
shared=$run/shared  # a folder that all booted machines see
mkdir "$shared"
bridge=mlt-$$
declare -A leaders=()
clean_up() {
  local code=$? name
  for name in "${!leaders[@]}"; do power_off "$name" || true; done
  for name in /run/netns/"$bridge"-*; do
    [[ ! -e $name ]] || ip netns delete "${name##*/}"
  done
  ip link delete "$bridge" 2>/dev/null || true
  for name in "$run"/*/root; do
    mountpoint -q "$name" && umount "$name" || true
  done
  if ((code == 0)); then rm -rf "$run"; else echo "what is left to look at: $run" >&2; fi
}
trap clean_up EXIT

# in_root ROOT COMMAND...: in a root that is not booted, with this machine's network.
in_root() {
  "$nspawn" -q --register=no --keep-unit --pipe -D "$1" env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "${@:2}" 2>&1 |
    grep -v 'Attempted to remove disk file system' || return "${PIPESTATUS[0]}"
}
# layered NAME LOWER: $run/NAME/root shows LOWER, a folder or several, 'UPPER:LOWER'; what is written goes beside it, and
# not to the disk before it must.
layered() {
  mkdir -p "$run/$1"/{up,work,root}
  mount -t overlay overlay -o "volatile,lowerdir=$2,upperdir=$run/$1/up,workdir=$run/$1/work" "$run/$1/root"
}
make_network() {
  [[ ! -e /sys/class/net/$bridge ]] || return 0  # it is there
  ip link add "$bridge" type bridge
  ip address add 10.78.0.1/24 dev "$bridge"
  ip link set "$bridge" up
}
# boot NAME ADDRESS: waits until its systemd is up. A machine that was powered off boots again with what it has written.
boot() {
  local name=$1 space=$bridge-$1
  if [[ ! -e /run/netns/$space ]]; then
    ip netns add "$space"
    ip link add "v$$-$name" type veth peer name eth0 netns "$space"
    ip link set "v$$-$name" master "$bridge" up
    ip -n "$space" address add "$2/24" dev eth0
    ip -n "$space" link set eth0 up
    ip -n "$space" link set lo up
    ip -n "$space" route add default via 10.78.0.1
    echo "$name" >"$run/$name/root/etc/hostname"
  fi
  setsid "$nspawn" -q --register=no --keep-unit -D "$run/$name/root" -M "mlt$$-$name" --hostname="$name" --bind="$shared:/shared" \
    --network-namespace-path="/run/netns/$space" -b >>"$run/$name/console" 2>&1 &
  leaders[$name]=$!
  wait_for 60 "$name boots" booted "$name"
}
# A unit that waits, as that of an agent without a scheduler, keeps the system "starting"; its target is reached all the same.
booted() { on "$1" systemctl is-active --quiet multi-user.target 2>/dev/null; }
# on NAME COMMAND...: on a booted machine.
on() {
  local inside
  inside=$(pgrep -P "${leaders[$1]}" | head -1)
  [[ -n $inside ]] || return 1
  nsenter -t "$inside" -m -u -i -n -p -r -w env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive "${@:2}"
}
power_off() {
  on "$1" systemctl poweroff --no-block >/dev/null 2>&1 || true
  local waited=0
  while kill -0 "${leaders[$1]}" 2>/dev/null && ((waited++ < 900)); do sleep 0.1; done
  if kill -0 "${leaders[$1]}" 2>/dev/null; then kill -9 "${leaders[$1]}"; fi
  wait "${leaders[$1]}" 2>/dev/null || true
  unset "leaders[$1]"
}
# remove_machine NAME: it is off, its address is free, and nothing is left of it.
remove_machine() {
  power_off "$1"
  ip netns delete "$bridge-$1"
  umount "$run/$1/root"
  rm -rf "${run:?}/$1"
}
# wait_for SECONDS WHAT COMMAND...
wait_for() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    ((SECONDS < end)) || fail "never: $what"
    sleep 0.3
  done
}

# ---- Parts

template=$work/template
make_template() {
  [[ -z $number ]] || return 0  # it is there
  copy_packages
  rm -rf "$template"
  mkdir "$template"
  tar -C "$template" -xf "$clean"
  mkdir "$template/packages"
  cp -r "$new" "$old" "$template/packages"
  # The machines of the test cannot reach a mirror: what the packages need is in apt's cache.
  in_root "$template" sh -c 'apt-get update -q && apt-get install -y -q --download-only /packages/new/modelet_*.deb \
    /packages/new/modelet-agent_*.deb /packages/new/modelet-scheduler_*.deb' >"$work/template.log" || { cat "$work/template.log"; fail "no mirror of Debian"; }
}
install_old() { in_root "$1" sh -c 'apt-get install -y -q --no-install-recommends /packages/old/*.deb' >"$run/install.log" || { cat "$run/install.log"; fail "the packages cannot be installed"; }; }
upgrade='apt-get install -y -q --no-install-recommends /packages/new/modelet_*.deb /packages/new/modelet-agent_*.deb /packages/new/modelet-scheduler_*.deb'

part_archive() {
  local archive root=$run/bare/root
  archive=$(ls "$packages"/modelet-*-linux-*.tar.xz 2>/dev/null) || fail "$packages has no archive: packaging/make-packages.sh makes it"
  begin "the archive in a root of $suite that has nothing else"
  mkdir -p "$run/empty"
  tar -C "$run/empty" -xf "$clean"
  layered bare "$run/empty"
  tar -C "$root/opt" -xf "$archive"
  in_root "$root" sh -c 'cd /root && /opt/modelet-*/bin/modelet train /opt/modelet-*/share/doc/modelet/experiments/quickstart.toml --set train.epochs=1 --nodes 2 --out run &&
    /opt/modelet-*/bin/modelet predict run /opt/modelet-*/share/doc/modelet/experiments/datasets/debian-deps/test.txt.xz --limit 3' >"$run/archive.log" ||
    { cat "$run/archive.log"; fail "the archive does not work on $suite"; }
  tail -3 "$run/archive.log"
}

# pool_of BIN_OF_SCHEDULER BIN_OF_AGENTS: trains with the client of the one and agents of the other, without containers.
pool_of() {
  local folder pids=() address name
  folder=$(mktemp -d "$run/mixed-XXXXXX")
  export MODELET_INSECURE=1
  "$1/modelet-scheduler" --listen 'tcp://127.0.0.1:*' --endpoint-file "$folder/endpoint" --state "$folder/state" 2>"$folder/scheduler.log" &
  pids+=($!)
  wait_for 30 "the scheduler of $("$1/modelet" --version) listens" test -s "$folder/endpoint"
  address=$(<"$folder/endpoint")
  for name in a b; do
    "$2/modelet-agent" --scheduler "$address" --name $name --cores 1 --memory-mib 1000 --gflops 10 --memory-gbps 5 --dedicated \
      --work-dir "$folder/$name" 2>"$folder/$name.log" &
    pids+=($!)
  done
  wait_for 30 "two agents of $("$2/modelet" --version) join the scheduler of $("$1/modelet" --version)" sh -c \
    "[ \$($1/modelet nodes --scheduler $address --json | grep -c '\"name\"') = 2 ]"
  for client in "$1" "$2"; do
    "$client/modelet" submit experiments/quickstart.toml --set train.epochs=1 --nodes 2 --watch --scheduler "$address" >"$folder/run.log" 2>&1 ||
      { tail -n 5 "$folder"/*.log; fail "$("$client/modelet" --version) does not train on agents of $("$2/modelet" --version) with a scheduler of $("$1/modelet" --version)"; }
  done
  kill "${pids[@]}"
  wait "${pids[@]}" || true
  unset MODELET_INSECURE
}
part_neighbours() {
  local archive now=$run/now
  [[ -n $before ]] || fail "--before names the folder with the programs of the version before"
  archive=$(ls "$packages"/modelet-*-linux-*.tar.xz 2>/dev/null) || fail "$packages has no archive: packaging/make-packages.sh makes it"
  mkdir -p "$now"
  tar -C "$now" --strip-components=1 -xf "$archive"
  begin "scheduler $("$now/bin/modelet" --version), agents $("$before/modelet" --version)"
  pool_of "$now/bin" "$before"
  begin "scheduler $("$before/modelet" --version), agents $("$now/bin/modelet" --version)"
  pool_of "$before" "$now/bin"
}

part_install() {
  local root=$run/one/root kept
  make_template
  layered one "$template"
  begin "install $lower"
  install_old "$root"
  [[ $(in_root "$root" stat -c '%U %a' /var/lib/modelet) == "modelet 700" ]] || fail "/var/lib/modelet is not the agent's alone"
  [[ $(in_root "$root" stat -c '%U %a' /etc/modelet/scheduler.key) == "modelet-scheduler 600" ]] || fail "the scheduler's key is not its own"
  in_root "$root" test -L /etc/systemd/system/multi-user.target.wants/modelet-scheduler.service || fail "the scheduler is not enabled"
  ! in_root "$root" test -e /etc/systemd/system/multi-user.target.wants/modelet-agent.service || fail "the agent is enabled before it knows a scheduler"
  for page in modelet modelet-agent modelet-scheduler; do in_root "$root" test -s /usr/share/man/man1/$page.1.gz || fail "no manual page of $page"; done

  begin "quickstart from the packages alone"
  in_root "$root" sh -c 'cd /root && modelet train /usr/share/doc/modelet/experiments/quickstart.toml --set train.epochs=1 --nodes 2 --out run &&
    modelet predict run /usr/share/doc/modelet/experiments/datasets/debian-deps/test.txt.xz --limit 3' >"$run/quickstart.log" ||
    { cat "$run/quickstart.log"; fail "the quickstart does not work from the packages"; }
  tail -3 "$run/quickstart.log"

  begin "upgrade to $number"
  in_root "$root" sh -c 'echo "store_mib = 1000" >>/etc/modelet/scheduler.toml'
  kept=$(in_root "$root" sha256sum /etc/modelet/scheduler.key /etc/modelet/scheduler.toml)
  in_root "$root" sh -c "$upgrade" >"$run/upgrade.log" || { cat "$run/upgrade.log"; fail "the upgrade failed"; }
  [[ $(in_root "$root" sha256sum /etc/modelet/scheduler.key /etc/modelet/scheduler.toml) == "$kept" ]] || fail "the upgrade has changed the configuration"
  for program in modelet modelet-agent modelet-scheduler; do
    [[ $(in_root "$root" $program --version) == "$program ${number%-*}" ]] || fail "$program is of another version"
  done

  if compgen -G "$new/python3-modelet_*.deb" >/dev/null; then
    begin "Python"
    in_root "$root" sh -c 'apt-get install -y -q --no-install-recommends /packages/new/python3-modelet_*.deb' >"$run/python.log" || { cat "$run/python.log"; fail "python3-modelet cannot be installed"; }
    [[ $(in_root "$root" python3 -c 'import modelet; print(modelet.__version__)') == "${number%-*}" ]] || fail "the Python package is of another version"
    in_root "$root" sh -c 'cd /root && python3 -c "import modelet; modelet.train(\"/usr/share/doc/modelet/experiments/quickstart.toml\", nodes=2, out=\"python-run\", settings={\"train.epochs\": 1})"' >"$run/python.log" || { cat "$run/python.log"; fail "training from Python does not work from the packages"; }
    in_root "$root" apt-get purge -y -q python3-modelet >/dev/null
    ! in_root "$root" test -e /usr/lib/python3/dist-packages/modelet || fail "the Python package leaves files behind"
  fi

  begin "remove, purge"
  in_root "$root" sh -c 'touch /var/lib/modelet/kept && apt-get remove -y -q modelet modelet-agent modelet-scheduler' >/dev/null
  ! in_root "$root" test -e /usr/bin/modelet-agent || fail "a program is left after remove"
  in_root "$root" test -e /var/lib/modelet/kept -a -e /etc/modelet/scheduler.key || fail "remove has removed state or keys"
  in_root "$root" sh -c 'apt-get purge -y -q modelet modelet-agent modelet-scheduler' >/dev/null
  left=$(in_root "$root" sh -c 'rm -rf /root/run* /root/python-run /root/.cache; find / -xdev -iname "*modelet*" -not -path "/packages/*" -not -path "/proc/*" -not -path "/root/*" -not -path "/var/cache/apt/*"; getent passwd modelet modelet-scheduler; true')
  [[ -z $left ]] || fail "purge leaves behind: $left"
}

# What the machine of the scheduler is called now, and its address, which is also its agents'.
scheduler_machine=sched scheduler_address=10.78.0.10
# ask COMMAND...: the program modelet on the scheduler's machine, as its administrator.
ask() {
  on "$scheduler_machine" env MODELET_SCHEDULER=tcp://$scheduler_address:5570 MODELET_KEY=/root/admin.key "MODELET_SCHEDULER_KEY=$scheduler_key" modelet "$@"
}
nodes_are() { [[ $(ask nodes --json | grep -c '"state":"\(free\|training\)"') == "$1" ]]; }
run_is() { ask list --json | grep -q "\"state\":\"$1\""; }
step_of_run() { ask list --json | sed -n 's/.*"step":\([0-9]*\).*/\1/p' | tail -1; }
step_after() { (($(step_of_run) > $1)); }
goes_on() {
  local step
  step=$(step_of_run)
  wait_for 180 "the run goes on $1" step_after "$step"
}
active() { on "$1" systemctl is-active --quiet "$2"; }
failed_never() {
  local name
  for name in "$@"; do
    [[ -z $(on "$name" systemctl --failed --no-legend) ]] || { on "$name" systemctl --failed; fail "$name has a failed unit"; }
  done
}
# owned NAME WHAT FILE...: on a machine, all the files (patterns of its shell) belong to WHAT: 'USER:GROUP MODE'.
owned() {
  local found
  found=$(on "$1" sh -c "stat -c '%U:%G %a' ${*:3}" | sort -u)
  [[ $found == "$2" ]] || fail "on $1, ${*:3} must be '$2', not '$found'"
}
# lend NAME: what its owner has written before the machine joins. Machines of this test share cores, which agents would leave to others.
lend() {
  on "$1" sh -c 'mkdir -p /etc/modelet && cat >/etc/modelet/agent.toml' <<<$'# mine\ndedicated = true\ncores = 1\nmemory_mib = 1500\ngflops = 10\nmemory_gbps = 5'
}

# show NAME COMMAND: on a booted machine, as one would type it there. Shows both, and keeps what it says in $said.
shown=0 said=
show() {
  shown=$((shown + 1))
  echo "root@$1# $2"
  said=$(on "$1" sh -c "cd /packages/new && $2" 2>&1 </dev/null) || { echo "$said"; fail "this failed on $1: $2"; }
  echo "$said"
}

part_nothing() {
  local name agents=(a1 a2 a3) begun word
  make_template
  make_network
  begin "one scheduler and three agents: clean machines boot"
  for name in sched "${agents[@]}"; do layered "$name" "$template"; done
  boot sched $scheduler_address
  for name in "${agents[@]}"; do boot "$name" "10.78.0.1${name#a}"; lend "$name"; done
  begin "from nothing to a trained model"
  begun=$SECONDS
  show sched "apt-get install -y -q ./modelet_*.deb ./modelet-scheduler_*.deb"
  show sched "modelet keygen admin.key --allow-list /var/lib/modelet-scheduler/allowed --role admin --name alice"
  show sched "modelet-scheduler invite --config /etc/modelet/scheduler.toml"
  word=$(grep -o 'modelet1-[A-Za-z0-9_-]*' <<<"$said" | head -1)
  for name in "${agents[@]}"; do
    show "$name" "apt-get install -y -q ./modelet-agent_*.deb"
    show "$name" "modelet-agent join $word"
  done
  show sched "modelet submit /usr/share/doc/modelet/experiments/quickstart.toml --nodes 3 --out run --scheduler tcp://$scheduler_address:5570 --key admin.key --scheduler-key \$(modelet key /etc/modelet/scheduler.key)"
  begin "a trained model, with $shown commands, in $((SECONDS - begun)) seconds"
  show sched "modelet predict run /usr/share/doc/modelet/experiments/datasets/debian-deps/test.txt.xz --limit 3"
  failed_never sched "${agents[@]}"
  for name in sched "${agents[@]}"; do remove_machine "$name"; done
}

part_pool() {
  local name agents=(a1 a2 a3) begun=$SECONDS word key
  make_template
  layered installed "$template"
  install_old "$run/installed/root"
  rm -f "$run/installed/root/etc/modelet/scheduler.key"
  umount "$run/installed/root"
  make_network
  begin "one scheduler and three agents boot"
  for name in sched "${agents[@]}"; do layered "$name" "$run/installed/up:$template"; done
  in_root "$run/sched/root" dpkg-reconfigure modelet-scheduler >/dev/null
  for name in "${agents[@]}"; do in_root "$run/$name/root" systemctl disable --quiet modelet-scheduler; done
  boot sched $scheduler_address
  active sched modelet-scheduler || fail "the scheduler does not start with its machine"
  scheduler_key=$(on sched modelet key /etc/modelet/scheduler.key)
  on sched modelet keygen /root/admin.key --allow-list /var/lib/modelet-scheduler/allowed --role admin --name root >/dev/null

  begin "they join with one invitation"
  word=$(on sched modelet-scheduler invite --config /etc/modelet/scheduler.toml)
  owned sched "modelet-scheduler:modelet-scheduler 600" '/var/lib/modelet-scheduler/invitations/*'
  for name in "${agents[@]}"; do
    boot "$name" "10.78.0.1${name#a}"
    lend "$name"
    on "$name" modelet-agent join "$word"
    active "$name" modelet-agent || fail "join has not started the agent of $name"
    on "$name" systemctl is-enabled --quiet modelet-agent || fail "the agent of $name would not start with its machine"
    owned "$name" "modelet:modelet 600" /etc/modelet/agent.key
    on "$name" grep -q '^# mine' /etc/modelet/agent.toml || fail "join has removed lines of the owner"
  done
  owned sched "modelet-scheduler:modelet-scheduler 600" /var/lib/modelet-scheduler/allowed
  nodes_are 3 || fail "the pool has not three nodes"
  key=$(on a1 sha256sum /etc/modelet/agent.key)
  on a1 modelet-agent join "$word"
  [[ $(on a1 sha256sum /etc/modelet/agent.key) == "$key" ]] || fail "joining again has made another key"
  [[ $(on sched grep -c ^agent /var/lib/modelet-scheduler/allowed) == 3 ]] || fail "joining again has made another line in the allow-list"
  wait_for 60 "the pool has three nodes" nodes_are 3
  ask nodes

  begin "a run trains, and is stopped"
  ask submit /usr/share/doc/modelet/experiments/quickstart.toml --set train.epochs=1000 --nodes 3 >"$run/submit.log" 2>&1 || { cat "$run/submit.log"; fail "submit"; }
  wait_for 120 "the run does steps" step_after 20

  begin "kill -9 of an agent: it comes back, the run goes on"
  on a3 systemctl kill --kill-whom=main --signal=KILL modelet-agent
  wait_for 60 "the agent of a3 is active again" active a3 modelet-agent
  wait_for 60 "the pool has three nodes again" nodes_are 3
  goes_on "without what a3 had in memory"

  begin "kill -9 of the scheduler: agents train on"
  on sched systemctl kill --kill-whom=main --signal=KILL modelet-scheduler
  wait_for 60 "the scheduler is back" active sched modelet-scheduler
  wait_for 60 "the pool has three nodes again" nodes_are 3
  goes_on "with the scheduler that was killed"

  begin "upgrade of all packages while the run trains"
  for name in "${agents[@]}" sched; do
    on "$name" sh -c "$upgrade" >"$run/$name/upgrade.log" 2>&1 </dev/null || { cat "$run/$name/upgrade.log"; fail "$name cannot be upgraded"; }
    wait_for 150 "the pool has three nodes" nodes_are 3
  done
  goes_on "after the upgrade"

  begin "a machine reboots"
  power_off a2
  boot a2 10.78.0.12
  wait_for 60 "the agent of a2 is active again" active a2 modelet-agent
  wait_for 60 "the pool has three nodes again" nodes_are 3

  begin "a back-up of the scheduler at work, which its user could start"
  on sched modelet-scheduler backup --config /etc/modelet/scheduler.toml /var/backups/modelet
  owned sched "modelet-scheduler:modelet-scheduler 700" /var/backups/modelet
  owned sched "modelet-scheduler:modelet-scheduler 600" /var/backups/modelet/ledger.sqlite /var/backups/modelet/allowed
  active sched modelet-scheduler || fail "the scheduler has ended during its back-up"

  begin "the scheduler moves to another machine, where its user has another number; its address moves, too"
  layered moved "$template"
  in_root "$run/moved/root" sh -c 'apt-get install -y -q --no-install-recommends adduser && adduser --quiet --system --group another' >"$run/moved.log" &&
    in_root "$run/moved/root" sh -c "$upgrade" >>"$run/moved.log" || { cat "$run/moved.log"; fail "the packages cannot be installed"; }
  boot moved 10.78.0.20
  [[ $(on moved id -u modelet-scheduler) != "$(on sched id -u modelet-scheduler)" ]] || fail "the user has the same number"
  # The three commands of docs/install.md, with another way than ssh.
  on sched systemctl disable --quiet --now modelet-scheduler
  on sched tar -C / -cf - etc/modelet/scheduler.key etc/modelet/scheduler.toml var/lib/modelet-scheduler |
    on moved sh -c 'systemctl stop modelet-scheduler && tar -C / -xpf -'
  on sched cat /root/admin.key | on moved sh -c 'umask 077; cat >/root/admin.key'
  remove_machine sched
  ip -n "$bridge-moved" address add $scheduler_address/24 dev eth0
  scheduler_machine=moved
  on moved systemctl start modelet-scheduler
  wait_for 60 "the pool has three nodes again" nodes_are 3
  goes_on "with the scheduler that has moved"

  begin "the scheduler is away while an agent starts: its unit waits, the machine boots"
  on moved systemctl stop modelet-scheduler
  power_off a1
  boot a1 10.78.0.11
  [[ $(on a1 systemctl show -P ActiveState modelet-agent) == activating ]] || fail "without a scheduler the agent's unit must be 'activating'"
  on a1 systemctl show -P StatusText modelet-agent | grep -q "looks for the scheduler" || fail "the status does not say what the agent waits for"
  on a1 systemctl is-active --quiet multi-user.target || fail "the machine's start waits for the scheduler"
  on moved systemctl start modelet-scheduler
  wait_for 60 "the agent of a1 is active" active a1 modelet-agent

  begin "stop: each agent leaves, and its unit does not fail"
  ask stop 1 >/dev/null
  wait_for 120 "the run is stopped" run_is stopped
  for name in "${agents[@]}"; do on "$name" systemctl stop modelet-agent; done
  on moved systemctl stop modelet-scheduler
  failed_never moved "${agents[@]}"
  begin "$((SECONDS - begun)) seconds for this part"
}

# ---- Agents that are brought to machines

# as_alice NAME COMMAND...: an ordinary user of a booted machine.
as_alice() { on "$1" runuser -u alice -- "${@:2}"; }
of_agents=(--cores=1 --memory-mib=1500 --gflops=10 --memory-gbps=5 --dedicated)  # which share this computer
# machines_with NAME PACKAGES: a root with packages of Debian and the user alice, on which layers of machines can stand.
machines_with() {
  layered "$1" "$template"
  in_root "$run/$1/root" sh -c "apt-get install -y -q --no-install-recommends $2 && useradd --create-home --shell /bin/bash --uid 1000 alice" >"$run/$1.log" ||
    { cat "$run/$1.log"; fail "packages cannot be installed: $2"; }
}
make_scheduler() {
  boot sched $scheduler_address
  wait_for 60 "the scheduler is active" active sched modelet-scheduler
  scheduler_key=$(on sched modelet key /etc/modelet/scheduler.key)
  on sched modelet keygen /root/admin.key --allow-list /var/lib/modelet-scheduler/allowed --role admin --name root >/dev/null
}
submit_endless() {
  ask submit /usr/share/doc/modelet/experiments/quickstart.toml --set train.epochs=1000 --nodes "$1" >"$run/submit.log" 2>&1 || { cat "$run/submit.log"; fail "submit"; }
  wait_for 120 "the run does steps" step_after 20
}
none_is_lost() { ! ask nodes --json | grep '"state":"lost"' || fail "an agent was lost that should have left"; }

# A job that was put back into the queue starts again after cred_expire seconds.
slurm_configuration() {
  echo CgroupPlugin=cgroup/v1 >"$1/cgroup.conf"
  cat >"$1/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=sched($scheduler_address)
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=15
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
KillWait=90
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
NodeName=n1 NodeAddr=10.78.0.11 CPUs=2 CoresPerSocket=2 RealMemory=4000
NodeName=n2 NodeAddr=10.78.0.12 CPUs=2 CoresPerSocket=2 RealMemory=4000
PartitionName=spare Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60 PreemptMode=REQUEUE
PartitionName=urgent Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
CONF
}
nodes_are_idle() { [[ $(on sched sinfo --noheader --partition=spare --states=idle --format=%D) == 2 ]]; }
queue_is_empty() { [[ -z $(on sched squeue --noheader) ]]; }

part_slurm() {
  local name word
  make_template
  make_network
  begin "Slurm with two nodes boots"
  machines_with slurm "/packages/new/modelet_*.deb /packages/new/modelet-agent_*.deb /packages/new/modelet-scheduler_*.deb slurmctld slurmd slurm-client munge"
  slurm_configuration "$run/slurm/root/etc/slurm"
  printf '%s\n' "$scheduler_address sched" "10.78.0.11 n1" "10.78.0.12 n2" >>"$run/slurm/root/etc/hosts"
  umount "$run/slurm/root"
  for name in sched n1 n2; do layered "$name" "$run/slurm/up:$template"; done
  in_root "$run/sched/root" systemctl disable --quiet slurmd
  for name in n1 n2; do in_root "$run/$name/root" systemctl disable --quiet slurmctld modelet-scheduler; done
  make_scheduler
  boot n1 10.78.0.11
  boot n2 10.78.0.12
  wait_for 60 "Slurm has two idle nodes" nodes_are_idle

  begin "modelet launch slurm -N 2"
  word=$(on sched modelet-scheduler invite --config /etc/modelet/scheduler.toml)
  install -d -o 1000 -g 1000 "$shared/alice"
  as_alice sched modelet launch slurm -N 2 --invitation "$word" --folder /shared/alice/agents --partition spare "${of_agents[@]/#/--agent=}"
  wait_for 120 "the pool has two nodes" nodes_are 2
  submit_endless 2

  begin "a job of more weight takes a node: its agent leaves, the run goes on with the other"
  as_alice sched sbatch --quiet --partition=urgent --nodelist=n1 --exclusive --output=/dev/null --wrap "sleep 20"
  wait_for 120 "an agent leaves" nodes_are 1
  none_is_lost
  goes_on "with one node"
  wait_for 240 "the agent is back" nodes_are 2
  goes_on "with the agent that is back"

  begin "scancel: the agents leave, and stay away"
  as_alice sched modelet launch slurm --down
  wait_for 120 "both agents have left" nodes_are 0
  none_is_lost
  wait_for 60 "the queue is empty" queue_is_empty
  for name in sched n1 n2; do remove_machine "$name"; done
}

part_ssh() {
  local name archive word again=$run/again hosts=(h1 h2)
  archive=$(ls "$packages"/modelet-*-linux-*.tar.xz 2>/dev/null) || fail "$packages has no archive: packaging/make-packages.sh makes it"
  make_template
  make_network
  begin "two machines boot that have nothing but sshd"
  machines_with sshd "openssh-server openssh-client xz-utils /packages/new/modelet_*.deb /packages/new/modelet-scheduler_*.deb"
  umount "$run/sshd/root"
  machines_with hosts "openssh-server xz-utils"
  umount "$run/hosts/root"
  layered sched "$run/sshd/up:$template"
  make_scheduler
  as_alice sched ssh-keygen -q -t ed25519 -N "" -f /home/alice/.ssh/id_ed25519
  for name in "${hosts[@]}"; do
    layered "$name" "$run/hosts/up:$template"
    install -d -o 1000 -g 1000 -m 700 "$run/$name/root/home/alice/.ssh"
    as_alice sched cat /home/alice/.ssh/id_ed25519.pub >"$run/$name/root/home/alice/.ssh/authorized_keys"
    chown 1000:1000 "$run/$name/root/home/alice/.ssh/authorized_keys"
    boot "$name" "10.78.0.2${name#h}"
    wait_for 60 "sshd of $name" active "$name" ssh
  done

  begin "modelet launch ssh: up, with a third machine that is dead"
  install -d -o 1000 -g 1000 "$shared/alice"
  cp "$archive" "$shared/alice/first.tar.xz"
  mkdir "$again"
  tar -C "$again" -xf "$archive"
  touch "$(echo "$again"/modelet-*)/second"
  tar -C "$again" -czf "$shared/alice/second.tar.gz" "$(basename "$again"/modelet-*)"
  word=$(on sched modelet-scheduler invite --config /etc/modelet/scheduler.toml)
  {
    echo "tarball = '/shared/alice/first.tar.xz'"
    echo "invitation = '$word'"
    echo "ssh_options = ['-o', 'StrictHostKeyChecking=accept-new']"
    printf "agent_options = [%s]\n" "$(printf "'%s', " "${of_agents[@]}" --leave-seconds=20)"
    printf "[[host]]\nname = '%s'\naddress = 'alice@%s'\n" h1 10.78.0.21 h2 10.78.0.22
  } >"$shared/alice/alive.toml"
  { cat "$shared/alice/alive.toml"; printf "[[host]]\nname = 'dead'\naddress = 'alice@10.78.0.99'\n"; } >"$shared/alice/hosts.toml"
  launch_gives 1 up "h1.*ok" "h2.*ok" "dead.*FAILED.*not reached"
  wait_for 60 "the pool has two nodes" nodes_are 2
  submit_endless 2
  mv "$shared/alice/alive.toml" "$shared/alice/hosts.toml"
  launch_gives 0 status "h1.*ok.*runs" "h2.*ok.*runs"

  begin "a machine fails, and boots again"
  kill -9 "$(pgrep -P "${leaders[h2]}" | head -1)"
  power_off h2
  launch_gives 1 status "h1.*ok.*runs" "h2.*FAILED.*not reached"
  wait_for 60 "a node is lost" nodes_are 1
  goes_on "with one node"
  boot h2 10.78.0.22
  wait_for 60 "sshd of h2" active h2 ssh
  launch_gives 0 status "h2.*ok.*stopped"
  launch_gives 0 up "h2.*ok.*runs"
  wait_for 60 "the pool has two nodes" nodes_are 2

  begin "upgrade while the run trains, down"
  sed -i 's/first.tar.xz/second.tar.gz/' "$shared/alice/hosts.toml"
  launch_gives 0 status "h1.*other programs"
  launch_gives 0 upgrade "h1.*ok.*runs" "h2.*ok.*runs"
  on h1 test -e /home/alice/modelet/app/second || fail "the upgrade has not changed the programs"
  wait_for 60 "the pool has two nodes" nodes_are 2
  goes_on "after the upgrade"
  launch_gives 0 down --remove "h1.*ok" "h2.*ok"
  wait_for 60 "no agent is left" nodes_are 0
  for name in "${hosts[@]}"; do ! on "$name" test -e /home/alice/modelet || fail "$name has something left"; done
  for name in sched "${hosts[@]}"; do remove_machine "$name"; done
}
# launch_gives CODE ACTION [--OPTION] LINE...: ends with this code, and a line that matches each.
launch_gives() {
  local code=0 said line arguments=("$2")
  local wanted=$1
  shift 2
  while [[ ${1:-} == --* ]]; do arguments+=("$1"); shift; done
  said=$(as_alice sched modelet launch ssh /shared/alice/hosts.toml "${arguments[@]}" 2>&1) || code=$?
  echo "$said"
  ((code == wanted)) || fail "launch ssh ${arguments[*]} ended with $code, not $wanted"
  for line in "$@"; do grep -q "$line" <<<"$said" || fail "launch ssh ${arguments[*]} does not say: $line"; done
}

for part in "${parts[@]}"; do "part_$part"; done
begin "everything was as it should be"
