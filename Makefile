# Thin: what there is to know is in the programs that are called.

TARGET := $(shell rustc -vV | sed -n 's/^host: //p')
# One profile for what is tested, put into images and measured. Linked statically, because images hold nothing else. Names of source
# files do not say where this machine keeps crates and what it builds; those of this repository are relative anyway.
export CARGO_TARGET_DIR ?= $(CURDIR)/target
CRATES := $(or $(CARGO_HOME),$(HOME)/.cargo)
export RUSTFLAGS := -C target-feature=+crt-static --remap-path-prefix=$(CRATES)=/cargo --remap-path-prefix=$(CARGO_TARGET_DIR)=/target
CARGO_FLAGS := --release --locked --target $(TARGET)
PROGRAMS := $(CARGO_TARGET_DIR)/$(TARGET)/release
E2E := $(PROGRAMS)/kubebrain-e2e
CLUSTER := $(E2E) cluster
# Linked dynamically, because libfaketime cannot change the time of day of a static program; with debug assertions.
export KUBEBRAIN_DYNAMIC := $(CARGO_TARGET_DIR)/debug/kubebrain

.DEFAULT_GOAL := help
.PHONY: help build all-targets dynamic check fmt clippy docs deny unit test test-long e2e fuzz chaos manifests demo demo-programs demo-down bench bench-tikv bench-operator differential soak test-argocd tools

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do printf '%-15s %s\n' "$$name" "$$what"; done

build: ## Build all programs
	cargo build $(CARGO_FLAGS) --workspace

check: fmt clippy docs deny ## Formatting, lints, documentation, licences and sources of crates

fmt:
	cargo fmt --all --check

clippy:
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings

docs:
	RUSTDOCFLAGS='-D warnings' cargo doc $(CARGO_FLAGS) --workspace --no-deps

# With a copy of RustSec's advisory database, if ADVISORY_DB names one.
deny:
	cargo run $(CARGO_FLAGS) --package supply-chain -- check

# Programs and tests in one go: the tests' own dependencies change features of shared ones, which are then built once.
all-targets:
	cargo build $(CARGO_FLAGS) --workspace --all-targets

dynamic:
	RUSTFLAGS= cargo build --locked -p brain

tools: all-targets dynamic ## Install and build everything that clusters and tests need
	$(CLUSTER) tools

test: tools ## All tests, from unit to end-to-end
	cargo test $(CARGO_FLAGS) --no-fail-fast --workspace $(TEST_ARGS); status=$$?; $(CLUSTER) down --tests || status=1; exit $$status

# The tests named "e2e" need the rest: root, Go, a Kubernetes.
unit: ## The tests that need nothing but Rust: no root, no Go, no Kubernetes
	cargo test $(CARGO_FLAGS) --no-fail-fast --workspace --lib --bins --test it --test slot_model

test-long: export KUBEBRAIN_REQUESTS := 500000
test-long: export KUBEBRAIN_KILLS := 100
test-long: export KUBEBRAIN_LONG := 1
test-long: export KUBEBRAIN_ROUNDS := 200
test-long: export PROPTEST_CASES := 10000
# What needs a server of its own is named where it stands.
test-long: export TEST_ARGS := -- --include-ignored --skip real_etcd_answers_like_the_model --skip argocd:: --skip operator::numbers:: --skip write_the_fixture
test-long: test ## The same with long parameters

e2e: tools ## Only the end-to-end tests
	cargo test $(CARGO_FLAGS) --no-fail-fast --workspace --test e2e; status=$$?; $(CLUSTER) down --tests || status=1; exit $$status

# A cluster of its own, in which Argo CD installs the operator.
test-argocd: tools ## A real Argo CD syncs, heals, upgrades and prunes clusters of brains
	cargo test $(CARGO_FLAGS) --workspace --test e2e -- --include-ignored --nocapture argocd::; status=$$?; $(CLUSTER) down --tests || status=1; exit $$status

FUZZ ?= 60
fuzz: ## Try damaged input on everything that reads it, FUZZ=60 seconds each
	KUBEBRAIN_FUZZ_SECONDS=$(FUZZ) cargo test $(CARGO_FLAGS) -p brain --lib -- --test-threads 2 fuzzing::

ROUNDS ?= 20
chaos: all-targets dynamic ## Break three brains on TiKV in ROUNDS=20 rounds, from SEED if given
	$(E2E) chaos --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED)) --with-clock $(KUBEBRAIN_DYNAMIC)

N ?= 10000000
differential: tools ## Compare a brain with etcd in N=10000000 random requests, from SEED if given
	$(E2E) differential --requests $(N) $(if $(SEED),--seed $(SEED))

MINUTES ?= 60
soak: build ## MINUTES=60 of steady load on a brain: memory, disk and latency must be flat
	$(E2E) soak --minutes $(MINUTES)

manifests: build ## Render the install YAML
	$(PROGRAMS)/manifests

# The programs of a demo. One small test is built with them, so that features of shared crates are those of all targets: `make test` then
# builds the rest and nothing twice.
DEMO_PROGRAMS := kubebrain kubebrain-operator kubectl-kubebrain kubebrain-e2e kubebrain-e2e-pod
demo-programs:
	cargo build $(CARGO_FLAGS) --workspace $(addprefix --bin ,$(DEMO_PROGRAMS)) --test slot_model

demo: demo-programs ## From nothing to an API server on a brain that the operator made
	$(CLUSTER) demo

demo-down: ## End the demo
	@test -x $(E2E) || $(MAKE) demo-programs
	$(CLUSTER) down

# FLAGS are those of `kubebrain-e2e bench`, such as --clients, --keys 1000000, --markdown FILE, --plots DIR.
bench: tools ## Brain and etcd side by side; FLAGS='--clients' and others say what, and what is written
	$(E2E) bench $(FLAGS)

bench-tikv: all-targets ## Brains on TiKV: the mock, or the cluster that TIKV_PD names
	cargo bench $(subst --release,,$(CARGO_FLAGS)) --workspace --bench slots
	$(E2E) bench --takeover 1000,1000000 --rounds 5
	$(E2E) bench --tikv 60

bench-operator: tools ## The operator: idle, with many clusters, hand-overs; on the mock of TiKV or the cluster that TIKV_PD names
	cargo test $(CARGO_FLAGS) --workspace --test e2e -- --include-ignored --nocapture --test-threads 1 operator::numbers::; status=$$?; $(CLUSTER) down --tests || status=1; exit $$status
