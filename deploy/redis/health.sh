#!/bin/sh
# Whether the server answers and has read its snapshot; and, where CLUSTER names a server of one, whether its Redis
# Cluster has formed.
set -eu

REDISCLI_AUTH=$(cat /run/secrets/redis/password)
export REDISCLI_AUTH

redis-cli ping | grep -q PONG
[ -z "${CLUSTER:-}" ] || redis-cli -h "$CLUSTER" cluster info | grep -q '^cluster_state:ok'
