"""The announcement as it was before digests, numbers and the stream of changes: to be measured against.

Not a benchmark itself. One call per 256 stored or removed blocks, each with its meta in KEYS and its hash in ARGV.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.cluster.calls import Call, Script, run
from tiered.cluster.connection import Client
from tiered.cluster.keys import Keys
from tiered.types import BlockHash, Epoch, NodeId

TEXT = """#!lua flags=allow-oom
local function read_record(meta_key)
  local packed = redis.call('GET', meta_key)
  if packed then
    local fine, record = pcall(cmsgpack.unpack, packed)
    if fine and type(record) == 'table' and #record == 7 then return record end
  end
  return {0, 0, {}, 0, 0, {}, ''}
end

local function write_record(meta_key, record)
  if record[1] == 0 and #record[6] == 0 then
    redis.call('DEL', meta_key)
  else
    redis.call('SET', meta_key, cmsgpack.pack(record))
  end
end

local node, epoch, n_stored = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local changed = 0
for i = 1, #ARGV - 3 do
  local meta_key, hash = KEYS[i + 1], ARGV[i + 3]
  local record = read_record(meta_key)
  local owners = record[6]
  local at
  for place = 1, #owners, 2 do
    if owners[place] == node then at = place end
  end
  local seen = at and owners[at + 1]
  if i <= n_stored then
    if not seen or seen <= epoch then
      redis.call('SADD', KEYS[1], hash)
      if seen ~= epoch then
        at = at or #owners + 1
        owners[at], owners[at + 1] = node, epoch
        write_record(meta_key, record)
        changed = changed + 1
      end
    end
  else
    redis.call('SREM', KEYS[1], hash)
    if seen and seen <= epoch then
      table.remove(owners, at + 1)
      table.remove(owners, at)
      write_record(meta_key, record)
      changed = changed + 1
    end
  end
end
return changed
"""
STEP = 256


def announce(
    client: Client,
    script: Script,
    keys: Keys,
    node: NodeId,
    epoch: Epoch,
    stored: Sequence[BlockHash],
    removed: Sequence[BlockHash],
) -> None:
    halves = [(stored[i : i + STEP], ()) for i in range(0, len(stored), STEP)]
    halves += [((), removed[i : i + STEP]) for i in range(0, len(removed), STEP)]
    calls = []
    for here, gone in halves:
        metas = [keys.meta(block_hash) for block_hash in (*here, *gone)]
        calls.append(Call([keys.node_blocks(node, epoch), *metas], [node, epoch, len(here), *here, *gone]))
    run(client, script, calls)
