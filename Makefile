# Two commands are all it takes on a fresh Debian 12 with Rust, as root: `make demo`, and `make test`.
.DEFAULT_GOAL := help
.PHONY: help setup build release product install uninstall dist demo lab lab-shell lab-down lab-clean test test-core test-faults soak lint deny bench

NODES ?= 2
NODE ?= login
LAB_USER ?= alice
# With KEEP=1 the demo leaves everything up.
KEEP ?=
# The Slurm release that the end-to-end tests run on: 22.05, 24.11 or 26.05.
SLURM ?= 24.11
MINUTES ?= 20

CARGO ?= cargo
# Where the programs to be installed were built.
BUILT ?= target/release
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
NAME := slurm-serve-$(VERSION)
export DESTDIR PREFIX SYSCONFDIR SLURM_CONF_DIR UNITDIR SLURM_VERSION PURGE

export SLURM
export RUST_BACKTRACE ?= 0

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-12s %s\n", $$1, $$2}'

setup: ## Install the build and lab tools that are missing (root, Debian)
	@.ci/setup

build: ## Build everything, for tests
	cargo build --workspace

# The plugin by itself: built together with the rest it would be given features of its dependencies that it has no use for.
release: ## Build the product as it is installed
	cargo build --release -p spank-serve
	cargo build --release -p slurm-serve -p serve-stub-engine -p serve-lab -p serve-e2e

product: ## Build what is installed, and nothing else
	$(CARGO) build --release -p spank-serve
	$(CARGO) build --release -p slurm-serve

install: ## Put in place what `make product` built (DESTDIR, PREFIX, SLURM_VERSION, …; docs/install.md)
	@BUILT=$(BUILT) slurm-conf/install.sh install

uninstall: ## Remove it; Slurm goes on without (PURGE=1: settings and state too)
	@slurm-conf/install.sh uninstall

dist: product ## An archive for nodes without make and compiler: unpack it there, run its slurm-conf/install.sh
	@rm -rf target/dist && mkdir -p target/dist/$(NAME)/bin
	@cp $(BUILT)/slurm-serve $(BUILT)/sserve $(BUILT)/libspank_serve.so target/dist/$(NAME)/bin/
	@cp -r slurm-conf docs README.md CHANGELOG.md LICENSE LICENSE-MIT LICENSE-APACHE target/dist/$(NAME)/
	@tar -C target/dist --owner=0 --group=0 -czf $(NAME).tar.gz $(NAME)
	@echo $(NAME).tar.gz

demo: setup release ## Show the whole path of a served model, with a real Slurm and a real vLLM (KEEP=1 leaves it up)
	@target/release/demo $(if $(KEEP),--keep)

lab: setup release ## A cluster to play with (NODES=4)
	@target/release/demo --keep --no-tour --nodes $(NODES)

lab-shell: ## A shell in the lab (NODE=n1, LAB_USER=root)
	@target/release/lab shell --user $(LAB_USER) $$(target/release/lab list | cut -d' ' -f1 | head -n1) $(NODE)

lab-down: ## Remove every lab: processes, mounts, namespaces, state
	@target/release/lab down --all

lab-clean: ## The same, and the cache of root file systems and vLLM
	@target/release/lab clean

test: setup build ## Unit tests and the end-to-end tests on the lab (SLURM=22.05, 24.11, 26.05)
	cargo test --workspace --no-fail-fast

test-core: setup build ## A few end-to-end tests that stand for the rest (SLURM=…)
	cargo test -p serve-e2e --test cluster -- core

# On every release, one after the other, unless SLURM chooses one; ROW: only scenarios with this in their names.
test-faults: setup build ## Every way a job can end, every part that can die (docs/endings.md; SLURM=…, ROW=…, RECORD=1)
	@failed=; for release in $(if $(filter file default,$(origin SLURM)),22.05 24.11 26.05,$(SLURM)); do \
	    SLURM=$$release target/debug/faults $(if $(RECORD),--record) $(if $(ROW),"$(ROW)") || failed="$$failed $$release"; \
	done; [ -z "$$failed" ] || { echo "failed on$$failed"; exit 1; }

soak: setup build ## The same at random, under load (MINUTES=20, SLURM=…)
	@target/debug/faults soak --minutes $(MINUTES)

lint: ## Formatting and lints, as CI does
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

deny: ## Licences, bans and sources of the dependencies
	cargo deny check bans licenses sources

bench: setup release ## The benchmarks; tables here, JSON in target/bench
	cargo build --release -p serve-bench
	@target/release/bench
