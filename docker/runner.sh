#!/usr/bin/env bash
# `stop-runner`: the two processes of the runner. A Ray driver (a pretraining stage) needs a raylet on its own machine, so this
# container is a node of the cluster, with nothing to offer: workers are never placed beside the stages.
set -uo pipefail
node='' deployments=''

# The deployments first: a stage in progress gets time to save its state, and needs its node for that.
stop() {
  for process in $deployments $node; do
    kill -TERM "$process" 2>/dev/null
    wait "$process"
  done
}
trap 'stop; exit 0' TERM INT

# Ray writes this file when the node has joined. One of an earlier start would say so too soon.
joined=${RAY_TMPDIR:-${TMPDIR:-/tmp}}/ray/ray_current_cluster
rm -f "$joined"
ray start --address="$RAY_ADDRESS" --num-cpus=0 --num-gpus=0 --object-store-memory="$RAY_OBJECT_STORE" \
  --disable-usage-stats --block &
node=$!
while [ ! -e "$joined" ] && kill -0 "$node" 2>/dev/null; do sleep 0.2; done

# No deployment before that: a run that was waiting would find no node. Then neither is of use alone: when one has ended, so
# does the container, and its restart policy starts both.
if [ -e "$joined" ]; then
  python -m flows.deploy &
  deployments=$!
  wait -n "$node" "$deployments"
else
  wait "$node"
fi
status=$?
echo "stop-runner: $(kill -0 "$node" 2>/dev/null && echo 'the deployments' || echo 'the Ray node') ended with status $status" >&2
stop
exit $((status ? status : 1))
