#!/bin/sh
# Makes one Redis Cluster, three masters and three replicas, of the servers of docker-compose.yml, and keeps it together:
# after a restart of the machine the servers have other addresses, and look for each other at those of before.
# /tmp/whole is there while all of them see each other and the cluster serves.
set -u

REDISCLI_AUTH=$(cat /run/secrets/redis/password)
export REDISCLI_AUTH

n_servers=6

# What a server answers; nothing where nobody does.
ask() {
    address=$1
    shift
    timeout 5 redis-cli -h "$address" "$@" 2>/dev/null
}

# Of those that have one now.
addresses() {
    number=0
    while [ "$number" -lt "$n_servers" ]; do
        number=$((number + 1))
        timeout 2 getent hosts "redis-cluster-$number" | awk 'NR == 1 { print $1 }'
    done
}

# Whether each of these serves and is linked to all others. A server may serve and not know where another is: it would
# send clients there with an address that is none.
is_whole() {
    [ "$#" -eq "$n_servers" ] || return 1
    for server in "$@"; do
        ask "$server" cluster info | grep -q '^cluster_state:ok' || return 1
        linked=$(ask "$server" cluster nodes | awk '$8 == "connected" && $3 !~ /fail|handshake|noaddr/' | wc -l)
        [ "$linked" -eq "$n_servers" ] || return 1
    done
}

# Make a cluster of servers that are all new; tell those of one where each of the others is now.
mend() {
    members=""
    n_new=0
    for server in "$@"; do
        slots=$(ask "$server" cluster info | awk -F '[:\r]' '$1 == "cluster_slots_assigned" { print $2 }')
        case $slots in
        "") ;; # no answer yet
        0) n_new=$((n_new + 1)) ;;
        *) members="$members $server" ;;
        esac
    done
    for member in $members; do
        for server in "$@"; do
            [ "$member" = "$server" ] || ask "$member" cluster meet "$server" 6379 >/dev/null
        done
    done
    if [ "$n_new" -eq "$n_servers" ]; then
        hosts=""
        for server in "$@"; do
            hosts="$hosts $server:6379"
        done
        # shellcheck disable=SC2086  # words are what is wanted
        redis-cli --cluster create $hosts --cluster-replicas 1 --cluster-yes
    fi
}

rm -f /tmp/whole
while true; do
    # shellcheck disable=SC2046  # words are what is wanted
    set -- $(addresses)
    if is_whole "$@"; then
        [ -e /tmp/whole ] || echo "form-cluster: the cluster is whole"
        touch /tmp/whole
    else
        [ ! -e /tmp/whole ] || echo "form-cluster: a server is missing, or is not found by the others"
        rm -f /tmp/whole
        mend "$@"
    fi
    sleep 5
done
