"""Two members of Patroni elect a leader through the JSON gateway, by Patroni's own code for etcd v3."""

import json
import logging
import sys
import time

from patroni.dcs import get_dcs

# Patroni interrupts its own watch, and says so as an error.
logging.disable(logging.CRITICAL)

# Longer than a loaded machine stands still: a lease that ends between two steps would be an answer of neither server.
TTL = 15
DEADLINE = 120


def member(name):
    return get_dcs(
        {
            "etcd3": {"hosts": [sys.argv[1]]},
            "scope": "demo",
            "namespace": "/service",
            "name": name,
            "ttl": TTL,
            "loop_wait": 1,
            "retry_timeout": 30,
            "maximum_lag_on_failover": 0,
            "postgresql": {},
            "tags": {},
        }
    )


def until(what):
    end = time.monotonic() + DEADLINE
    while not what():
        if time.monotonic() > end:
            sys.exit("it took too long")
        time.sleep(0.1)


def state(name):
    return {"state": "running", "role": "replica", "conn_url": f"postgres://{name}", "api_url": f"http://{name}"}


a, b = member("a"), member("b")
print("members register:", a.touch_member(state("a")), b.touch_member(state("b")))
print("one initializes:", bool(a.initialize(True, "42")), bool(b.initialize(True, "43")))
print("one leads:", bool(a.attempt_to_acquire_leader()), bool(b.attempt_to_acquire_leader()))
# It sees what its watch has told it so far.
until(lambda: b.get_cluster().leader is not None)
cluster = b.get_cluster()
print("the other sees:", cluster.leader.name, sorted(m.name for m in cluster.members), cluster.initialize)
print("the leader goes on:", a.update_leader(cluster, 100))
print("configuration:", a.set_config_value(json.dumps({"ttl": TTL})))
until(lambda: b.get_cluster().config is not None)
print("the other reads it:", b.get_cluster().config.data)
until(lambda: b.get_cluster().is_unlocked())
print("the leader's lease has run out")
print("the other leads:", bool(b.attempt_to_acquire_leader()), b.get_cluster().leader.name)
print("it gives up:", bool(b.delete_leader(b.get_cluster().leader)), b.get_cluster().is_unlocked())
