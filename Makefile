# The commands a newcomer types; CMakeLists.txt is the build.
BUILD ?= build
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local

.PHONY: all deps demo test bench fuzz install format clean

all: $(BUILD)/CMakeCache.txt
	cmake --build $(BUILD) -j $(JOBS)

$(BUILD)/CMakeCache.txt:
	scripts/deps.sh
	cmake -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX)

deps:
	scripts/deps.sh

demo: all
	$(BUILD)/cli/pith demo

test:
	scripts/test.sh

bench: all
	scripts/bench.sh $(if $(PEER),--peer $(PEER))

fuzz:
	scripts/fuzz.sh

install: all
	cmake --install $(BUILD)

format:
	git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	rm -rf build build-*
