# SPDX-License-Identifier: Apache-2.0
# Libraries from the distribution; scripts/setup names each package and why. No download at configure time.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(simdjson REQUIRED)
find_package(CLI11 REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED COMPONENTS core)
find_library(RORQUAL_XXHASH xxhash REQUIRED)
find_library(RORQUAL_ZIP zip REQUIRED)
if(RORQUAL_TESTS)
  find_package(GTest REQUIRED)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()
