package main

import (
	"context"
	"fmt"
	"sort"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/leasing"
	"go.etcd.io/etcd/client/v3/mirror"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
	"go.etcd.io/etcd/client/v3/ordering"
)

func leasings(ctx context.Context, client *clientv3.Client) {
	one, end, err := leasing.NewKV(client, "leases/")
	must(err)
	two, endOther, err := leasing.NewKV(connect(), "leases/")
	must(err)
	done(client.Put(ctx, "l/a", "0"))
	fmt.Println("owned:", pairs(done(one.Get(ctx, "l/a"))), done(client.Get(ctx, "leases/l/a")).Count)
	// The owner has to let go of it first.
	done(two.Put(ctx, "l/a", "1"))
	fmt.Println("seen:", pairs(done(one.Get(ctx, "l/a"))))
	for n := range 5 {
		done([]clientv3.KV{one, two}[n%2].Put(ctx, fmt.Sprintf("l/%d", n), fmt.Sprint(n)))
	}
	fmt.Println("all:", pairs(done(two.Get(ctx, "l/", clientv3.WithPrefix()))))
	txn := done(one.Txn(ctx).
		If(clientv3.Compare(clientv3.Value("l/0"), "=", "0"), clientv3.Compare(clientv3.Version("l/none"), "=", 0)).
		Then(clientv3.OpPut("l/0", "x"), clientv3.OpDelete("l/1"), clientv3.OpGet("l/2")).
		Else(clientv3.OpGet("l/3")).Commit())
	fmt.Println("txn:", txn.Succeeded, len(txn.Responses), pairs(done(two.Get(ctx, "l/0"))))
	fmt.Println("deleted:", done(one.Delete(ctx, "l/", clientv3.WithPrefix())).Deleted, pairs(done(two.Get(ctx, "l/2"))))
	end()
	endOther()
}

func mirrors(ctx context.Context, client *clientv3.Client) {
	const keys = 2500 // more than it asks for at once
	for from := 0; from < keys; from += 100 {
		var puts []clientv3.Op
		for n := from; n < from+100; n++ {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("m/%04d", n), fmt.Sprint(n)))
		}
		done(client.Txn(ctx).Then(puts...).Commit())
	}
	syncer := mirror.NewSyncer(client, "m/", 0)
	base, failed := syncer.SyncBase(ctx)
	count, first, last := 0, "", ""
	for response := range base {
		if count == 0 {
			first = string(response.Kvs[0].Key)
		}
		count += len(response.Kvs)
		last = string(response.Kvs[len(response.Kvs)-1].Key)
	}
	must(<-failed)
	fmt.Println("base:", count, first, last)
	updates := syncer.SyncUpdates(ctx)
	done(client.Put(ctx, "m/new", "1"))
	done(client.Put(ctx, "n/other", "1"))
	done(client.Delete(ctx, "m/0000"))
	fmt.Println("update:", events(next(updates)))
	fmt.Println("update:", events(next(updates)))
}

func namespaces(ctx context.Context, client *clientv3.Client) {
	kv, watcher := namespace.NewKV(client.KV, "ns/"), namespace.NewWatcher(client.Watcher, "ns/")
	lease := namespace.NewLease(client.Lease, "ns/")
	defer watcher.Close()
	seen := watcher.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
	fmt.Println("created:", next(seen).Created)
	granted := done(lease.Grant(ctx, 600))
	done(kv.Put(ctx, "a", "1", clientv3.WithLease(granted.ID)))
	fmt.Println("event:", events(next(seen)))
	done(client.Put(ctx, "ns0", "outside"))
	done(client.Put(ctx, "ns/b", "2"))
	fmt.Println("event:", events(next(seen)))
	fmt.Println("inside:", pairs(done(kv.Get(ctx, "", clientv3.WithPrefix()))), pairs(done(kv.Get(ctx, "", clientv3.WithFromKey()))))
	fmt.Println("outside:", pairs(done(client.Get(ctx, "ns", clientv3.WithPrefix()))))
	ttl := done(lease.TimeToLive(ctx, granted.ID, clientv3.WithAttachedKeys()))
	fmt.Printf("keys of the lease: %s, granted for %d\n", ttl.Keys, ttl.GrantedTTL)
	txn := done(kv.Txn(ctx).If(clientv3.Compare(clientv3.Version("a"), "=", 1)).
		Then(clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpGet("b")}, nil), clientv3.OpDelete("", clientv3.WithPrefix(), clientv3.WithPrevKV())).
		Commit())
	inner, deleted := txn.Responses[0].GetResponseTxn(), txn.Responses[1].GetResponseDeleteRange()
	fmt.Printf("txn: %t %s %d %s\n", txn.Succeeded, inner.Responses[0].GetResponseRange().Kvs[0].Key, deleted.Deleted, deleted.PrevKvs[1].Key)
	fmt.Println("events:", events(next(seen)))
	done(lease.Revoke(ctx, granted.ID))
}

func orderings(ctx context.Context, client *clientv3.Client) {
	violations := 0
	closure := ordering.NewOrderViolationSwitchEndpointClosure(client)
	kv := ordering.NewKV(client.KV, func(op clientv3.Op, response clientv3.OpResponse, revision int64) error {
		violations++
		return closure(op, response, revision)
	})
	done(kv.Put(ctx, "o", "0"))
	for n := range 20 {
		done(client.Put(ctx, "o", fmt.Sprint(n+1)))
		done(kv.Get(ctx, "o", clientv3.WithSerializable()))
		done(kv.Txn(ctx).If(clientv3.Compare(clientv3.Value("o"), "=", fmt.Sprint(n))).Then(clientv3.OpGet("o")).Else(clientv3.OpGet("none")).Commit())
	}
	fmt.Println("violations:", violations, pairs(done(kv.Get(ctx, "o"))))
}

func endpointsOf(ctx context.Context, client *clientv3.Client) {
	manager := done(endpoints.NewManager(client, "service"))
	watched := done(manager.NewWatchChannel(ctx))
	granted := done(client.Grant(ctx, 600))
	must(manager.AddEndpoint(ctx, "service/a", endpoints.Endpoint{Addr: "10.0.0.1:80", Metadata: "first"}, clientv3.WithLease(granted.ID)))
	for _, update := range next(watched) {
		fmt.Println("update:", update.Op == endpoints.Add, update.Key, update.Endpoint)
	}
	must(manager.Update(ctx, []*endpoints.UpdateWithOpts{
		endpoints.NewAddUpdateOpts("service/b", endpoints.Endpoint{Addr: "10.0.0.2:80"}),
		endpoints.NewDeleteUpdateOpts("service/a"),
	}))
	var updates []string
	for len(updates) < 2 {
		for _, update := range next(watched) {
			updates = append(updates, fmt.Sprint(update.Op == endpoints.Delete, " ", update.Key))
		}
	}
	sort.Strings(updates)
	fmt.Println("updates:", strings.Join(updates, ", "))
	fmt.Println("listed:", done(manager.List(ctx)))
	done(client.Revoke(ctx, granted.ID))
}
