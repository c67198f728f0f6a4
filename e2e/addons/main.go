// CoreDNS with the plugins that the clusters of the tests use: a tenth of the code of its own program, which has those of all clouds.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// In the order in which a request passes them.
	dnsserver.Directives = []string{"ready", "errors", "kubernetes"}
	coremain.Run()
}
