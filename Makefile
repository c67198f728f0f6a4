# Thin: what there is to know is in the programs that are called.

export CARGO_TARGET_DIR ?= $(CURDIR)/target

# Two profiles. What is tested is built as plain `cargo test` builds it: quickly, with debug assertions, and linked dynamically, so that
# libfaketime can change the time of day of a program. Programs, tests, lints and docs share one build of each dependency.
TESTS := --locked --workspace --lib --bins --tests
TESTED := $(CARGO_TARGET_DIR)/debug
TESTED_CLUSTER := $(TESTED)/kubebrain-e2e cluster

# What is put into images and measured is optimised, and linked statically, because images hold nothing else. Names of source
# files do not say where this machine keeps crates and what it builds; those of this repository are relative anyway.
TARGET := $(shell rustc -vV | sed -n 's/^host: //p')
CRATES := $(or $(CARGO_HOME),$(HOME)/.cargo)
RELEASE_RUSTFLAGS := -C target-feature=+crt-static --remap-path-prefix=$(CRATES)=/cargo --remap-path-prefix=$(CARGO_TARGET_DIR)=/target
RELEASE := RUSTFLAGS='$(RELEASE_RUSTFLAGS)' cargo
RELEASE_FLAGS := --release --locked --target $(TARGET)
PROGRAMS := $(CARGO_TARGET_DIR)/$(TARGET)/release
E2E := $(PROGRAMS)/kubebrain-e2e
CLUSTER := $(E2E) cluster

MDBOOK_VERSION := 0.5.4
MDBOOK := $(CARGO_TARGET_DIR)/tools/mdbook-$(MDBOOK_VERSION)

# The book is built from a copy of its pages, with the same paths: links between docs and the pages outside of it work in both.
BOOK := $(CARGO_TARGET_DIR)/book-sources
BOOK_PAGES := docs examples manifests/yaml/samples manifests/monitoring/dashboard.json \
    $(addsuffix .md,README ARCHITECTURE CONTRIBUTING SECURITY CHANGELOG operator/README brain/net/README e2e/bench/README)

.DEFAULT_GOAL := help
.PHONY: help build tests unit integration release-tools check fmt clippy docs deny test test-long e2e fuzz chaos manifests reference demo demo-programs demo-down bench bench-allocations bench-kubernetes bench-tikv bench-operator release differential soak test-argocd test-upgrade tools run-e2e run-others run-beside

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do printf '%-17s %s\n' "$$name" "$$what"; done

build: ## Build all programs, as they are put into images
	$(RELEASE) build $(RELEASE_FLAGS) --workspace

check: fmt clippy docs deny ## Formatting, lints, documentation, licences and sources of crates

fmt:
	cargo fmt --all --check

clippy:
	cargo clippy --locked --workspace --all-targets -- -D warnings

docs: $(MDBOOK)/bin/mdbook ## Build the documentation: of the crates in target/doc, the book in target/book
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps
	rm -rf $(BOOK) && mkdir -p $(BOOK)
	cp --parents -R $(BOOK_PAGES) $(BOOK)
	mv $(BOOK)/docs/book.toml $(BOOK)
	sed 's|](|](docs/|; s|](docs/\.\./|](|' $(BOOK)/docs/SUMMARY.md > $(BOOK)/SUMMARY.md && rm $(BOOK)/docs/SUMMARY.md
	$(MDBOOK)/bin/mdbook build --dest-dir $(CARGO_TARGET_DIR)/book $(BOOK)

# A program of its own, not a dependency of the workspace: built once for each version, in a directory that cargo removes.
$(MDBOOK)/bin/mdbook:
	env -u CARGO_TARGET_DIR cargo install --quiet --locked --version =$(MDBOOK_VERSION) --no-default-features --features search --root $(MDBOOK) mdbook

# With a copy of RustSec's advisory database, if ADVISORY_DB names one.
deny:
	cargo run --locked --package supply-chain -- check

# Programs and tests in one go: the tests' own dependencies change features of shared ones, which are then built once.
tests:
	cargo build $(TESTS)

tools: tests ## Install and build everything that clusters and tests need
	$(TESTED_CLUSTER) tools

release-tools: build
	$(CLUSTER) tools

# Unit tests first: they use all processors, and their deadlines are the shortest. The end-to-end tests wait for each other's Kubernetes often
# enough that those of the server as a program run beside them. These end long before, and some of them hold elections, whose deadlines do not
# wait for a processor: fewer at a time. Targets that BESIDE names get what all these leave of the processor.
BESIDE ?=
test: tools ## All tests, from unit to end-to-end
	$(MAKE) --no-print-directory run-others OTHERS='$(UNIT)'; units=$$?; \
	$(MAKE) --no-print-directory --keep-going --jobs 3 OTHER_THREADS=2 OTHERS='$(INTEGRATION)' run-others run-e2e $(if $(BESIDE),run-beside) && exit $$units

