# The front door. CMake does the building (CMakeLists.txt); this file says which builds there are and what is run on them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all
MAKEFLAGS += --no-builtin-rules

# rustup's usual place, for shells that do not have it; clones in different folders share ccache's entries.
export PATH := $(PATH):$(HOME)/.cargo/bin
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export ASAN_OPTIONS := detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS := print_stacktrace=1

JOBS ?= $(shell nproc)
MODELS := smollm2-135m-instruct gemma3-270m
SOURCES := $(shell git ls-files 'src/*.h' 'src/*.cc' 'src/*.inc' 'tests/*.h' 'tests/*.cc' 'bench/*.h' 'bench/*.cc' 2>/dev/null)

run_ctest = ctest --test-dir $(1) --output-on-failure --no-tests=error -j $(JOBS)

.PHONY: all
all: ## build/lapidary, the release build (the default)
	@tools/bootstrap --check build
	@test -f build/build.ninja || cmake -S . -B build -G Ninja -DLAPIDARY_TESTS=OFF
	@ninja -C build -j $(JOBS) lapidary

.PHONY: reference
reference: ## build/liblapidary_reference.so, the float reference that `lapidary verify` needs (sets up libtorch)
	@tools/bootstrap reference
	@cmake -S . -B build -G Ninja -DLAPIDARY_REFERENCE=ON
	@ninja -C build -j $(JOBS) lapidary lapidary_reference_module

.PHONY: demo
demo: ## From an empty machine to text from a real model: sets up, builds, fetches SmolLM2-135M, runs it
	@tools/bootstrap build
	@$(MAKE) --no-print-directory all
	@tools/fetch_model.py smollm2-135m-instruct
	@tools/demo build/lapidary

.PHONY: test
test: ## All that CI runs: release and sanitizer tests, layer rule, fuzz smoke, real models
	@tools/bootstrap test
	@tools/fetch_model.py $(MODELS)
	@$(MAKE) --no-print-directory build-release build-asan build-tsan build-fuzz
	@mkdir -p build/ci
	@printf 'subdirs("%s")\n' $(CURDIR)/build $(CURDIR)/build-asan $(CURDIR)/build-tsan $(CURDIR)/build-fuzz >build/ci/CTestTestfile.cmake
	@FUZZ_SECONDS=15 $(call run_ctest,build/ci)

.PHONY: build-release
build-release:
	cmake -S . -B build -G Ninja -DLAPIDARY_TESTS=ON -DLAPIDARY_WERROR=ON -DLAPIDARY_REFERENCE=ON
	ninja -C build -j $(JOBS)

.PHONY: build-asan
build-asan:
	cmake -S . -B build-asan -G Ninja -DLAPIDARY_TESTS=ON -DLAPIDARY_WERROR=ON -DLAPIDARY_SANITIZE=ON -DLAPIDARY_REFERENCE=OFF
	ninja -C build-asan -j $(JOBS)

.PHONY: build-tsan
build-tsan:
	cmake -S . -B build-tsan -G Ninja -DLAPIDARY_TESTS=ON -DLAPIDARY_WERROR=ON -DLAPIDARY_TSAN=ON -DLAPIDARY_REFERENCE=OFF
	ninja -C build-tsan -j $(JOBS) serve_test

.PHONY: build-fuzz
build-fuzz:
	cmake -S . -B build-fuzz -G Ninja -DLAPIDARY_TESTS=OFF -DLAPIDARY_FUZZ=ON -DLAPIDARY_REFERENCE=OFF -DCMAKE_CXX_COMPILER=clang++-16
	ninja -C build-fuzz -j $(JOBS) fuzz_targets

.PHONY: quick
quick: build-release ## The release tests only
	$(call run_ctest,build)

.PHONY: fuzz
fuzz: ## Each fuzz target for FUZZ_SECONDS (600); finds end up in build-fuzz/tests/fuzz/NAME/finds
	@tools/bootstrap test
	@$(MAKE) --no-print-directory build-fuzz
	FUZZ_SECONDS=$${FUZZ_SECONDS:-600} $(call run_ctest,build-fuzz)

.PHONY: format
format: ## Formats the C++ sources in place
	@tools/bootstrap dev
	clang-format-16 -i $(SOURCES)

.PHONY: tidy
tidy: build-release ## clang-tidy over the sources
	@tools/bootstrap dev
	run-clang-tidy-16 -quiet -p build -j $(JOBS) '/src/.*\.cc$$'

.PHONY: clean
clean: ## Removes everything that was built (models stay in the user's cache)
	rm -rf build build-asan build-tsan build-fuzz

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile
