"""The package etcd3: each kind of request, and what comes back."""

import sys

import etcd3

host, port = sys.argv[1].split(":")
client = etcd3.client(host=host, port=int(port), timeout=20)
transactions = client.transactions

client.put("/k/a", "1")
print("get:", client.get("/k/a")[0], client.get("/k/none"))
print("prefix:", [(value, meta.key, meta.version) for value, meta in client.get_prefix("/k/")])
done, answers = client.transaction(
    compare=[transactions.value("/k/a") == "1", transactions.version("/k/a") > 0],
    success=[transactions.put("/k/a", "2"), transactions.get("/k/a")],
    failure=[transactions.delete("/k/a")],
)
print("txn:", done, answers[1][0][0])
print("replace:", client.replace("/k/a", "2", "4"), client.replace("/k/a", "2", "5"), client.put_if_not_exists("/k/a", "x"))
lease = client.lease(600)
client.put("/k/l", "v", lease=lease)
print("lease:", lease.granted_ttl, lease.remaining_ttl > 0, [answer.TTL for answer in lease.refresh()], lease.keys)
lease.revoke()
print("revoked:", client.get("/k/l")[0])
events, cancel = client.watch_prefix("/w/")
for key in range(3):
    client.put(f"/w/{key}", str(key))
client.delete("/w/0")
seen = [next(events) for _ in range(4)]
print("events:", [(type(event).__name__, event.key, event.value) for event in seen])
cancel()
with client.lock("mine", ttl=20) as lock:
    print("lock:", lock.is_acquired(), client.lock("mine", ttl=20).acquire(timeout=1))
print("members:", [member.name for member in client.members], client.status().version)
try:
    client.put("/k/a", "x" * (2 << 20))
except Exception as error:
    print("too large:", type(error).__name__)
revision = client.get("/k/a")[1].mod_revision
client.compact(revision)
print("deleted:", client.delete_prefix("/k/").deleted)
client.defragment()
print("alarms:", list(client.list_alarms()), client.hash() != 0)