# Cargo lets one command at a time build: after those that run tests have begun.
run-beside: run-others
	nice -n 19 $(MAKE) --no-print-directory $(BESIDE)

# The tests named "e2e" need the rest: root, Go, a Kubernetes. The others wait, for clocks and for storage that does not answer, as often as
# they compute: several binaries run at a time.
UNIT := --lib --bins
INTEGRATION := --test it --test slot_model
OTHERS := $(UNIT) $(INTEGRATION)
BUILT_TESTS := $(CARGO_TARGET_DIR)/tests.json
# The number of tests of one binary at a time: most of the time they wait.
OTHER_THREADS ?= 8
run-others:
	cargo test --no-run --locked --workspace --message-format=json-render-diagnostics $(OTHERS) > $(BUILT_TESTS)
	$(TESTED)/kubebrain-run-tests -- --test-threads $(OTHER_THREADS) $(TEST_ARGS) < $(BUILT_TESTS)

# The number of end-to-end tests at a time. They start whole clusters, which slow each other down.
THREADS ?= 3
run-e2e:
	cargo test --locked --workspace --test e2e -- --test-threads $(THREADS) $(TEST_ARGS); status=$$?; $(TESTED_CLUSTER) down --tests || status=1; exit $$status

unit: tests ## The tests of each crate by itself, in a minute or two: no root, no Go, no Kubernetes
	$(MAKE) --no-print-directory run-others OTHERS='$(UNIT)'

integration: tests ## The tests of the server as a program, alone and beside a mock of TiKV: no root, no Go, no Kubernetes
	$(MAKE) --no-print-directory run-others OTHERS='$(INTEGRATION)'

test-long: export KUBEBRAIN_REQUESTS := 500000
test-long: export KUBEBRAIN_KILLS := 100
test-long: export KUBEBRAIN_LONG := 1
test-long: export KUBEBRAIN_MOMENTS := 50
test-long: export KUBEBRAIN_ARCHIVE_ROUNDS := 100
test-long: export KUBEBRAIN_ROUNDS := 200
test-long: export PROPTEST_CASES := 10000
# What needs a server of its own is named where it stands.
test-long: export TEST_ARGS := --include-ignored --skip real_etcd_answers_like_the_model --skip argocd:: --skip operator::numbers:: --skip last_release:: --skip write_the_fixture
test-long: test ## The same with long parameters

e2e: tools run-e2e ## Only the end-to-end tests

# A cluster of its own, in which Argo CD installs the operator.
test-argocd: tools ## A real Argo CD syncs, heals, upgrades and prunes clusters of brains
	cargo test --locked --workspace --test e2e -- --include-ignored --nocapture argocd::; status=$$?; $(TESTED_CLUSTER) down --tests || status=1; exit $$status

# The commit of the last release. Its programs are built in a directory of their own, once.
RELEASED := f61deedd4051e72b9e66b4883e3dae3d8a30f7d7
RELEASE_SOURCE := $(CARGO_TARGET_DIR)/released-$(RELEASED)
test-upgrade: tools ## Upgrade installations of the last release, built from its commit, to this version
	test -d $(RELEASE_SOURCE) || git worktree add --force --detach $(RELEASE_SOURCE) $(RELEASED)
	env -u CARGO_TARGET_DIR cargo build --locked --manifest-path $(RELEASE_SOURCE)/Cargo.toml --package brain --package operator --bins
	KUBEBRAIN_RELEASE=$(RELEASE_SOURCE) cargo test --locked --workspace --test e2e -- --ignored --nocapture last_release::; status=$$?; $(TESTED_CLUSTER) down --tests || status=1; exit $$status

FUZZ ?= 60
fuzz: ## Try damaged input on everything that reads it, FUZZ=60 seconds each
	KUBEBRAIN_FUZZ_SECONDS=$(FUZZ) $(RELEASE) test $(RELEASE_FLAGS) -p brain --lib -- --test-threads 2 fuzzing::

ROUNDS ?= 20
chaos: tests ## Break three brains on TiKV in ROUNDS=20 rounds, from SEED if given
	$(TESTED)/kubebrain-chaos --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED)) --with-clock $(TESTED)/kubebrain

N ?= 10000000
differential: release-tools ## Compare a brain with etcd in N=10000000 random requests, from SEED if given
	$(PROGRAMS)/kubebrain-differential --requests $(N) $(if $(SEED),--seed $(SEED))

MINUTES ?= 60
soak: build ## MINUTES=60 of steady load on a brain: memory, disk and latency must be flat
	$(PROGRAMS)/kubebrain-soak --minutes $(MINUTES)

