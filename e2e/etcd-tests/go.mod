module kubebrain.io/e2e/etcd-tests

go 1.26.0

require go.etcd.io/etcd/tests/v3 v3.6.16
