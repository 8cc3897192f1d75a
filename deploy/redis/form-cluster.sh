#!/bin/sh
# Makes one Redis Cluster, three masters and three replicas, of the servers of docker-compose.yml. A cluster that is there
# stays; its servers are told each other's addresses, which may have changed while all of them were down.
set -eu

REDISCLI_AUTH=$(cat /run/secrets/redis/password)
export REDISCLI_AUTH

first=redis-cluster-1
servers=""
for number in 1 2 3 4 5 6; do
    address=$(getent hosts "redis-cluster-$number" | awk '{print $1}')
    servers="$servers $address:6379"
done

if redis-cli -h "$first" cluster info | grep -q '^cluster_slots_assigned:0'; then
    # shellcheck disable=SC2086  # words are what is wanted
    redis-cli --cluster create $servers --cluster-replicas 1 --cluster-yes
else
    for server in $servers; do
        redis-cli -h "$first" cluster meet "${server%:*}" 6379
    done
fi

until redis-cli -h "$first" cluster info | grep -q '^cluster_state:ok'; do
    sleep 1
done
echo "form-cluster: the cluster is there"