manifests: tests ## Write the install files that are derived: the definition, install.yaml, copies of rules, alerts and scripts
	$(TESTED)/manifests

reference: tests ## Write the pages of docs/reference that are derived: flags, metrics, and the resource
	$(TESTED)/reference

# Of these packages alone: benchmarks, chaos and tests need crates that a cluster does not. Their profile optimises less than a release: a
# demo is not measured.
DEMO_PACKAGES := brain operator kubectl-kubebrain e2e-cluster
DEMO_PROGRAMS := kubebrain kubebrain-operator kubectl-kubebrain kubebrain-e2e-pod
DEMO_E2E := $(CARGO_TARGET_DIR)/$(TARGET)/demo/kubebrain-e2e
DEMO_BUILD := $(RELEASE) build --profile demo --locked --target $(TARGET) $(addprefix --package ,$(DEMO_PACKAGES))
.PHONY: demo-e2e demo-tools
demo-e2e:
	$(DEMO_BUILD) --bin kubebrain-e2e

demo-programs: demo-e2e
	$(DEMO_BUILD) $(addprefix --bin ,$(DEMO_PROGRAMS))

demo-tools: demo-e2e
	$(DEMO_E2E) cluster tools --clusters

# Compilers of Rust and of Go have phases on one processor: the others fill them.
demo: ## From nothing to an API server on a brain that the operator made
	$(MAKE) --no-print-directory --jobs 2 demo-programs demo-tools
	$(DEMO_E2E) cluster demo

demo-down: ## End the demo
	@test -x $(DEMO_E2E) || $(MAKE) demo-e2e
	$(DEMO_E2E) cluster down

# FLAGS are those of `kubebrain-bench`, such as --clients, --keys 1000000, --pods 20000, --nodes 100000, --markdown FILE, --plots DIR.
bench: release-tools ## Brain and etcd side by side; FLAGS='--clients', '--pods 20000' and others say what, and what is written
	$(PROGRAMS)/kubebrain-bench $(FLAGS)

NODES ?= 200
PODS ?= 3000
# Other flags are those of `kubebrain-bench-kubernetes`, such as --stores kubebrain,etcd. It builds the Go programs that it needs.
bench-kubernetes: build ## A Kubernetes of NODES=200 and PODS=3000 that kwok plays, on a brain, etcd and kine in turn; FLAGS='--markdown FILE'
	$(PROGRAMS)/kubebrain-bench-kubernetes --nodes $(NODES) --pods $(PODS) $(FLAGS)

# Counts are nearly the same without optimisation, and names of functions are better.
bench-allocations: ## What a request allocates; STACKS=updates, gets or events says where
	cargo bench --locked --workspace --profile dev --bench allocations

bench-tikv: build ## Brains on TiKV: the mock, or the cluster that TIKV_PD names
	$(RELEASE) bench $(subst --release,,$(RELEASE_FLAGS)) --workspace --bench slots
	$(PROGRAMS)/kubebrain-bench --takeover 1000,1000000 --rounds 5
	$(PROGRAMS)/kubebrain-bench --tikv 60

# What a release consists of. Rust's standard library for another architecture comes from rustup, its linker from Debian.
ARCHS ?= amd64 arm64
TARGET_OF_amd64 := x86_64-unknown-linux-gnu
TARGET_OF_arm64 := aarch64-unknown-linux-gnu
release: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER ?= aarch64-linux-gnu-gcc
release: ## Images, programs, SBOMs, chart and checksums for ARCHS='amd64 arm64', in target/dist
	for arch in $(ARCHS); do $(MAKE) --no-print-directory release-programs-$$arch || exit 1; done
	cargo run --locked --package release -- --target-dir $(CARGO_TARGET_DIR) --out $(CARGO_TARGET_DIR)/dist $(ARCHS:%=--arch %)

release-programs-%:
	@test -d "$$(rustc --print target-libdir --target $(TARGET_OF_$*))" || rustup target add $(TARGET_OF_$*) \
	    || { echo "no standard library of Rust for $*: make release ARCHS=... leaves it out" >&2; exit 1; }
	$(RELEASE) build --release --locked --target $(TARGET_OF_$*) --package brain --package operator --package kubectl-kubebrain --bin kubebrain --bin kubebrain-operator --bin kubectl-kubebrain

bench-operator: release-tools ## The operator: idle, with many clusters, hand-overs; on the mock of TiKV or the cluster that TIKV_PD names
	$(RELEASE) test $(RELEASE_FLAGS) --workspace --test e2e -- --include-ignored --nocapture --test-threads 1 operator::numbers::; status=$$?; $(CLUSTER) down --tests || status=1; exit $$status
