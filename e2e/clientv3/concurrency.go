package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"
)

const writers, rounds = 4, 8

func session(client *clientv3.Client) *concurrency.Session {
	return done(concurrency.NewSession(client, concurrency.WithTTL(60)))
}

func mutexes(ctx context.Context, client *clientv3.Client) {
	mine, others := session(client), session(connect())
	first, second := concurrency.NewMutex(mine, "mutex"), concurrency.NewMutex(others, "mutex")
	must(first.Lock(ctx))
	err := second.TryLock(ctx)
	fmt.Println("tried:", err, errors.Is(err, concurrency.ErrLocked))
	owned := done(client.Txn(ctx).If(first.IsOwner()).Then(clientv3.OpPut("owned", "1")).Commit())
	fmt.Println("owner:", owned.Succeeded, strings.HasPrefix(first.Key(), "mutex/"))
	locked := make(chan error)
	go func() { locked <- second.Lock(ctx) }()
	must(first.Unlock(ctx))
	must(next(locked))
	fmt.Println("owner behind:", done(client.Txn(ctx).If(first.IsOwner()).Commit()).Succeeded)
	// A session that ends takes its locks along.
	must(others.Close())
	must(first.Lock(ctx))
	must(mine.Close())
	fmt.Println("left:", pairs(done(client.Get(ctx, "mutex", clientv3.WithPrefix()))))

	// A lock keeps what it guards.
	var group sync.WaitGroup
	counted := 0
	for range writers {
		group.Add(1)
		go func() {
			defer group.Done()
			mine := session(connect())
			locker := concurrency.NewLocker(mine, "locker")
			for range rounds {
				locker.Lock()
				counted++
				locker.Unlock()
			}
			must(mine.Close())
		}()
	}
	group.Wait()
	fmt.Println("counted:", counted)
}

func elections(ctx context.Context, client *clientv3.Client) {
	mine, others := session(client), session(connect())
	first, second := concurrency.NewElection(mine, "election"), concurrency.NewElection(others, "election")
	_, err := first.Leader(ctx)
	fmt.Println("nobody:", err, errors.Is(err, concurrency.ErrElectionNoLeader))
	must(first.Campaign(ctx, "one"))
	observed := second.Observe(ctx)
	seen := next(observed)
	fmt.Println("observed:", string(seen.Kvs[0].Value))
	elected := make(chan error)
	go func() { elected <- second.Campaign(ctx, "two") }()
	must(first.Proclaim(ctx, "uno"))
	seen = next(observed)
	fmt.Println("proclaimed:", string(seen.Kvs[0].Value))
	resumed := concurrency.ResumeElection(mine, "election", first.Key(), first.Rev())
	must(resumed.Resign(ctx))
	must(next(elected))
	leader := done(first.Leader(ctx))
	fmt.Println("leads:", string(leader.Kvs[0].Value), done(client.Get(ctx, first.Key())).Count)
	fmt.Println("no leader proclaims:", first.Proclaim(ctx, "late"))
	must(others.Close())
	must(mine.Close())
	fmt.Println("left:", pairs(done(client.Get(ctx, "election", clientv3.WithPrefix()))))
}

func transactions(ctx context.Context, client *clientv3.Client) {
	for _, isolation := range []concurrency.Isolation{
		concurrency.SerializableSnapshot, concurrency.Serializable, concurrency.RepeatableReads, concurrency.ReadCommitted,
	} {
		key := fmt.Sprintf("stm/%d", isolation)
		var group sync.WaitGroup
		for range writers {
			group.Add(1)
			go func() {
				defer group.Done()
				for range rounds {
					_, err := concurrency.NewSTM(client, func(stm concurrency.STM) error {
						number, _ := strconv.Atoi(stm.Get(key))
						stm.Put(key, strconv.Itoa(number+1))
						if stm.Get(key) != strconv.Itoa(number+1) {
							return errors.New("it does not read what it wrote")
						}
						return nil
					}, concurrency.WithIsolation(isolation), concurrency.WithAbortContext(ctx))
					must(err)
				}
			}()
		}
		group.Wait()
		found := done(client.Get(ctx, key))
		if isolation == concurrency.ReadCommitted {
			// Not all of these count.
			fmt.Println("written:", isolation, found.Count)
			continue
		}
		fmt.Println("counted:", isolation, pairs(found))
	}
	_, err := concurrency.NewSTM(client, func(stm concurrency.STM) error {
		stm.Del("stm/0")
		fmt.Println("absent:", stm.Rev("none"), stm.Get("none") == "", stm.Get("stm/0") == "")
		return nil
	})
	must(err)
	fmt.Println("deleted:", done(client.Get(ctx, "stm/0")).Count)
}

func recipes(ctx context.Context, client *clientv3.Client) {
	queue := recipe.NewPriorityQueue(client, "queue")
	for n, value := range []string{"c", "a", "b"} {
		must(queue.Enqueue(value, uint16([]int{9, 0, 5}[n])))
	}
	fmt.Println("queue:", done(queue.Dequeue()), done(queue.Dequeue()), done(queue.Dequeue()))
	taken := make(chan string)
	go func() { taken <- done(recipe.NewQueue(connect(), "fifo").Dequeue()) }()
	must(recipe.NewQueue(client, "fifo").Enqueue("late"))
	fmt.Println("waited for:", next(taken))

	barrier := recipe.NewBarrier(client, "barrier")
	must(barrier.Hold())
	fmt.Println("held twice:", barrier.Hold())
	passed := make(chan error)
	go func() { passed <- recipe.NewBarrier(connect(), "barrier").Wait() }()
	must(barrier.Release())
	fmt.Println("passed:", next(passed))

	both := make(chan error)
	for range 2 {
		go func() {
			mine := session(connect())
			double := recipe.NewDoubleBarrier(mine, "double", 2)
			must(double.Enter())
			must(double.Leave())
			both <- mine.Close()
		}()
	}
	fmt.Println("entered and left:", next(both), next(both))

	reader, writer := session(connect()), session(connect())
	read, write := recipe.NewRWMutex(reader, "rw"), recipe.NewRWMutex(writer, "rw")
	must(read.RLock())
	locked := make(chan error)
	go func() { locked <- write.Lock() }()
	must(read.RUnlock())
	fmt.Println("locked:", next(locked))
	must(write.Unlock())
	must(reader.Close())
	must(writer.Close())
	fmt.Println("left:", pairs(done(client.Get(ctx, "rw", clientv3.WithPrefix()))))
}
