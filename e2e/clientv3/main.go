// Uses each package of etcd's Go client on a server, and prints what came back: the same on every server that is etcd.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sort"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// No answer takes so long.
const patience = 30 * time.Second

func main() {
	if len(os.Args) != 2 {
		log.Fatalf("usage: %s ENDPOINT", os.Args[0])
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	for _, part := range []struct {
		name string
		run  func(context.Context, *clientv3.Client)
	}{
		{"mutex", mutexes},
		{"election", elections},
		{"stm", transactions},
		{"recipes", recipes},
		{"leasing", leasings},
		{"mirror", mirrors},
		{"namespace", namespaces},
		{"ordering", orderings},
		{"naming", endpointsOf},
	} {
		fmt.Println("==", part.name)
		part.run(ctx, connect())
	}
}

func connect() *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Args[1]}, DialTimeout: patience})
	must(err)
	return client
}

func must(err error) {
	if err != nil {
		// With the place in this program.
		log.Output(2, err.Error())
		os.Exit(1)
	}
}

func done[T any](value T, err error) T {
	if err != nil {
		log.Output(2, err.Error())
		os.Exit(1)
	}
	return value
}

// The next message of a channel.
func next[T any](from <-chan T) T {
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		log.Output(2, "nothing came")
		os.Exit(1)
		panic("unreachable")
	}
}

func pairs(response *clientv3.GetResponse) string {
	var found []string
	for _, kv := range response.Kvs {
		found = append(found, fmt.Sprintf("%s=%s (version %d)", kv.Key, kv.Value, kv.Version))
	}
	sort.Strings(found)
	return fmt.Sprintf("%d: %s", response.Count, strings.Join(found, ", "))
}

func events(response clientv3.WatchResponse) string {
	var found []string
	for _, event := range response.Events {
		found = append(found, fmt.Sprintf("%s %s=%s", event.Type, event.Kv.Key, event.Kv.Value))
	}
	return strings.Join(found, ", ")
}
