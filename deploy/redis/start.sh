#!/bin/sh
# start.sh server [OPTION...]   a Redis server that follows whoever the Sentinels say leads, or else leads
# start.sh replica [OPTION...]  the same, and follows `redis` while the Sentinels know nobody
# start.sh sentinel             a Sentinel that begins with who leads now
#
# Nothing of this is kept on disk: addresses of containers change, and a Sentinel that remembers yesterday's finds nobody.
# SENTINELS names those to ask. Empty, as without their profile: nobody is asked.
set -eu

REDISCLI_AUTH=$(cat /run/secrets/redis/password)
service=tiered

# The address of the present master as a Sentinel has it, if it answers there.
master() {
    for sentinel in ${SENTINELS:-}; do
        timeout 2 getent hosts "$sentinel" >/dev/null || continue # a name that nobody has yet is looked for far and wide
        address=$(timeout 2 redis-cli -h "$sentinel" -p 26379 --raw \
            sentinel get-master-addr-by-name "$service" 2>/dev/null | head -n 1) || continue
        if [ -n "$address" ] && REDISCLI_AUTH=$REDISCLI_AUTH timeout 2 redis-cli -h "$address" role 2>/dev/null \
            | grep -q '^master'; then
            echo "$address"
            return 0
        fi
    done
    return 0
}

# Servers and Sentinels know each other by address. They ask for a name on the thread that does everything else, and that of
# a container which has gone may be asked for for ten seconds: nobody answers then, and no failover comes about.
address_of() {
    getent hosts "$1" | awk 'NR == 1 { print $1 }'
}

mine=$(hostname -i | awk '{print $1}')
kind=$1
shift
leader=$(master)
case $kind in
sentinel | replica)
    : "${leader:=$(address_of redis)}"
    [ -n "$leader" ] || { echo "redis: no such host yet" >&2; exit 1; }
    ;;
esac

case $kind in
sentinel)
    umask 077
    cat >/tmp/sentinel.conf <<CONF
port 26379
dir /tmp
protected-mode no
sentinel monitor $service $leader 6379 2
sentinel auth-pass $service $REDISCLI_AUTH
sentinel down-after-milliseconds $service 5000
sentinel failover-timeout $service 10000
CONF
    exec redis-server /tmp/sentinel.conf --sentinel
    ;;
esac

if [ -n "$leader" ] && [ "$leader" != "$mine" ]; then
    exec redis-server /etc/redis.conf --replicaof "$leader" 6379 "$@"
fi
exec redis-server /etc/redis.conf "$@"
