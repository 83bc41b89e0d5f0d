# shellcheck shell=bash
# Sourced by the demo and the end-to-end scripts: numbered, timed steps and the
# picture of the machine that is compared before and after.

step_number=0
started_at=$SECONDS

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# step TITLE COMMAND...: says what it does, does it in this shell, and says how
# long it took.
step() {
  local title=$1 begin
  shift
  step_number=$((step_number + 1))
  printf '\n==> %d. %s\n' "$step_number" "$title"
  begin=$(date +%s%N)
  "$@"
  printf '    (%d ms)\n' $((($(date +%s%N) - begin) / 1000000))
}

done_in() {
  printf '\nDone: %d steps in %d s.\n' "$step_number" $((SECONDS - started_at))
}

# wait_for SECONDS WHAT COMMAND...: tries until the command succeeds.
wait_for() {
  local limit=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    ((SECONDS < limit)) || fail "gave up waiting for $what"
    [[ -z ${dev_pid:-} ]] || kill -0 "$dev_pid" 2>/dev/null || fail "sandbar dev has ended"
    sleep 0.2
  done
}

free_port() {
  local port
  for port in $(shuf -i 20000-32000 -n 50); do
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "$port"
      return
    fi
  done
  fail "no free port"
}

# snapshot prints what a sandbox could leave behind on this machine.
snapshot() {
  echo "# mounts"
  awk '{print $5, $9}' /proc/self/mountinfo | sort
  echo "# network namespaces"
  ip netns list | sort
  echo "# links"
  ip -br link | awk '{print $1}' | sort
  echo "# nftables tables"
  nft list tables 2>/dev/null | sort
  echo "# cgroups"
  find /sys/fs/cgroup -type d -path '*sandbar*' | sort
  echo "# processes"
  # shellcheck disable=SC2009 # PIDs, which pgrep prints too, differ each time
  ps -eo args | grep -E '[s]andbar-guest|[s]andbar (runner|dev|serve)|[r]unsc(-| )(sandbox|gofer|boot)|[/]\.sandbar/guest' | sort || true
  echo "# forwarding"
  cat /proc/sys/net/ipv4/ip_forward
}
