# What a developer types. `make` alone lists it.
SHELL := bash
.DEFAULT_GOAL := help
# Several targets are made in the order in which they are named, with one `setup` before them.
.NOTPARALLEL:
.PHONY: help setup demo test test-rust test-python matrix instructions soak chaos leaks nightly cliffs figures bench-peers release lint clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

setup: ## make .venv, or bring it up to date with the checkout (PYTHON=... names another python3)
	ci/setup.sh

demo: setup ## run the examples on four ranks
	ci/demo.sh

test: setup ## all tests: Rust, then Python on 1 to 8 ranks
	ci/test-rust.sh
	ci/test-python.sh

test-rust: ## the Rust tests
	ci/test-rust.sh

test-python: setup ## the Python tests (ARGS="-k async" and the like go to pytest)
	ci/test-python.sh $(ARGS)

matrix: setup ## the TensorFlow tests on old releases too (ARGS=--short: what CI runs)
	ci/tensorflow-matrix.sh $(ARGS)

instructions: ## instruction counts of kernels and small calls against those kept (ARGS=--update: keep these)
	ci/instructions.sh $(ARGS)

soak: ## simulated worlds, then random calls on 2 to 8 ranks, every element checked (ARGS=100000: so many, and 10,000 worlds)
	ci/soak.sh $(ARGS)

chaos: setup ## kill ranks at random moments: every survivor must be told who died and how (ARGS=1000: so many)
	ci/chaos.sh $(ARGS)

leaks: setup ## kill jobs at random moments: nothing may be left of them (ARGS=1000: so many)
	ci/leaks.sh $(ARGS)

nightly: ## Miri and the fuzzer, if a nightly toolchain is there (ARGS=--long: all, ThreadSanitizer and valgrind too)
	ci/nightly.sh $(ARGS)

cliffs: ## measure that twice the bytes take at most three times as long (ARGS="2 4": on so many ranks)
	ci/cliffs.sh $(ARGS)

figures: setup ## measure what is asked in figures beside speed, such as what waiting costs (ARGS="late hog": only these)
	ci/figures.sh $(ARGS)

release: setup ## the wheel to give away, for glibc 2.28 and newer, in dist/
	ci/release-wheel.sh

bench-peers: setup ## time Foldcast beside other libraries (ARGS=--quick: a look; benches/peers/README.md)
	.venv/bin/python benches/peers/compare.py $(ARGS)

lint: setup ## formatting, lints, documentation, lengths of files
	ci/lint.sh

clean: ## remove what the other targets made
	rm -rf .venv build dist target
