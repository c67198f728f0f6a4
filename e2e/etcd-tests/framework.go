// Package tests brings etcd's own tests, which are built from their module.
package tests

import _ "go.etcd.io/etcd/tests/v3/framework"
