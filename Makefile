# SPDX-License-Identifier: Apache-2.0
# Short names for what people do; CMakePresets.json has the details. ARGS goes to the program: make run ARGS="--port 9000".
.PHONY: build run test asan bench format clean

JOBS ?= $(shell nproc)

build:
	scripts/setup --run
	cmake --preset release
	cmake --build --preset release -j $(JOBS)
	install -m 755 build/release/rorqual build/rorqual

run: build
	./build/rorqual serve $(ARGS)

test:
	scripts/setup --test
	cmake --preset dev
	cmake --build --preset dev -j $(JOBS)
	ctest --preset dev -j $(JOBS)

# AddressSanitizer and UndefinedBehaviorSanitizer over the fast tests.
asan:
	scripts/setup --test
	cmake --preset asan
	cmake --build --preset asan -j $(JOBS)
	ctest --preset asan -j $(JOBS) -L fast

bench:
	scripts/setup --run
	cmake --preset release -DRORQUAL_BENCH=ON
	cmake --build --preset release -j $(JOBS)
	./build/release/bench_operators $(ARGS)

format:
	git ls-files 'src/*.cpp' 'src/*.h' 'tests/*.cpp' 'tests/*.h' 'bench/*.cpp' | xargs clang-format-14 -i

clean:
	rm -rf build
