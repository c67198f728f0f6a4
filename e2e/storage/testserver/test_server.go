// Package testserver takes the place of k8s.io/apiserver/pkg/storage/etcd3/testserver when upstream's storage tests are
// built with an overlay: same functions, but the server is the program that KUBEBRAIN_BIN names, in a process of its own.
//
// A setting that a test makes and that is not handed to the program fails that test: nothing is dropped in silence.
package testserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
)

const (
	binary       = "KUBEBRAIN_BIN"
	ready        = "ready to serve client requests"
	startTimeout = 60 * time.Second
	keptLines    = 40
)

// One at a time looks for free ports and starts its server on them.
var starting sync.Mutex

// NewTestConfig is the configuration of one member on free ports, with a data directory that ends with the test.
func NewTestConfig(t testing.TB) *embed.Config {
	t.Helper()
	cfg := embed.NewConfig()
	client, peer := freeURLs(t)
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.Dir = t.TempDir()
	if err := os.Chmod(cfg.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// RunEtcd starts the program with this configuration (or that of NewTestConfig), waits until it is ready and connects to
// it. The program is killed when the test ends, and by the kernel if the tests themselves are killed.
func RunEtcd(t testing.TB, cfg *embed.Config) *kubernetes.Client {
	t.Helper()
	if cfg == nil {
		starting.Lock()
		defer starting.Unlock()
		cfg = NewTestConfig(t)
	}
	start(t, arguments(t, cfg))

	tlsConfig, err := cfg.ClientTLSInfo.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	endpoints := make([]string, 0, len(cfg.AdvertiseClientUrls))
	for _, each := range cfg.AdvertiseClientUrls {
		endpoints = append(endpoints, each.String())
	}
	client, err := kubernetes.New(clientv3.Config{
		TLS:         tlsConfig,
		Endpoints:   endpoints,
		DialTimeout: 10 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithBlock()},
		Logger:      zaptest.NewLogger(t, zaptest.Level(zapcore.ErrorLevel)).Named("client"),
	})
	if err != nil {
		t.Fatal(err)
	}
	client.KV = storagetesting.NewKVRecorder(client.KV)
	client.Kubernetes = storagetesting.NewKubernetesRecorder(client.Kubernetes)
	return client
}

func freeURLs(t testing.TB) (client, peer url.URL) {
	t.Helper()
	var found [2]url.URL
	for i := range found {
		// by name, because upstream's certificates for the TLS test are issued to it
		found[i] = url.URL{Scheme: "http", Host: fmt.Sprintf("localhost:%d", reservePort(t))}
	}
	return found[0], found[1]
}

// reservePort takes a port below those that the kernel gives to outgoing connections, where nobody listens. No other test
// of this machine gets it until this one ends: e2e/testkit reserves ports by the same sockets.
func reservePort(t testing.TB) int {
	t.Helper()
	for {
		port := 20_000 + rand.IntN(12_000)
		holder, err := net.Listen("unix", fmt.Sprintf("@kubebrain-test-port-%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatalf("reserve a port: %v", err)
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			t.Cleanup(func() { holder.Close() })
			listener.Close()
			return port
		}
		holder.Close()
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatalf("find a free port: %v", err)
		}
	}
}

func arguments(t testing.TB, cfg *embed.Config) []string {
	t.Helper()
	refuseUnknownSettings(t, cfg)
	args := []string{
		"--name=" + cfg.Name,
		"--data-dir=" + cfg.Dir,
		"--listen-client-urls=" + joined(onLoopback(cfg.ListenClientUrls)),
		"--advertise-client-urls=" + joined(cfg.AdvertiseClientUrls),
		"--listen-peer-urls=" + joined(onLoopback(cfg.ListenPeerUrls)),
		"--initial-advertise-peer-urls=" + joined(cfg.AdvertisePeerUrls),
		"--initial-cluster=" + cfg.InitialCluster,
	}
	if cfg.WatchProgressNotifyInterval > 0 {
		args = append(args, "--watch-progress-notify-interval="+cfg.WatchProgressNotifyInterval.String())
	}
	tls := cfg.ClientTLSInfo
	for flag, file := range map[string]string{
		"--cert-file=": tls.CertFile, "--key-file=": tls.KeyFile, "--trusted-ca-file=": tls.TrustedCAFile,
	} {
		if file != "" {
			args = append(args, flag+file)
		}
	}
	if tls.ClientCertAuth {
		args = append(args, "--client-cert-auth")
	}
	return args
}

// The settings that arguments knows are equal in both; what differs then would be lost.
func refuseUnknownSettings(t testing.TB, cfg *embed.Config) {
	t.Helper()
	known := map[string]bool{
		"Name": true, "Dir": true, "ListenClientUrls": true, "AdvertiseClientUrls": true, "ListenPeerUrls": true,
		"AdvertisePeerUrls": true, "InitialCluster": true, "WatchProgressNotifyInterval": true, "ClientTLSInfo": true,
	}
	fresh, given := reflect.ValueOf(embed.NewConfig()).Elem(), reflect.ValueOf(cfg).Elem()
	for i := range given.NumField() {
		field := given.Type().Field(i)
		if !field.IsExported() || known[field.Name] || field.Type.Kind() == reflect.Func {
			continue
		}
		if was, is := fresh.Field(i).Interface(), given.Field(i).Interface(); !reflect.DeepEqual(was, is) {
			t.Fatalf("the test sets %s to %v (default %v), which is not handed to the server", field.Name, is, was)
		}
	}
}

// Servers listen on addresses; only what they advertise may be a name.
func onLoopback(urls []url.URL) []url.URL {
	numeric := make([]url.URL, len(urls))
	for i, each := range urls {
		numeric[i] = url.URL{Scheme: each.Scheme, Host: net.JoinHostPort("127.0.0.1", each.Port())}
	}
	return numeric
}

func joined(urls []url.URL) string {
	all := make([]string, 0, len(urls))
	for _, each := range urls {
		all = append(all, each.String())
	}
	return strings.Join(all, ",")
}

// start returns when the server is ready. The kernel sends the death signal when the thread ends that started the
// process, so one thread does nothing but start it and wait for its end.
func start(t testing.TB, args []string) {
	t.Helper()
	path := os.Getenv(binary)
	if path == "" {
		t.Fatalf("%s does not name the server to test", binary)
	}
	ctx, kill := context.WithCancel(context.Background())
	output, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		command := exec.CommandContext(ctx, path, args...)
		command.Stdout, command.Stderr = writer, writer
		command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err := command.Start()
		writer.Close()
		started <- err
		if err == nil {
			ended <- command.Wait()
		}
	}()
	if err := <-started; err != nil {
		kill()
		t.Fatalf("start the server: %v", err)
	}

	said := &log{}
	isReady := said.follow(output)
	t.Cleanup(func() {
		kill()
		err := <-ended
		said.wait()
		if killed(err) {
			return
		}
		t.Errorf("the server ended by itself: %v\n%s", err, said)
	})
	select {
	case <-isReady:
	case err := <-ended:
		ended <- err
		said.wait()
		t.Fatalf("the server ended before it was ready: %v\n%s", err, said)
	case <-time.After(startTimeout):
		t.Fatalf("the server was not ready within %v\n%s", startTimeout, said)
	}
}

func killed(err error) bool {
	exit, ok := err.(*exec.ExitError)
	if !ok {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// The last lines that the server wrote.
type log struct {
	mutex sync.Mutex
	lines []string
	done  sync.WaitGroup
}

func (l *log) follow(output *os.File) <-chan struct{} {
	isReady := make(chan struct{})
	l.done.Add(1)
	go func() {
		defer l.done.Done()
		defer output.Close()
		var once sync.Once
		reader := bufio.NewReader(output)
		for {
			line, err := reader.ReadString('\n')
			if strings.Contains(line, ready) {
				once.Do(func() { close(isReady) })
			}
			l.add(line)
			if err != nil {
				return
			}
		}
	}()
	return isReady
}

func (l *log) add(line string) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.lines = append(l.lines, line); len(l.lines) > keptLines {
		l.lines = l.lines[1:]
	}
}

func (l *log) wait() { l.done.Wait() }

func (l *log) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return fmt.Sprintf("its last lines:\n%s", strings.Join(l.lines, ""))
}
